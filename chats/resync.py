"""Bringing lead chats to the newest snapshots of the topic (runbook «пересинхронизация состава Lead-чатов»)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.backends.utils import CursorWrapper

from chats.contracts import Snapshot, read_lead_participants
from chats.models import ChatKind
from chats.reconciliation import Marks, write
from chats.roster import Changes
from chats.state import lock_chats
from messenger.database import unit_of_work
from messenger.envelope import Refused
from messenger.records import Record

CHUNK = 200
"""Leads brought to their snapshots in one transaction."""


class Verdict(StrEnum):
    """What a lead's newest snapshot says of its chat."""

    EQUAL = "equal"
    DIFFERENT = "different"
    OLDER = "older than the chat"
    NO_CHAT = "no chat"


@dataclass(frozen=True, slots=True)
class Difference:
    """One lead: its newest snapshot, the version its chat was at, and what brings the chat there."""

    snapshot: Snapshot
    verdict: Verdict
    version: int | None = None
    changes: Changes | None = None


@dataclass(slots=True)
class Reading:
    """What a pass over the topic found."""

    newest: dict[UUID, Snapshot] = field(default_factory=dict)
    records: int = 0
    unreadable: int = 0


def read_newest(records: Iterable[Record], *, lead: UUID | None = None) -> Reading:
    """The newest snapshot of each lead, or of `lead` alone; of equal versions the first, as the consumer has it."""
    reading = Reading()
    for record in records:
        reading.records += 1
        try:
            snapshot = read_lead_participants(record)
        except Refused:
            reading.unreadable += 1
            continue
        if lead is not None and snapshot.subject_id != lead:
            continue
        known = reading.newest.get(snapshot.subject_id)
        if known is None or snapshot.version > known.version:
            reading.newest[snapshot.subject_id] = snapshot
    return reading


def resync(snapshots: Iterable[Snapshot], *, dry_run: bool) -> Iterator[Difference]:
    """Bring each lead's chat to its snapshot, also at an equal version, never to an older one; tell each difference."""
    ordered = iter(sorted(snapshots, key=lambda snapshot: snapshot.subject_id))
    while chunk := list(islice(ordered, CHUNK)):
        with unit_of_work(
            lock_timeout=settings.CONSUMER_LOCK_TIMEOUT, statement_timeout=settings.CONSUMER_STATEMENT_TIMEOUT
        ) as cursor:
            differences = _bring(cursor, chunk)
            if dry_run:
                transaction.set_rollback(True)
        yield from differences


def _bring(cursor: CursorWrapper, snapshots: Sequence[Snapshot]) -> list[Difference]:
    chats = lock_chats(cursor, ChatKind.LEAD, (snapshot.subject_id for snapshot in snapshots))
    differences = []
    for snapshot in snapshots:
        chat = chats.get(snapshot.subject_id)
        if chat is None:
            differences.append(Difference(snapshot, Verdict.NO_CHAT))
        elif chat.version is not None and snapshot.version < chat.version:
            differences.append(Difference(snapshot, Verdict.OLDER, chat.version))
        else:
            version = chat.version
            changes = chat.bring_to(snapshot.target, snapshot.changed_at)
            if version != snapshot.version:
                chat.advance(snapshot.version)
            verdict = Verdict.DIFFERENT if changes or changes.relabelled or chat.advanced else Verdict.EQUAL
            differences.append(Difference(snapshot, verdict, version, changes))
    write(cursor, ChatKind.LEAD, chats.values(), Marks({}))
    return differences
