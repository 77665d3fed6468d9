"""Records as crm sends them, as plain dictionaries and bytes, for a test to bend."""

import itertools
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from messenger import topics
from messenger.records import Record

MOMENT = "2026-03-01T10:00:00.1234567+03:00"
_offsets = itertools.count()


def new_id() -> str:
    """A fresh identifier."""
    return str(uuid.uuid4())


def envelope(payload: Mapping[str, Any], *, aggregate: tuple[str, str], **changes: Any) -> dict[str, Any]:
    """An envelope round `payload`; `changes` replace its fields."""
    kind, identifier = aggregate
    return {
        "MessageId": new_id(),
        "ContractVersion": 1,
        "OccurredAt": MOMENT,
        "AggregateType": kind,
        "AggregateId": identifier,
        "Payload": dict(payload),
        **changes,
    }


def members(roster: Mapping[str, str] | Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """A roster (user: role) as the contract writes it."""
    pairs = roster.items() if isinstance(roster, Mapping) else roster
    return [{"UserId": user, "Role": role} for user, role in pairs]


def lead_created(lead: str, roster: Mapping[str, str], *, title: str = "Lead", **changes: Any) -> dict[str, Any]:
    """`lead-created`."""
    payload = {"LeadId": lead, "Title": title, "Members": members(roster)}
    return envelope(payload, aggregate=("Lead", lead), **changes)


def lead_participants(
    lead: str,
    version: Any,
    roster: Mapping[str, str] | Sequence[tuple[str, str]],
    *,
    deltas: Sequence[Mapping[str, Any]] = (),
    payload: Mapping[str, Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """`lead-participants-changed`; `payload` replaces fields of the payload, `changes` those of the envelope."""
    body = {
        "LeadId": lead,
        "ActiveParticipants": members(roster),
        "Participants": [dict(delta) for delta in deltas],
        "Version": version,
        "ChangedAt": MOMENT,
        **(payload or {}),
    }
    return envelope(body, aggregate=("Lead", lead), **changes)


def deal_created(deal: str, roster: Mapping[str, str], *, title: str = "Deal", **changes: Any) -> dict[str, Any]:
    """`deal-created`."""
    payload = {"DealId": deal, "Title": title, "Members": members(roster)}
    return envelope(payload, aggregate=("Deal", deal), **changes)


def deal_members(deal: str, version: Any, roster: Mapping[str, str], **changes: Any) -> dict[str, Any]:
    """`deal-members-changed`."""
    body = {
        "DealId": deal,
        "ActiveMembers": members(roster),
        "Members": [],
        "Version": version,
        "ChangedAt": MOMENT,
    }
    return envelope(body, aggregate=("Deal", deal), **changes)


def lead_terminated(lead: str, status: str = "Archived", *, at: str = MOMENT, **changes: Any) -> dict[str, Any]:
    """`lead-terminated`."""
    payload = {"LeadId": lead, "Status": status, "OccurredAt": at}
    return envelope(payload, aggregate=("Lead", lead), **changes)


def user_changed(user: str, name: Any, *, at: str = MOMENT, **changes: Any) -> dict[str, Any]:
    """`user-changed`, as of `at`."""
    payload = {"UserId": user, "DisplayName": name}
    return envelope(payload, aggregate=("User", user), **({"OccurredAt": at} | changes))


def encode(message: Mapping[str, Any]) -> bytes:
    """The bytes of a message."""
    return json.dumps(message, ensure_ascii=False).encode()


def record(
    message: Mapping[str, Any] | bytes | None,
    *,
    topic: topics.Topic = topics.LEAD_PARTICIPANTS_CHANGED,
    offset: int | None = None,
    partition: int = 0,
    **fields: Any,
) -> Record:
    """A record as the consumer hands it on, at the next offset of its own unless told."""
    value = encode(message) if isinstance(message, Mapping) else message
    key = message["AggregateId"].encode() if isinstance(message, Mapping) else None
    place = next(_offsets) if offset is None else offset
    return Record(
        **{"topic": topic.name, "partition": partition, "offset": place, "key": key, "value": value, **fields}
    )
