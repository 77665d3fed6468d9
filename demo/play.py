"""The run itself: crm speaks, messenger does, and somebody looks on."""

import time
from dataclasses import dataclass
from uuid import UUID

from chats.tokens import page_link
from demo.broker import Broker
from demo.check import differences
from demo.crm.model import Crm
from demo.crm.simulation import Simulation
from demo.feed import Feed
from demo.ledger import Ledger
from demo.readiness import UNTOLD, Readiness
from demo.stage import Stage
from demo.trouble import Troubles, trouble_possible
from demo.view import Picture, View
from demo.watch import Watch
from messenger.topics import CONSUMED, PUBLISHED, Topic
from outbox.models import OutboxMessage
from provisioning.options import RetryOptions

TOPICS: tuple[Topic, ...] = CONSUMED
"""What crm speaks on."""
DRAIN_SECONDS = 60.0
"""How long messenger may take, after crm's last word, to have done everything."""
_TURN_SECONDS = 0.1
_LINK_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Options:
    """`seconds` None: until interrupted. `rate` is records per second."""

    seed: int
    rate: float
    seconds: float | None


class Play:
    """One run on a stage."""

    def __init__(self, stage: Stage, options: Options, view: View) -> None:
        self.stage = stage
        self._options = options
        self._view = view
        self.ledger = Ledger()
        self.simulation = Simulation(Crm(options.seed, run=stage.run))
        self._broker = Broker()
        self._troubles = Troubles(RetryOptions.from_settings())
        self.readiness = Readiness()
        self._feed = Feed(self.simulation, self.ledger, self._broker, self._troubles, rate=options.rate)
        self._shown: UUID | None = None
        self._page = ""
        self._began = self._settled_at = time.monotonic()

    def run(self) -> list[str]:
        """Run to the end of the time given; everything that is not as it should be then."""
        with trouble_possible(), self.readiness, Watch(self.stage.processes, TOPICS) as watch:
            try:
                self._speak(watch)
                self._drain(watch)
            finally:
                self._view.close()
            unwell = [f"{process.name} does not say that it is well" for process in self.stage.processes.unwell()]
            lag = [] if watch.caught_up(since=self._settled_at) else [f"the groups lag behind: {watch.lag}"]
            found = differences(self.simulation, self.ledger, self.readiness)
        return self._broker.failures + unwell + lag + found

    def _speak(self, watch: Watch) -> None:
        seconds = self._options.seconds
        doing = "Ctrl-C stops everything." if seconds is None else f"Ends by itself after {seconds:g} s."
        while seconds is None or self._elapsed() < seconds:
            self._feed.turn(time.monotonic())
            self._turn(watch, doing)

    def _drain(self, watch: Watch) -> None:
        self.simulation.end()
        self._settled_at = time.monotonic()
        deadline = time.monotonic() + DRAIN_SECONDS
        while self._feed.turn(time.monotonic()) or not self._done(watch):
            if time.monotonic() > deadline:
                return
            self._turn(watch, "crm is silent; messenger finishes what is left.")

    def _turn(self, watch: Watch, doing: str) -> None:
        self._broker.serve()
        for event in self.stage.processes.events():
            self.ledger.hear(event)
        self.ledger.settle()
        self._troubles.mend(heeded=self._all_heeded)
        self.stage.check()
        picture = Picture(
            self.stage, self.ledger, watch, self.readiness.counts, TOPICS, self._options.seed, *self.page(), doing
        )
        self._view.show(picture, self._elapsed())
        time.sleep(_TURN_SECONDS)

    def page(self) -> tuple[str, str]:
        """The address of a page with someone's chats, live, and who that is."""
        user = self.simulation.crm.staff[0]
        if self._shown != user:
            self._shown = user
            self._page = page_link(self.stage.web, user, ttl=_LINK_SECONDS)
        return self._page, self.simulation.crm.name(user)

    def _done(self, watch: Watch) -> bool:
        if self.ledger.open:
            self._settled_at = time.monotonic()
        if (
            self.ledger.open
            or not self._troubles.over
            or self._unsettled_deals()
            or not watch.caught_up(since=self._settled_at)
        ):
            return False
        ours = [topic.dlq for topic in CONSUMED] + [topic.name for topic in PUBLISHED]
        return not OutboxMessage.objects.filter(topic__in=ours, published_at=None).exists()

    def _all_heeded(self, deal: UUID) -> bool:
        """Whether everything that crm has to say of the deal was sent and taken up."""
        return not self.simulation.has_more(deal) and self.ledger.all_heeded(deal)

    def _unsettled_deals(self) -> bool:
        """Whether crm has yet to hear the last word on some deal."""
        return any(self.readiness.of(deal) == UNTOLD for deal in self.simulation.crm.deals)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began
