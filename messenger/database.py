"""The transaction every worker uses, bounded in time by the server itself."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db import connection, transaction
from django.db.backends.utils import CursorWrapper

IDLE_IN_TRANSACTION_SECONDS = 60
"""A worker frozen inside a transaction gives up its locks after this long."""

_BOUNDS = """
SELECT set_config('lock_timeout', %s, true),
       set_config('statement_timeout', %s, true),
       set_config('idle_in_transaction_session_timeout', %s, true)
"""


@contextmanager
def unit_of_work(
    *, lock_timeout: float, statement_timeout: float, idle_timeout: float = IDLE_IN_TRANSACTION_SECONDS
) -> Iterator[CursorWrapper]:
    """One durable transaction with its time bounds (seconds) set LOCAL, which a transaction pooler keeps apart."""
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        bounds = (lock_timeout, statement_timeout, idle_timeout)
        cursor.execute(_BOUNDS, [f"{max(1, round(seconds * 1000))}ms" for seconds in bounds])
        yield cursor


def forget_connection() -> None:
    """Drop this thread's connection after a fault, so that the next use makes a fresh one."""
    # A broken connection may refuse even to be closed; it is gone all the same.
    try:
        connection.close()
    except Exception:
        connection.connection = None


Plain = UUID | int | datetime | StrEnum | None
"""Values whose text needs no quoting inside an array literal."""


def array(values: Iterable[Plain]) -> str:
    """`values` as one PostgreSQL array literal, for `unnest(%s::uuid[])` and the like.

    The driver would adapt and quote each element by itself, which is where a large batch would spend most of its
    time. For texts of any content pass the list itself.
    """
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Plain) -> str:
    if value is None:
        return "NULL"
    return value.isoformat() if isinstance(value, datetime) else str(value)


def rows(cursor: CursorWrapper, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """Run `sql` and fetch all of its rows."""
    cursor.execute(sql, parameters)
    found: list[tuple[Any, ...]] = cursor.fetchall()
    return found
