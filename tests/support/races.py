"""Two or more at once: threads with a connection each, rows held by somebody else, and who waits for whom."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

from django.db import connection, connections

from tests.support.triggers import own_connection
from tests.support.waiting import wait_until

T = TypeVar("T")
Start = Callable[[Callable[[], T]], "Future[T]"]


@contextmanager
def racing() -> Iterator[Start[object]]:
    """`start(target)` runs `target` in a thread of its own; all have ended on exit. Leave what they wait for first."""

    def alone(target: Callable[[], object]) -> object:
        try:
            return target()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(max_workers=8) as pool:
        yield lambda target: pool.submit(alone, target)


@contextmanager
def holding(statement: str, *parameters: object) -> Iterator[None]:
    """Somebody else's transaction that has run `statement` (a lock) and stays open."""
    with own_connection() as session, session.transaction():
        session.execute(statement.encode(), parameters)
        yield


def blocked() -> list[int]:
    """Server processes of the test's database that wait for a lock."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return [pid for (pid,) in cursor.fetchall()]


def wait_for_blocked(count: int) -> list[int]:
    """Wait until so many (at least) wait for a lock, and return their server processes."""
    return wait_until(lambda: found if len(found := blocked()) >= count else [], what=f"{count} wait for a lock")
