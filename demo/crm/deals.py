"""What happens around deals, and at the end of leads: the same registry of actions."""

from dataclasses import replace

from demo.crm.actions import Action, AddParticipant, action, hand_over, people
from demo.crm.deliveries import Delivery, Trouble
from demo.crm.model import Crm

MOST_DEALS = 12
_STORIES = {
    None: "new deal",
    Trouble.PASSING: "new deal, whose chat fails at first",
    Trouble.LASTING: "new deal, whose chat fails again and again",
}


def open_deal(crm: Crm, trouble: Trouble | None) -> list[Delivery]:
    """A new deal; one whose chat fails at first has a change of roster waiting for it."""
    deal = crm.new_deal(trouble)
    found = [replace(crm.creation(deal, f"{_STORIES[trouble]}: {people(crm, deal)}"), trouble=trouble)]
    if trouble is Trouble.PASSING:
        found.append(AddParticipant.join(crm, deal))
    return found


@action(weight=3)
class NewDeal(Action):
    """A deal is created; now and then its chat cannot be made at once."""

    def perform(self, crm: Crm) -> list[Delivery]:
        if len(crm.deals) >= MOST_DEALS:
            return []
        return open_deal(crm, Trouble.PASSING if crm.random.random() < 0.3 else None)


@action(weight=4)
class DealMembers(Action):
    """Someone joins a deal, or it changes hands."""

    def perform(self, crm: Crm) -> list[Delivery]:
        deals = [deal for deal in crm.steady_deals() if len(deal.roster) < 6]
        if not deals:
            return []
        deal = crm.random.choice(deals)
        if crm.random.random() < 0.5:
            return [AddParticipant.join(crm, deal)]
        return [hand_over(crm, deal, "hand-over from {old} to {new}")]


@action(weight=1)
class EndLead(Action):
    """A lead comes to its end; its chat is closed (INV-CHAT-8). A change that comes late still holds."""

    def perform(self, crm: Crm) -> list[Delivery]:
        leads = [lead for lead in crm.told_leads() if len(lead.roster) < 7]
        if len(leads) < 4:
            return []
        lead = crm.random.choice(leads)
        status = crm.random.choice(("Archived", "Expired"))
        ending = crm.ending(lead, status, f"the lead ends: {status}")
        return [ending, AddParticipant.join(crm, lead, story="late, after the end: {who} joins as {role}")]
