"""What was sent, what should become of it, and what messenger said that it did: record by record."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from demo.crm.deliveries import REPEATED, Outcome
from demo.crm.oracle import Fate
from messenger.topics import Topic

RECENT = 60
_OUTCOMES = frozenset(outcome.value for outcome in Outcome)


@dataclass(eq=False, slots=True)
class Entry:
    """A sent record. `place` is its partition and offset, known once Kafka has it."""

    fate: Fate
    place: tuple[int, int] | None = None
    seen: list[Outcome] = field(default_factory=list)
    did: str = ""
    """What messenger did of it, for a person."""

    @property
    def settled(self) -> bool:
        """Whether everything that should become of it has."""
        return len(self.seen) >= len(self.fate.outcomes)

    def __str__(self) -> str:
        delivery = self.fate.delivery
        return f"{delivery.title}: {delivery.story} ({delivery.topic.name} {self.place or 'not delivered'})"


@dataclass
class Ledger:
    """Compares. It keeps what is open and the last few; of the rest only numbers."""

    recent: deque[Entry] = field(default_factory=lambda: deque(maxlen=RECENT))
    sent: Counter[str] = field(default_factory=Counter)
    """Records by topic (its contract name)."""
    did: Counter[tuple[str, Outcome]] = field(default_factory=Counter)
    """Outcomes by topic; a waiting record counts once as parked and, if it comes to that, once as applied."""
    dead: list[Entry] = field(default_factory=list)
    """Broken records."""
    unexpected: list[str] = field(default_factory=list)
    open: list[Entry] = field(default_factory=list)
    _early: list[Mapping[str, Any]] = field(default_factory=list)

    def add(self, fate: Fate) -> Entry:
        """A record is being sent."""
        entry = Entry(fate)
        self.recent.append(entry)
        self.open.append(entry)
        self.sent[fate.delivery.topic.contract] += 1
        if fate.delivery.refusal is not None:
            self.dead.append(entry)
        return entry

    def heeded(self, subject: UUID, *, beside: Topic) -> bool:
        """Whether messenger took up all that was sent of `subject` on topics other than this one."""
        return all(
            entry.seen
            for entry in self.open
            if entry.fate.delivery.subject == subject and entry.fate.delivery.topic is not beside
        )

    def all_heeded(self, subject: UUID) -> bool:
        """Whether messenger took up all that was sent of `subject`."""
        return all(entry.seen for entry in self.open if entry.fate.delivery.subject == subject)

    def hear(self, event: Mapping[str, Any]) -> None:
        """A line that a worker logged."""
        # What the retry job does of itself belongs to no record: crm hears of it by another way.
        if event.get("event") in _OUTCOMES and ("message_id" in event or "offset" in event):
            self._early.append(event)

    def settle(self) -> None:
        """Work through what was heard. A dead letter may be heard of before Kafka's report of the record."""
        waiting, self._early = self._early, []
        for event in waiting:
            outcome = Outcome(event["event"])
            candidates = [entry for entry in self.open if _speaks_of(event, entry)]
            entry = next((each for each in candidates if outcome in each.fate.outcomes[len(each.seen) :][:1]), None)
            if entry is not None:
                entry.seen.append(outcome)
                entry.did = _words(event, outcome)
                self.did[entry.fate.delivery.topic.contract, outcome] += 1
            elif outcome is Outcome.DEAD and any(each.place is None for each in self.open):
                self._early.append(event)
            elif outcome not in REPEATED:
                self._note(event)
        self.open = [entry for entry in self.open if not entry.settled]

    def count(self, outcome: Outcome) -> int:
        """How often this was the outcome."""
        return sum(number for (_, each), number in self.did.items() if each is outcome)

    def _note(self, event: Mapping[str, Any]) -> None:
        what = " ".join(f"{name}={value}" for name, value in event.items() if name in _TELLING)
        self.unexpected.append(f"a worker logged {event['event']!r}, which is not what should happen: {what}")


_TELLING = ("message_id", "lead_id", "deal_id", "version", "topic", "partition", "offset", "error_code")


def _speaks_of(event: Mapping[str, Any], entry: Entry) -> bool:
    delivery = entry.fate.delivery
    if "message_id" in event:
        return bool(event["message_id"] == str(delivery.message_id))
    return (event.get("topic"), event.get("partition"), event.get("offset")) == (
        delivery.topic.name,
        *(entry.place or ()),
    )


def _words(event: Mapping[str, Any], outcome: Outcome) -> str:
    match outcome:
        case Outcome.OPENED:
            return "chat opened"
        case Outcome.PROVISIONED:
            return "chat made, Ready"
        case Outcome.FAILED_FIRST:
            return f"failed ({event['error_code']}), will retry"
        case Outcome.CLOSED:
            return "chat closed"
        case Outcome.NAMED:
            return "name kept"
        case Outcome.APPLIED:
            counts = {"+": event["added"], "-": event["removed"], "~": event["role_changed"]}
            changes = " ".join(f"{sign}{count}" for sign, count in counts.items() if count)
            return f"v{event['version']}: {changes or 'no change'}"
        case Outcome.DUPLICATE:
            return "duplicate: no change"
        case Outcome.STALE:
            return f"v{event['version']} is stale: no change"
        case Outcome.PARKED:
            return f"no chat yet: v{event['version']} waits"
        case Outcome.DEAD:
            return f"dead letter {event['error_code']}"
