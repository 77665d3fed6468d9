"""Sends the simulated crm's records at their pace."""

from uuid import UUID

from demo.broker import Broker
from demo.crm.simulation import Simulation
from demo.ledger import Ledger
from demo.trouble import Troubles
from messenger.topics import USER_CHANGED


class Feed:
    """One record every 1/`rate` seconds.

    A lead's records on two topics reach two consumers, in whatever order these take them up; crm waits between the
    topics of one lead, so that what must become of each record is certain. Within a topic it waits for nobody.
    """

    def __init__(
        self, simulation: Simulation, ledger: Ledger, broker: Broker, troubles: Troubles, *, rate: float
    ) -> None:
        self._simulation = simulation
        self._ledger = ledger
        self._broker = broker
        self._troubles = troubles
        self._gap = 1 / rate
        self._next = 0.0
        self.waits_for: UUID | None = None
        """The lead whose records messenger has yet to take up."""

    def turn(self, now: float) -> bool:
        """Send what is due at `now` (monotonic seconds); whether there is anything more to come."""
        while now >= self._next:
            delivery = self._simulation.peek()
            if delivery is None:
                return False
            if not self._ledger.heeded(delivery.subject, beside=delivery.topic):
                self.waits_for = delivery.subject
                return True
            self.waits_for = None
            if delivery.trouble is not None:
                self._troubles.strike(delivery.subject, delivery.trouble)
            self._broker.send(self._ledger.add(self._simulation.take()))
            if delivery.topic is USER_CHANGED:
                continue  # names are told in passing: nobody watches for them
            # After a wait the pace goes on from now; nothing is made up for in a burst.
            self._next = max(self._next, now - self._gap) + self._gap
        return True
