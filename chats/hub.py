"""The hub: takes the notices of changed chats from PostgreSQL and tells the people online, for the whole process.

What it guarantees:

* Two connections, one that listens and one that reads, whatever the number of clients.
* One task does everything in order: take the notices that have come, read, tell. What it reads is read after the
  notice, thus never older than the change. A number (`Seq`) is told only to people who were active participants in the
  very snapshot it was read from, so nobody removed learns of their removal's number or a later one. A line that still
  waits for a slow reader is replaced by the removal.
* A client first joins and is then brought up to date in that same task, so nothing falls between the two.
* The place (the events' id, `chats.places`) moves on only by a mark: a transaction id below which all had ended, sent
  through NOTIFY itself. When it comes back, everything notified before it has come, too. The mark is also the proof
  that the listening session still delivers; where it is long overdue both sessions are given up and opened anew.
* While the hub is cut off nothing is sent about chats, as it would be older than changes the hub cannot see. Once it
  listens again, everything since the last place is read from the tables and told.

Not guaranteed: that an event is told once only, or that each number of a chat is told (the newest counts). An event
may be on its way when the removal commits; it was read before.
"""

import asyncio
import os
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from uuid import UUID

import psycopg
from django.conf import settings
from psycopg import sql

from chats import changes
from chats.changes import Connection, Standing
from chats.places import Place
from chats.realtime import CHANNEL, Notice, read_notice
from chats.stream_client import Client, Line
from messenger import metrics
from messenger.backoff import Backoff
from messenger.faults import describe, frames
from messenger.listening import listen_parameters
from messenger.logs import get_logger
from messenger.readers import connect

log = get_logger(__name__)

STATEMENT_TIMEOUT = 10_000
"""Milliseconds: a read that takes longer is given up with its session."""
MARK_OVERDUE = 3
"""Times STREAM_KEEPALIVE. A slow read, or a loop that is busy with a crowd of clients, is no lost session: to give
up sound ones then would only add to the load."""


