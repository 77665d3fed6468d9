"""Bringing chats to snapshots: the one engine of lead and deal membership, a batch at a time.

Inside the caller's transaction: lock, read, decide in memory, write once. Nothing is logged or counted here, as
the transaction may still roll back.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from django.db.backends.utils import CursorWrapper

from chats import parking, realtime
from chats.contracts import Snapshot
from chats.models import ChatKind
from chats.roster import Changes
from chats.state import ChatState, claim_subjects, lock_chats, missing, save_chats
from outbox import processed


class Outcome(StrEnum):
    """What became of a snapshot. Every one of them settles its record."""

    SYNCED = "synced"
    STALE = "skipped_stale"
    DUPLICATE = "skipped_duplicate"
    PARKED = "retry_not_provisioned"


@dataclass(frozen=True, slots=True)
class Settled:
    """A snapshot and what became of it."""

    snapshot: Snapshot
    outcome: Outcome
    chat_id: UUID | None = None
    changes: Changes | None = None
    reused_id: bool = False
    """A duplicate by its MessageId whose body is another one."""


@dataclass(slots=True)
class Marks:
    """Processed keys: those of before, and those this transaction adds."""

    known: Mapping[str, bytes | None]
    new: dict[str, bytes] = field(default_factory=dict)

    def digest(self, key: str) -> tuple[bool, bytes | None]:
        """Whether `key` was processed, and the digest of the body it was processed with."""
        if key in self.new:
            return True, self.new[key]
        return key in self.known, self.known.get(key)


def reconcile(cursor: CursorWrapper, kind: ChatKind, snapshots: Sequence[Snapshot]) -> list[Settled]:
    """Bring the chats of `snapshots` to them, in order; park those without a chat."""
    if not snapshots:
        return []
    subjects = {snapshot.subject_id for snapshot in snapshots}
    if absent := missing(cursor, kind, subjects):
        claim_subjects(cursor, kind, absent)
    chats = lock_chats(cursor, kind, subjects)
    marks = Marks(processed.known(cursor, (snapshot.origin.key for snapshot in snapshots)))
    settled = [settle(chats.get(snapshot.subject_id), snapshot, marks) for snapshot in snapshots]
    parking.park(cursor, kind, (each.snapshot for each in settled if each.outcome is Outcome.PARKED))
    write(cursor, kind, chats.values(), marks)
    return settled


def settle(chat: ChatState | None, snapshot: Snapshot, marks: Marks) -> Settled:
    """Decide on one snapshot, in memory: duplicate, no chat, stale, or applied (source document, «Алгоритм»)."""
    origin = snapshot.origin
    processed_before, digest = marks.digest(origin.key)
    if processed_before:
        reused = digest is not None and digest != origin.digest
        return Settled(snapshot, Outcome.DUPLICATE, chat.id if chat else None, reused_id=reused)
    if chat is None:
        return Settled(snapshot, Outcome.PARKED)
    if chat.version is not None and snapshot.version <= chat.version:
        return Settled(snapshot, Outcome.STALE, chat.id)
    changes = chat.bring_to(snapshot.target, snapshot.changed_at)
    chat.advance(snapshot.version)
    marks.new[origin.key] = origin.digest
    return Settled(snapshot, Outcome.SYNCED, chat.id, changes)


def write(cursor: CursorWrapper, kind: ChatKind, chats: Iterable[ChatState], marks: Marks) -> None:
    """Write chats, feed and processed keys, and name the changed chats to people online."""
    states = list(chats)
    save_chats(cursor, kind, states)
    processed.mark(cursor, marks.new)
    realtime.notify_changed(cursor, (state.id for state in states if state.changed))
