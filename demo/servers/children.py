"""Child processes that cannot outlive this one, and how they are stopped."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from demo.servers.accounts import Account

_TIED_EXEC = Path(__file__).with_name("tied_exec.py")
_POLL_SECONDS = 0.02
_REAP_SECONDS = 10.0
_ACTIVE = (psutil.STATUS_RUNNING, psutil.STATUS_SLEEPING, psutil.STATUS_DISK_SLEEP)
_KEPT_VARIABLES = ("PATH", "HOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Ask ``condition`` again and again until it holds; false if it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


_Started = Future[subprocess.Popen[bytes]]


class _Spawner:
    """A thread that starts every child of this process.

    The kernel ties a death signal to the *thread* that forked, not to its process: a child started by a
    short-lived thread would be killed when that thread returns. This one lives until the process ends.
    """

    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        self._requests: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], _Started]] = queue.SimpleQueue()
        threading.Thread(target=self._serve, name="child-spawner", daemon=True).start()

    def start(self, launch: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        started: _Started = Future()
        self._requests.put((launch, started))
        try:
            return started.result()
        except BaseException:
            # If a signal handler raised here, nobody else will know of the child.
            if started.exception() is None:
                started.result().kill()
                started.result().wait()
            raise

    def _serve(self) -> None:
        while True:
            launch, started = self._requests.get()
            try:
                started.set_result(launch())
            except BaseException as error:  # handed to the caller, whatever it is: this thread must live on
                started.set_exception(error)


_spawner: _Spawner | None = None
_spawner_lock = threading.Lock()


def _get_spawner() -> _Spawner:
    global _spawner
    with _spawner_lock:
        # A process forked from this one inherits the object but not its thread.
        if _spawner is None or _spawner.owner_pid != os.getpid():
            _spawner = _Spawner()
        return _spawner


@dataclass(frozen=True, kw_only=True)
class Program:
    """What to run and how it dies.

    ``death_signal`` is sent by the kernel when this process ends, however it ends (Linux only).
    ``account`` is who to run as; ``None`` is the user of this process.
    """

    command: Sequence[str]
    directory: Path
    log: Path
    death_signal: signal.Signals
    account: Account | None = None
    environment: Mapping[str, str] | None = None

    def launch(self) -> subprocess.Popen[bytes]:
        """Start it; it appends what it prints to the log."""
        who = [str(self.account.uid), str(self.account.gid)] if self.account else ["-", "-"]
        tie = [str(_TIED_EXEC), str(os.getpid()), str(int(self.death_signal)), *who]
        # Only what a server needs: variables like PGDATA or JAVA_TOOL_OPTIONS would change its behaviour.
        inherited = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", *tie, *self.command],
                cwd=self.directory,
                env={**inherited, "LC_ALL": "C", "TZ": "UTC", **(self.environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in a terminal goes to the whole group; the servers are to be stopped by us, in order.
                start_new_session=True,
            )


class Child:
    """A running program that this process started; signals go to it and to its descendants only."""

    def __init__(self, program: Program) -> None:
        self._popen = _get_spawner().start(program.launch)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def send(self, number: signal.Signals) -> None:
        """Signal the process itself; nothing happens if it has ended."""
        self._popen.send_signal(number)

    def wait(self, seconds: float) -> int:
        """The exit code; raises ``subprocess.TimeoutExpired``."""
        return self._popen.wait(seconds)

    def stop(self, number: signal.Signals, seconds: float) -> bool:
        """Ask it to end and wait; if it has not within ``seconds``, kill the whole tree and return false."""
        if self.running:
            # A stopped process takes no signal but SIGKILL.
            self.send(signal.SIGCONT)
            self.send(number)
            try:
                self.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
                return False
        return True

    def kill(self) -> None:
        """SIGKILL to it and all its descendants, and wait until none of them is left."""
        if not self.running:
            return
        # Stopped first, it starts no further child, and the dead ones stay zombies, their process ids taken.
        self.send(signal.SIGSTOP)
        wait_until(lambda: _status(self.pid) not in _ACTIVE, _REAP_SECONDS)
        descendants = _descendants(self.pid)
        for process in descendants:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._popen.kill()
        self._popen.wait(_REAP_SECONDS)
        wait_until(lambda: not any(_lives(process) for process in descendants), _REAP_SECONDS)


def _status(pid: int) -> str:
    try:
        return str(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return str(psutil.STATUS_DEAD)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _lives(process: psutil.Process) -> bool:
    # A zombie holds nothing any more; when it vanishes is up to the process that adopted it.
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
