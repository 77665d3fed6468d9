"""Leads that ended before they had a chat: the topics of a lead's creation and of its end keep no common order.

Kept as keys of `processed_messages` that retention passes over; `processed_at` is the moment of the end. The caller
has claimed the leads.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from uuid import UUID

from django.db.backends.utils import CursorWrapper

from messenger.database import rows

_PREFIX = "messenger-lead-ended:"
_REMEMBER = """
INSERT INTO messenger.processed_messages (key, processed_at)
SELECT row.key, row.ended_at FROM unnest(%s::varchar[], %s::timestamptz[]) AS row(key, ended_at) ORDER BY row.key
ON CONFLICT (key) DO NOTHING
"""
_FORGET = "DELETE FROM messenger.processed_messages WHERE key = ANY(%s::varchar[])"
_AMONG = "SELECT key, processed_at FROM messenger.processed_messages WHERE key = ANY(%s::varchar[])"


def remember(cursor: CursorWrapper, ended: Mapping[UUID, datetime]) -> None:
    """Note that these leads have ended, and when; what is known of a lead already stands."""
    if ended:
        cursor.execute(_REMEMBER, [_keys(ended), list(ended.values())])


def forget(cursor: CursorWrapper, leads: Iterable[UUID]) -> None:
    """Their chats are opened and closed: nothing is left to remember."""
    if keys := _keys(leads):
        cursor.execute(_FORGET, [keys])


def among(cursor: CursorWrapper, leads: Iterable[UUID]) -> dict[UUID, datetime]:
    """Those of `leads` that are known to have ended, each with the moment of its end."""
    keys = _keys(leads)
    found = rows(cursor, _AMONG, [keys]) if keys else []
    return {UUID(key.removeprefix(_PREFIX)): ended_at for key, ended_at in found}


def _keys(leads: Iterable[UUID]) -> list[str]:
    return [f"{_PREFIX}{lead}" for lead in leads]
