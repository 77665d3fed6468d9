"""PostgreSQL 18 for the demonstration and the tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import ClassVar

import psycopg

from demo.servers.accounts import unprivileged_account
from demo.servers.caches import default_cache
from demo.servers.ports import LOOPBACK, free_port
from demo.servers.postgres_binaries import Binaries, usable_binaries
from demo.servers.server import EmbeddedServer, Progress

_CONNECT_SECONDS = 5
_USER = "messenger"
_DATABASE = "messenger"


class EmbeddedPostgres(EmbeddedServer):
    """One PostgreSQL server with an empty database, on a free port of the loopback address.

    Not ``durable``, it leaves out fsync: a crash of the server loses nothing, a crash of the machine may.
    ``settings`` are further ``postgresql.conf`` parameters. As root, it runs as an unprivileged user.
    """

    name: ClassVar[str] = "PostgreSQL"
    # "Fast" shutdown; SIGTERM would wait until every client has gone by itself.
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT
    # "Immediate" shutdown. SIGKILL would leave shared memory behind, and workers that are busy with a query.
    death_signal: ClassVar[signal.Signals] = signal.SIGQUIT

    def __init__(
        self,
        *,
        durable: bool = False,
        settings: dict[str, str] | None = None,
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(account=unprivileged_account(), progress=progress)
        self.port = free_port()
        self._durable = durable
        self._settings = dict(settings or {})
        self._cache = cache or default_cache()
        self._binaries: Binaries | None = None

    @property
    def url(self) -> str:
        return self._url(_DATABASE)

    @property
    def _remedy(self) -> str:
        return "set DATABASE_URL to a running PostgreSQL to use that one"

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _url(self, database: str) -> str:
        return f"postgresql://{_USER}@{LOOPBACK}:{self.port}/{database}"

    def _prepare(self) -> None:
        self._binaries = usable_binaries(self._account, self._cache, self._progress)
        self._progress("creating a PostgreSQL data directory")
        self._data.mkdir(mode=0o700)
        if self._account is not None:
            os.chown(self._data, self._account.uid, self._account.gid)
        self._run("initdb", self._initdb_command(self._binaries))

    def _initdb_command(self, binaries: Binaries) -> list[str]:
        # PostgreSQL's own locale: the same order of texts on every machine, whatever locales it has.
        locale = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        options = [f"--username={_USER}", "--auth=trust", "--no-instructions", *locale]
        if not self._durable:
            options.append("--no-sync")
        return [str(binaries.initdb), f"--pgdata={self._data}", *options]

    def _server_command(self) -> list[str]:
        assert self._binaries is not None, "the data directory was prepared with them"
        settings = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "unix_socket_directories": "",
            "max_connections": "200",
            "fsync": "on" if self._durable else "off",
            "timezone": "UTC",
            "log_timezone": "UTC",
            # In the data directory, where it is removed with it, whatever ends the server.
            "dynamic_shared_memory_type": "mmap",
            **self._settings,
        }
        options = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        return [str(self._binaries.postgres), "-D", str(self._data), *options]

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(self._url("postgres"), connect_timeout=_CONNECT_SECONDS).close()
        except psycopg.OperationalError:
            return False
        return True

    def _after_start(self) -> None:
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [_DATABASE]).fetchone()
            if known is None:
                connection.execute("CREATE DATABASE messenger")
