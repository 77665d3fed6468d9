"""Who a server runs as, and which folders that user may enter."""

from __future__ import annotations

import os
import pwd
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from demo.servers.errors import ServerUnavailable

# "nobody" before "postgres": with trust authentication everyone on this machine can run programs as the
# server's user, and on a machine with a PostgreSQL of its own "postgres" may read that one's files.
_CANDIDATES = ("nobody", "postgres", "daemon")


@dataclass(frozen=True)
class Account:
    """A user of this machine."""

    name: str
    uid: int
    gid: int

    def may_enter(self, path: Path) -> bool:
        """Whether this user may read ``path`` (and enter it, if a folder) and enter every folder above it."""
        path = path.resolve()
        wanted = stat.S_IROTH | stat.S_IXOTH if path.is_dir() else stat.S_IROTH
        return self._has(path, wanted) and all(self._has(folder, stat.S_IXOTH) for folder in path.parents)

    def _has(self, path: Path, wanted: int) -> bool:
        try:
            status = path.stat()
        except OSError:
            return False
        if status.st_uid == self.uid:
            wanted <<= 6
        elif status.st_gid == self.gid:
            wanted <<= 3
        return status.st_mode & wanted == wanted


def unprivileged_account() -> Account | None:
    """The user to run as a server that refuses to be root; ``None`` if this process is not root."""
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise ServerUnavailable(
        "PostgreSQL refuses to run as root, and none of the users "
        f"{', '.join(_CANDIDATES)} exists to run it as; set DATABASE_URL to a running PostgreSQL."
    )


def temporary_folder(account: Account | None) -> Path:
    """The folder for temporary files, one that ``account`` may enter too."""
    usual = Path(tempfile.gettempdir())
    if account is None:
        return usual
    # TMPDIR of root may be a folder of root's own.
    for folder in (usual, Path("/tmp"), Path("/var/tmp")):
        if folder.is_dir() and account.may_enter(folder):
            return folder
    raise ServerUnavailable(f"No folder for temporary files can be entered by the user {account.name}.")
