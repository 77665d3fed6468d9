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
_TERMINATE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"


def named_url(name: str) -> str:
    """The test database's URL for a process whose sessions shall be called `name`."""
    return f"{database_url()}?application_name={name}"


def sessions(name: str) -> list[int]:
    """The server processes that serve `name`."""
    return _pids(_SESSIONS, name)


def waiting(name: str, event: str) -> list[int]:
    """Those of them that wait for `event` ("PgSleep")."""
    return _pids(_WAITING, name, event)


def terminate_sessions(name: str) -> int:
    """End every session of `name`, as an administrator does; how many there were."""
    return len(_pids(_TERMINATE, name))


def check_nothing_left(name: str) -> None:
    """No session of `name`, and no advisory lock of anybody, once the server has noticed."""
    wait_until(lambda: not sessions(name) and not _pids(_ADVISORY_LOCKS), what=f"nothing of {name} is left")


def _pids(query: str, *parameters: str) -> list[int]:
    with connection.cursor() as cursor:
        return [pid for (pid,) in rows(cursor, query, parameters)]
