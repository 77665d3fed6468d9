"""What happens in the simulated crm: one small class per kind of action, and the registry of them.

To add a kind, write a class with `@action`, and teach `demo.crm.oracle` what becomes of its records if their topic
is a new one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from random import Random
from typing import ClassVar
from uuid import UUID

from demo.crm.deliveries import Delivery
from demo.crm.messages import Delta
from demo.crm.model import EXECUTOR, ROLES, Crm, Lead

MOST_LEADS = 24
"""Enough to follow; a crm of thousands would show nothing more."""


class Action(ABC):
    """A kind of thing that happens in crm. A deck holds `weight` cards of it: see `Deck`."""

    weight: ClassVar[int] = 1

    @abstractmethod
    def perform(self, crm: Crm) -> list[Delivery]:
        """Do it; the records to send, in their order. Empty where it is not possible now."""


ACTIONS: list[Action] = []


def action(*, weight: int) -> Callable[[type[Action]], type[Action]]:
    """Register a kind of action."""

    def register(kind: type[Action]) -> type[Action]:
        kind.weight = weight
        ACTIONS.append(kind())
        return kind

    return register


class Deck:
    """Cards of actions, shuffled, drawn to the last and shuffled again: no kind is left out for long."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._cards: list[Action] = []

    def draw(self) -> Action:
        """The next card."""
        if not self._cards:
            self._cards = [each for each in ACTIONS for _ in range(each.weight)]
            self._random.shuffle(self._cards)
        return self._cards.pop()


def act(crm: Crm, deck: Deck) -> list[Delivery]:
    """The next thing that happens, and what was held back until now."""
    found: list[Delivery] = []
    while not found:
        crm.turn += 1
        found = [*crm.due(), *deck.draw().perform(crm)]
    crm.recent.extend(found)
    return found


def people(crm: Crm, lead: Lead) -> str:
    """The roster, for a person."""
    return ", ".join(f"{crm.name(user)} ({role})" for user, role in lead.roster.items())


@action(weight=4)
class NewLead(Action):
    """A lead is created."""

    def perform(self, crm: Crm) -> list[Delivery]:
        if len(crm.leads) >= MOST_LEADS:
            return []
        lead = crm.new_lead()
        return [crm.creation(lead, f"new lead: {people(crm, lead)}")]


@action(weight=5)
class AddParticipant(Action):
    """Someone joins a lead."""

    def perform(self, crm: Crm) -> list[Delivery]:
        leads = [lead for lead in crm.told_leads() if len(lead.roster) < 7]
        return [self.join(crm, crm.random.choice(leads))] if leads else []

    @staticmethod
    def join(crm: Crm, lead: Lead, *, story: str = "{who} joins as {role}") -> Delivery:
        """One more person on the lead."""
        user, role = crm.random.choice(crm.strangers(lead)), crm.random.choice(ROLES)
        return crm.change(lead, {**lead.roster, user: role}, story.format(who=crm.name(user), role=role))


@action(weight=4)
class RemoveParticipant(Action):
    """Someone other than the Executor leaves a lead."""

    def perform(self, crm: Crm) -> list[Delivery]:
        leads = crm.told_leads(at_least=2)
        if not leads:
            return []
        lead = crm.random.choice(leads)
        gone = crm.random.choice([user for user in lead.roster if user != lead.executor])
        roster = {user: role for user, role in lead.roster.items() if user != gone}
        return [crm.change(lead, roster, f"{crm.name(gone)} leaves")]


@action(weight=3)
class ChangeRole(Action):
    """Someone gets another role on a lead."""

    def perform(self, crm: Crm) -> list[Delivery]:
        leads = crm.told_leads(at_least=2)
        if not leads:
            return []
        lead = crm.random.choice(leads)
        user = crm.random.choice([user for user in lead.roster if user != lead.executor])
        role = crm.random.choice([each for each in ROLES if each != lead.roster[user]])
        return [crm.change(lead, {**lead.roster, user: role}, f"{crm.name(user)} becomes {role}")]


@action(weight=1)
class UnknownRole(Action):
    """Someone joins in a role that messenger does not know: it is kept as it came and counts as Guest."""

    def perform(self, crm: Crm) -> list[Delivery]:
        leads = [lead for lead in crm.told_leads() if len(lead.roster) < 7]
        if not leads:
            return []
        lead = crm.random.choice(leads)
        user = crm.random.choice(crm.strangers(lead))
        return [crm.change(lead, {**lead.roster, user: "Notary"}, f"{crm.name(user)} joins as Notary (unknown role)")]


def hand_over(crm: Crm, lead: Lead, story: str) -> Delivery:
    """The Executor leaves and another takes the lead: Removed and ExecutorChanged (source document)."""
    old = lead.executor
    new = crm.random.choice([user for user in crm.staff if user != old])
    roster = {user: role for user, role in lead.roster.items() if user != old} | {new: EXECUTOR}
    delta = [
        Delta(old, "Removed", previous=EXECUTOR),
        Delta(new, "ExecutorChanged", role=EXECUTOR, previous=lead.roster.get(new)),
    ]
    return crm.change(lead, roster, story.format(old=crm.name(old), new=crm.name(new)), delta=delta)


@action(weight=3)
class HandOver(Action):
    """A lead gets another Executor."""

    def perform(self, crm: Crm) -> list[Delivery]:
        leads = crm.told_leads()
        return [hand_over(crm, crm.random.choice(leads), "hand-over from {old} to {new}")] if leads else []


@action(weight=1)
class Dismissal(Action):
    """Someone is dismissed, and leaves every lead at once (ADR-0072)."""

    def perform(self, crm: Crm) -> list[Delivery]:
        waiting = {user for lead in crm.leads.values() if not crm.told(lead.id) for user in lead.roster}
        by_user = {
            user: [lead for lead in crm.told_leads() if user in lead.roster]
            for user in crm.staff
            if user not in waiting
        }
        busiest = max(map(len, by_user.values()), default=0)
        if busiest < 2:
            return []
        gone = crm.random.choice([user for user, leads in by_user.items() if len(leads) == busiest])
        crm.dismiss(gone)
        return [self._leave(crm, lead, gone) for lead in by_user[gone]]

    @staticmethod
    def _leave(crm: Crm, lead: Lead, gone: UUID) -> Delivery:
        if lead.executor == gone:
            return hand_over(crm, lead, "{old} is dismissed, {new} takes over")
        roster = {user: role for user, role in lead.roster.items() if user != gone}
        return crm.change(lead, roster, f"{crm.name(gone)} is dismissed")
