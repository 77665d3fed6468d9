"""The roster rule: pure functions over plain values. A roster and a target give changes; changes give facts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from messenger.faults import clip

ROLE_RAW_WIDTH = 64


class Role(StrEnum):
    """Roles of a participant, strongest first: the order decides when one user is named with several."""

    EXECUTOR = "Executor"
    RESPONSIBLE = "Responsible"
    CO_AGENT = "CoAgent"
    ASSISTANT = "Assistant"
    LAWYER = "Lawyer"
    INVESTOR_PRIMARY = "InvestorPrimary"
    INVESTOR_SECONDARY = "InvestorSecondary"
    GUEST = "Guest"


class FactType(StrEnum):
    """Types of `chat_events`."""

    LEAD_CHAT_PROVISIONED = "LeadChatProvisioned"
    DEAL_CHAT_PROVISIONED = "DealChatProvisioned"
    PARTICIPANT_JOINED = "ParticipantJoined"
    PARTICIPANT_LEFT = "ParticipantLeft"
    PARTICIPANT_ROLE_CHANGED = "ParticipantRoleChanged"
    CHAT_CLOSED = "ChatClosed"


_RANK = {role: place for place, role in enumerate(Role)}
_BY_NAME = {role.value: role for role in Role}


@dataclass(frozen=True, slots=True)
class Seat:
    """A place in a roster. `raw` is the role as it came where this service does not know it (then Guest)."""

    role: Role
    raw: str | None = None


Roster = Mapping[UUID, Seat]
"""Active participants by user."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A line of a chat's feed before it has its number."""

    type: FactType
    occurred_at: datetime
    user_id: UUID | None = None
    role: Role | None = None
    previous_role: Role | None = None


@dataclass(frozen=True, slots=True)
class Changes:
    """What brings one roster to another, each by user."""

    left: dict[UUID, Seat]
    joined: dict[UUID, Seat]
    reroled: dict[UUID, tuple[Seat, Seat]]
    """The seat before and after, where the role differs."""
    relabelled: dict[UUID, Seat]
    """Same role, another `raw`: kept true, but no fact of membership."""

    def __bool__(self) -> bool:
        return bool(self.left or self.joined or self.reroled)


def seat_of(role: str) -> Seat:
    """The seat for a role as crm names it; an unknown one is kept as it came and counts as Guest."""
    known = _BY_NAME.get(role)
    return Seat(known) if known else Seat(Role.GUEST, clip(role, ROLE_RAW_WIDTH))


def _precedence(seat: Seat) -> tuple[int, bool, str]:
    # A Guest by name comes before an unknown role that counts as one, also one of no letters at all.
    return _RANK[seat.role], seat.raw is not None, seat.raw or ""


def target_roster(entries: Iterable[tuple[UUID, str]]) -> tuple[dict[UUID, Seat], set[UUID]]:
    """The roster that `entries` (user, role) ask for, and the users named with different roles.

    One user named twice: equal entries collapse, of different roles the first in the order of `Role` stands,
    whatever the order in the message.
    """
    roster: dict[UUID, Seat] = {}
    ambiguous: set[UUID] = set()
    for user, role in entries:
        seat = seat_of(role)
        other = roster.setdefault(user, seat)
        if other != seat:
            ambiguous.add(user)
            roster[user] = min(other, seat, key=_precedence)
    return roster, ambiguous


def unknown_roles(roster: Roster) -> list[str]:
    """Role strings of `roster` that this service does not know; they count as Guest."""
    return sorted({seat.raw for seat in roster.values() if seat.raw is not None})


def difference(current: Roster, target: Roster) -> Changes:
    """What brings `current` to `target`."""
    kept = current.keys() & target.keys()
    return Changes(
        left={user: seat for user, seat in current.items() if user not in target},
        joined={user: seat for user, seat in target.items() if user not in current},
        reroled={user: (current[user], target[user]) for user in kept if current[user].role != target[user].role},
        relabelled={
            user: target[user]
            for user in kept
            if current[user].role == target[user].role and current[user].raw != target[user].raw
        },
    )


def facts_of(changes: Changes, occurred_at: datetime) -> list[Fact]:
    """The feed's lines for `changes` (INV-CE-4): who left, who joined, whose role changed, each by user id."""
    left = [
        Fact(FactType.PARTICIPANT_LEFT, occurred_at, user, previous_role=seat.role)
        for user, seat in sorted(changes.left.items())
    ]
    joined = [
        Fact(FactType.PARTICIPANT_JOINED, occurred_at, user, role=seat.role)
        for user, seat in sorted(changes.joined.items())
    ]
    reroled = [
        Fact(FactType.PARTICIPANT_ROLE_CHANGED, occurred_at, user, role=after.role, previous_role=before.role)
        for user, (before, after) in sorted(changes.reroled.items())
    ]
    return left + joined + reroled


def replay(facts: Iterable[tuple[str, UUID | None, str | None]]) -> dict[UUID, str]:
    """The roster (user: role) that a feed's (type, user, role) lines tell of, in their order."""
    roster: dict[UUID, str] = {}
    for kind, user, role in facts:
        if user is None:
            continue
        if kind == FactType.PARTICIPANT_LEFT:
            roster.pop(user, None)
        elif role is not None:
            roster[user] = role
    return roster
