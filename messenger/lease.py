"""The single-runner lock: a PostgreSQL advisory lock with a time to live that the server enforces.

A transaction-scoped advisory lock held by an open transaction on a connection of its own. The lock lives
exactly as long as that transaction, so:

* a holder that ends, is killed or loses its connection frees it at once;
* a holder that hangs, or whose host vanished, stays idle in the transaction and is ended by the server after
  `idle_in_transaction_session_timeout` = the time to live (every `is_held` starts that clock anew);
* behind a pooler in transaction mode the open transaction keeps its server connection, which a session-level
  lock would not.

READ COMMITTED and never writing, the idle transaction holds no snapshot back from vacuum.
"""

from types import TracebackType
from typing import Self

from django.db import DatabaseError, InterfaceError, connection
from django.db.backends.base.base import BaseDatabaseWrapper

_TAKE = """
SELECT set_config('idle_in_transaction_session_timeout', %s, true),
       pg_try_advisory_xact_lock(hashtextextended(%s, 0))
"""


class Lease:
    """The right to be the only runner of `name`, for at most `ttl` seconds without a sign of life."""

    def __init__(self, name: str, *, ttl: float) -> None:
        self.name = name
        self._ttl = ttl
        self._connection: BaseDatabaseWrapper | None = None

    def try_acquire(self) -> bool:
        """Take the lease without waiting; False if another runner has it. Raises if PostgreSQL is away."""
        if self._connection is not None:
            return self.is_held() or self.try_acquire()
        own = connection.copy()
        try:
            own.set_autocommit(False)
            with own.cursor() as cursor:
                cursor.execute(_TAKE, [f"{max(1, round(self._ttl * 1000))}ms", f"messenger:{self.name}"])
                taken = bool(cursor.fetchone()[1])
        except BaseException:
            _discard(own)
            raise
        if taken:
            self._connection = own
        else:
            _discard(own)
        return taken

    def is_held(self) -> bool:
        """Ask the server whether the lease still stands, and start its time to live anew."""
        if self._connection is None:
            return False
        try:
            with self._connection.cursor() as cursor:
                cursor.execute("SELECT 1")
        except (DatabaseError, InterfaceError):
            self.release()
            return False
        return True

    def release(self) -> None:
        """Give the lease back; may be called any number of times."""
        own, self._connection = self._connection, None
        if own is not None:
            _discard(own)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _discard(own: BaseDatabaseWrapper) -> None:
    # A session the server has ended cannot be rolled back or closed politely, and need not be.
    try:
        own.rollback()
    except (DatabaseError, InterfaceError):
        pass
    finally:
        own.close()
