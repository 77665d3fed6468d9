"""The outbox relay: publishes every row once it can, in order per key, and marks it by its delivery report.

Guarantees: at least once; first deliveries of a key in the order of their rows. Rows of one key go out one
after another (the next one only when the one before is reported delivered); different keys go out together.
Which rows wait is asked anew each time (`published_at IS NULL`), never derived from the highest id seen: a
transaction may commit a lower id later. Only the holder of the lease publishes.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db.backends.utils import CursorWrapper

from messenger import metrics
from messenger.backoff import Backoff
from messenger.database import rows, unit_of_work
from messenger.faults import InfrastructureFault, clip
from messenger.kafka import RecordProducer, RecordRefused, TopicRefused
from messenger.logs import get_logger
from messenger.records import Outgoing
from outbox.headers import from_json

log = get_logger(__name__)

Lane = tuple[str, bytes | None]
"""Topic and key: what keeps an order of its own. Rows without a key are ordered among nothing."""

# A row waits while an earlier row of its key is parked; what is held back for a while is passed over, so that
# the rows behind it are found however many it holds back.
_WAITING = """
SELECT id, topic, key, value, headers, created_at, attempts
  FROM messenger.outbox_messages AS row
 WHERE published_at IS NULL AND parked_at IS NULL
   AND topic <> ALL(%s::varchar[])
   AND NOT EXISTS (SELECT FROM unnest(%s::varchar[], %s::bytea[]) AS held(topic, key)
                    WHERE held.topic = row.topic AND held.key IS NOT DISTINCT FROM row.key)
   AND NOT EXISTS (SELECT FROM messenger.outbox_messages AS parked
                    WHERE parked.published_at IS NULL AND parked.parked_at IS NOT NULL
                      AND parked.topic = row.topic AND parked.key = row.key AND parked.id < row.id)
 ORDER BY id LIMIT %s
"""
_PUBLISHED = """
UPDATE messenger.outbox_messages SET published_at = now(), last_error = NULL
 WHERE id = ANY(%s::bigint[]) AND published_at IS NULL
"""
_FAILED = """
UPDATE messenger.outbox_messages
   SET attempts = attempts + 1, last_error = %s,
       parked_at = CASE WHEN attempts + 1 >= %s THEN now() END
 WHERE id = %s AND published_at IS NULL
