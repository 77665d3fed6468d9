"""What the hub reads: who is to be told what, from the tables, after the change.

`xmin` holds the lower 32 bits of the id of the transaction that wrote a row; a row is of `since` or later if it lies
less than half of that range ahead of it, going round. A row so old that it seems to lie ahead is told once more.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import psycopg

from chats.places import Place
from messenger.readers import Row

# One statement, hence one snapshot: a number is only ever paired with the people who are in the chat at that number.
_ANNOUNCED = """
SELECT chat.id AS chat_id, chat.last_seq, person.user_id, person.removed_at IS NOT NULL AS removed,
       person.xmin::text::bigint AS written_by, extract(epoch FROM clock_timestamp())::float8 AS read_at
  FROM unnest(%(chats)s::uuid[], %(since)s::bigint[]) AS notice(chat_id, since)
  JOIN messenger.chats AS chat ON chat.id = notice.chat_id
  JOIN messenger.participants AS person ON person.chat_id = chat.id
 WHERE person.user_id = ANY(%(users)s::uuid[])
   AND (person.removed_at IS NULL
        OR ((person.xmin::text::bigint - notice.since) & 4294967295) < 2147483648)
"""
_SINCE = """
SELECT chat.id AS chat_id, chat.last_seq, person.user_id, person.removed_at IS NOT NULL AS removed,
       person.xmin::text::bigint AS written_by, reader.place
  FROM unnest(%(users)s::uuid[], %(since)s::bigint[]) WITH ORDINALITY AS reader(user_id, since, place)
  JOIN messenger.participants AS person ON person.user_id = reader.user_id
  JOIN messenger.chats AS chat ON chat.id = person.chat_id
 WHERE ((person.xmin::text::bigint - reader.since) & 4294967295) < 2147483648
    OR (person.removed_at IS NULL AND ((chat.xmin::text::bigint - reader.since) & 4294967295) < 2147483648)
"""
_HERE = """
SELECT (SELECT system_identifier FROM pg_control_system())::text AS cluster,
       left(pg_walfile_name(pg_current_wal_lsn()), 8) AS timeline,
       pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest_running
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """One user's standing in one chat, as the tables have it."""

    user_id: UUID
    chat_id: UUID
    last_seq: int
    removed: bool
    written_by: int
    """The (short) id of the transaction that last wrote the participation."""

    @classmethod
    def of(cls, row: Row) -> "Standing":
        return cls(row["user_id"], row["chat_id"], row["last_seq"], row["removed"], row["written_by"])


Connection = psycopg.AsyncConnection[Row]


async def announced(
    connection: Connection, since: Mapping[UUID, int], users: Iterable[UUID]
) -> tuple[list[Standing], float]:
    """Standings of `users` in chats: active, or removed by the chat's transaction in `since` or a later one.

    Also when that was read, by the database's clock.
    """
    cursor = await connection.execute(
        _ANNOUNCED, {"chats": list(since), "since": list(since.values()), "users": list(users)}
    )
    rows = await cursor.fetchall()
    return [Standing.of(row) for row in rows], rows[0]["read_at"] if rows else 0.0


async def missed(connection: Connection, readers: Sequence[tuple[UUID, int]]) -> list[list[Standing]]:
    """For each (user, since): the standings in chats that changed, or that were lost, in `since` or later."""
    cursor = await connection.execute(
        _SINCE, {"users": [user for user, _ in readers], "since": [since for _, since in readers]}
    )
    found: list[list[Standing]] = [[] for _ in readers]
    async for row in cursor:
        found[row["place"] - 1].append(Standing.of(row))
    return found


async def here(connection: Connection) -> Place:
    """The place below which every transaction has ended."""
    cursor = await connection.execute(_HERE)
    row = await cursor.fetchone()
    assert row is not None
    return Place(f"{row['cluster']}-{row['timeline']}", row["oldest_running"])
