"""Which messages were applied before: `processed_messages`, written in the transaction of the effect."""

import hashlib
from collections.abc import Iterable, Mapping

from django.db.backends.utils import CursorWrapper

from messenger.database import rows
from messenger.faults import LostRace
from messenger.records import Record

_KNOWN = "SELECT key, digest FROM messenger.processed_messages WHERE key = ANY(%s::varchar[])"
_INSERT = """
INSERT INTO messenger.processed_messages (key, digest)
SELECT row.key, row.digest FROM unnest(%s::varchar[], %s::bytea[]) AS row(key, digest) ORDER BY row.key
ON CONFLICT (key) DO NOTHING
"""


def digest_of(record: Record) -> bytes:
    """What tells one body from another."""
    return hashlib.sha256(record.value or b"").digest()


def known(cursor: CursorWrapper, keys: Iterable[str]) -> dict[str, bytes | None]:
    """The processed keys among `keys`, each with its digest."""
    found = rows(cursor, _KNOWN, [list(keys)])
    return {key: bytes(digest) if digest is not None else None for key, digest in found}


def mark(cursor: CursorWrapper, digests: Mapping[str, bytes]) -> None:
    """Mark keys as processed. Raises LostRace if another transaction marked one of them since `known`."""
    if not digests:
        return
    cursor.execute(_INSERT, [list(digests), list(digests.values())])
    if cursor.rowcount != len(digests):
        raise LostRace("A message was processed by another consumer at the same moment.")
