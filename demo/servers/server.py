"""What both servers have in common: their life."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from demo.servers.accounts import Account, temporary_folder
from demo.servers.children import Child, Program, wait_until
from demo.servers.errors import ServerUnavailable
from demo.servers.interrupts import held
from demo.servers.workspaces import Workspace

Progress = Callable[[str], None]
"""Told in a few words what is being done."""

START_SECONDS = 60.0
STOP_SECONDS = 30.0
_LOG_TAIL_LINES = 20
_LOG_TAIL_BYTES = 20_000


def _silent(_: str) -> None:
    return


class EmbeddedServer(ABC):
    """A server of this process on the loopback address: a context manager, or ``start`` and ``close``.

    ``stop``, ``kill`` and ``start`` keep the data and the ports; ``close`` removes the data. The server ends
    when this process does, whatever ends it. A process forked from this one cannot end it.
    """

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]
    death_signal: ClassVar[signal.Signals]

    def __init__(self, *, account: Account | None, progress: Progress | None) -> None:
        self._account = account
        self._progress = progress or _silent
        self._owner_pid = os.getpid()
        self._lock = threading.RLock()
        self._workspace: Workspace | None = None
        self._child: Child | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()  # nobody calls `__exit__` then
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process id of the server, which is running or was."""
        if self._child is None:
            raise ServerUnavailable(f"{self.name} has not been started.")
        return self._child.pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.running

    def check_running(self) -> None:
        """Raise ``ServerUnavailable``, with the end of its log, if the server has ended by itself."""
        if not self.running:
            raise ServerUnavailable(f"{self.name} is not running.", log_tail=self._log_tail())

    @property
    def log(self) -> Path:
        """The file that the server logs to."""
        return self._folder / "server.log"

    def start(self) -> None:
        """Start it and wait until it answers; nothing happens if it runs. Raises ``ServerUnavailable``."""
        with self._lock:
            if self.running:
                return
            if self._workspace is not None:
                self._launch()
                return
            try:
                with held():
                    self._workspace = Workspace(temporary_folder(self._account), self.name.split()[-1].lower())
                self._prepare()
                self._launch()
            except BaseException:
                # Half a data directory is of no use to a second try.
                self.close()
                raise

    def stop(self) -> None:
        """Stop it in good order, or kill it after half a minute; its data and ports stay."""
        with self._lock:
            if self._child is not None and self._is_owner:
                self._child.stop(self.stop_signal, STOP_SECONDS)

    def kill(self) -> None:
        """SIGKILL to the server and its workers, as if memory had run out; its data and ports stay."""
        with self._lock:
            if self._child is not None and self._is_owner:
                self._child.kill()

    def close(self) -> None:
        """End it and remove its data; may be called twice."""
        with held(), self._lock:
            if not self._is_owner:
                return
            if self._child is not None:
                # Its data goes away: the quickest end that leaves nothing behind is good enough.
                self._child.stop(self.death_signal, STOP_SECONDS)
                self._child = None
            if self._workspace is not None:
                self._workspace.remove()
                self._workspace = None

    def _signal(self, number: signal.Signals) -> None:
        # Through the child, which knows whether the process id is still its own.
        if self._child is not None and self._is_owner:
            self._child.send(number)

    @property
    def _is_owner(self) -> bool:
        return self._owner_pid == os.getpid()

    @property
    def _folder(self) -> Path:
        if self._workspace is None:
            raise ServerUnavailable(f"{self.name} has not been started.")
        return self._workspace.path

    def _launch(self) -> None:
        self._progress(f"starting {self.name}")
        program = self._program(self._server_command(), self.death_signal)
        with held():
            self._child = Child(program)
        self._await_ready(self._child)
        self._after_start()

    def _program(self, command: list[str], death_signal: signal.Signals) -> Program:
        return Program(
            command=command,
            directory=self._folder,
            log=self.log,
            death_signal=death_signal,
            account=self._account,
        )

    def _run(self, doing: str, command: list[str]) -> None:
        """Run a command of the server's to its end; raises ``ServerUnavailable`` if it fails."""
        child: Child | None = None
        try:
            with held():
                child = Child(self._program(command, signal.SIGKILL))
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(START_SECONDS)
        finally:
            # Also when a signal ends the wait: initdb would create the removed workspace again.
            if child is not None:
                with held():
                    child.kill()
        if child.wait(0) != 0:
            raise self._failure(f"{self.name} cannot be used: {doing} failed")

    def _await_ready(self, child: Child) -> None:
        if wait_until(lambda: not child.running or self._is_ready(), START_SECONDS) and child.running:
            return
        outcome = "did not answer within a minute" if child.running else f"ended with code {child.wait(0)}"
        child.kill()
        raise self._failure(f"{self.name} was started but {outcome}")

    def _failure(self, sentence: str) -> ServerUnavailable:
        return ServerUnavailable(f"{sentence}; {self._remedy}.", log_tail=self._log_tail())

    def _log_tail(self) -> str:
        try:
            text = self.log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-_LOG_TAIL_LINES:])

    @property
    @abstractmethod
    def _remedy(self) -> str:
        """What a person can do instead of using this server; the end of a sentence."""

    @abstractmethod
    def _prepare(self) -> None:
        """Lay out the data in the new workspace."""

    @abstractmethod
    def _server_command(self) -> list[str]: ...

    @abstractmethod
    def _is_ready(self) -> bool: ...

    def _after_start(self) -> None:
        """What is left to do once the server answers."""
        return
