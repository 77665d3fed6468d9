"""What goes wrong on the way from crm to messenger: the same registry of actions."""

from dataclasses import replace

from demo.crm.actions import Action, AddParticipant, action, people
from demo.crm.deliveries import Delivery
from demo.crm.messages import Roster, encode, snapshot
from demo.crm.model import Crm, Lead

_AGAIN = "a second time: "
INVALID_ENVELOPE = "MSG_ENVELOPE_INVALID"
INVALID_ROSTER = "MSG_LEAD_PARTICIPANTS_INVALID"


@action(weight=3)
class Duplicate(Action):
    """A record comes again, byte for byte."""

    def perform(self, crm: Crm) -> list[Delivery]:
        again = [
            each
            for each in crm.recent
            if each.message_id is not None and crm.told(each.subject) and not crm.troubled(each.subject)
        ]
        if not again:
            return []
        chosen = crm.random.choice(again)
        return [replace(chosen, story=f"{_AGAIN}{chosen.story.removeprefix(_AGAIN)}")]


@action(weight=2)
class OutOfOrder(Action):
    """An older version comes after a newer one."""

    def perform(self, crm: Crm) -> list[Delivery]:
        lead = with_room(crm)
        if lead is None:
            return []
        older, newer = AddParticipant.join(crm, lead), AddParticipant.join(crm, lead)
        return [
            replace(newer, story=f"v{newer.version} overtakes v{older.version}: {newer.story}"),
            replace(older, story=f"v{older.version} comes too late: {older.story}"),
        ]


@action(weight=2)
class LostRecord(Action):
    """A record is lost on the way; the next one has the whole roster."""

    def perform(self, crm: Crm) -> list[Delivery]:
        lead = with_room(crm)
        if lead is None:
            return []
        lost, next_one = AddParticipant.join(crm, lead), AddParticipant.join(crm, lead)
        return [replace(next_one, story=f"v{lost.version} is lost, v{next_one.version} comes: {next_one.story}")]


@action(weight=1)
class LateChat(Action):
    """Rosters of a lead come before its creation."""

    def perform(self, crm: Crm) -> list[Delivery]:
        lead = crm.new_lead()
        crm.hold_back(crm.creation(lead, f"late creation: {people(crm, lead)}"), turns=crm.random.randint(4, 8))
        return [AddParticipant.join(crm, lead, story="too early: {who} joins as {role}") for _ in range(2)]


@action(weight=1)
class NoValue(Action):
    """A record without a value."""

    def perform(self, crm: Crm) -> list[Delivery]:
        return [
            crm.broken(lead, None, "broken record: no value at all", INVALID_ENVELOPE)
            for lead in crm.random.sample(crm.told_leads(), 1)
        ]


@action(weight=1)
class Junk(Action):
    """A record that is no JSON."""

    def perform(self, crm: Crm) -> list[Delivery]:
        return [
            crm.broken(lead, b"\xff\x00 this is not JSON", "broken record: no JSON", INVALID_ENVELOPE)
            for lead in crm.random.sample(crm.told_leads(), 1)
        ]


@action(weight=1)
class EmptyRoster(Action):
    """A roster without anybody, which no lead may have (INV-CHAT-7)."""

    def perform(self, crm: Crm) -> list[Delivery]:
        return [
            crm.broken(lead, _record(crm, lead, {}, lead.version + 1), "broken record: empty roster", INVALID_ROSTER)
            for lead in crm.random.sample(crm.told_leads(), 1)
        ]


@action(weight=1)
class BadVersion(Action):
    """A version that is no version."""

    def perform(self, crm: Crm) -> list[Delivery]:
        found = []
        for lead in crm.random.sample(crm.told_leads(), 1):
            version = crm.random.choice((0, -1, "5", 5.5, True, 2**63))
            value = _record(crm, lead, lead.roster, version)
            found.append(crm.broken(lead, value, f"broken record: version {version!r}", INVALID_ROSTER))
        return found


def with_room(crm: Crm) -> Lead | None:
    """A lead that two more people can join."""
    leads = [lead for lead in crm.told_leads() if len(lead.roster) < 6]
    return crm.random.choice(leads) if leads else None


def _record(crm: Crm, lead: Lead, roster: Roster, version: object) -> bytes:
    at = crm.clock()
    payload = snapshot(lead.contract, lead.id, roster, [], version, at)
    return encode(crm.new_id(), "Lead", lead.id, payload, at)
