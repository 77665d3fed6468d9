"""PgBouncer in transaction mode before the test's database."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import ClassVar

import psycopg
from django.db import connection

from demo.servers.accounts import unprivileged_account
from demo.servers.ports import LOOPBACK, free_port
from demo.servers.server import EmbeddedServer

_INI = """
[databases]
{name} = host={host} port={port} dbname={name} user={user}
[pgbouncer]
listen_addr = {listen}
listen_port = {listen_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool}
"""


def binary() -> str | None:
    """Where pgbouncer is, if anywhere."""
    return shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin:/opt/homebrew/bin") or shutil.which("pgbouncer")


class PgBouncer(EmbeddedServer):
    """Pools `pool` sessions of the test's database, each for the time of a transaction. As root, it runs as nobody."""

    name: ClassVar[str] = "PgBouncer"
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT
    death_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(self, *, pool: int) -> None:
        super().__init__(account=unprivileged_account(), progress=None)
        self.port = free_port()
        self._pool = pool

    @property
    def url(self) -> str:
        """The URL of the database through the pool."""
        database = connection.settings_dict
        return f"postgresql://{database['USER']}@{LOOPBACK}:{self.port}/{database['NAME']}"

    @property
    def _remedy(self) -> str:
        return "install another pgbouncer, or none"

    @property
    def _ini(self) -> Path:
        return self._folder / "pgbouncer.ini"

    def _prepare(self) -> None:
        database = connection.settings_dict
        self._ini.write_text(
            _INI.format(
                name=database["NAME"],
                host=database["HOST"],
                port=database["PORT"],
                user=database["USER"],
                listen=LOOPBACK,
                listen_port=self.port,
                pool=self._pool,
            )
        )
        self._ini.chmod(0o644)

    def _server_command(self) -> list[str]:
        path = binary()
        assert path is not None, "tests that need it are skipped without it"
        return [path, str(self._ini)]

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True