RETURNING attempts, parked_at IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One row that waits to be published."""

    id: int
    outgoing: Outgoing
    created_at: datetime
    attempts: int

    @property
    def lane(self) -> Lane:
        """What it is ordered in."""
        return (self.outgoing.topic, self.outgoing.key)


class Relay:
    """Publishes what waits. The caller holds the lease and says, by `may_go_on`, whether it still does."""

    def __init__(self, *, may_go_on: Callable[[], bool], stopping: Callable[[], bool]) -> None:
        self._may_go_on = may_go_on
        self._stopping = stopping
        self._producer = RecordProducer()
        self._backoff = Backoff(settings.INFRASTRUCTURE_BACKOFF_BASE, settings.INFRASTRUCTURE_BACKOFF_CAP)
        self._held_lanes: dict[Lane, float] = {}
        self._held_topics: dict[str, tuple[int, float]] = {}

    def drain(self) -> int:
        """Publish until nothing is left that can go now; how many rows were published.

        Raises InfrastructureFault if the broker is away.
        """
        published = 0
        while not self._must_end() and (batch := self._waiting()):
            published += self._publish(batch)
        return published

    def _waiting(self) -> list[Row]:
        now = time.monotonic()
        self._held_lanes = {lane: until for lane, until in self._held_lanes.items() if until > now}
        blocked = [topic for topic, (_, until) in self._held_topics.items() if until > now]
        lanes = list(self._held_lanes)
        with _transaction() as cursor:
            found = rows(
                cursor,
                _WAITING,
                [blocked, [topic for topic, _ in lanes], [key for _, key in lanes], settings.OUTBOX_BATCH_SIZE],
            )
        return [_row(each) for each in found]

    def _publish(self, batch: list[Row]) -> int:
        """Publish in waves: the first waiting row of each key, then the next of each key that got through."""
        published = 0
        stuck: set[Lane] = set()
        for wave in waves(batch):
            ready = [row for row in wave if row.lane not in stuck]
            if not ready or self._must_end():
                continue
            reports = self._producer.publish([row.outgoing for row in ready], stopping=self._must_end)
            delivered = [row for row in ready if reports[row.id] is None]
            faults = [(row, fault) for row in ready if (fault := reports[row.id]) is not None]
            stuck |= {row.lane for row, _ in faults if row.outgoing.key is not None}
            self._mark(delivered, faults)
            published += len(delivered)
            self._raise_if_away(fault for _, fault in faults)
        return published

    def _must_end(self) -> bool:
        # Asked all the while reports are awaited: a slow broker must cost neither the lease nor the probe's trust.
        return self._stopping() or not self._may_go_on()

    def _mark(self, delivered: list[Row], faults: list[tuple[Row, Exception]]) -> None:
        with _transaction() as cursor:
            if delivered:
                cursor.execute(_PUBLISHED, [[row.id for row in delivered]])
            failed = [_failed(cursor, row, fault) for row, fault in faults if isinstance(fault, RecordRefused)]
        self._report_published(delivered)
        for row, attempts, parked, reason in failed:
            self._report_failed(row, attempts, parked=parked, reason=reason)
        for row, fault in faults:
            if isinstance(fault, TopicRefused):
                self._hold_topic(row.outgoing.topic, str(fault))

    def _report_published(self, delivered: list[Row]) -> None:
        now = time.time()
        for row in delivered:
            topic = row.outgoing.topic
            self._held_topics.pop(topic, None)
            metrics.OUTBOX_PUBLISHED.labels(topic).inc()
            metrics.OUTBOX_PUBLISH_LAG.labels(topic).observe(max(0.0, now - row.created_at.timestamp()))
        if delivered:
            log.info("published", rows=len(delivered), first_id=delivered[0].id, last_id=delivered[-1].id)

    def _report_failed(self, row: Row, attempts: int, *, parked: bool, reason: str) -> None:
        topic = row.outgoing.topic
        if parked:
            metrics.OUTBOX_PARKED.labels(topic).inc()
            log.error("outbox_row_parked", outbox_id=row.id, topic=topic, attempts=attempts, error=reason)
        else:
            self._held_lanes[row.lane] = time.monotonic() + self._backoff.delay(attempts - 1)
            log.warning("outbox_row_refused", outbox_id=row.id, topic=topic, attempts=attempts, error=reason)

    def _hold_topic(self, topic: str, reason: str) -> None:
        tries, until = self._held_topics.get(topic, (0, 0.0))
        if until <= time.monotonic():  # several rows of one wave say the same
            self._held_topics[topic] = (tries + 1, time.monotonic() + self._backoff.delay(tries))
            log.error("topic_not_writable", topic=topic, error=reason)

    @staticmethod
    def _raise_if_away(faults: Iterable[Exception]) -> None:
        for fault in faults:
            if isinstance(fault, InfrastructureFault):
                raise fault


def waves(batch: Iterable[Row]) -> list[list[Row]]:
    """`batch` as waves in which each key stands at most once, its rows in order; keyless rows all in the first."""
    made: list[list[Row]] = []
    depth: dict[Lane, int] = {}
    for row in batch:
        at = 0 if row.outgoing.key is None else depth.get(row.lane, 0)
        depth[row.lane] = at + 1
        if at == len(made):
            made.append([])
        made[at].append(row)
    return made


def _failed(cursor: CursorWrapper, row: Row, fault: Exception) -> tuple[Row, int, bool, str]:
    reason = clip(str(fault), 512)
    found = rows(cursor, _FAILED, [reason, settings.OUTBOX_MAX_ATTEMPTS, row.id])
    attempts, parked = found[0] if found else (row.attempts, False)
    return row, attempts, parked, reason


def _row(found: tuple[Any, ...]) -> Row:
    row_id, topic, key, value, headers, created_at, attempts = found
    outgoing = Outgoing(
        reference=row_id,
        topic=topic,
        key=bytes(key) if key is not None else None,
        value=bytes(value) if value is not None else None,
        headers=from_json(headers),
    )
    return Row(row_id, outgoing, created_at, attempts)


def _transaction() -> AbstractContextManager[CursorWrapper]:
    return unit_of_work(
        lock_timeout=settings.CONSUMER_LOCK_TIMEOUT,
        statement_timeout=settings.CONSUMER_STATEMENT_TIMEOUT,
        # A relay that froze in the middle of marking must not hold its rows for longer than its lease.
        idle_timeout=settings.OUTBOX_LOCK_TTL,
    )
