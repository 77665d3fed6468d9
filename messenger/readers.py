"""Reading from PostgreSQL in coroutines, through a fixed number of connections whatever the number of requests.

Django's own connections belong to threads, and under ASGI there may be a thread a request: a burst of requests
would become a burst of connections.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, LiteralString

import psycopg
from psycopg.rows import dict_row

from messenger.faults import InfrastructureFault, describe

Row = dict[str, Any]


class Readers:
    """At most `size` connections, opened when needed, for single statements that read. Belongs to one event loop."""

    def __init__(self, parameters: Callable[[], dict[str, Any]], *, size: int, timeout: float) -> None:
        """`timeout`, in seconds, bounds the wait for a connection and for the answer together."""
        self._parameters = parameters
        self._timeout = timeout
        # Last in, first out: in quiet times one connection does all the work and the others stay closed.
        self._idle: asyncio.LifoQueue[psycopg.AsyncConnection[Row] | None] = asyncio.LifoQueue()
        for _ in range(size):
            self._idle.put_nowait(None)

    async def fetch(self, query: LiteralString, parameters: Mapping[str, Any]) -> list[Row]:
        """All rows of a statement that only reads. Raises InfrastructureFault when PostgreSQL does not answer."""
        try:
            async with asyncio.timeout(self._timeout):
                try:
                    return await self._try(query, parameters)
                except psycopg.OperationalError:
                    # The server may have ended the session while it was idle; a read may be made twice.
                    return await self._try(query, parameters)
        except (psycopg.OperationalError, TimeoutError) as error:
            raise InfrastructureFault(f"PostgreSQL cannot be used now ({describe(error)}).") from error

    async def _try(self, query: LiteralString, parameters: Mapping[str, Any]) -> list[Row]:
        async with self._connection() as connection:
            cursor = await connection.execute(query, parameters)
            return await cursor.fetchall()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[psycopg.AsyncConnection[Row]]:
        connection = await self._idle.get()
        try:
            if connection is None or connection.closed:
                connection = await connect(self._parameters())
            yield connection
        except BaseException:
            # Whatever went wrong, cancellation in the middle of an answer included: not to be used again.
            if connection is not None:
                await connection.close()
                connection = None
            raise
        finally:
            self._idle.put_nowait(connection)

    async def close(self) -> None:
        """Close the idle connections."""
        for _ in range(self._idle.qsize()):
            connection = self._idle.get_nowait()
            if connection is not None:
                await connection.close()
            self._idle.put_nowait(None)


async def connect(parameters: dict[str, Any]) -> psycopg.AsyncConnection[Row]:
    """A connection for coroutines, in autocommit, with rows as dictionaries."""
    return await psycopg.AsyncConnection.connect(
        **parameters,
        autocommit=True,
        # Prepared statements outlive a transaction and so break behind a transaction pooler.
        prepare_threshold=None,
        row_factory=dict_row,
    )
