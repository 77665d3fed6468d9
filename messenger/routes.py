"""Beside Django: paths of the ASGI application that Django would hide the client from, and the process's life."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from types import FrameType
from typing import Any, Protocol

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Route(Protocol):
    """An ASGI application of its own that knows when the process comes and goes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    async def open(self) -> None:
        """The process starts to serve."""

    def end(self) -> None:
        """The process was asked to stop: end what is open soon. May be called again."""

    async def close(self) -> None:
        """Nothing is open any more."""


class Application:
    """Hands each request to its route, or to Django; tells the routes of the process's start and stop."""

    def __init__(self, django: App, routes: Mapping[str, Route]) -> None:
        self._django = django
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        path = scope["path"].removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else ""
        await self._routes.get(path, self._django)(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        for route in self._routes.values():
            await route.open()
        self._hear_signals()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for route in self._routes.values():
            route.end()
            await route.close()
        await send({"type": "lifespan.shutdown.complete"})

    def _hear_signals(self) -> None:
        # The server tells of its end only after the last response, and a stream has no end of its own.
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            servers_own = signal.getsignal(number)

            def hear(number: int, frame: FrameType | None, servers_own: Any = servers_own) -> None:
                for route in self._routes.values():
                    loop.call_soon_threadsafe(route.end)
                if callable(servers_own):
                    servers_own(number, frame)

            try:
                signal.signal(number, hear)
            except ValueError:  # not the main thread: whoever runs the server there ends it as well
                return
