"""ChatProvisionRetryOptions of the source document; validated with the other settings at start."""

from dataclasses import dataclass

from django.conf import settings

from messenger.backoff import Backoff


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """How the retry job works; times are seconds."""

    polling_interval: float
    batch_size: int
    max_attempts: int
    max_run_duration: float
    lock_ttl: float
    stuck_after: float
    backoff: Backoff

    @classmethod
    def from_settings(cls) -> "RetryOptions":
        """The options of this installation."""
        return cls(
            polling_interval=settings.PROVISION_RETRY_POLLING_INTERVAL,
            batch_size=settings.PROVISION_RETRY_BATCH_SIZE,
            max_attempts=settings.PROVISION_RETRY_MAX_ATTEMPTS,
            max_run_duration=settings.PROVISION_RETRY_MAX_RUN_DURATION,
            lock_ttl=settings.PROVISION_RETRY_LOCK_TTL,
            stuck_after=settings.PROVISION_RETRY_STUCK_AFTER,
            backoff=Backoff(
                base=settings.PROVISION_RETRY_BACKOFF_BASE,
                cap=settings.PROVISION_RETRY_BACKOFF_CAP,
                factor=settings.PROVISION_RETRY_BACKOFF_FACTOR,
            ),
        )
