"""The web server: uvicorn with an eye on each connection, so that a client who does not read can be let go."""

import asyncio
import socket
from functools import partial
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

TRANSPORT = "messenger.transport"
"""Extension of an ASGI scope: the connection's `asyncio.Transport`."""
BACKLOG = 2048


class Protocol(H11Protocol):
    """HTTP/1.1 that tells the application its transport."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app = partial(self._call, self.app)
        # A request line may hold a token, and whoever stands in front of this process logs requests anyway.
        # Said here, as Django sets logging up anew after uvicorn has.
        self.access_log = False

    async def _call(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("extensions", {})[TRANSPORT] = {"transport": self.transport}
        await app(scope, receive, send)


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket bound to `host` and `port` (0 takes a free one); OSError if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener


def server(*, graceful_shutdown: int) -> uvicorn.Server:
    """The server of `messenger.asgi`; `graceful_shutdown` bounds its end in seconds."""
    return uvicorn.Server(
        uvicorn.Config(
            "messenger.asgi:application",
            http=Protocol,
            lifespan="on",
            log_config=None,
            server_header=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=graceful_shutdown,
        )
    )


def abort(scope: Any) -> bool:
    """Cut the connection of `scope` off at once, unsent bytes included; False if this server cannot."""
    transport: asyncio.Transport | None = scope.get("extensions", {}).get(TRANSPORT, {}).get("transport")
    if transport is not None:
        transport.abort()
    return transport is not None


def limit_send_buffer(scope: Any, size: int) -> None:
    """Let the kernel take at most about `size` bytes that the client has not read, if this server can."""
    transport: asyncio.Transport | None = scope.get("extensions", {}).get(TRANSPORT, {}).get("transport")
    connection = transport.get_extra_info("socket") if transport is not None else None
    if transport is not None and connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)
        transport.set_write_buffer_limits(high=size)
