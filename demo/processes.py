"""The service's own processes: each worker, and the web."""

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from demo.servers.children import Child, Program
from demo.servers.interrupts import held
from demo.servers.ports import LOOPBACK
from messenger.faults import MessengerError

ROOT = Path(__file__).resolve().parents[1]
WORKERS = (
    "consume_lead_created",
    "consume_lead_participants",
    "consume_lead_terminated",
    "consume_deal_created",
    "consume_deal_members",
    "consume_user_changed",
    "run_provision_retry",
    "run_outbox_relay",
)
"""The management commands that run."""
WEB = "serve"
"""The command of the web process."""
START_SECONDS = 120.0
STOP_SECONDS = 15.0
_PROBE_SECONDS = 3.0
_TAIL_LINES = 15
_CONSUMES = "consume_"
"""How the commands of the consumers begin."""
_PORTS = {"started": "metrics_port", "serving": "port"}
"""The events in which a worker and the web process name their port."""
# A proxy of this machine's user is not the way to its own loopback address.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


class ProcessEnded(MessengerError):
    """A process of the service ended by itself, or never became healthy."""


class Process:
    """One process and its log."""

    def __init__(self, name: str, command: list[str], *, folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.port: int | None = None
        """Where it answers /healthz."""
        self._read = 0
        self._joining = name.startswith(_CONSUMES)
        program = Program(
            command=command, directory=ROOT, log=self.log, death_signal=signal.SIGKILL, environment=environment
        )
        self.child = Child(program)

    def events(self) -> Iterator[dict[str, Any]]:
        """The lines that it logged since the last call."""
        if not self.log.exists():
            return
        with self.log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        whole = text.rfind(b"\n") + 1
        self._read += whole
        for line in text[:whole].splitlines():
            if line.startswith(b"{") and line.endswith(b"}"):
                event = json.loads(line)
                if event.get("event") in _PORTS:
                    self.port = event[_PORTS[event["event"]]]
                if event.get("event") == "partitions_assigned":
                    self._joining = False
                yield event

    @property
    def begun(self) -> bool:
        """Whether it has begun its work: a consumer takes up what comes once it has partitions."""
        return self.port is not None and not self._joining

    def healthy(self) -> bool:
        """Whether /healthz says that it is well."""
        if self.port is None:
            return False
        try:
            with _open(f"http://{LOOPBACK}:{self.port}/healthz", timeout=_PROBE_SECONDS) as answer:
                return bool(answer.status == 200)
        except (OSError, urllib.error.HTTPError):
            return False

    def end_of_log(self) -> str:
        """The last lines of its log, and where that is, for an error."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"The end of {self.log}:", *lines[-_TAIL_LINES:]])


class Processes:
    """All of them; they end with the context, and with this process whatever ends it."""

    def __init__(self, *, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            # The lines are read back from the logs; a file of them is no place for colours.
            "LOG_FORMAT": "json",
            "LOG_LEVEL": "INFO",
            # Broken records are sent on purpose for as long as it runs.
            "CONSUMER_DLQ_BUDGET": "1000000",
            **environment,
        }
        self.all: list[Process] = []

    def __enter__(self) -> Self:
        try:
            for name in WORKERS:
                self._start(name, "--metrics-port", "0")
            # A browser that shows a page keeps its stream open for as long as it may.
            self._start(WEB, "--host", LOOPBACK, "--port", "0", "--graceful-shutdown", "1")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self, name: str, *arguments: str) -> None:
        command = [sys.executable, "manage.py", name, *arguments]
        with held():
            self.all.append(Process(name, command, folder=self._folder, environment=self._environment))

    @property
    def web_port(self) -> int:
        """Where the web process answers."""
        (port,) = (process.port for process in self.all if process.name == WEB)
        assert port is not None, "it is healthy, so it named its port"
        return port

    def events(self) -> Iterator[dict[str, Any]]:
        """What all of them logged since the last call."""
        for process in self.all:
            yield from process.events()

    def check(self) -> None:
        """Raise ProcessEnded, with the end of its log, if one of them has ended by itself."""
        for process in self.all:
            if not process.child.running:
                code = process.child.wait(0)
                raise ProcessEnded(f"{process.name} ended by itself with exit code {code}. {process.end_of_log()}")

    def unwell(self) -> list[Process]:
        """Those that do not say that they are well."""
        return [process for process in self.all if not process.healthy() and not process.healthy()]

    def await_healthy(self) -> None:
        """Wait until every one has begun, and is well."""
        deadline = time.monotonic() + START_SECONDS
        waiting = list(self.all)
        while waiting:
            self.check()
            for process in waiting:
                for _ in process.events():
                    pass
            waiting = [process for process in waiting if not (process.begun and process.healthy())]
            if waiting and time.monotonic() > deadline:
                late = waiting[0]
                raise ProcessEnded(f"{late.name} is not healthy after {START_SECONDS:g} s. {late.end_of_log()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Ask all of them to end, and wait for it."""
        with held():
            for process in self.all:
                process.child.send(signal.SIGTERM)
            deadline = time.monotonic() + STOP_SECONDS
            for process in self.all:
                process.child.stop(signal.SIGTERM, max(0.1, deadline - time.monotonic()))
