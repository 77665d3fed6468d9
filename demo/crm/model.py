"""The state of the simulated crm: leads, their rosters and versions, and what it has yet to send."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import ClassVar
from uuid import UUID

from demo.crm.deliveries import Delivery, Trouble
from demo.crm.messages import DEALS, LEADS, Contract, Delta, delivery, deltas, members, snapshot
from demo.crm.names import PEOPLE, TITLES
from messenger.topics import LEAD_PARTICIPANTS_CHANGED, LEAD_TERMINATED, USER_CHANGED

EXECUTOR = "Executor"
ROLES = ("Responsible", "CoAgent", "Assistant", "Lawyer", "InvestorPrimary", "InvestorSecondary")
"""Roles beside the one Executor that every lead has."""
STAFF = 12
"""How many people work here at a time."""
RECENT = 40
"""How far back a record is chosen to be sent again."""


def now() -> datetime:
    """The time of day, as crm stamps its records."""
    return datetime.now(UTC)


@dataclass(slots=True)
class Lead:
    """A lead as crm knows it: who is on it, and the version of that."""

    id: UUID
    title: str
    roster: dict[UUID, str]
    version: int = 0
    ended: bool = False
    contract: ClassVar[Contract] = LEADS

    @property
    def executor(self) -> UUID:
        """Who runs it."""
        return next(user for user, role in self.roster.items() if role == EXECUTOR)


@dataclass(slots=True)
class Deal(Lead):
    """A deal, which has people and versions like a lead."""

    trouble: Trouble | None = None
    contract: ClassVar[Contract] = DEALS


@dataclass
class Crm:
    """Everything is drawn from `seed`, so that a run can be repeated. `run` makes the ids of runs differ."""

    seed: int
    run: str = ""
    clock: Callable[[], datetime] = now
    leads: dict[UUID, Lead] = field(default_factory=dict)
    deals: dict[UUID, Deal] = field(default_factory=dict)
    recent: deque[Delivery] = field(default_factory=lambda: deque(maxlen=RECENT))

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self._ids = Random(f"{self.seed}/{self.run}")
        self.people: dict[UUID, str] = {}
        """Everyone who ever worked here, by name."""
        self.staff: list[UUID] = []
        self.unnamed: list[UUID] = []
        """People whose names have yet to be told."""
        for _ in range(STAFF):
            self.hire()
        self._titles = self.random.sample(TITLES, len(TITLES))
        self._held_back: list[tuple[int, Delivery]] = []
        self.turn = 0
        """How many actions there were."""

    # --- for actions ------------------------------------------------------------------------------

    def new_id(self) -> UUID:
        """A fresh identifier."""
        return UUID(int=self._ids.getrandbits(128), version=4)

    def name(self, user: UUID) -> str:
        """The name of a user, for the story of a record; no record carries it."""
        return self.people[user]

    def hire(self) -> None:
        """Someone new begins to work here."""
        generation, place = divmod(len(self.people), len(PEOPLE))
        user = self.new_id()
        self.people[user] = PEOPLE[place] + (f" {generation + 1}" if generation else "")
        self.staff.append(user)
        self.unnamed.append(user)

    def dismiss(self, user: UUID) -> None:
        """Someone does not work here any more, and gets a successor."""
        self.staff.remove(user)
        self.hire()

    def told(self, subject: UUID) -> bool:
        """Whether the creation of a lead was told, or is about to be."""
        return all(late.subject != subject for _, late in self._held_back)

    def told_leads(self, *, at_least: int = 1) -> list[Lead]:
        """Leads whose creation was told and that have not ended, with so many people or more."""
        return [
            lead
            for lead in self.leads.values()
            if self.told(lead.id) and not lead.ended and len(lead.roster) >= at_least
        ]

    def steady_deals(self) -> list[Deal]:
        """Deals whose chats were no trouble to make."""
        return [deal for deal in self.deals.values() if deal.trouble is None]

    def troubled(self, subject: UUID) -> bool:
        """Whether it is a deal whose chat is trouble to make: what becomes of a roster depends on when it comes."""
        deal = self.deals.get(subject)
        return deal is not None and deal.trouble is not None

    def strangers(self, lead: Lead) -> list[UUID]:
        """People who work here and are not on the lead."""
        return [user for user in self.staff if user not in lead.roster]

    def new_lead(self) -> Lead:
        """A lead of one to four people, one of them its Executor."""
        number = len(self.leads)
        title = self._titles[number % len(TITLES)] + (
            f" ({number // len(TITLES) + 1})" if number >= len(TITLES) else ""
        )
        lead = Lead(self.new_id(), title, self._first_roster())
        self.leads[lead.id] = lead
        return lead

    def new_deal(self, trouble: Trouble | None) -> Deal:
        """A deal about one of the leads' objects."""
        number = len(self.deals) + 1
        title = f"Deal {number}, {self._titles[number % len(TITLES)]}"
        deal = Deal(self.new_id(), title, self._first_roster(), trouble=trouble)
        self.deals[deal.id] = deal
        return deal

    def _first_roster(self) -> dict[UUID, str]:
        count = self.random.randint(1, 4)
        users = self.random.sample(self.staff, count)
        roles = [EXECUTOR, *self.random.sample(ROLES, count - 1)]
        return dict(zip(users, roles, strict=True))

    def creation(self, lead: Lead, story: str) -> Delivery:
        """`lead-created` or `deal-created` of it, with the people it has now."""
        contract = lead.contract
        payload = {contract.subject: str(lead.id), "Title": lead.title, "Members": members(lead.roster)}
        return delivery(
            contract.created,
            contract.kind,
            lead.id,
            payload,
            message_id=self.new_id(),
            at=self.clock(),
            title=lead.title,
            story=story,
        )

    def change(self, lead: Lead, roster: dict[UUID, str], story: str, *, delta: Sequence[Delta] = ()) -> Delivery:
        """Give the lead or deal this roster at its next version; the record that says so.

        `delta` replaces the plain one where crm would name the change otherwise.
        """
        entries = delta or deltas(lead.roster, roster)
        lead.roster = roster
        lead.version += 1
        at = self.clock()
        contract = lead.contract
        return delivery(
            contract.changed,
            contract.kind,
            lead.id,
            snapshot(contract, lead.id, roster, entries, lead.version, at),
            message_id=self.new_id(),
            at=at,
            title=lead.title,
            story=story,
            version=lead.version,
        )

    def ending(self, lead: Lead, status: str, story: str) -> Delivery:
        """`lead-terminated` of it."""
        lead.ended = True
        at = self.clock()
        payload = {"LeadId": str(lead.id), "Status": status, "OccurredAt": at.isoformat()}
        return delivery(
            LEAD_TERMINATED, "Lead", lead.id, payload, message_id=self.new_id(), at=at, title=lead.title, story=story
        )

    def naming(self, user: UUID) -> Delivery:
        """`user-changed` of someone."""
        at, name = self.clock(), self.people[user]
        payload = {"UserId": str(user), "DisplayName": name}
        return delivery(
            USER_CHANGED,
            "User",
            user,
            payload,
            message_id=self.new_id(),
            at=at,
            title=name,
            story="begins to work here",
        )

    def broken(self, lead: Lead, value: bytes | None, story: str, refusal: str) -> Delivery:
        """A record that can never be applied, among those of a lead."""
        return Delivery(
            topic=LEAD_PARTICIPANTS_CHANGED,
            key=str(lead.id),
            value=value,
            subject=lead.id,
            title=lead.title,
            story=story,
            refusal=refusal,
        )

    def hold_back(self, late: Delivery, *, turns: int) -> None:
        """Send `late`, the creation of its subject, only after so many more actions."""
        self._held_back.append((self.turn + turns, late))

    # --- for who delivers -------------------------------------------------------------------------

    def due(self, *, all_of_it: bool = False) -> list[Delivery]:
        """What was held back and is to go now."""
        ready = [late for turn, late in self._held_back if all_of_it or turn <= self.turn]
        self._held_back = [(turn, late) for turn, late in self._held_back if late not in ready]
        return ready
