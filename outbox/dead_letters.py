"""Dead-lettering: a row of `dead_letters` and an outbox row for the DLQ topic, in one transaction."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.backends.utils import CursorWrapper

from messenger import metrics
from messenger.database import rows
from messenger.envelope import Refused
from messenger.faults import MessengerError, clip
from messenger.logs import get_logger
from messenger.records import Headers, Record
from messenger.topics import dead_letter_topic
from outbox.headers import to_json
from outbox.outgoing import Message, enqueue

log = get_logger(__name__)

# The same record again (a redelivery) changes nothing. Another record at the same place means that the topic
# was made anew: the row then tells of the newer one; the older one is in the DLQ topic already.
_INSERT = """
INSERT INTO messenger.dead_letters AS dead
       (consumer_group, topic, "partition", "offset", key, value, headers, error_code, error_detail)
SELECT row.* FROM unnest(%s::varchar[], %s::varchar[], %s::integer[], %s::bigint[], %s::bytea[], %s::bytea[],
                         %s::jsonb[], %s::varchar[], %s::varchar[]) AS row
ON CONFLICT ON CONSTRAINT ux_dead_letters_source DO UPDATE
   SET key = excluded.key, value = excluded.value, headers = excluded.headers, error_code = excluded.error_code,
       error_detail = excluded.error_detail, first_seen_at = now(), resolved_at = NULL, resolution = NULL,
       resolved_by = NULL
 WHERE (dead.key, dead.value) IS DISTINCT FROM (excluded.key, excluded.value)
RETURNING topic, "partition", "offset"
"""
_OPEN_IN_WINDOW = """
SELECT count(*) FROM messenger.dead_letters
 WHERE consumer_group = %s AND resolved_at IS NULL AND first_seen_at > now() - make_interval(secs => %s)
"""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A record that can never be applied, and why. `group` is the consumer group that refused it."""

    record: Record
    group: str
    code: str
    detail: str

    @classmethod
    def of(cls, record: Record, group: str, reason: Refused) -> "Refusal":
        """The refusal of `record` for `reason`."""
        return cls(record, group, reason.code, str(reason))


@dataclass(frozen=True, slots=True)
class Budget:
    """How many unresolved dead letters a group may make in `window` seconds before it stops."""

    limit: int
    window: float


class BudgetSpent(MessengerError):
    """Too many dead letters: more likely a bad deploy than so many bad records."""


def bury(cursor: CursorWrapper, refusals: Sequence[Refusal], budget: Budget | None = None) -> list[Refusal]:
    """Dead-letter `refusals` and return those not dead-lettered before.

    Raises BudgetSpent, so that the caller's transaction rolls back and nothing moves, beyond the budget.
    """
    if not refusals:
        return []
    unique = {(each.group, *each.record.source, each.record.offset): each for each in refusals}
    fresh_places = set(rows(cursor, _INSERT, _columns(list(unique.values()))))
    fresh = [each for each in unique.values() if (*each.record.source, each.record.offset) in fresh_places]
    enqueue(cursor, [_dlq_message(refusal) for refusal in fresh])
    if budget is not None:
        for group in {refusal.group for refusal in fresh}:
            _check_budget(cursor, group, budget)
    return fresh


def report(refusals: Sequence[Refusal]) -> None:
    """Tell, after the commit, of records newly dead-lettered."""
    for refusal in refusals:
        metrics.DEAD_LETTERS.labels(refusal.group, refusal.code).inc()
        log.error(
            "failed",
            group=refusal.group,
            error_code=refusal.code,
            error=refusal.detail,
            topic=refusal.record.topic,
            partition=refusal.record.partition,
            offset=refusal.record.offset,
        )


def _columns(refusals: list[Refusal]) -> list[list[object]]:
    return [
        [each.group for each in refusals],
        [each.record.topic for each in refusals],
        [each.record.partition for each in refusals],
        [each.record.offset for each in refusals],
        [each.record.key for each in refusals],
        [each.record.value for each in refusals],
        [json.dumps(to_json(each.record.headers)) for each in refusals],
        [each.code for each in refusals],
        [clip(each.detail, 512) for each in refusals],
    ]


def _check_budget(cursor: CursorWrapper, group: str, budget: Budget) -> None:
    ((spent,),) = rows(cursor, _OPEN_IN_WINDOW, [group, budget.window])
    if spent > budget.limit:
        raise BudgetSpent(
            f"{group} has made more than {budget.limit} dead letters in {budget.window:g} s and stops before the "
            "next: mend the cause (the admin lists them), raise CONSUMER_DLQ_BUDGET if they are right, start it again."
        )


def _dlq_message(refusal: Refusal) -> Message:
    record = refusal.record
    notes = {
        "dlq-error-code": refusal.code,
        "dlq-error-detail": clip(refusal.detail, 512),
        "dlq-topic": record.topic,
        "dlq-partition": str(record.partition),
        "dlq-offset": str(record.offset),
        "dlq-group": refusal.group,
        "dlq-failed-at": datetime.now(UTC).isoformat(),
    }
    headers: Headers = record.headers + tuple((name, text.encode()) for name, text in notes.items())
    return Message(
        topic=dead_letter_topic(record.topic),
        key=record.key,
        value=record.value,
        headers=headers,
        aggregate_type="DeadLetter",
        aggregate_id=f"{record.partition}@{record.offset}",
    )
