"""What a consumer has to say of its records: the base of every handler."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from django.db.backends.utils import CursorWrapper

from messenger.envelope import Refused
from messenger.records import Record
from outbox.dead_letters import Refusal

T = TypeVar("T")


@dataclass(slots=True)
class Verdict:
    """What a handler made of a batch, inside its transaction."""

    refusals: list[Refusal] = field(default_factory=list)
    report: Callable[[float], None] = lambda started: None
    """Called after the commit with the batch's start (`time.time()`): logs, metrics and spans."""


class Handler(ABC):
    """The part of a consumer that knows what its records mean. `group` is its consumer group."""

    group: str

    @abstractmethod
    def handle(self, cursor: CursorWrapper, records: Sequence[Record]) -> Verdict:
        """Apply `records` in order, within the caller's transaction."""

    def abandon(self, cursor: CursorWrapper, record: Record) -> None:
        """Clean up, in the transaction that dead-letters it, for a record that `handle` had no say about."""
        return

    def buried(self, refusals: Sequence[Refusal]) -> None:
        """Count records newly dead-lettered, after the commit, where this consumer has a metric of its own."""
        return


def read_each(records: Sequence[Record], read: Callable[[Record], T], *, group: str) -> tuple[list[T], list[Refusal]]:
    """Parse `records` with `read`: the messages in order, and the refusals."""
    messages: list[T] = []
    refusals: list[Refusal] = []
    for record in records:
        try:
            messages.append(read(record))
        except Refused as reason:
            refusals.append(Refusal.of(record, group, reason))
    return messages, refusals
