"""Rows of `deal_chat_provisions`: the intent to provision one deal's chat, written and settled."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.backends.utils import CursorWrapper

from chats.contracts import Opening
from chats.roster import Role, Roster, Seat
from messenger.database import rows
from messenger.faults import LostRace
from provisioning.models import ProvisionStatus

# RETURNING a row of one's own insert only: a second deal-created of a deal is a no-op (ux_dcp_deal). The stamps are of
# the transaction, as those of a later change: the columns' defaults are of the statement, after it.
_WRITE = """
INSERT INTO messenger.deal_chat_provisions
       (id, deal_id, title, project_id, deal_tenant_id, next_attempt_at, created_at, updated_at)
SELECT gen_random_uuid(), row.*, now(), now(), now()
  FROM unnest(%s::uuid[], %s::varchar[], %s::uuid[], %s::uuid[]) AS row(deal_id, title, project_id, deal_tenant_id)
ON CONFLICT ON CONSTRAINT ux_dcp_deal DO NOTHING
RETURNING id, deal_id, title, project_id, deal_tenant_id, status, attempts, row_version, created_at
"""
_WRITE_MEMBERS = """
INSERT INTO messenger.deal_chat_provision_members (provision_id, user_id, role, role_raw)
SELECT * FROM unnest(%s::uuid[], %s::uuid[], %s::varchar[], %s::varchar[])
"""
_MEMBERS = """
SELECT user_id, role, role_raw FROM messenger.deal_chat_provision_members WHERE provision_id = %s
"""
# row_version: whoever read the row before this change loses (design: optimistic locking).
_SETTLE = """
UPDATE messenger.deal_chat_provisions
   SET status = %s, chat_id = coalesce(%s, chat_id), attempts = %s,
       next_attempt_at = now() + make_interval(secs => %s), last_error = %s,
       updated_at = now(), row_version = row_version + 1
 WHERE id = %s AND row_version = %s
"""


@dataclass(frozen=True, slots=True)
class Intent:
    """One row, locked by the transaction at work."""

    id: UUID
    deal_id: UUID
    title: str
    project_id: UUID | None
    tenant_id: UUID | None
    status: ProvisionStatus
    attempts: int
    row_version: int
    created_at: datetime
    members: Roster
    correlation_id: str | None = None
    traceparent: str | None = None
    """Of the record this intent came with; None where the span at work says it."""

    @property
    def opening(self) -> Opening:
        """The chat this intent is for."""
        return Opening(
            subject_id=self.deal_id,
            title=self.title,
            project_id=self.project_id,
            tenant_id=self.tenant_id,
            members=self.members,
            occurred_at=self.created_at,
        )


def write(cursor: CursorWrapper, openings: Sequence[Opening]) -> list[Intent]:
    """Write an intent for each deal that has none yet, with its members; return the new ones."""
    wanted = {opening.subject_id: opening for opening in reversed(openings)}
    if not wanted:
        return []
    columns = [
        list(wanted),
        [each.title for each in wanted.values()],
        [each.project_id for each in wanted.values()],
        [each.tenant_id for each in wanted.values()],
    ]
    intents = [intent_of(row, wanted[row[1]].members) for row in rows(cursor, _WRITE, columns)]
    _write_members(cursor, intents)
    return intents


def _write_members(cursor: CursorWrapper, intents: Iterable[Intent]) -> None:
    entries = [(intent.id, user, seat) for intent in intents for user, seat in intent.members.items()]
    if entries:
        cursor.execute(
            _WRITE_MEMBERS,
            [
                [intent for intent, _, _ in entries],
                [user for _, user, _ in entries],
                [seat.role.value for _, _, seat in entries],
                [seat.raw for _, _, seat in entries],
            ],
        )


def members_of(cursor: CursorWrapper, intent_id: UUID) -> dict[UUID, Seat]:
    """The first roster of an intent's deal."""
    return {user: Seat(Role(role), raw) for user, role, raw in rows(cursor, _MEMBERS, [intent_id])}


def intent_of(row: tuple[Any, ...], members: Roster, *, correlation_id: str | None = None) -> Intent:
    """An intent from a row of (id, deal_id, title, project_id, deal_tenant_id, status, attempts, row_version,
    created_at)."""
    found_id, deal, title, project, tenant, status, attempts, row_version, created_at = row
    return Intent(
        id=found_id,
        deal_id=deal,
        title=title,
        project_id=project,
        tenant_id=tenant,
        status=ProvisionStatus(status),
        attempts=attempts,
        row_version=row_version,
        created_at=created_at,
        members=members,
        correlation_id=correlation_id,
    )


def settle(
    cursor: CursorWrapper,
    intent: Intent,
    status: ProvisionStatus,
    *,
    chat_id: UUID | None = None,
    attempts: int,
    next_in: float,
    error: str | None = None,
) -> None:
    """Write down how an attempt ended; `next_in` is seconds from now. Raises LostRace if the row has moved on."""
    cursor.execute(_SETTLE, [status.value, chat_id, attempts, next_in, error, intent.id, intent.row_version])
    if cursor.rowcount != 1:
        raise LostRace("The provision was changed by somebody else at the same moment.")
