"""Payloads of crm's topics about leads (design, section 4), and how a record becomes a domain value."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import msgspec

from chats.roster import Roster, target_roster, unknown_roles
from messenger.envelope import (
    EXPECTED_CONTRACT_VERSION,
    Envelope,
    Guid,
    Instant,
    Version,
    Wire,
    decoder,
    open_envelope,
    open_payload,
)
from messenger.records import Record
from outbox.processed import digest_of

LEAD_PARTICIPANTS_INVALID = "MSG_LEAD_PARTICIPANTS_INVALID"
LEAD_CREATED_INVALID = "MSG_LEAD_CREATED_INVALID"
TITLE_WIDTH = 256


Text = Annotated[str, msgspec.Meta(pattern=r"\A[^\x00]*\Z")]
"""Any text that PostgreSQL can hold: without U+0000."""


class Member(Wire, frozen=True, rename="pascal"):
    """One entry of a roster."""

    user_id: Guid
    role: Text


Members = Annotated[list[Member], msgspec.Meta(min_length=1)]


class LeadCreated(Wire, frozen=True, rename="pascal"):
    """`pin.crm.lead-created.v1`."""

    lead_id: Guid
    title: Text
    members: Members
    project_id: Guid | None = None
    tenant_id: Guid | None = None


class LeadParticipantsChanged(Wire, frozen=True, rename="pascal"):
    """`pin.crm.lead-participants-changed.v1`. The delta `participants` is read leniently: it decides nothing."""

    lead_id: Guid
    active_participants: Members
    participants: list[Any]
    version: Version
    changed_at: Instant


KNOWN_CHANGES = frozenset({"Added", "Removed", "RoleChanged", "ExecutorChanged", "ResponsibleChanged"})


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of a message whatever its payload: for idempotency, logs and traces."""

    record: Record
    message_id: UUID
    key: str
    """Its key in `processed_messages`."""
    digest: bytes
    contract_version: int
    correlation_id: str | None

    @property
    def contract_mismatch(self) -> bool:
        """Whether it came in another version of the contract than expected; it is applied all the same."""
        return self.contract_version != EXPECTED_CONTRACT_VERSION


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A whole roster of one lead or deal at one version."""

    origin: Origin
    subject_id: UUID
    version: int
    target: Roster
    changed_at: Instant
    ambiguous: int = 0
    """How many users were named with different roles."""
    unknown_changes: int = 0
    """How many entries of the delta had no known ChangeType."""

    @property
    def unknown_roles(self) -> list[str]:
        """Role strings this service does not know; they count as Guest."""
        return unknown_roles(self.target)


def origin_of(record: Record, envelope: Envelope, prefix: str) -> Origin:
    """The origin of a message whose idempotency keys start with `prefix`."""
    return Origin(
        record=record,
        message_id=envelope.message_id,
        key=f"{prefix}:{envelope.message_id}",
        digest=digest_of(record),
        contract_version=envelope.contract_version,
        correlation_id=envelope.correlation_id,
    )


_decode_lead_participants = decoder(LeadParticipantsChanged)


def read_lead_participants(record: Record) -> Snapshot:
    """The snapshot in a record of `lead-participants-changed`; raises `Refused`."""
    envelope = open_envelope(record)
    payload = open_payload(envelope, _decode_lead_participants, code=LEAD_PARTICIPANTS_INVALID)
    target, ambiguous = target_roster((member.user_id, member.role) for member in payload.active_participants)
    return Snapshot(
        origin=origin_of(record, envelope, "messenger-lead-participants"),
        subject_id=payload.lead_id,
        version=payload.version,
        target=target,
        changed_at=payload.changed_at,
        ambiguous=len(ambiguous),
        unknown_changes=sum(not known_change(entry) for entry in payload.participants),
    )


def known_change(entry: Any) -> bool:
    """Whether an entry of a delta names a change this service knows; it decides nothing but a warning."""
    change = entry.get("ChangeType") if isinstance(entry, dict) else None
    return isinstance(change, str) and change in KNOWN_CHANGES


@dataclass(frozen=True, slots=True)
class Opening:
    """A chat to open for a lead or a deal."""

    subject_id: UUID
    title: str
    project_id: UUID | None
    tenant_id: UUID | None
    members: Roster
    occurred_at: datetime
    ambiguous: int = 0
    """How many users were named with different roles."""

    @property
    def unknown_roles(self) -> list[str]:
        """Role strings this service does not know; they count as Guest."""
        return unknown_roles(self.members)


def opening_of(
    subject_id: UUID,
    title: str,
    members: Iterable[Member],
    project_id: UUID | None,
    tenant_id: UUID | None,
    occurred_at: datetime,
) -> Opening:
    """The chat to open; a long title is cut on a code point, as a chat without its title's end beats no chat."""
    roster, ambiguous = target_roster((member.user_id, member.role) for member in members)
    return Opening(
        subject_id, title[:TITLE_WIDTH], project_id, tenant_id, roster, occurred_at, ambiguous=len(ambiguous)
    )


_decode_lead_created = decoder(LeadCreated)


def read_lead_created(record: Record) -> tuple[Origin, Opening]:
    """The chat that a record of `lead-created` asks for; raises `Refused`. A long title is cut on a code point."""
    envelope = open_envelope(record)
    payload = open_payload(envelope, _decode_lead_created, code=LEAD_CREATED_INVALID)
    opening = opening_of(
        payload.lead_id, payload.title, payload.members, payload.project_id, payload.tenant_id, envelope.occurred_at
    )
    return origin_of(record, envelope, "messenger-lead-created"), opening
