"""Which of the three lanes a fault belongs to: infrastructure, conflict or poison.

Decided by exception class and SQLSTATE, never by message text (design, section 6). Codes are those of
PostgreSQL's appendix A.
"""

import traceback
from enum import Enum
from pathlib import Path

import psycopg
from django.db import DatabaseError, InterfaceError


class MessengerError(Exception):
    """Base of every error this service raises on purpose; the text is one sentence for a person."""


class InfrastructureFault(MessengerError):
    """PostgreSQL or Kafka is away or not usable: wait, nothing is lost."""


class LostRace(MessengerError):
    """Somebody else changed the row since it was read: read again."""


class Lane(Enum):
    """What to do about a fault."""

    INFRASTRUCTURE = "infrastructure"
    """Wait with backoff, without end."""
    TIMEOUT = "timeout"
    """A lock or statement timeout: tried again as a conflict, then waited out as infrastructure."""
    CONFLICT = "conflict"
    """The whole transaction again after re-reading, a bounded number of times."""
    POISON = "poison"
    """The database refuses this data; it always will."""
    UNEXPECTED = "unexpected"
    """Not foreseen: tried again a bounded number of times, then treated as poison."""


_TIMEOUTS = frozenset({"55P03", "57014"})  # lock_not_available, query_canceled
_CONFLICTS = frozenset({"40001", "40P01", "23505"})  # serialization, deadlock, unique violation (a lost insert)
_INFRASTRUCTURE_CODES = frozenset(
    {
        "25006",  # read_only_sql_transaction: connected to a standby after a failover
        "25P02",  # in_failed_sql_transaction
        "25P03",  # idle_in_transaction_session_timeout
        "42501",  # insufficient_privilege: the role, not the record
        "42P01",  # undefined_table: the migrations are behind this code
        "42703",  # undefined_column: likewise
        "42883",  # undefined_function: likewise
        "3F000",  # invalid_schema_name: likewise
    }
)
# Connection, authorization, catalog, resources, operator intervention, system, internal.
_INFRASTRUCTURE_CLASSES = frozenset({"08", "28", "3D", "53", "57", "58", "F0", "XX"})
_POISON_CLASSES = frozenset({"21", "22", "23"})  # cardinality, data exception, integrity


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE behind `error`, through Django's wrapping; None where the server never answered."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, psycopg.Error):
            return seen.sqlstate
        seen = seen.__cause__
    return None


def lane_of(error: BaseException) -> Lane:
    """The lane of `error`."""
    if isinstance(error, InfrastructureFault):
        return Lane.INFRASTRUCTURE
    if isinstance(error, LostRace):
        return Lane.CONFLICT
    if isinstance(error, psycopg.Error | DatabaseError | InterfaceError):
        return _lane_of_database_error(error)
    if isinstance(error, ConnectionError | TimeoutError):
        return Lane.INFRASTRUCTURE
    return Lane.UNEXPECTED


def _lane_of_database_error(error: BaseException) -> Lane:
    code = sqlstate(error)
    if code is None:
        cause = error.__cause__ if error.__cause__ is not None else error
        # Without a code the server never spoke: the connection is gone, unless the client refused the
        # data before sending it (a NUL in a text, an integer out of range).
        gone = isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError | InterfaceError)
        return Lane.INFRASTRUCTURE if gone else Lane.POISON if isinstance(cause, psycopg.DataError) else Lane.UNEXPECTED
    if code in _TIMEOUTS:
        return Lane.TIMEOUT
    if code in _CONFLICTS:
        return Lane.CONFLICT
    if code in _INFRASTRUCTURE_CODES or code[:2] in _INFRASTRUCTURE_CLASSES:
        return Lane.INFRASTRUCTURE
    return Lane.POISON if code[:2] in _POISON_CLASSES else Lane.UNEXPECTED


def describe(error: BaseException) -> str:
    """Class and code of `error` without its text: a message may quote data, and data may be personal."""
    code = sqlstate(error)
    cause = error.__cause__ if isinstance(error.__cause__, psycopg.Error) else error
    name = type(cause).__name__
    return f"{name} {code}" if code else name


def frames(error: BaseException) -> list[str]:
    """Where `error` came from, innermost last, without its text (see `describe`)."""
    return [f"{Path(at.filename).name}:{at.lineno} {at.name}" for at in traceback.extract_tb(error.__traceback__)][-8:]


def clip(text: str, width: int) -> str:
    """`text` made safe for a varchar(`width`): U+0000 escaped, cut on a code point."""
    return text.replace("\x00", "\\u0000").encode("utf-8", "backslashreplace").decode("utf-8")[:width]
