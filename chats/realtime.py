"""Telling the web processes which chats changed: NOTIFY in the transaction of the change, sent on its commit."""

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from django.db.backends.utils import CursorWrapper

CHANNEL = "messenger_chats"
CHATS_PER_NOTICE = 200
"""36 characters and a comma each: well under PostgreSQL's 8000 bytes, whatever a batch changed."""

_NOTIFY = """
SELECT pg_notify(%s, concat_ws(';', pg_current_xact_id(), extract(epoch FROM clock_timestamp()), notice))
  FROM unnest(%s::text[]) AS notice
"""


@dataclass(frozen=True, slots=True)
class Notice:
    """A transaction that changed chats, as the notification tells of it."""

    transaction: int
    """Its id (xid8): what it wrote, and what its savepoints wrote, bears this number or a higher one."""
    issued_at: float
    """Seconds since the epoch, by the database's clock, just before the commit."""
    chats: tuple[UUID, ...]


def notify_changed(cursor: CursorWrapper, chats: Iterable[UUID]) -> None:
    """Name the changed chats. Who was added or removed is not said: receivers read that from the tables."""
    names = [str(chat) for chat in sorted(set(chats))]
    notices = [",".join(names[at : at + CHATS_PER_NOTICE]) for at in range(0, len(names), CHATS_PER_NOTICE)]
    if notices:
        cursor.execute(_NOTIFY, [CHANNEL, notices])


def read_notice(payload: str) -> Notice:
    """The notice that `notify_changed` wrote; ValueError if somebody else wrote it."""
    transaction, issued_at, chats = payload.split(";")
    return Notice(int(transaction), float(issued_at), tuple(UUID(chat) for chat in chats.split(",")))
