"""Chats as a batch works on them: locked and read once, changed in memory, written once. No query a record."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from django.db.backends.utils import CursorWrapper

from chats.models import ChatKind
from chats.roster import Changes, Fact, FactType, Role, Roster, Seat, difference, facts_of
from messenger.database import array, rows
from messenger.faults import LostRace

_ROLES = {role.value: role for role in Role}


@dataclass(slots=True)
class Membership:
    """One row of `participants`, active when the batch began or added by it."""

    seat: Seat
    joined_at: datetime | None = None
    """When this batch added the person; None: before, and left as it is."""
    removed_at: datetime | None = None


@dataclass(slots=True)
class ChatState:
    """One locked chat, its memberships, and what the batch did to it so far."""

    id: UUID
    subject_id: UUID
    version: int | None
    last_seq: int
    closed_at: datetime | None = None
    memberships: dict[UUID, Membership] = field(default_factory=dict)
    facts: list[tuple[int, Fact]] = field(default_factory=list)
    touched: set[UUID] = field(default_factory=set)
    advanced: bool = False
    """Whether `version` differs from the table's."""

    @property
    def roster(self) -> dict[UUID, Seat]:
        """The active participants."""
        return {user: each.seat for user, each in self.memberships.items() if each.removed_at is None}

    @property
    def changed(self) -> bool:
        """Whether there is anything people online would see."""
        return bool(self.facts)

    def note(self, fact: Fact) -> None:
        """Add a fact to the feed under the next number."""
        self.last_seq += 1
        self.facts.append((self.last_seq, fact))

    def bring_to(self, target: Roster, at: datetime) -> Changes:
        """Make `target` the roster (INV-PART-1, INV-PART-4) and put the facts in the feed (INV-CE-4)."""
        changes = difference(self.roster, target)
        for user in changes.left:
            self.memberships[user].removed_at = at
        for user, seat in changes.joined.items():
            self.memberships[user] = Membership(seat, joined_at=at)
        for user, (_, seat) in changes.reroled.items():
            self.memberships[user].seat = seat
        for user, seat in changes.relabelled.items():
            self.memberships[user].seat = seat
        self.touched |= changes.left.keys() | changes.joined.keys() | changes.reroled.keys() | changes.relabelled.keys()
        for fact in facts_of(changes, at):
            self.note(fact)
        return changes

    def close(self, at: datetime) -> bool:
        """Close the chat (INV-CHAT-8), if it is not closed already; whether it was open."""
        if self.closed_at is not None:
            return False
        self.closed_at = at
        self.note(Fact(FactType.CHAT_CLOSED, at))
        return True

    def advance(self, version: int) -> None:
        """Remember `version` as applied; it never goes back."""
        self.version = version
        self.advanced = True


# Chats are locked in id order, so that two batches never wait for each other in a circle.
_LOCK = {
    ChatKind.LEAD: """
SELECT id, lead_id, lead_member_version, last_seq, closed_at FROM messenger.chats
 WHERE lead_id = ANY(%s::uuid[]) ORDER BY id FOR NO KEY UPDATE""",
    ChatKind.DEAL: """
SELECT id, deal_id, deal_member_version, last_seq, closed_at FROM messenger.chats
 WHERE deal_id = ANY(%s::uuid[]) ORDER BY id FOR NO KEY UPDATE""",
}
_EXISTING = {
    ChatKind.LEAD: "SELECT lead_id FROM messenger.chats WHERE lead_id = ANY(%s::uuid[])",
    ChatKind.DEAL: "SELECT deal_id FROM messenger.chats WHERE deal_id = ANY(%s::uuid[])",
}
# Taken in the order of the keys themselves; OFFSET 0 keeps the planner from locking before it has sorted.
_CLAIM = """
SELECT pg_advisory_xact_lock(subject.lock_key)
  FROM (SELECT hashtextextended('messenger:' || %s || ':' || id, 0) AS lock_key
          FROM unnest(%s::text[]) AS id ORDER BY 1 OFFSET 0) AS subject
"""
_MEMBERSHIPS = """
SELECT chat_id, user_id, role, role_raw
  FROM messenger.participants WHERE chat_id = ANY(%s::uuid[]) AND removed_at IS NULL
"""
# The known row stands where it says nothing of when someone joined: only a joining in this batch has a time.
_SAVE_MEMBERSHIPS = """
INSERT INTO messenger.participants AS known (id, chat_id, user_id, role, role_raw, joined_at, removed_at)
SELECT gen_random_uuid(), row.chat_id, row.user_id, row.role, row.role_raw,
       coalesce(row.joined_at, '-infinity'), row.removed_at
  FROM unnest(%s::uuid[], %s::uuid[], %s::varchar[], %s::varchar[], %s::timestamptz[], %s::timestamptz[])
       AS row(chat_id, user_id, role, role_raw, joined_at, removed_at)
ON CONFLICT ON CONSTRAINT ux_participants_chat_user DO UPDATE
   SET role = excluded.role, role_raw = excluded.role_raw, removed_at = excluded.removed_at,
       joined_at = CASE excluded.joined_at WHEN '-infinity' THEN known.joined_at ELSE excluded.joined_at END
"""
_SAVE_FACTS = """
INSERT INTO messenger.chat_events (chat_id, seq, type, user_id, role, previous_role, occurred_at)
SELECT * FROM unnest(%s::uuid[], %s::bigint[], %s::varchar[], %s::uuid[], %s::varchar[], %s::varchar[],
                     %s::timestamptz[])
"""
# The version guard once more, on the row itself: a newer version is never overwritten by an older one.
_SAVE_CHATS = {
    ChatKind.LEAD: """
UPDATE messenger.chats AS chat
   SET lead_member_version = row.version, last_seq = row.last_seq, updated_at = now(), closed_at = row.closed_at,
       status = CASE WHEN row.closed_at IS NULL THEN 'Active' ELSE 'Closed' END
  FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::timestamptz[]) AS row(id, version, last_seq, closed_at)
 WHERE chat.id = row.id AND (chat.lead_member_version IS NULL OR chat.lead_member_version <= row.version)""",
    ChatKind.DEAL: """
UPDATE messenger.chats AS chat
   SET deal_member_version = row.version, last_seq = row.last_seq, updated_at = now(), closed_at = row.closed_at,
       status = CASE WHEN row.closed_at IS NULL THEN 'Active' ELSE 'Closed' END
  FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::timestamptz[]) AS row(id, version, last_seq, closed_at)
 WHERE chat.id = row.id AND (chat.deal_member_version IS NULL OR chat.deal_member_version <= row.version)""",
}


