"""Re-enqueueing in the admin, and what the job does next with a provision, in words."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.db.backends.utils import CursorWrapper

from messenger.admin import now_of
from messenger.admin_actions import ConfirmedAction, Done, Step
from messenger.admin_display import NOTHING, printable
from messenger.ages import in_words
from provisioning.models import DealChatProvision
from provisioning.options import RetryOptions
from provisioning.reenqueue import WHY_NOT, Outcome, reenqueue
from provisioning.standing import Standing, standing_of


def next_attempt(row: DealChatProvision) -> str:
    """When the job takes `row` up, in words."""
    if standing_of(row) is Standing.POISON:
        return "never: re-enqueue"
    due = vars(row)["taken_up_at"]
    if due is None:
        return NOTHING
    late = now_of(row) - due
    if late < timedelta(0):
        return f"in {in_words(-late)}"
    # Rows due for longer than a tick or two say that no job is at work.
    return (
        "due" if late.total_seconds() < RetryOptions.from_settings().polling_interval else f"due for {in_words(late)}"
    )


class Reenqueue(ConfirmedAction[DealChatProvision]):
    """A poison row gets its attempts back and is due now (source document, runbook table)."""

    name = "reenqueue"
    permission = "provisioning.reenqueue_dealchatprovision"
    verb = "Re-enqueue"
    explanation = (
        "The retry job has given up on poison rows. Re-enqueued, they are tried again from the first attempt on, "
        "at its next tick; mend what their last error tells of first, or they end here again. "
        "All other rows are left alone."
    )
    log_message = "Re-enqueued: attempts set to 0, next attempt now."

    def done(self) -> str:
        interval = RetryOptions.from_settings().polling_interval
        return f"re-enqueued. The retry job takes them up at its next tick, every {interval:g} s."

    def step(self, row: DealChatProvision) -> Step:
        standing = standing_of(row)
        if standing is not Standing.POISON:
            soon = f" ({next_attempt(row)})" if vars(row)["taken_up_at"] else ""
            return Step(standing.label, f"Left alone: {WHY_NOT[standing]}{soon}.", goes=False)
        return Step(
            f"{standing.label} after {row.attempts} attempts: {printable(row.last_error or 'no error noted')}",
            f"Tried again: attempts {row.attempts} → 0, next attempt now.",
            goes=True,
            version=str(row.row_version),
        )

    def perform(
        self, cursor: CursorWrapper, versions: Mapping[Any, str], *, username: str, answers: Mapping[str, Any]
    ) -> Sequence[Done]:
        # A version that is none is one of no row.
        wanted = {key: int(version) if version.isdecimal() else -1 for key, version in versions.items()}
        verdicts = reenqueue(wanted=wanted, options=RetryOptions.from_settings())
        return [
            Done(
                verdict.id,
                f"deal {verdict.deal_id}" if verdict.deal_id else str(verdict.id),
                None if verdict.outcome is Outcome.REENQUEUED else verdict.says,
            )
            for verdict in verdicts
        ]
