"""The handler of `user-changed`: the replica of ids and names to show.

The newest by OccurredAt wins; of equal ones the later in the topic, which keeps a user's changes in order.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from django.db.backends.utils import CursorWrapper

from chats.contracts import Origin, Text, origin_of
from messenger import metrics, tracing
from messenger.database import rows
from messenger.envelope import Guid, Wire, decoder, open_envelope, open_payload
from messenger.logs import get_logger
from messenger.records import Record
from messenger.topics import USER_CHANGED
from outbox.handling import Handler, Verdict, read_each

log = get_logger(__name__)

USER_CHANGED_INVALID = "MSG_USER_CHANGED_INVALID"
NAME_WIDTH = 256

# Idempotent by itself: an older change alters nothing and the same one nothing new, so no processed key is kept.
_SAVE = """
INSERT INTO messenger.messenger_users AS known (id, display_name, updated_at)
SELECT * FROM unnest(%s::uuid[], %s::varchar[], %s::timestamptz[]) AS row(id, display_name, updated_at) ORDER BY row.id
ON CONFLICT (id) DO UPDATE SET display_name = excluded.display_name, updated_at = excluded.updated_at
 WHERE known.updated_at <= excluded.updated_at
RETURNING id
"""


class UserChanged(Wire, frozen=True, rename="pascal"):
    """`pin.crm.user-changed.v1`."""

    user_id: Guid
    display_name: Text


@dataclass(frozen=True, slots=True)
class Naming:
    """A user's name as of a moment."""

    origin: Origin
    user_id: UUID
    display_name: str
    occurred_at: datetime


_decode = decoder(UserChanged)


def read_user_changed(record: Record) -> Naming:
    """The name in a record of `user-changed`, cut to the column on a code point; raises `Refused`."""
    envelope = open_envelope(record)
    payload = open_payload(envelope, _decode, code=USER_CHANGED_INVALID)
    origin = origin_of(record, envelope, "messenger-user-changed")
    return Naming(origin, payload.user_id, payload.display_name[:NAME_WIDTH], envelope.occurred_at)


class UserChangedHandler(Handler):
    """Keeps `messenger_users` true. Names go to the table and nowhere else: no log, no metric, no span."""

    group = USER_CHANGED.group or ""

    def handle(self, cursor: CursorWrapper, records: Sequence[Record]) -> Verdict:
        """Save the newest name of each user of a batch."""
        namings, refusals = read_each(records, read_user_changed, group=self.group)
        newest: dict[UUID, Naming] = {}
        for naming in namings:
            if naming.user_id not in newest or newest[naming.user_id].occurred_at <= naming.occurred_at:
                newest[naming.user_id] = naming
        saved = [newest[user] for user in self._save(cursor, newest)]
        return Verdict(refusals, report=partial(self._report, namings, saved))

    @staticmethod
    def _save(cursor: CursorWrapper, newest: Mapping[UUID, Naming]) -> list[UUID]:
        """Save them and return the users whose name was not known to be newer."""
        if not newest:
            return []
        values = newest.values()
        columns: list[list[Any]] = [
            list(newest),
            [each.display_name for each in values],
            [each.occurred_at for each in values],
        ]
        return [user for (user,) in rows(cursor, _SAVE, columns)]

    def _report(self, namings: Sequence[Naming], saved: Sequence[Naming], started: float) -> None:
        kept = {id(naming) for naming in saved}
        for naming in namings:
            origin = naming.origin
            outcome = "user_saved" if id(naming) in kept else "skipped_stale"
            fields = {"message_id": str(origin.message_id), "user_id": str(naming.user_id)}
            if origin.correlation_id:
                fields["correlation_id"] = origin.correlation_id[:128]
            metrics.CONSUMED.labels(self.group, outcome).inc()
            if origin.contract_mismatch:
                metrics.CONTRACT_MISMATCH.labels(self.group).inc()
                log.warning("contract_mismatch", **fields, contract_version=origin.contract_version)
            log.info(outcome, **fields)
            tracing.record_span(
                origin.record,
                name=f"consume {origin.record.topic}",
                start=int(started * 1e9),
                end=time.time_ns(),
                attributes={"messaging.message.id": str(origin.message_id), "messenger.outcome": outcome},
            )
