"""crm's records as bytes (design, section 4)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from demo.crm.deliveries import Delivery
from messenger.topics import DEAL_CREATED, DEAL_MEMBERS_CHANGED, LEAD_CREATED, LEAD_PARTICIPANTS_CHANGED, Topic

Roster = Mapping[UUID, str]
"""Role by user, as crm names it."""


@dataclass(frozen=True, slots=True)
class Delta:
    """One entry of a message's delta."""

    user: UUID
    change: str
    role: str | None = None
    previous: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The entry as the contract writes it."""
        entry: dict[str, Any] = {"UserId": str(self.user), "ChangeType": self.change}
        if self.role is not None:
            entry["Role"] = self.role
        if self.previous is not None:
            entry["PreviousRole"] = self.previous
        return entry


def deltas(before: Roster, after: Roster) -> list[Delta]:
    """The delta from one roster to another, as crm's plain changes name it."""
    removed = [Delta(user, "Removed", previous=role) for user, role in before.items() if user not in after]
    added = [Delta(user, "Added", role=role) for user, role in after.items() if user not in before]
    changed = [
        Delta(user, "RoleChanged", role=role, previous=before[user])
        for user, role in after.items()
        if before.get(user, role) != role
    ]
    return removed + added + changed


def members(roster: Roster) -> list[dict[str, str]]:
    """A roster as the contract writes it."""
    return [{"UserId": str(user), "Role": role} for user, role in roster.items()]


@dataclass(frozen=True, slots=True)
class Contract:
    """What tells the records about leads from those about deals."""

    kind: str
    created: Topic
    changed: Topic
    active: str
    """The name of the roster in `changed`."""
    delta: str

    @property
    def subject(self) -> str:
        """The name of the identifier in the payloads."""
        return f"{self.kind}Id"


LEADS = Contract("Lead", LEAD_CREATED, LEAD_PARTICIPANTS_CHANGED, "ActiveParticipants", "Participants")
DEALS = Contract("Deal", DEAL_CREATED, DEAL_MEMBERS_CHANGED, "ActiveMembers", "Members")


def snapshot(
    contract: Contract, subject: UUID, roster: Roster, delta: Sequence[Delta], version: object, at: datetime
) -> dict[str, Any]:
    """The payload of a change of roster."""
    return {
        contract.subject: str(subject),
        contract.active: members(roster),
        contract.delta: [entry.as_json() for entry in delta],
        "Version": version,
        "ChangedAt": at.isoformat(),
    }


def encode(message_id: UUID, kind: str, subject: UUID, payload: Mapping[str, Any], at: datetime) -> bytes:
    """An envelope round `payload`, as bytes."""
    envelope = {
        "MessageId": str(message_id),
        "ContractVersion": 1,
        "OccurredAt": at.isoformat(),
        "AggregateType": kind,
        "AggregateId": str(subject),
        "Payload": payload,
    }
    return json.dumps(envelope, ensure_ascii=False).encode()


def headers(delivery: Delivery) -> list[tuple[str, bytes]]:
    """The headers that go with it: they repeat what the envelope says."""
    if delivery.message_id is None:
        return []
    return [("message-id", str(delivery.message_id).encode()), ("contract-version", b"1")]


def delivery(
    topic: Topic, kind: str, subject: UUID, payload: Mapping[str, Any], *, message_id: UUID, at: datetime, title: str,
    story: str, version: int | None = None,
) -> Delivery:  # fmt: skip
    """A good record, ready to go."""
    return Delivery(
        topic=topic,
        key=str(subject),
        value=encode(message_id, kind, subject, payload, at),
        subject=subject,
        title=title,
        story=story,
        message_id=message_id,
        version=version,
    )
