"""Re-enqueueing by hand: a poison row gets its attempts back and is due now (source document, runbook table).

Its status stays Failed, which the job takes up like any other. Nothing but poison rows is ever touched.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from django.conf import settings
from django.db.models import F
from django.db.models.functions import Now

from messenger.database import unit_of_work
from provisioning.models import DealChatProvision
from provisioning.options import RetryOptions
from provisioning.standing import Standing, condition, standing_of, with_standing

STEP = 500
"""Rows of one transaction when all poison rows are re-enqueued."""

WHY_NOT = {
    Standing.READY: "its chat is ready",
    Standing.WAITING: "waiting, and tried again by itself",
    Standing.STUCK: "stuck, and taken up by itself",
}
"""Why a row that is not poison is left alone."""


CHANGED = "changed since the confirmation was shown"
BUSY = "somebody is at work on it at this moment"
GONE = "not there any more"


class Outcome(StrEnum):
    """What became of one row."""

    REENQUEUED = "re-enqueued"
    LEFT_ALONE = "left alone"
    """It is not poison."""
    CHANGED = "changed"
    """It is not the row that was confirmed any more."""
    BUSY = "busy"
    """Somebody, most likely the job, is at work on it at this moment."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one row, and what a person is told of it. `deal_id` is None if there is no such row."""

    id: UUID
    deal_id: UUID | None
    outcome: Outcome
    says: str
    attempts: int = 0


def reenqueue(*, wanted: Mapping[UUID, int | None], options: RetryOptions, dry_run: bool = False) -> list[Verdict]:
    """Re-enqueue the poison rows among `wanted` (row_version by id; None: whatever the version).

    Wants a transaction of the caller's. Waits for nobody: a row that is locked is reported as busy. A verdict for
    each row, in the order of their ids.
    """
    found = with_standing(DealChatProvision.objects.filter(pk__in=wanted), options).order_by("pk")
    locked = {row.id: row for row in found.select_for_update(skip_locked=True)}
    elsewhere = DealChatProvision.objects.filter(pk__in=wanted.keys() - locked.keys())
    verdicts = [_verdict(row, wanted[row.id]) for row in locked.values()]
    verdicts += [_busy(row) for row in elsewhere]
    verdicts += [_gone(row_id) for row_id in wanted.keys() - {verdict.id for verdict in verdicts}]
    if not dry_run:
        DealChatProvision.objects.filter(
            pk__in=[verdict.id for verdict in verdicts if verdict.outcome is Outcome.REENQUEUED]
        ).update(attempts=0, next_attempt_at=Now(), updated_at=Now(), row_version=F("row_version") + 1)
    return sorted(verdicts, key=lambda verdict: verdict.id)


def reenqueue_all(*, options: RetryOptions, dry_run: bool = False) -> Iterator[Verdict]:
    """Re-enqueue every row that is poison now, STEP rows a transaction; yields what became of each after its commit."""
    last = UUID(int=0)
    poison = DealChatProvision.objects.filter(condition(Standing.POISON, options)).order_by("pk")
    while ids := list(poison.filter(pk__gt=last).values_list("pk", flat=True)[:STEP]):
        yield from reenqueue_these(wanted=dict.fromkeys(ids), options=options, dry_run=dry_run)
        last = ids[-1]


def reenqueue_these(
    *, wanted: Mapping[UUID, int | None], options: RetryOptions, dry_run: bool = False
) -> list[Verdict]:
    """`reenqueue` in a transaction of its own."""
    with unit_of_work(
        lock_timeout=settings.CONSUMER_LOCK_TIMEOUT, statement_timeout=settings.CONSUMER_STATEMENT_TIMEOUT
    ):
        return reenqueue(wanted=wanted, options=options, dry_run=dry_run)


def _verdict(row: DealChatProvision, version: int | None) -> Verdict:
    if version is not None and row.row_version != version:
        return Verdict(row.id, row.deal_id, Outcome.CHANGED, CHANGED, row.attempts)
    standing = standing_of(row)
    if standing is not Standing.POISON:
        return Verdict(row.id, row.deal_id, Outcome.LEFT_ALONE, WHY_NOT[standing], row.attempts)
    return Verdict(row.id, row.deal_id, Outcome.REENQUEUED, f"attempts {row.attempts} -> 0, due now", row.attempts)


def _busy(row: DealChatProvision) -> Verdict:
    return Verdict(row.id, row.deal_id, Outcome.BUSY, BUSY, row.attempts)


def _gone(row_id: UUID) -> Verdict:
    return Verdict(row_id, None, Outcome.GONE, GONE)