class Hub:
    """Belongs to one event loop: `start`, then `joined` for each client, then `end` and `close`."""

    def __init__(self) -> None:
        self._backoff = Backoff(base=0.1, cap=10)
        self._clients: dict[UUID, set[Client]] = defaultdict(set)
        self._joining: list[Client] = []
        self._inbox: list[Notice | Place | None] = []
        self._wake = asyncio.Event()
        self._marked = asyncio.Event()
        self._marks = f"messenger_hub_{uuid.uuid4().hex}"
        self._task: asyncio.Task[None] | None = None
        self._place: Place | None = None
        self._reader: Connection
        self.live = False
        """Whether changes reach this hub now."""
        self.ending = False

    # --- for those who serve clients ----------------------------------------------------------------

    def start(self) -> None:
        """Begin to listen; may be called again."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="hub")

    @contextmanager
    def joined(self, user_id: UUID, since: Place | None) -> Iterator[Client]:
        """A client as long as the context lasts."""
        client = Client(user_id, since, ending=self.ending)
        self._clients[user_id].add(client)
        self._joining.append(client)
        self._wake.set()
        metrics.STREAM_CLIENTS.inc()
        try:
            yield client
        finally:
            metrics.STREAM_CLIENTS.dec()
            client.gone = True
            if client in self._joining:
                self._joining.remove(client)
            self._clients[user_id].discard(client)
            if not self._clients[user_id]:
                del self._clients[user_id]

    def take(self, client: Client) -> tuple[str, list[Line]]:
        """What is to be sent to `client` now."""
        if not self.live or self._place is None or not client.opened:
            return "", []
        return client.take(self._place)

    def end(self) -> None:
        """Ask every client's stream to end; may be called again."""
        self.ending = True
        for client in self._everyone():
            client.ending = True
            client.wake.set()

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    # --- the task -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        tries = 0
        while True:
            try:
                async with self._sessions() as (listener, reader):
                    self._reader = reader
                    await self._take_up()
                    tries = 0
                    async with asyncio.TaskGroup() as group:
                        group.create_task(self._hear(listener))
                        group.create_task(self._mark())
                        group.create_task(self._follow())
            except Exception as error:
                self._report(error)
            finally:
                self.live = False
            await asyncio.sleep(self._backoff.delay(tries))
            tries += 1

    def _report(self, error: Exception) -> None:
        causes = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
        for cause in causes:
            if isinstance(cause, psycopg.Error | OSError | TimeoutError):
                log.warning("listen_session_lost", channel=CHANNEL, error=describe(cause))
            else:
                log.error("unexpected_fault", error=describe(cause), frames=frames(cause))

    @asynccontextmanager
    async def _sessions(self) -> AsyncIterator[tuple[Connection, Connection]]:
        parameters = listen_parameters() | {"application_name": f"messenger-hub-{os.getpid()}"}
        async with await connect(parameters) as listener, await connect(parameters) as reader:
            await reader.execute(sql.SQL("SET statement_timeout = {}").format(STATEMENT_TIMEOUT))
            for channel in (CHANNEL, self._marks):
                await listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            yield listener, reader

    async def _take_up(self) -> None:
        """The session listens from now on: read what changed while none did."""
        self._inbox.clear()
        place, last = await changes.here(self._reader), self._place
        opened = [client for client in self._everyone() if client.opened]
        if last is not None and last.reachable_from(place):
            await self._catch_up(opened, last)
        else:
            for client in opened:
                client.open(place, resumed=False)
        self._place = place
        self.live = True
        self._wake.set()
        for client in opened:
            client.wake.set()
        log.info("listening", channel=CHANNEL, clients=len(opened))

    async def _hear(self, listener: Connection) -> None:
        async for notify in listener.notifies():
            if notify.channel == CHANNEL:
                self._inbox.append(self._read(notify.payload))
            elif self._place is not None:
                self._inbox.append(Place(self._place.lineage, int(notify.payload)))
            self._wake.set()
        raise ConnectionError("The listening session has ended.")

    def _read(self, payload: str) -> Notice | None:
        try:
            return read_notice(payload)
        except ValueError:
            log.warning("notice_unreadable", channel=CHANNEL)
            return None

    async def _mark(self) -> None:
        while True:
            await asyncio.sleep(settings.STREAM_KEEPALIVE)
            self._marked.clear()
            async with asyncio.timeout(MARK_OVERDUE * settings.STREAM_KEEPALIVE):
                place = await changes.here(self._reader)
                # A transaction of its own and after the reading: its notice queues up behind all that had ended then.
                await self._reader.execute("SELECT pg_notify(%s, %s)", [self._marks, str(place.transaction)])
                await self._marked.wait()

    async def _follow(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            inbox, self._inbox = self._inbox, []
            await self._announce([notice for notice in inbox if isinstance(notice, Notice)])
            if None in inbox and self._place is not None:
                # Whatever it was meant to say, the tables know.
                await self._catch_up([client for client in self._everyone() if client.opened], self._place)
            await self._bring_in()
            marks = [place for place in inbox if isinstance(place, Place)]
            if marks:
                self._place = marks[-1]
                self._marked.set()

    async def _announce(self, notices: Sequence[Notice]) -> None:
        since: dict[UUID, int] = {}
        issued: dict[UUID, float] = {}
        for notice in notices:
            for chat in notice.chats:
                since[chat] = min(since.get(chat, notice.transaction), notice.transaction)
                issued[chat] = min(issued.get(chat, notice.issued_at), notice.issued_at)
        if not since or not self._clients:
            return
        standings, read_at = await changes.announced(self._reader, since, list(self._clients))
        now = asyncio.get_running_loop().time()
        for standing in standings:
            line = _line(standing, changed_at=now - max(0.0, read_at - issued[standing.chat_id]))
            for client in self._clients.get(standing.user_id, ()):
                if client.opened:
                    client.tell(line)

    async def _bring_in(self) -> None:
        """Tell those who joined where they stand, and those who come back what they missed."""
        joining, place = list(self._joining), self._place
        if not joining or place is None:
            return
        # A place ahead of this hub's may come from another process; one of this database is never ahead of this.
        newest = await changes.here(self._reader) if any(client.since for client in joining) else place
        resuming = [client for client in joining if client.since and client.since.reachable_from(newest)]
        await self._resume(resuming)
        for client in joining:
            client.open(place, resumed=client in resuming)
        self._joining = [client for client in self._joining if not client.opened]

    async def _resume(self, clients: Sequence[Client]) -> None:
        pairs = [(client.user_id, client.since.transaction) for client in clients if client.since]
        if pairs:
            for client, standings in zip(clients, await changes.missed(self._reader, pairs), strict=True):
                for standing in standings:
                    client.tell(_line(standing))

    async def _catch_up(self, clients: Sequence[Client], since: Place) -> None:
        users = sorted({client.user_id for client in clients})
        if users:
            found = await changes.missed(self._reader, [(user, since.transaction) for user in users])
            by_user = dict(zip(users, found, strict=True))
            for client in clients:
                for standing in by_user[client.user_id]:
                    client.tell(_line(standing))

    def _everyone(self) -> Iterable[Client]:
        return [client for clients in self._clients.values() for client in clients]


def _line(standing: Standing, changed_at: float | None = None) -> Line:
    number = standing.written_by if standing.removed else standing.last_seq
    return Line(standing.chat_id, standing.removed, number, changed_at)
