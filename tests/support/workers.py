"""Management commands as processes, watched through the lines they log."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.waiting import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]


class Worker:
    """One `manage.py` command as a process; ended by the context manager, at the latest."""

    def __init__(self, *command: str, env: dict[str, str]) -> None:
        self.command = command
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 (closed with the process)
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", *command],
            cwd=ROOT,
            env={**os.environ, "MESSENGER_ENVIRONMENT": "development", "METRICS_PORT": "0", **env},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    @property
    def output(self) -> str:
        """All it has printed so far."""
        # pread leaves the shared file position to the process that writes there.
        return os.pread(self._log.fileno(), 1 << 26, 0).decode(errors="replace")

    @property
    def events(self) -> list[dict[str, Any]]:
        """Its log lines so far."""
        lines = self.output.splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def find(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Log lines of this event with these fields."""
        wanted = {"event": event, **fields}
        return [line for line in self.events if all(line.get(name) == value for name, value in wanted.items())]

    def wait_for(self, event: str, *, count: int = 1, seconds: float = PATIENCE, **fields: Any) -> dict[str, Any]:
        """Wait for the `count`-th log line of this event with these fields and return it."""

        def seen() -> list[dict[str, Any]]:
            ended = self.process.poll() is not None  # asked first: its last words may be what is waited for
            found = self.find(event, **fields)
            assert len(found) >= count or not ended, f"{self.command} ended:\n{self.output[-4000:]}"
            return found if len(found) >= count else []

        what = f"{count} x {event} {fields} of {self.command}"
        try:
            return wait_until(seen, seconds=seconds, what=what)[count - 1]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output[-4000:]}") from None

    def get(self, path: str) -> tuple[int, str]:
        """GET `/metrics` or `/healthz` of it: status and body."""
        port = self.wait_for("started")["metrics_port"]
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """The value of one of its metrics; 0 where it has not been set."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        for line in self.get("/metrics")[1].splitlines():
            found, _, value = line.rpartition(" ")
            if (found == name or found.startswith(name + "{")) and all(part in found for part in wanted):
                return float(value)
        return 0.0

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def terminate(self, *, seconds: float = 20) -> int:
        """SIGTERM, and its exit code."""
        self.signal(signal.SIGTERM)
        return self.wait(seconds=seconds)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self.process.kill()
        self.process.wait()

    def wait(self, *, seconds: float = PATIENCE) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.command} did not end in {seconds:g} s:\n{self.output[-4000:]}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        self._log.close()
