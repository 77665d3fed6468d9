"""The web process as a process, its API as a user sees it, and clients of its event stream."""

import json
import socket
import threading
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from chats.lead_created import LeadCreatedHandler
from chats.models import Chat
from chats.roster_consumer import DEALS, LEADS, RosterHandler
from chats.tokens import issue
from messenger.topics import DEAL_CREATED, DEAL_MEMBERS_CHANGED, LEAD_CREATED
from outbox.settlement import Settlement
from provisioning.deal_created import DealCreatedHandler
from tests.support import crm
from tests.support.waiting import PATIENCE, wait_until
from tests.support.workers import Worker


class Web:
    """`manage.py serve` on a free port."""

    def __init__(self, env: Mapping[str, str], *arguments: str) -> None:
        # Of two `--port`, the last one counts.
        self.worker = Worker("serve", "--port", "0", *arguments, env=dict(env))
        self.port = 0

    def __enter__(self) -> Self:
        self.worker.__enter__()
        self.port = int(self.worker.wait_for("serving")["port"])
        self.worker.wait_for("listening")
        wait_until(lambda: _status(f"{self.url}/healthz") == 200, what="the web process serves")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.worker.__exit__(kind, error, trace)

    @property
    def url(self) -> str:
        """Where it serves."""
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, user: str | None = None, **options: Any) -> httpx.Response:
        """GET a path of the API as `user`."""
        headers = {"Authorization": f"Bearer {token(user)}"} if user else {}
        return httpx.get(
            f"{self.url}/api/v1{path}", headers=headers | options.pop("headers", {}), timeout=30, **options
        )

    def metric(self, name: str) -> float:
        """The value of one of its metrics that has no labels; 0 where it has not been set."""
        for line in httpx.get(f"{self.url}/metrics", timeout=30).text.splitlines():
            found, _, value = line.rpartition(" ")
            if found == name:
                return float(value)
        return 0.0

    def stream(self, user: str, *, last_event_id: str | None = None) -> "Stream":
        """Open the event stream as `user`."""
        headers = {"Authorization": f"Bearer {token(user)}"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        return Stream(f"{self.url}/api/v1/stream", headers)


class Stream:
    """An open event stream, read in a thread of its own. Each event is (name, data, id)."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self.events: list[tuple[str, dict[str, Any], str]] = []
        self.comments = 0
        self.last_event_id = ""
        self.ended = threading.Event()
        self._url, self._headers = url, dict(headers)
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for("StreamOpened")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Go away."""
        if self._socket is not None and not self.ended.is_set():
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)

    def _read(self) -> None:
        try:
            with httpx.stream("GET", self._url, headers=self._headers, timeout=60) as response:
                assert response.status_code == 200, response.status_code
                self._socket = response.extensions["network_stream"].get_extra_info("socket")
                fields: dict[str, str] = {}
                for line in response.iter_lines():
                    self._take(line, fields)
        except httpx.TransportError:
            pass
        finally:
            self.ended.set()

    def _take(self, line: str, fields: dict[str, str]) -> None:
        if line.startswith(":"):
            self.comments += 1
        elif line:
            name, _, value = line.partition(": ")
            fields[name] = value
        else:
            self.last_event_id = fields.get("id", self.last_event_id)
            if "data" in fields:
                self.events.append((fields["event"], json.loads(fields["data"]), self.last_event_id))
            fields.clear()

    def of(self, chat: str) -> list[tuple[str, int | None]]:
        """What was told of a chat: (event, Seq)."""
        return [(name, data.get("Seq")) for name, data, _ in list(self.events) if data.get("ChatId") == chat]

    def wait_for(self, name: str, *, seconds: float = PATIENCE, **data: Any) -> dict[str, Any]:
        """Wait for an event of this name with these data."""

        def found() -> list[dict[str, Any]]:
            assert not self.ended.is_set() or self.events, "the stream ended"
            wanted = data.items()
            return [each for event, each, _ in list(self.events) if event == name and wanted <= each.items()]

        return wait_until(found, seconds=seconds, what=f"{name} {data} in {self.events[-5:]}")[0]


def token(user: str, *, ttl: float = 3600) -> str:
    """A good token of `user`."""
    return issue(uuid.UUID(user), ttl=ttl)


def open_lead_chat(roster: Mapping[str, str], *, title: str = "Lead") -> tuple[str, str]:
    """A lead's chat, opened as the consumer does: the lead and the chat."""
    lead = crm.new_id()
    record = crm.record(crm.lead_created(lead, roster, title=title), topic=LEAD_CREATED)
    list(Settlement(LeadCreatedHandler()).settle([record]))
    return lead, str(Chat.objects.get(lead_id=lead).id)


def change_roster(lead: str, version: int, roster: Mapping[str, str]) -> None:
    """Bring a lead's chat to `roster`, as the consumer does."""
    list(Settlement(RosterHandler(LEADS)).settle([crm.record(crm.lead_participants(lead, version, roster))]))


def open_deal_chat(roster: Mapping[str, str], *, title: str = "Deal") -> tuple[str, str]:
    """A deal's chat, provisioned as the consumer does: the deal and the chat."""
    deal = crm.new_id()
    record = crm.record(crm.deal_created(deal, roster, title=title), topic=DEAL_CREATED)
    list(Settlement(DealCreatedHandler()).settle([record]))
    return deal, str(Chat.objects.get(deal_id=deal).id)


def change_deal_roster(deal: str, version: int, roster: Mapping[str, str]) -> None:
    """Bring a deal's chat to `roster`, as the consumer does."""
    record = crm.record(crm.deal_members(deal, version, roster), topic=DEAL_MEMBERS_CHANGED)
    list(Settlement(RosterHandler(DEALS)).settle([record]))


Kind = tuple[Callable[..., tuple[str, str]], Callable[..., None]]
KINDS: dict[str, Kind] = {
    "lead": (open_lead_chat, change_roster),
    "deal": (open_deal_chat, change_deal_roster),
}
"""How a chat of each kind is opened, and how its roster is changed."""


def _status(url: str) -> int:
    try:
        return httpx.get(url, timeout=10).status_code
    except httpx.TransportError:
        return 0
