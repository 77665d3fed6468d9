"""LISTEN on a connection of its own: being woken by PostgreSQL, with polling beneath."""

from types import TracebackType
from typing import Any, Self

import psycopg
from django.conf import settings
from django.db import DatabaseError
from psycopg import sql

from messenger.logs import get_logger
from messenger.shutdown import StopSignal

log = get_logger(__name__)


def listen_parameters() -> dict[str, Any]:
    """Connection parameters of a session that may LISTEN: past a transaction pooler, if there is one."""
    return connection_parameters(settings.LISTEN_DATABASE)


def connection_parameters(database: dict[str, Any]) -> dict[str, Any]:
    """What psycopg needs to connect to `database`, an entry of Django's DATABASES."""
    named = {
        "host": database.get("HOST"),
        "port": database.get("PORT"),
        "dbname": database["NAME"],
        "user": database.get("USER"),
        "password": database.get("PASSWORD"),
    }
    options: dict[str, Any] = database["OPTIONS"]
    return {name: value for name, value in named.items() if value} | options


class Listener:
    """A session that listens on one channel. A notification is only ever a hint: what it says is in the tables."""

    def __init__(self, channel: str) -> None:
        self._channel = channel
        self._connection: psycopg.Connection[Any] | None = None

    def open(self) -> None:
        """Listen, if not already; raises Django's DatabaseError if PostgreSQL is away."""
        if self._connection is not None and not self._connection.closed:
            return
        try:
            self._connection = psycopg.connect(**listen_parameters(), autocommit=True)
            self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(self._channel)))
        except psycopg.Error as error:
            self.close()
            raise DatabaseError("cannot listen") from error

    def wait(self, seconds: float, stop: StopSignal) -> None:
        """Until a notification, until asked to stop, or `seconds`; a lost session is noticed and opened later."""
        connection = self._connection
        if connection is None or connection.closed:
            stop.wait(seconds)
            return
        try:
            stop.wait(seconds, also=[connection.fileno()])
            # Takes what has arrived off the socket, which would otherwise stay readable.
            for _ in connection.notifies(timeout=0):
                pass
        except psycopg.Error:
            log.warning("listen_session_lost", channel=self._channel)
            self.close()

    def close(self) -> None:
        """Stop listening; may be called any number of times."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
