"""Opening chats (INV-CHAT-2) and giving a roster that waited for its chat its turn, in one transaction."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django.db.backends.utils import CursorWrapper

from chats import parking
from chats.contracts import Opening, Origin, Snapshot
from chats.feed import provisioned
from chats.models import ChatKind
from chats.reconciliation import Marks, Settled, settle
from chats.state import ChatState
from messenger.database import rows
from messenger.records import Record
from outbox import processed
from outbox.dead_letters import Refusal
from outbox.handling import read_each

_OPEN = {
    ChatKind.LEAD: """
INSERT INTO messenger.chats (id, kind, status, title, lead_id, project_id, tenant_id)
SELECT row.id, 'Lead', 'Active', row.title, row.subject_id, row.project_id, row.tenant_id
  FROM unnest(%s::uuid[], %s::varchar[], %s::uuid[], %s::uuid[], %s::uuid[])
       AS row(id, title, subject_id, project_id, tenant_id)
ON CONFLICT (lead_id) WHERE lead_id IS NOT NULL DO NOTHING
RETURNING lead_id, id""",
    ChatKind.DEAL: """
INSERT INTO messenger.chats (id, kind, status, title, deal_id, project_id, tenant_id)
SELECT row.id, 'Deal', 'Active', row.title, row.subject_id, row.project_id, row.tenant_id
  FROM unnest(%s::uuid[], %s::varchar[], %s::uuid[], %s::uuid[], %s::uuid[])
       AS row(id, title, subject_id, project_id, tenant_id)
ON CONFLICT (deal_id) WHERE deal_id IS NOT NULL DO NOTHING
RETURNING deal_id, id""",
}


@dataclass(slots=True)
class OpeningBatch:
    """The records of one transaction that ask for chats."""

    wanted: Sequence[tuple[Origin, Opening]]
    marks: Marks
    first: dict[UUID, Origin] = field(default_factory=dict)
    """By lead or deal, the record that asks for its chat; further ones of it are duplicates."""

    def take(self) -> list[Opening]:
        """Choose the records to act on, and mark their messages; a MessageId counts once, whatever its body."""
        openings = []
        for origin, opening in self.wanted:
            if not self.marks.digest(origin.key)[0]:
                self.marks.new[origin.key] = origin.digest
                self.first.setdefault(opening.subject_id, origin)
                openings.append(opening)
        return openings

    def reused(self, origin: Origin) -> bool:
        """Whether its MessageId was taken by another body."""
        _, digest = self.marks.digest(origin.key)
        return digest is not None and digest != origin.digest


@dataclass(frozen=True, slots=True)
class ChatCreated:
    """Domain fact: a chat was created."""

    kind: ChatKind
    chat: ChatState
    opening: Opening


CHAT_CREATED_SUBSCRIBERS: tuple[Callable[[ChatCreated], None], ...] = (
    lambda fact: fact.chat.note(provisioned(fact.kind, fact.opening.occurred_at)),
)
"""Who hears of a created chat, in order: the feed (INV-CE-2)."""


def open_chats(cursor: CursorWrapper, kind: ChatKind, openings: Sequence[Opening]) -> dict[UUID, ChatState]:
    """Create the chats that do not exist yet and return them by subject, their first people in, not yet saved.

    The caller has claimed the subjects and saves the states.
    """
    if not openings:
        return {}
    wanted = {opening.subject_id: opening for opening in reversed(openings)}
    created = rows(
        cursor,
        _OPEN[kind],
        [
            [uuid.uuid4() for _ in wanted],
            [each.title for each in wanted.values()],
            list(wanted),
            [each.project_id for each in wanted.values()],
            [each.tenant_id for each in wanted.values()],
        ],
    )
    states = {}
    for subject, chat_id in created:
        opening = wanted[subject]
        state = states[subject] = ChatState(chat_id, subject, version=None, last_seq=0)
        for hear in CHAT_CREATED_SUBSCRIBERS:
            hear(ChatCreated(kind, state, opening))
        state.bring_to(opening.members, opening.occurred_at)
    return states


def settle_waiting(
    cursor: CursorWrapper,
    kind: ChatKind,
    chats: dict[UUID, ChatState],
    read: Callable[[Record], Snapshot],
    *,
    group: str,
    marks: Marks,
) -> tuple[list[Settled], list[Refusal]]:
    """Apply, in memory, the rosters that waited for the newly opened `chats`, and end their waiting.

    `read` is the parser of their topic and `group` the consumer group they came through; one that this parser
    refuses by now is returned as a refusal.
    """
    waiting = parking.of_subjects(cursor, kind, list(chats))
    snapshots, refusals = read_each([parked.record for parked in waiting], read, group=group)
    if snapshots:
        marks.known = {**marks.known, **processed.known(cursor, (each.origin.key for each in snapshots))}
    settled = [settle(chats.get(snapshot.subject_id), snapshot, marks) for snapshot in snapshots]
    parking.unpark(cursor, kind, (parked.subject_id for parked in waiting))
    return settled, refusals
