"""Temporary folders of servers, and file locks between processes.

A folder is removed by the process that made it. If that process is killed, nobody does so; therefore each
folder is locked with a lock that the kernel lets go of with its owner, and whoever comes next removes the
folders whose lock is free.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "messenger-server-"


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the exclusive lock of the file ``path`` against other processes and threads; waits for it."""
    # O_NOFOLLOW: a link in its place could point at anything.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


class Workspace:
    """A temporary folder, which others may enter but not list, that lives no longer than its owner."""

    def __init__(self, base: Path, name: str) -> None:
        self._owner_pid = os.getpid()
        _sweep(base)
        unlocked = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}{name}-", dir=base))
        unlocked.chmod(0o711)
        # The lock is not inherited by children (PEP 446): it is free as soon as this process is gone.
        self._lock = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Under this name, and only now, it is in the sight of other processes' sweeps.
        self.path = unlocked.rename(base / unlocked.name.removeprefix("."))

    def remove(self) -> None:
        """Remove the folder; may be called twice, and does nothing in a process forked from the owner."""
        if self._lock < 0 or self._owner_pid != os.getpid():
            return
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1


def _sweep(base: Path) -> None:
    for folder in base.glob(f"{_PREFIX}*"):
        # An error means that its owner, or another sweep, removes it at this moment.
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():
                _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