def claim_subjects(cursor: CursorWrapper, kind: ChatKind, subjects: Iterable[UUID]) -> None:
    """Hold the leads or deals themselves until the transaction ends: for those whose chat may not exist yet.

    Opening a chat and parking a roster both claim first, so neither misses the other's uncommitted row.
    Always before any chat is locked.
    """
    cursor.execute(_CLAIM, [kind.value, [str(subject) for subject in subjects]])


def missing(cursor: CursorWrapper, kind: ChatKind, subjects: Iterable[UUID]) -> set[UUID]:
    """The leads or deals of `subjects` that have no chat now."""
    wanted = set(subjects)
    return wanted - {found for (found,) in rows(cursor, _EXISTING[kind], [array(wanted)])}


def lock_chats(cursor: CursorWrapper, kind: ChatKind, subjects: Iterable[UUID]) -> dict[UUID, ChatState]:
    """Lock the chats of `subjects` and read their memberships, by lead or deal."""
    states = {row[0]: ChatState(*row) for row in rows(cursor, _LOCK[kind], [array(set(subjects))])}
    if states:
        # A statement of its own, after the locks: it sees what those who held them before have committed.
        for chat, user, role, raw in rows(cursor, _MEMBERSHIPS, [array(states)]):
            states[chat].memberships[user] = Membership(Seat(_ROLES[role], raw))
    return {state.subject_id: state for state in states.values()}


def save_chats(cursor: CursorWrapper, kind: ChatKind, states: Iterable[ChatState]) -> None:
    """Write what changed. Raises LostRace if a chat has a newer version than the one this batch read."""
    dirty = [state for state in states if state.advanced or state.facts or state.touched]
    if not dirty:
        return
    _save_memberships(cursor, dirty)
    _save_facts(cursor, dirty)
    cursor.execute(
        _SAVE_CHATS[kind],
        [
            array(each.id for each in dirty),
            array(each.version for each in dirty),
            array(each.last_seq for each in dirty),
            array(each.closed_at for each in dirty),
        ],
    )
    if cursor.rowcount != len(dirty):
        raise LostRace("A chat was brought to a newer version at the same moment.")


def _save_memberships(cursor: CursorWrapper, states: Sequence[ChatState]) -> None:
    touched = [(state.id, user, state.memberships[user]) for state in states for user in state.touched]
    if touched:
        cursor.execute(
            _SAVE_MEMBERSHIPS,
            [
                array(chat for chat, _, _ in touched),
                array(user for _, user, _ in touched),
                array(each.seat.role for _, _, each in touched),
                [each.seat.raw for _, _, each in touched],
                array(each.joined_at for _, _, each in touched),
                array(each.removed_at for _, _, each in touched),
            ],
        )


def _save_facts(cursor: CursorWrapper, states: Sequence[ChatState]) -> None:
    lines = [(state.id, seq, fact) for state in states for seq, fact in state.facts]
    if lines:
        cursor.execute(
            _SAVE_FACTS,
            [
                array(chat for chat, _, _ in lines),
                array(seq for _, seq, _ in lines),
                array(fact.type for _, _, fact in lines),
                array(fact.user_id for _, _, fact in lines),
                array(fact.role for _, _, fact in lines),
                array(fact.previous_role for _, _, fact in lines),
                array(fact.occurred_at for _, _, fact in lines),
            ],
        )
