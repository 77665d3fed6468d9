"""Writing outgoing records: rows of `outbox_messages` in the transaction they speak of. No query a record."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db.backends.utils import CursorWrapper

from messenger.records import Headers
from outbox.headers import to_json

CHANNEL = "messenger_outbox"
"""NOTIFY channel that wakes the relay."""

_INSERT = """
INSERT INTO messenger.outbox_messages
       (message_id, topic, key, value, headers, aggregate_type, aggregate_id)
SELECT row.message_id, row.topic, row.key, row.value, row.headers, row.aggregate_type, row.aggregate_id
  FROM unnest(%s::uuid[], %s::varchar[], %s::bytea[], %s::bytea[], %s::jsonb[], %s::varchar[], %s::varchar[])
       WITH ORDINALITY AS row(message_id, topic, key, value, headers, aggregate_type, aggregate_id, place)
 ORDER BY row.place
"""


@dataclass(frozen=True, slots=True)
class Message:
    """One record to publish: the exact bytes."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    aggregate_type: str
    aggregate_id: str
    message_id: uuid.UUID = field(default_factory=uuid.uuid4)


def enqueue(cursor: CursorWrapper, messages: Sequence[Message]) -> None:
    """Add `messages` to the outbox in their order, in the caller's transaction, and wake the relay on commit."""
    if not messages:
        return
    cursor.execute(
        _INSERT,
        [
            [message.message_id for message in messages],
            [message.topic for message in messages],
            [message.key for message in messages],
            [message.value for message in messages],
            [json.dumps(to_json(message.headers)) for message in messages],
            [message.aggregate_type for message in messages],
            [message.aggregate_id for message in messages],
        ],
    )
    cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])
