"""Reading: a member of a consumer group, by either protocol."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from types import TracebackType
from typing import Any, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, TopicPartition
from django.conf import settings

from messenger.kafka.client import (
    TOPIC_FAULTS,
    KafkaRefused,
    connection_settings,
    names,
    place_of,
    places,
    record_of,
    set_up,
)
from messenger.logs import get_logger
from messenger.records import Partition, Record

log = get_logger(__name__)

CLOSE_SECONDS = 4.0
"""How long the last commit, and then leaving the group, may take: a broker that is away must not keep us.

Shorter than the 5 s after which the client gives up leaving by itself, and says nothing.
"""

LOOK_SECONDS = 5.0
"""How often a consumer without partitions makes sure that its topics exist."""


class RecordConsumer:
    """A consumer group's member that commits only what it was told is settled.

    Positions start at the committed offset. Where there is none, or it is out of range (retention, a topic
    made anew, a deleted group), the partition is read again from its start, loudly: never a silent jump.
    (What Kafka's classic protocol does not show is a topic that was made anew under a running member and is
    longer than the old one by the time it looks again.)
    """

    def __init__(
        self,
        *,
        group: str,
        topics: Sequence[str],
        on_lost: Callable[[frozenset[Partition]], None],
        on_reset: Callable[[], None],
    ) -> None:
        self._group = group
        self._topics = list(topics)
        self._on_lost = on_lost
        self._on_reset = on_reset
        self._held: list[Record] = []
        self._paused = False
        self._read: dict[Partition, int] = {}
        self._out_of_place: set[Partition] = set()
        self._next_look = time.monotonic() + LOOK_SECONDS
        self._settled: dict[Partition, int] = {}
        self._committing = False
        self._consumer = set_up(Consumer, self._config())

    def _config(self) -> dict[str, Any]:
        config = connection_settings() | {
            "group.id": self._group,
            "group.protocol": settings.KAFKA_GROUP_PROTOCOL,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "max.poll.interval.ms": round(settings.CONSUMER_MAX_POLL_INTERVAL * 1000),
            "on_commit": self._on_commit,
        }
        if settings.KAFKA_GROUP_PROTOCOL == "classic":
            session = min(settings.CONSUMER_SESSION_TIMEOUT, settings.CONSUMER_MAX_POLL_INTERVAL)
            config |= {
                "session.timeout.ms": round(session * 1000),
                # How soon a member learns of a rebalance, too: no rarer than the client's own 3 s.
                "heartbeat.interval.ms": max(100, min(3000, round(session * 1000 / 5))),
                "partition.assignment.strategy": "cooperative-sticky",
            }
        return config

    def __enter__(self) -> Self:
        self._consumer.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.commit()
            deadline = time.monotonic() + CLOSE_SECONDS
            while self._committing and time.monotonic() < deadline:
                self._poll_once(0.1)
                self.commit()  # what was settled while another commit was under way
        finally:
            self._leave()

    def _leave(self) -> None:
        # Closing revokes what is assigned; a commit that was not answered by now would be waited for without limit,
        self._settled.clear()
        # and so is, by the client itself, a broker that is away (45 s) or frozen (for ever).
        closing = threading.Thread(target=copy_context().run, args=(self._consumer.close,), daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        if closing.is_alive():
            log.warning("group_not_left", group=self._group, hint="Kafka does not answer; it will miss this member")

    # --- reading ----------------------------------------------------------------------------------

    def poll(self, most: int, seconds: float) -> list[Record]:
        """Up to `most` records; waits at most `seconds` for the first, and not at all for the others."""
        self._resume()
        came = bool(self._held) or self._poll_once(seconds)
        if came and len(self._held) < most:
            for message in self._consumer.consume(most - len(self._held), 0.005):
                self._accept(message)
        self._begin_anew()
        self._look_for_topics()
        self.commit()
        taken, self._held = self._held[:most], self._held[most:]
        return taken

    def keep_alive(self, seconds: float) -> None:
        """Keep the membership while nothing is taken up: poll, with every partition paused, for `seconds`."""
        self._pause()
        self._poll_once(seconds)
        self._begin_anew()
        self.commit()

    def _poll_once(self, seconds: float) -> bool:
        message = self._consumer.poll(max(0.0, seconds))  # the client takes less than nothing for ever
        if message is not None:
            self._accept(message)
        return message is not None

    def _accept(self, message: Message) -> None:
        # What is read goes to `_held` at once, where a revocation during the very next call finds it.
        error = message.error()
        if error is None:
            record = record_of(message)
            self._read[record.source] = record.offset + 1
            self._held.append(record)
        else:
            self._heed(error, message)

    def _heed(self, error: KafkaError, message: Message) -> None:
        # A fatal error of the consumer comes as a code of its own, which does not call itself fatal.
        if error.fatal() or error.code() == KafkaError._FATAL:
            raise KafkaRefused(
                f"Kafka refused this consumer for good ({error.str()}). If KAFKA_GROUP_PROTOCOL was changed, "
                "the members with the old one have to end first."
            )
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            self._out_of_place.add(place_of(message))
        elif error.code() in TOPIC_FAULTS:
            self._complain(message.topic(), error)
        elif error.code() == KafkaError._MAX_POLL_EXCEEDED:
            log.warning("max_poll_interval_exceeded", group=self._group)
        elif error.code() != KafkaError._PARTITION_EOF:
            log.warning("kafka_error", error=error.name(), group=self._group)

    def _look_for_topics(self) -> None:
        """Say which topics are missing while nothing is assigned: in the protocol `consumer` nobody else does."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        for topic in self._topics if not self._consumer.assignment() else ():
            try:
                found = self._consumer.list_topics(topic, timeout=1).topics[topic]
            except KafkaException:
                return  # Kafka is away, and that is said already
            if found.error is not None:
                self._complain(topic, found.error)

    def _complain(self, topic: str | None, error: KafkaError) -> None:
        log.error("topic_not_readable", topic=topic, error=error.name(), group=self._group)

    def _begin_anew(self) -> None:
        """Read the partitions whose position turned out to be unusable again, each from its start."""
        # Those that went to another member meanwhile are left to it; it will see the same.
        mine = sorted(self._out_of_place & places(self._consumer.assignment())) if self._out_of_place else []
        self._out_of_place.clear()
        # Asked for all before any is assigned: the answer would queue up behind the fetches of the others.
        starts = [self._log_start(place) for place in mine]
        for (topic, number), start in zip(mine, starts, strict=True):
            log.warning(
                "offsets_reset",
                group=self._group,
                topic=topic,
                partition=number,
                start=start if start != OFFSET_BEGINNING else None,
                hint="no committed offset, or it is out of range; the partition is read again from its start",
            )
            self._on_reset()
            self._read.pop((topic, number), None)
            self._settled.pop((topic, number), None)
            if start != OFFSET_BEGINNING:
                # Committed, so that a partition that stays empty is not reset, loudly, at every start.
                self._settled[topic, number] = start
            # The client has stopped this partition and refuses to seek in it; assigned anew it starts where told.
            partition = TopicPartition(topic, number, start)
            self._consumer.incremental_unassign([partition])
            self._consumer.incremental_assign([partition])

    def _log_start(self, place: Partition) -> int:
        # Asked of the broker: what the client takes for the beginning may be its memory of before retention moved on.
        try:
            found = self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=5, cached=False)
        except KafkaException:
            return OFFSET_BEGINNING
        return int(found[0]) if found else OFFSET_BEGINNING

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._consumer.pause(self._consumer.assignment())

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._consumer.resume(self._consumer.assignment())

    # --- committing -------------------------------------------------------------------------------

    def settled(self, records: Iterable[Record]) -> None:
        """Note that these records, and so all before them in their partitions, need never be read again."""
        for record in records:
            # One read before its partition was begun anew says nothing of how far the partition is settled now.
            if record.offset < self._read.get(record.source, 0):
                self._settled[record.source] = record.offset + 1

    def commit(self) -> None:
        """Send the settled offsets to the broker without waiting; a failed commit is sent again later."""
        if self._settled and not self._committing:
            self._committing = True
            try:
                self._consumer.commit(offsets=self._offsets(self._settled), asynchronous=True)
            except KafkaException as error:
                self._committing = False
                self._commit_failed(error.args[0])

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        self._committing = False
        if error is not None:
            self._commit_failed(error)
            return
        for done in partitions:
            place = (done.topic, done.partition)
            if done.error is None and self._settled.get(place) == done.offset:
                self._settled.pop(place, None)

    def _commit_failed(self, error: KafkaError) -> None:
        # Kept for the next try: what is no longer this member's to commit leaves with its partition.
        log.warning("offsets_not_committed", group=self._group, error=error.name())

    @staticmethod
    def _offsets(settled: dict[Partition, int]) -> list[TopicPartition]:
        return [TopicPartition(topic, number, offset) for (topic, number), offset in settled.items()]

    # --- rebalancing ------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions:
            log.info("partitions_assigned", group=self._group, partitions=names(partitions))
        consumer.incremental_assign(partitions)
        # The client remembers a pause across revocation. It has to hold for what comes while it lasts (the next
        # resume covers all of it), and not for what was paused when it left.
        (consumer.pause if self._paused else consumer.resume)(partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = places(partitions)
        mine = {place: offset for place, offset in self._settled.items() if place in gone}
        if mine:
            try:
                consumer.commit(offsets=self._offsets(mine), asynchronous=False)
            except KafkaException as error:
                self._commit_failed(error.args[0])
        self._drop(gone, "partitions_revoked")

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._drop(places(partitions), "partitions_lost")

    def _drop(self, gone: frozenset[Partition], event: str) -> None:
        log.info(event, group=self._group, partitions=sorted(f"{topic}/{number}" for topic, number in gone))
        for place in gone:
            self._read.pop(place, None)
            self._settled.pop(place, None)
        self._out_of_place -= gone
        self._held = [record for record in self._held if record.source not in gone]
        self._on_lost(gone)
