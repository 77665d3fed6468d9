"""Liveness of a worker, and the small server of `/metrics` and `/healthz`."""

import threading
import time
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app

from messenger.faults import MessengerError


class Heartbeat:
    """When the loop of this process last turned."""

    def __init__(self, *, stall_after: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._stall_after = stall_after
        self._clock = clock
        self._last = clock()

    def beat(self) -> None:
        """Say that the loop turned."""
        self._last = self._clock()

    @property
    def age(self) -> float:
        """Seconds since the loop last turned."""
        return self._clock() - self._last

    @property
    def alive(self) -> bool:
        """Whether the loop has turned lately enough."""
        return self.age <= self._stall_after


class PortTaken(MessengerError):
    """The metrics port is in use."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    # Two workers on one port would each be asked half of the time.
    allow_reuse_port = False


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Probes and scrapes are not worth a line each."""


class HealthServer:
    """Serves `/metrics` and `/healthz` (200, or 503 when the loop has stalled) from a thread of its own."""

    def __init__(self, port: int, heartbeat: Heartbeat, *, host: str = "0.0.0.0") -> None:  # noqa: S104
        self._heartbeat = heartbeat
        self._metrics = make_wsgi_app()
        try:
            self._server = make_server(host, port, self._app, server_class=_Server, handler_class=_Quiet)
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else "there is no such port"
            raise PortTaken(
                f"Port {port} for metrics cannot be opened ({reason}): name a free one with --metrics-port."
            ) from error

    @property
    def port(self) -> int:
        """The port in use, also when a free one was asked for with 0."""
        return int(self._server.server_port)

    def _app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            page: Iterable[bytes] = self._metrics(environ, start_response)
            return page
        if environ["PATH_INFO"] != "/healthz":
            start_response("404 Not Found", [("Content-Type", "text/plain")])
            return [b"Here are /metrics and /healthz.\n"]
        alive = self._heartbeat.alive
        start_response("200 OK" if alive else "503 Service Unavailable", [("Content-Type", "text/plain")])
        verdict = "ok" if alive else "stalled"
        return [f"{verdict}: the loop last turned {self._heartbeat.age:.0f} s ago\n".encode()]

    def __enter__(self) -> Self:
        # How often it looks whether to end is how long the end of the process waits for it.
        threading.Thread(target=self._server.serve_forever, args=(0.1,), name="health", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
