"""Rosters whose chat does not exist yet: the newest of each lead or deal waits in `parked_rosters`.

Every function wants the subject claimed (`chats.state.claim_subjects`) by the caller's transaction.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.backends.utils import CursorWrapper

from chats.contracts import Snapshot
from chats.models import ChatKind
from messenger.backoff import Backoff
from messenger.database import rows
from messenger.records import Record
from outbox.headers import from_json, to_json

CHAT_NOT_PROVISIONED = "MSG_CHAT_NOT_PROVISIONED"

_COLUMNS = (
    'chat_kind, subject_id, topic, "partition", "offset", key, value, headers, attempts, next_attempt_at <= now()'
)
# A newer roster takes the older one's place and keeps its schedule, so that a stream of them cannot put the
# limit off for ever.
_PARK = """
INSERT INTO messenger.parked_rosters AS parked
       (chat_kind, subject_id, version, topic, "partition", "offset", key, value, headers, next_attempt_at)
SELECT %s, row.*, now() + make_interval(secs => %s)
  FROM unnest(%s::uuid[], %s::bigint[], %s::varchar[], %s::integer[], %s::bigint[],
              %s::bytea[], %s::bytea[], %s::jsonb[]) AS row
ON CONFLICT (chat_kind, subject_id) DO UPDATE
   SET version = excluded.version, topic = excluded.topic, "partition" = excluded."partition",
       "offset" = excluded."offset", key = excluded.key, value = excluded.value, headers = excluded.headers
 WHERE parked.version < excluded.version
"""
_DUE = f"""
SELECT {_COLUMNS} FROM messenger.parked_rosters
 WHERE chat_kind = %s AND next_attempt_at <= now() ORDER BY next_attempt_at LIMIT %s
"""  # noqa: S608 (a constant of this module)
_OF_SUBJECTS = f"""
SELECT {_COLUMNS} FROM messenger.parked_rosters WHERE chat_kind = %s AND subject_id = ANY(%s::uuid[])
"""  # noqa: S608
_POSTPONE = """
UPDATE messenger.parked_rosters AS parked
   SET attempts = row.attempts, next_attempt_at = now() + make_interval(secs => row.delay)
  FROM unnest(%s::uuid[], %s::integer[], %s::float8[]) AS row(subject_id, attempts, delay)
 WHERE parked.chat_kind = %s AND parked.subject_id = row.subject_id
"""
_UNPARK = "DELETE FROM messenger.parked_rosters WHERE chat_kind = %s AND subject_id = ANY(%s::uuid[])"

_UNPARK_RECORD = 'DELETE FROM messenger.parked_rosters WHERE topic = %s AND "partition" = %s AND "offset" = %s'


@dataclass(frozen=True, slots=True)
class Parked:
    """A waiting record and how often its chat was looked for since it was parked."""

    subject_id: UUID
    record: Record
    attempts: int
    due: bool
    """Whether it is its turn now, by the database's clock."""


def backoff() -> Backoff:
    """The schedule of looking for a missing chat again."""
    return Backoff(settings.LEAD_NOT_PROVISIONED_BACKOFF_BASE, settings.LEAD_NOT_PROVISIONED_BACKOFF_CAP)


def park(cursor: CursorWrapper, kind: ChatKind, snapshots: Iterable[Snapshot]) -> None:
    """Park the newest snapshot of each subject; an older or equal one than the waiting one changes nothing."""
    newest: dict[UUID, Snapshot] = {}
    for snapshot in snapshots:
        other = newest.setdefault(snapshot.subject_id, snapshot)
        if snapshot.version > other.version:
            newest[snapshot.subject_id] = snapshot
    waiting = list(newest.values())
    if waiting:
        records = [each.origin.record for each in waiting]
        cursor.execute(
            _PARK,
            [
                kind.value,
                backoff().delay(0),
                [each.subject_id for each in waiting],
                [each.version for each in waiting],
                [record.topic for record in records],
                [record.partition for record in records],
                [record.offset for record in records],
                [record.key for record in records],
                [record.value for record in records],
                [json.dumps(to_json(record.headers)) for record in records],
            ],
        )


def due(cursor: CursorWrapper, kind: ChatKind, most: int) -> list[Parked]:
    """The records whose turn it is, by the database's clock. Read without a claim: check again under it."""
    return [_parked(row) for row in rows(cursor, _DUE, [kind.value, most])]


def of_subjects(cursor: CursorWrapper, kind: ChatKind, subjects: Sequence[UUID]) -> list[Parked]:
    """What waits for these subjects, if anything."""
    return [_parked(row) for row in rows(cursor, _OF_SUBJECTS, [kind.value, list(subjects)])] if subjects else []


def postpone(cursor: CursorWrapper, kind: ChatKind, attempts: dict[UUID, int]) -> None:
    """Write down how often each subject was looked for, and when it is looked for next."""
    if attempts:
        delays = [backoff().delay(tries) for tries in attempts.values()]
        cursor.execute(_POSTPONE, [list(attempts), list(attempts.values()), delays, kind.value])


def unpark(cursor: CursorWrapper, kind: ChatKind, subjects: Iterable[UUID]) -> None:
    """Remove what waited for these subjects: it was applied or dead-lettered."""
    gone = list(subjects)
    if gone:
        cursor.execute(_UNPARK, [kind.value, gone])


def unpark_record(cursor: CursorWrapper, record: Record) -> None:
    """Remove the row that holds exactly this record, whatever its subject: it was dead-lettered."""
    cursor.execute(_UNPARK_RECORD, [record.topic, record.partition, record.offset])


def _parked(row: tuple[Any, ...]) -> Parked:
    _, subject, topic, partition, offset, key, value, headers, attempts, due = row
    record = Record(
        topic=topic,
        partition=partition,
        offset=offset,
        key=bytes(key) if key is not None else None,
        value=bytes(value) if value is not None else None,
        headers=from_json(headers),
    )
    return Parked(subject, record, attempts, due)
