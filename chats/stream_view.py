"""`/api/v1/stream`: Server-Sent Events, as an ASGI application beside Django.

Beside, as Django's responses hide how fast the client takes what is sent: here `send` itself is timed.
"""

import asyncio
import time
from collections.abc import Sequence
from urllib.parse import parse_qs
from uuid import UUID

from django.conf import settings

from chats import reading
from chats.api_schemas import Error, ErrorCode
from chats.hub import Hub
from chats.places import read_place
from chats.stream_client import Client, Line
from chats.tokens import Identity, TokenRefused, identify
from messenger import metrics
from messenger.logs import get_logger
from messenger.routes import Receive, Scope, Send
from messenger.web_server import abort, limit_send_buffer

log = get_logger(__name__)

SEND_BUFFER = 64 * 1024
"""Bytes that may be on their way to a client who does not read, in the kernel and here each."""
RETRY_MILLISECONDS = 1000
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-accel-buffering", b"no"),  # proxies that hold responses back to send them in larger parts
]


class Stream:
    """The application, and the hub of this process behind it."""

    def __init__(self) -> None:
        self._hub: Hub | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["method"] != "GET":
            error = Error(code=ErrorCode.METHOD_NOT_ALLOWED, message="The stream is read with GET.")
            await _refuse(send, 405, error, (b"allow", b"GET"))
            return
        try:
            identity = identify(_token(scope))
        except TokenRefused as refusal:
            error = Error(code=ErrorCode.UNAUTHORIZED, message=str(refusal))
            await _refuse(send, 401, error, (b"www-authenticate", b"Bearer"))
            return
        await self.open()
        assert self._hub is not None
        with self._hub.joined(identity.user_id, read_place(_header(scope, b"last-event-id"))) as client:
            await _Outlet(self._hub, client, identity, scope, send).serve(receive)

    async def open(self) -> None:
        """Start the hub; also done by the first request, where the server does not tell of its start."""
        if self._hub is None:
            self._hub = Hub()
            self._hub.start()

    def end(self) -> None:
        """End every open stream; clients come back to another process."""
        if self._hub is not None:
            self._hub.end()

    async def close(self) -> None:
        """Close every connection to PostgreSQL that people online made necessary."""
        hub, self._hub = self._hub, None
        if hub is not None:
            await hub.close()
        await reading.close()


class _TooSlow(Exception):
    """The client does not take what is sent."""


class _Outlet:
    """Sends one client what the hub has for it."""

    def __init__(self, hub: Hub, client: Client, identity: Identity, scope: Scope, send: Send) -> None:
        self._hub = hub
        self._client = client
        self._expires_at = identity.expires_at
        self._user_id: UUID = identity.user_id
        self._scope = scope
        self._send = send

    async def serve(self, receive: Receive) -> None:
        """Until the client leaves, its token expires, or the process is asked to stop."""
        watch = asyncio.create_task(self._watch(receive))
        try:
            limit_send_buffer(self._scope, SEND_BUFFER)
            await self._send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            await self._write(f"retry: {RETRY_MILLISECONDS}\n\n")
            await self._pour()
            if not self._client.gone:
                await self._write("", more=False)
        except _TooSlow:
            metrics.STREAM_DROPPED.inc()
            log.info("stream_dropped", user_id=str(self._user_id))
            if abort(self._scope):
                await watch
        finally:
            watch.cancel()

    async def _pour(self) -> None:
        client, loop = self._client, asyncio.get_running_loop()
        while not (client.gone or client.ending):
            left = self._expires_at - time.time()
            if left <= 0:
                return
            client.wake.clear()
            text, lines = self._hub.take(client)
            if text:
                await self._write(text)
                _measure(lines, loop.time())
                continue
            try:
                async with asyncio.timeout(min(settings.STREAM_HEARTBEAT, left)):
                    await client.wake.wait()
            except TimeoutError:
                await self._write(": still here\n\n")

    async def _write(self, text: str, *, more: bool = True) -> None:
        try:
            async with asyncio.timeout(settings.STREAM_SEND_TIMEOUT):
                await self._send({"type": "http.response.body", "body": text.encode(), "more_body": more})
        except TimeoutError as error:
            raise _TooSlow from error

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._client.gone = True
        self._client.wake.set()


def _measure(lines: Sequence[Line], now: float) -> None:
    for line in lines:
        if line.changed_at is not None:
            metrics.STREAM_PUSH_DELAY.observe(now - line.changed_at)


def _header(scope: Scope, wanted: bytes) -> str:
    found: bytes = next((value for name, value in scope["headers"] if name == wanted), b"")
    return found.decode("latin-1")


def _token(scope: Scope) -> str:
    scheme, _, token = _header(scope, b"authorization").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    query: dict[str, list[str]] = parse_qs(scope.get("query_string", b"").decode("latin-1"))
    return query.get("access_token", [""])[0]


async def _refuse(send: Send, status: int, error: Error, header: tuple[bytes, bytes]) -> None:
    headers = [(b"content-type", b"application/json; charset=utf-8"), (b"cache-control", b"no-store"), header]
    body = error.model_dump_json(by_alias=True).encode()
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


stream = Stream()
