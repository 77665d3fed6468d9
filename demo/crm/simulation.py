"""The simulated crm at work: one record after another, each with its fate."""

from collections import deque
from uuid import UUID

from demo.crm import actions, deals, mishaps
from demo.crm.deliveries import Delivery, Trouble
from demo.crm.model import Crm, Lead
from demo.crm.oracle import Fate, Oracle

__all__ = ["Simulation", "actions", "deals", "mishaps"]

FIRST_LEADS = 3
"""So many leads before anything else happens."""


class Simulation:
    """Draws actions and hands out their records. Handed out means sent: the oracle counts on it."""

    def __init__(self, crm: Crm) -> None:
        self.crm = crm
        self.oracle = Oracle()
        self._deck = actions.Deck(crm.random)
        self._waiting: deque[Delivery] = deque()
        self._ending = False

    def peek(self) -> Delivery | None:
        """The record that goes next; None when all is said."""
        if not self._waiting:
            self._waiting.extend(self._more())
        return self._waiting[0] if self._waiting else None

    def take(self) -> Fate:
        """Hand out the record that `peek` showed."""
        return self.oracle.fate(self._waiting.popleft())

    def has_more(self, subject: UUID) -> bool:
        """Whether a record of `subject` is about to go."""
        return any(delivery.subject == subject for delivery in self._waiting)

    def end(self) -> None:
        """Nothing more happens in crm; what was held back is still sent."""
        self._ending = True

    def subjects(self) -> list[Lead]:
        """All leads and deals, as crm has them."""
        return [*self.crm.leads.values(), *self.crm.deals.values()]

    def _more(self) -> list[Delivery]:
        if self.crm.unnamed:
            return [self.crm.naming(self.crm.unnamed.pop(0))]
        if self._ending:
            return self.crm.due(all_of_it=True)
        if not self.crm.deals and len(self.crm.leads) >= FIRST_LEADS:
            # However short the run, it has one of each.
            return [
                record
                for trouble in (Trouble.LASTING, Trouble.PASSING, None)
                for record in deals.open_deal(self.crm, trouble)
            ]
        if len(self.crm.leads) < FIRST_LEADS:
            found = actions.NewLead().perform(self.crm)
            self.crm.recent.extend(found)
            return found
        return actions.act(self.crm, self._deck)
