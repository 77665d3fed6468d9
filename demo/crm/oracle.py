"""What must become of each record, by the rules of the source document alone and nothing of messenger's code.

It holds as long as the records of a lead are taken up in the order in which they were sent. One topic keeps that
order by itself; between two topics whoever delivers waits (`demo.feed`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from demo.crm.deliveries import Delivery, Outcome
from messenger.topics import (
    DEAL_CREATED,
    DEAL_MEMBERS_CHANGED,
    LEAD_CREATED,
    LEAD_PARTICIPANTS_CHANGED,
    LEAD_TERMINATED,
    USER_CHANGED,
)


@dataclass(eq=False, slots=True)
class Fate:
    """The outcomes of one delivery, in order. Those of a waiting one change when a newer takes its place."""

    delivery: Delivery
    outcomes: list[Outcome]


@dataclass(slots=True)
class _Subject:
    has_chat: bool = False
    version: int = 0
    waiting: Fate | None = None


@dataclass
class Oracle:
    """Remembers what messenger should know by now."""

    processed: set[UUID] = field(default_factory=set)
    _subjects: dict[UUID, _Subject] = field(default_factory=dict)

    def fate(self, delivery: Delivery) -> Fate:
        """What must become of this one, after all before it."""
        fate = Fate(delivery, [])
        if delivery.refusal is not None:
            fate.outcomes = [Outcome.DEAD]
        elif delivery.message_id in self.processed:
            fate.outcomes = [Outcome.DUPLICATE]
        else:
            _RULES[delivery.topic.contract](self, self._subjects.setdefault(delivery.subject, _Subject()), fate)
        return fate

    def version(self, subject: UUID) -> int | None:
        """The version of the roster that messenger should have applied last; None where it applied none."""
        known = self._subjects[subject]
        return (_version(known.waiting) if known.waiting is not None else known.version) or None

    def process(self, delivery: Delivery) -> None:
        """Note that the message has its effect now."""
        assert delivery.message_id is not None
        self.processed.add(delivery.message_id)


def _lead_created(oracle: Oracle, subject: _Subject, fate: Fate) -> None:
    oracle.process(fate.delivery)
    if subject.has_chat:
        fate.outcomes = [Outcome.DUPLICATE]
        return
    fate.outcomes = [Outcome.OPENED]
    subject.has_chat = True
    if subject.waiting is not None:
        _apply(oracle, subject, subject.waiting)
        subject.waiting = None


def _lead_terminated(oracle: Oracle, subject: _Subject, fate: Fate) -> None:
    oracle.process(fate.delivery)
    fate.outcomes = [Outcome.CLOSED]


def _deal_created(oracle: Oracle, subject: _Subject, fate: Fate) -> None:
    oracle.process(fate.delivery)
    # What follows the failure of a first attempt is the retry job's, and crm hears of it (`demo.readiness`).
    subject.has_chat = fate.delivery.trouble is None
    fate.outcomes = [Outcome.PROVISIONED if subject.has_chat else Outcome.FAILED_FIRST]


def _user_changed(oracle: Oracle, subject: _Subject, fate: Fate) -> None:
    # Told twice, a name is saved twice: nothing is remembered of the message.
    fate.outcomes = [Outcome.NAMED]


def _roster(oracle: Oracle, subject: _Subject, fate: Fate) -> None:
    if subject.has_chat:
        _apply(oracle, subject, fate)
        return
    fate.outcomes = [Outcome.PARKED, Outcome.APPLIED]
    other = subject.waiting
    if other is None or _version(fate) > _version(other):
        other, subject.waiting = subject.waiting, fate
    else:
        other = fate
    if other is not None:
        other.outcomes = [Outcome.PARKED]


def _apply(oracle: Oracle, subject: _Subject, fate: Fate) -> None:
    if _version(fate) <= subject.version:
        fate.outcomes = [Outcome.STALE]
        return
    subject.version = _version(fate)
    oracle.process(fate.delivery)
    if subject.waiting is not fate:
        fate.outcomes = [Outcome.APPLIED]


def _version(fate: Fate) -> int:
    assert fate.delivery.version is not None
    return fate.delivery.version


_RULES: dict[str, Callable[[Oracle, _Subject, Fate], None]] = {
    LEAD_CREATED.contract: _lead_created,
    LEAD_PARTICIPANTS_CHANGED.contract: _roster,
    LEAD_TERMINATED.contract: _lead_terminated,
    DEAL_CREATED.contract: _deal_created,
    DEAL_MEMBERS_CHANGED.contract: _roster,
    USER_CHANGED.contract: _user_changed,
}
"""By topic."""
