"""Leads that ended before they had a chat: the topics of a lead's creation and of its end keep no common order.

Kept as keys of `processed_messages` that retention passes over. The caller has claimed the leads.
"""

from collections.abc import Iterable
from uuid import UUID

from django.db.backends.utils import CursorWrapper

from messenger.database import rows

_PREFIX = "messenger-lead-ended:"
_REMEMBER = """
INSERT INTO messenger.processed_messages (key) SELECT unnest(%s::varchar[]) ON CONFLICT (key) DO NOTHING
"""
_FORGET = "DELETE FROM messenger.processed_messages WHERE key = ANY(%s::varchar[])"
_AMONG = "SELECT key FROM messenger.processed_messages WHERE key = ANY(%s::varchar[])"


def remember(cursor: CursorWrapper, leads: Iterable[UUID]) -> None:
    """Note that these leads have ended."""
    keys = [f"{_PREFIX}{lead}" for lead in sorted(leads)]
    if keys:
        cursor.execute(_REMEMBER, [keys])


def forget(cursor: CursorWrapper, leads: Iterable[UUID]) -> None:
    """Their chats are opened and closed: nothing is left to remember."""
    keys = [f"{_PREFIX}{lead}" for lead in leads]
    if keys:
        cursor.execute(_FORGET, [keys])


def among(cursor: CursorWrapper, leads: Iterable[UUID]) -> set[UUID]:
    """Those of `leads` that are known to have ended."""
    keys = [f"{_PREFIX}{lead}" for lead in leads]
    return {UUID(key.removeprefix(_PREFIX)) for (key,) in rows(cursor, _AMONG, [keys])} if keys else set()
