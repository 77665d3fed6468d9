"""Payloads of crm's topics about deals, and how a record becomes a domain value (design, section 4)."""

from typing import Any

from chats.contracts import Member, Members, Opening, Origin, Snapshot, Text, known_change, opening_of, origin_of
from chats.roster import target_roster
from messenger.envelope import Guid, Instant, Version, Wire, decoder, open_envelope, open_payload
from messenger.records import Record

DEAL_CREATED_INVALID = "MSG_DEAL_CREATED_INVALID"
DEAL_MEMBERS_INVALID = "MSG_DEAL_MEMBERS_INVALID"


class DealCreated(Wire, frozen=True, rename="pascal"):
    """`pin.crm.deal-created.v1`. A deal may begin with nobody: its members come by `deal-members-changed`."""

    deal_id: Guid
    title: Text
    members: list[Member]
    project_id: Guid | None = None
    developer_company_id: Guid | None = None


class DealMembersChanged(Wire, frozen=True, rename="pascal"):
    """`pin.crm.deal-members-changed.v1`. The delta `members` is read leniently: it decides nothing."""

    deal_id: Guid
    active_members: Members
    members: list[Any]
    version: Version
    changed_at: Instant


_decode_deal_created = decoder(DealCreated)
_decode_deal_members = decoder(DealMembersChanged)


def read_deal_created(record: Record) -> tuple[Origin, Opening]:
    """The chat that a record of `deal-created` asks for; raises `Refused`. A long title is cut on a code point."""
    envelope = open_envelope(record)
    payload = open_payload(envelope, _decode_deal_created, code=DEAL_CREATED_INVALID)
    opening = opening_of(
        payload.deal_id,
        payload.title,
        payload.members,
        payload.project_id,
        payload.developer_company_id,
        envelope.occurred_at,
    )
    return origin_of(record, envelope, "messenger-deal-created"), opening


def read_deal_members(record: Record) -> Snapshot:
    """The snapshot in a record of `deal-members-changed`; raises `Refused`."""
    envelope = open_envelope(record)
    payload = open_payload(envelope, _decode_deal_members, code=DEAL_MEMBERS_INVALID)
    target, ambiguous = target_roster((member.user_id, member.role) for member in payload.active_members)
    return Snapshot(
        origin=origin_of(record, envelope, "messenger-deal-members"),
        subject_id=payload.deal_id,
        version=payload.version,
        target=target,
        changed_at=payload.changed_at,
        ambiguous=len(ambiguous),
        unknown_changes=sum(not known_change(entry) for entry in payload.members),
    )
