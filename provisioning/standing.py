"""Where a provision stands with the retry job, by the database's clock: the one definition people are shown.

* ready: the chat is there;
* poison: Failed with no attempts left, passed over by the job until a person re-enqueues it (source document,
  «Poison item»);
* stuck: in Provisioning without progress for StuckProvisioningAfter; the job takes it up, whatever its attempts;
* waiting: everything else, Failed with attempts left or a first attempt at work; it moves by itself.
"""

from datetime import timedelta
from typing import Any

from django.db.models import Case, DateTimeField, F, Q, QuerySet, TextChoices, Value, When
from django.db.models.functions import Greatest, Now

from provisioning.models import DealChatProvision, ProvisionStatus
from provisioning.options import RetryOptions


class Standing(TextChoices):
    """Every provision has one of these."""

    WAITING = "waiting", "waiting"
    STUCK = "stuck", "stuck"
    POISON = "poison", "poison"
    READY = "ready", "ready"


def condition(standing: Standing, options: RetryOptions) -> Q:
    """The rows of `standing`, as a filter."""
    exhausted = Q(attempts__gte=options.max_attempts)
    overdue = Q(updated_at__lte=Now() - timedelta(seconds=options.stuck_after))
    failed, at_work = Q(status=ProvisionStatus.FAILED), Q(status=ProvisionStatus.PROVISIONING)
    return {
        Standing.READY: Q(status=ProvisionStatus.READY),
        Standing.POISON: failed & exhausted,
        Standing.STUCK: at_work & overdue,
        Standing.WAITING: (failed & ~exhausted) | (at_work & ~overdue),
    }[standing]


def with_standing(found: QuerySet[DealChatProvision], options: RetryOptions) -> QuerySet[DealChatProvision]:
    """`found` with `standing`, `taken_up_at` (when the job takes the row at the earliest; null: never) and
    `database_now`."""
    whens: list[Any] = [When(condition(each, options), then=Value(each.value)) for each in Standing]
    stuck_at = F("updated_at") + timedelta(seconds=options.stuck_after)
    return found.annotate(
        standing=Case(*whens),
        taken_up_at=Case(
            When(condition(Standing.POISON, options), then=None),
            When(status=ProvisionStatus.FAILED, then=F("next_attempt_at")),
            When(status=ProvisionStatus.PROVISIONING, then=Greatest(F("next_attempt_at"), stuck_at)),
            default=None,
            output_field=DateTimeField(),
        ),
        database_now=Now(),
    )


def standing_of(row: DealChatProvision) -> Standing:
    """What `with_standing` found."""
    return Standing(vars(row)["standing"])
