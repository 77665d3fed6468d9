"""One open stream as the hub sees it: what it has been told, and what waits to be sent.

Bounded whatever the pace of its reader: at most one waiting line a chat, the newest.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from chats.places import Place


@dataclass(frozen=True, slots=True)
class Line:
    """Something to tell about a chat: that it changed, or, to who was removed, that it is gone."""

    chat_id: UUID
    removed: bool
    number: int
    """The chat's `last_seq`; for a removal the id of the transaction that removed."""
    changed_at: float | None = None
    """When the change was committed, by the event loop's clock; None where that is not known."""

    @property
    def text(self) -> str:
        """The event's name and data."""
        data: dict[str, object] = {"ChatId": str(self.chat_id)}
        if not self.removed:
            data["Seq"] = self.number
        return _event("ChatRemoved" if self.removed else "ChatUpdated", data)


@dataclass(eq=False, slots=True)
class Client:
    """An open stream of `user_id`. `since`: the place it wants to go on from."""

    user_id: UUID
    since: Place | None
    opened: bool = False
    """Whether it has been told where it stands; before that, no line is for it."""
    greeting: str | None = None
    gone: bool = False
    ending: bool = False
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    _told: dict[UUID, tuple[bool, int]] = field(default_factory=dict)
    _waiting: dict[UUID, Line] = field(default_factory=dict)
    _sent: Place | None = None

    def open(self, place: Place, *, resumed: bool) -> None:
        """Tell the client where it stands. Not `resumed`: it has to read its chats anew."""
        self.opened = True
        self._sent = self.since if resumed else place
        self.greeting = _event("StreamOpened", {"Resumed": resumed})
        if not resumed:
            self._told.clear()
            self._waiting.clear()
        self.wake.set()

    def tell(self, line: Line) -> None:
        """Have `line` sent in place of what waits about its chat, unless it is what was told last."""
        fact = (line.removed, line.number)
        if self._told.get(line.chat_id) != fact:
            self._told[line.chat_id] = fact
            self._waiting[line.chat_id] = line
            self.wake.set()

    def take(self, place: Place) -> tuple[str, list[Line]]:
        """What is to be sent now, as text, and the lines in it; `place` is where the hub stands.

        Only the last event may bear the new place: a stream cut off before it must go on from the old one.
        """
        greeting, self.greeting = self.greeting, None
        lines, self._waiting = list(self._waiting.values()), {}
        events = [*([greeting] if greeting else []), *(line.text for line in lines)]
        if not events and self._sent == place:
            return "", []
        before, self._sent = self._sent, place
        return "".join(_numbered(events, before or place, place)), lines


def _event(name: str, data: dict[str, object]) -> str:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n"


def _numbered(events: list[str], before: Place, now: Place) -> Iterator[str]:
    for event in events[:-1]:
        yield f"{event}id: {before}\n\n"
    # An id without an event moves the place that a browser will come back with, and nothing else.
    yield f"{events[-1] if events else ''}id: {now}\n\n"
