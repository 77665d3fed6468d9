"""Telling the web processes which chats changed: NOTIFY in the transaction of the change, sent on its commit."""

from collections.abc import Iterable
from uuid import UUID

from django.db.backends.utils import CursorWrapper

CHANNEL = "messenger_chats"
CHATS_PER_NOTICE = 200
"""36 characters and a comma each: well under PostgreSQL's 8000 bytes, whatever a batch changed."""


def notify_changed(cursor: CursorWrapper, chats: Iterable[UUID]) -> None:
    """Name the changed chats. Who was added or removed is not said: receivers read that from the tables."""
    names = [str(chat) for chat in sorted(set(chats))]
    notices = [",".join(names[at : at + CHATS_PER_NOTICE]) for at in range(0, len(names), CHATS_PER_NOTICE)]
    if notices:
        cursor.execute("SELECT pg_notify(%s, notice) FROM unnest(%s::text[]) AS notice", [CHANNEL, notices])
