"""What people may read, one statement each: membership is part of the statement that reads, never a check before it."""

import os
from uuid import UUID

from django.conf import settings

from messenger.listening import connection_parameters
from messenger.readers import Readers, Row

# The place in the list is found through the reader's own participation, ended or not: of a chat that was never
# theirs, not even its age shows.
_MINE = """
SELECT chat.id AS chat_id, chat.kind, chat.status, chat.title, chat.lead_id, chat.deal_id, mine.role, chat.last_seq,
       chat.created_at, chat.updated_at
  FROM messenger.participants AS mine
  JOIN messenger.chats AS chat ON chat.id = mine.chat_id
 WHERE mine.user_id = %(user)s AND mine.removed_at IS NULL
   AND (%(after)s::uuid IS NULL
        OR (chat.created_at, chat.id) < (
            SELECT place.created_at, place.id
              FROM messenger.chats AS place
              JOIN messenger.participants AS had ON had.chat_id = place.id AND had.user_id = %(user)s
             WHERE place.id = %(after)s))
 ORDER BY chat.created_at DESC, chat.id DESC
 LIMIT %(limit)s
"""
_CHAT = """
SELECT chat.id AS chat_id, chat.kind, chat.status, chat.title, chat.lead_id, chat.deal_id, chat.project_id,
       chat.last_seq, chat.created_at, chat.updated_at, chat.closed_at,
       other.user_id, person.display_name, other.role, other.role_raw, other.joined_at
  FROM messenger.participants AS mine
  JOIN messenger.chats AS chat ON chat.id = mine.chat_id
  JOIN messenger.participants AS other ON other.chat_id = chat.id AND other.removed_at IS NULL
  LEFT JOIN messenger.messenger_users AS person ON person.id = other.user_id
 WHERE mine.chat_id = %(chat)s AND mine.user_id = %(user)s AND mine.removed_at IS NULL
"""
_FEED = """
SELECT chat.last_seq, line.*
  FROM messenger.participants AS mine
  JOIN messenger.chats AS chat ON chat.id = mine.chat_id
  LEFT JOIN LATERAL (
       SELECT event.seq, event.type, event.user_id, person.display_name, event.role, event.previous_role,
              event.occurred_at
         FROM messenger.chat_events AS event
         LEFT JOIN messenger.messenger_users AS person ON person.id = event.user_id
        WHERE event.chat_id = chat.id AND event.seq > %(after)s
        ORDER BY event.seq
        LIMIT %(limit)s) AS line ON true
 WHERE mine.chat_id = %(chat)s AND mine.user_id = %(user)s AND mine.removed_at IS NULL
 ORDER BY line.seq
"""

_readers: Readers | None = None


def _reader() -> Readers:
    global _readers
    if _readers is None:
        _readers = Readers(
            lambda: (
                connection_parameters(settings.DATABASES["default"])
                | {"application_name": f"messenger-api-{os.getpid()}"}
            ),
            size=settings.API_DATABASE_CONNECTIONS,
            timeout=settings.API_DATABASE_TIMEOUT,
        )
    return _readers


async def close() -> None:
    """Close the connections that reading has opened."""
    global _readers
    if _readers is not None:
        await _readers.close()
        _readers = None


async def chats_of(user: UUID, *, after: UUID | None, limit: int) -> list[Row]:
    """Chats in which `user` is an active participant, newest first, after the chat `after` in that order."""
    return await _reader().fetch(_MINE, {"user": user, "after": after, "limit": limit})


async def chat_of(user: UUID, chat: UUID) -> list[Row]:
    """The chat, a row for each active participant; no row if `user` is not one of them."""
    return await _reader().fetch(_CHAT, {"user": user, "chat": chat})


async def feed_of(user: UUID, chat: UUID, *, after: int, limit: int) -> list[Row]:
    """Events after `after`; a single row with a null `seq` if there are none, no row if `user` is not in the chat."""
    return await _reader().fetch(_FEED, {"user": user, "chat": chat, "after": after, "limit": limit})
