"""Faults and halts inside PostgreSQL itself: triggers and constraints of the real tables, as long as a test wants."""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import psycopg
from django.db import connection

from tests.support.waiting import wait_until

_numbers = itertools.count(1)

LOSE_CONNECTION = "PERFORM pg_terminate_backend(pg_backend_pid());"
"""The session that fires this trigger is ended by the server."""


@contextmanager
def trigger(table: str, event: str, body: str, *, deferred: bool = False) -> Iterator[None]:
    """Run `body` (PL/pgSQL) for each row on `event` ("BEFORE INSERT") of `messenger.<table>`; deferred: at commit."""
    name = f"test_{next(_numbers)}"
    kind, when = ("CONSTRAINT TRIGGER", "DEFERRABLE INITIALLY DEFERRED") if deferred else ("TRIGGER", "")
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE FUNCTION messenger.{name}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$body$ BEGIN {body} RETURN NEW; END $body$"
        )
        cursor.execute(
            f"CREATE {kind} {name} {event} ON messenger.{table} {when} FOR EACH ROW EXECUTE FUNCTION messenger.{name}()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '30s'")
            cursor.execute(f"DROP FUNCTION messenger.{name}() CASCADE")
            cursor.execute("RESET lock_timeout")


@contextmanager
def constraint(table: str, check: str) -> Iterator[None]:
    """A check constraint for rows written from now on."""
    name = f"ck_test_{next(_numbers)}"
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE messenger.{table} ADD CONSTRAINT {name} CHECK ({check}) NOT VALID")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE messenger.{table} DROP CONSTRAINT {name}")


def own_connection() -> psycopg.Connection[tuple[object, ...]]:
    """A session of its own on the test's database, in autocommit mode."""
    return psycopg.connect(
        host=connection.settings_dict["HOST"],
        port=connection.settings_dict["PORT"],
        user=connection.settings_dict["USER"],
        password=connection.settings_dict["PASSWORD"] or None,
        dbname=connection.settings_dict["NAME"],
        autocommit=True,
    )


class Gate:
    """A closed gate: whoever runs `halt` in a trigger waits there until `open()`, or until the test ends."""

    def __init__(self) -> None:
        self._key = 7_000_000 + next(_numbers)
        self._session = own_connection()
        self._session.execute("SELECT pg_advisory_lock(%s)", [self._key])

    @property
    def halt(self) -> str:
        """The statement of a trigger's body that waits at the gate."""
        return f"PERFORM pg_advisory_xact_lock_shared({self._key});"

    def waiting(self) -> list[int]:
        """The server processes that wait at the gate."""
        found = self._session.execute(
            "SELECT pid FROM pg_locks JOIN pg_database ON pg_database.oid = database "
            "WHERE datname = current_database() AND locktype = 'advisory' AND classid = 0 AND objid = %s "
            "AND NOT granted",
            [self._key],
        )
        return [pid for (pid,) in found]  # type: ignore[misc]

    def wait_for_somebody(self) -> int:
        """Wait until a server process waits at the gate, and return its id."""
        return wait_until(self.waiting, what="somebody waits at the gate")[0]

    def open(self) -> None:
        """Let all through, now and later."""
        self._session.execute("SELECT pg_advisory_unlock_all()")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()
