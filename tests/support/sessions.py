"""What a process leaves behind in PostgreSQL: sessions and locks, told by the name it connects under."""

from django.db import connection

from messenger.database import rows
from tests.conftest import database_url
from tests.support.waiting import wait_until

_SESSIONS = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
_ADVISORY_LOCKS = """
SELECT pid FROM pg_locks JOIN pg_database ON pg_database.oid = database
 WHERE locktype = 'advisory' AND datname = current_database()
"""
_WAITING = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND wait_event = %s"
# The lock itself tells a holder from a standby that is just being told no.
_LEASES = """
SELECT pid FROM pg_stat_activity
 WHERE application_name = %s AND state = 'idle in transaction' AND state_change - xact_start > make_interval(secs => %s)
   AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)
"""
_LEASE_AGE = """
SELECT extract(epoch FROM clock_timestamp() - xact_start) FROM pg_stat_activity
 WHERE application_name = %s AND state = 'idle in transaction'
   AND pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)
"""
_LISTENING = "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND query LIKE 'LISTEN %%'"


def named_url(name: str) -> str:
    """The test database's URL for a process whose sessions shall be called `name`."""
    return f"{database_url()}?application_name={name}"


def sessions(name: str) -> list[int]:
    """The server processes that serve `name`."""
    return _pids(_SESSIONS, name)


def waiting(name: str, event: str) -> list[int]:
    """Those of them that wait for `event` ("PgSleep")."""
    return _pids(_WAITING, name, event)


def listeners(name: str) -> list[int]:
    """Those that did nothing but LISTEN."""
    return _pids(_LISTENING, name)


def leases(name: str, *, alive_for: float = 0) -> list[int]:
    """Those that hold a lease, and showed life when they had it for so many seconds."""
    return _pids(_LEASES, name, alive_for)


def lease_age(name: str) -> float:
    """For how many seconds the lease has been held; 0 where there is none."""
    with connection.cursor() as cursor:
        found = rows(cursor, _LEASE_AGE, [name])
    return float(found[0][0]) if found else 0.0


def terminate(*pids: int) -> None:
    """End these sessions, as an administrator does."""
    with connection.cursor() as cursor:
        rows(cursor, "SELECT pg_terminate_backend(pid) FROM unnest(%s::integer[]) AS pid", [list(pids)])


def check_nothing_left(name: str) -> None:
    """No session of `name`, and no advisory lock of anybody, once the server has noticed."""
    wait_until(lambda: not sessions(name) and not _pids(_ADVISORY_LOCKS), what=f"nothing of {name} is left")


def _pids(query: str, *parameters: object) -> list[int]:
    with connection.cursor() as cursor:
        return [pid for (pid,) in rows(cursor, query, parameters)]
