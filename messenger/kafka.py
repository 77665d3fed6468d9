"""The one module that speaks to Kafka: consumer, producer and topic creation over confluent-kafka."""

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from operator import methodcaller
from types import TracebackType
from typing import Any, Self, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from django.conf import settings

from messenger.faults import InfrastructureFault, MessengerError
from messenger.logs import get_logger
from messenger.records import Headers, Outgoing, Partition, Record

log = get_logger(__name__)
_librdkafka_log = logging.getLogger("librdkafka")

_TOPIC_FAULTS = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
_NO_LEADER_YET = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})
# Faults of this one record; everything else is the broker's or the network's, and passes.
_RECORD_FAULTS = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.POLICY_VIOLATION,
        KafkaError._INVALID_ARG,
        KafkaError._BAD_MSG,
    }
)


CLOSE_SECONDS = 5.0
"""How long the last commit, and then leaving the group, may take: a broker that is away must not keep us."""


LOOK_SECONDS = 5.0
"""How often a consumer without partitions makes sure that its topics exist."""


class KafkaRefused(MessengerError):
    """Kafka refused in a way that no waiting mends; the process has to end."""


C = TypeVar("C", Consumer, Producer, AdminClient)


def _client(kind: type[C], config: dict[str, Any]) -> C:
    try:
        return kind(config, logger=_librdkafka_log)
    except KafkaException as error:
        raise KafkaRefused(
            f"The Kafka client cannot be set up ({error.args[0].str()}): correct the variables named KAFKA_…"
        ) from error


def connection_settings() -> dict[str, Any]:
    """How every client of this process reaches the broker; fit for any kind of confluent-kafka client."""
    config: dict[str, Any] = {
        "bootstrap.servers": settings.KAFKA_BOOTSTRAP_SERVERS,
        "security.protocol": settings.KAFKA_SECURITY_PROTOCOL,
        "client.id": "messenger",
        "error_cb": _on_error,
        "topic.metadata.refresh.interval.ms": 10_000,
        "reconnect.backoff.max.ms": 5_000,
        "socket.timeout.ms": 10_000,
        "topic.metadata.propagation.max.ms": 5_000,
    }
    if settings.KAFKA_SECURITY_PROTOCOL.startswith("SASL"):
        config |= {
            "sasl.mechanism": settings.KAFKA_SASL_MECHANISM,
            "sasl.username": settings.KAFKA_SASL_USERNAME,
            "sasl.password": settings.KAFKA_SASL_PASSWORD,
        }
    files = {
        "ssl.ca.location": settings.KAFKA_SSL_CA_LOCATION,
        "ssl.certificate.location": settings.KAFKA_SSL_CERTIFICATE_LOCATION,
        "ssl.key.location": settings.KAFKA_SSL_KEY_LOCATION,
    }
    return config | {name: value for name, value in files.items() if value}


class _Sparing(logging.Filter):
    """Lets through once in a while what the client says many times a second as long as a broker is away."""

    def __init__(self, every: float) -> None:
        super().__init__()
        self._every = every
        self._next: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Only failures to connect repeat like that; the client's lines are (facility, client, text)."""
        facility = record.args[0] if isinstance(record.args, tuple) and record.args else None
        return facility != "FAIL" or self.due("FAIL")

    def due(self, what: str) -> bool:
        """Whether `what` may be said again."""
        now = time.monotonic()
        if now < self._next.get(what, 0.0):
            return False
        self._next[what] = now + self._every
        return True


_sparing = _Sparing(every=10)
_librdkafka_log.addFilter(_sparing)


def _on_error(error: KafkaError) -> None:
    if error.code() == KafkaError._ALL_BROKERS_DOWN:
        if _sparing.due("kafka_unavailable"):
            log.warning("kafka_unavailable", servers=settings.KAFKA_BOOTSTRAP_SERVERS)
    elif error.code() == KafkaError._AUTHENTICATION:
        log.error("kafka_authentication_failed", servers=settings.KAFKA_BOOTSTRAP_SERVERS)
    else:
        log.debug("kafka_error", error=error.name())


class RecordConsumer:
    """A consumer group's member that commits only what it was told is settled.

    Positions start at the committed offset. Where there is none, or it is out of range (retention, a topic
    made anew, a deleted group), the partition is read again from its start, loudly: never a silent jump.
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
        self._consumer = _client(Consumer, self._config())

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
            record = _record(message)
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
            self._out_of_place.add(_place(message))
        elif error.code() in _TOPIC_FAULTS:
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
        mine = sorted(self._out_of_place & _places(self._consumer.assignment())) if self._out_of_place else []
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
            log.info("partitions_assigned", group=self._group, partitions=_names(partitions))
        consumer.incremental_assign(partitions)
        # The client remembers a pause across revocation. It has to hold for what comes while it lasts (the next
        # resume covers all of it), and not for what was paused when it left.
        (consumer.pause if self._paused else consumer.resume)(partitions)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        gone = _places(partitions)
        mine = {place: offset for place, offset in self._settled.items() if place in gone}
        if mine:
            try:
                consumer.commit(offsets=self._offsets(mine), asynchronous=False)
            except KafkaException as error:
                self._commit_failed(error.args[0])
        self._drop(gone, "partitions_revoked")

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._drop(_places(partitions), "partitions_lost")

    def _drop(self, gone: frozenset[Partition], event: str) -> None:
        log.info(event, group=self._group, partitions=sorted(f"{topic}/{number}" for topic, number in gone))
        for place in gone:
            self._read.pop(place, None)
            self._settled.pop(place, None)
        self._out_of_place -= gone
        self._held = [record for record in self._held if record.source not in gone]
        self._on_lost(gone)


class RecordProducer:
    """An idempotent producer whose caller gets every delivery report."""

    def __init__(self) -> None:
        self._config = connection_settings() | {
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "message.timeout.ms": round(settings.OUTBOX_DELIVERY_TIMEOUT * 1000),
            # Whether a record is too large is the broker's word, not this client's.
            "message.max.bytes": 100_000_000,
        }
        self._producer = _client(Producer, self._config)
        self._broken = False

    def publish(self, records: Sequence[Outgoing], *, stopping: Callable[[], bool]) -> dict[int, Exception | None]:
        """Publish in order and wait for every report: None for a delivered record, else its fault.

        Faults are `RecordRefused` (this record will never do), `TopicRefused` (nothing for its topic will, for
        now) and `InfrastructureFault` (the broker is away). Ends early, with InfrastructureFault for what is
        not reported, when `stopping()`, asked ten times a second, turns true.
        """
        reports = self._send(records, stopping)
        refused = [record for record in records if isinstance(reports[record.reference], RecordRefused)]
        if len(records) > 1:
            # Records travel in batches, and the broker refuses a batch whole: only alone each gets its own verdict.
            for record in refused:
                reports |= self._send([record], stopping)
        return reports

    def _send(self, records: Sequence[Outgoing], stopping: Callable[[], bool]) -> dict[int, Exception | None]:
        reports: dict[int, Exception | None] = {}
        for record in records:
            self._produce(record, reports)
        while len(reports) < len(records) and not stopping():
            self._producer.poll(0.1)
        if len(reports) < len(records):
            self._producer.purge()
            self._producer.poll(0)
            for record in records:
                reports.setdefault(record.reference, InfrastructureFault("Kafka gave no report in time."))
        if self._broken:
            # Only a new producer gets out of this state; what was not reported is published again.
            self._producer = _client(Producer, self._config)
            self._broken = False
        return reports

    def _produce(self, record: Outgoing, reports: dict[int, Exception | None]) -> None:
        def report(error: KafkaError | None, message: Message) -> None:
            reports[record.reference] = None if error is None else self._fault(error, record.topic)

        while True:
            try:
                self._producer.produce(
                    record.topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    on_delivery=report,
                )
            except BufferError:
                self._producer.poll(0.1)  # the local queue is full: let reports make room
            except KafkaException as error:
                reports[record.reference] = self._fault(error.args[0], record.topic)
                return
            else:
                self._producer.poll(0)
                return

    def _fault(self, error: KafkaError, topic: str) -> Exception:
        self._broken = self._broken or error.fatal()
        if error.code() in _RECORD_FAULTS:
            return RecordRefused(f"Kafka refused the record: {error.name()}.")
        if error.code() in _TOPIC_FAULTS:
            return TopicRefused(f"Topic {topic} cannot be written: {error.name()}.")
        return InfrastructureFault(f"Kafka is away: {error.name()}.")


class RecordRefused(MessengerError):
    """The broker will never take this record."""


class TopicRefused(MessengerError):
    """The topic does not exist or may not be written; a person has to mend that."""


def create_topics(wanted: dict[str, int], *, replication: int, seconds: float = 30) -> list[str]:
    """Create the topics that are missing (name: partitions) and return their names.

    Raises InfrastructureFault if the broker does not answer in time, KafkaRefused if it refuses.
    """
    admin = _client(AdminClient, connection_settings())
    created = []
    topics = [NewTopic(name, num_partitions=count, replication_factor=replication) for name, count in wanted.items()]
    for name, future in admin.create_topics(topics, operation_timeout=seconds, request_timeout=seconds).items():
        try:
            future.result()
            created.append(name)
        except KafkaException as error:
            code = error.args[0]
            if code.code() == KafkaError.TOPIC_ALREADY_EXISTS:
                continue
            if code.code() in (KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                raise InfrastructureFault(
                    f"Kafka at {settings.KAFKA_BOOTSTRAP_SERVERS} does not answer: "
                    "start it, or correct KAFKA_BOOTSTRAP_SERVERS."
                ) from error
            raise KafkaRefused(f"Kafka refused to create topic {name}: {code.name()}.") from error
    return created


def read_to_end(topic: str, *, seconds: float = 30) -> Iterator[Record]:
    """Every record of `topic` up to its end as of now, by a throwaway group that commits nothing.

    Raises InfrastructureFault if the broker gives nothing for `seconds`, KafkaRefused if there is no such topic.
    """
    config = connection_settings() | {
        "group.id": f"messenger-read-{uuid.uuid4()}",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",  # retention may move the beginning while it is read
        "enable.partition.eof": True,
    }
    consumer = _client(Consumer, config)
    try:
        left = _ranges(consumer, topic, seconds)
        consumer.assign([TopicPartition(topic, number, low) for number, (low, _) in left.items()])
        while left:
            message = consumer.poll(seconds)
            error = message.error() if message is not None else None
            if message is None or (error is not None and error.code() != KafkaError._PARTITION_EOF):
                raise InfrastructureFault(
                    f"Kafka at {settings.KAFKA_BOOTSTRAP_SERVERS} stopped answering; run it again."
                )
            _, number = _place(message)
            end = left.get(number, (0, 0))[1]
            record = _record(message) if error is None else None
            if record is not None and record.offset < end:
                yield record
            # The last offsets may hold no record: the marker of a transaction, or what compaction took away.
            if record is None or record.offset + 1 >= end:
                left.pop(number, None)
    finally:
        consumer.close()


def _ranges(consumer: Consumer, topic: str, seconds: float) -> dict[int, tuple[int, int]]:
    """First and end offset of each partition of `topic` that holds anything."""
    try:
        known = consumer.list_topics(topic, timeout=seconds).topics[topic]
        if known.error is not None:
            raise KafkaRefused(f"Topic {topic} cannot be read: {known.error.name()}.")
        ranges = {}
        for number in known.partitions:
            low, high = _watermarks(consumer, TopicPartition(topic, number), seconds)
            if low < high:
                ranges[number] = (low, high)
        return ranges
    except KafkaException as error:
        raise InfrastructureFault(
            f"Kafka at {settings.KAFKA_BOOTSTRAP_SERVERS} does not answer: "
            "start it, or correct KAFKA_BOOTSTRAP_SERVERS."
        ) from error


def _watermarks(consumer: Consumer, partition: TopicPartition, seconds: float) -> tuple[int, int]:
    """First and end offset of `partition`. A partition that is just getting a leader is waited for."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            low, high = consumer.get_watermark_offsets(partition, timeout=seconds)
            return low, high
        except KafkaException as error:
            if error.args[0].code() not in _NO_LEADER_YET or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _record(message: Message) -> Record:
    kind, milliseconds = message.timestamp()
    topic, partition = _place(message)
    offset = message.offset()
    assert offset is not None, "a delivered record has an offset"
    return Record(
        topic=topic,
        partition=partition,
        offset=offset,
        key=message.key(),
        value=message.value(),
        headers=_headers(message),
        timestamp=milliseconds / 1000 if kind else None,
    )


def _place(message: Message) -> Partition:
    topic, partition = message.topic(), message.partition()
    assert topic is not None and partition is not None, "only records and partition errors come here"
    return topic, partition


# The client returns a broken list beside an exception that is merely pending: a call from within the interpreter's C
# code, unlike one from a line of Python, is sure to find that out before anybody touches the list.
_headers_of = methodcaller("headers")


def _headers(message: Message) -> Headers:
    try:
        found = _headers_of(message) or ()
    except SystemError:  # how the client says that a name is not UTF-8; it gives none of them then
        log.warning("headers_unreadable", topic=message.topic(), partition=message.partition(), offset=message.offset())
        return ()
    pairs = found.items() if isinstance(found, dict) else found
    return tuple((name, value.encode() if isinstance(value, str) else value) for name, value in pairs)


def _names(partitions: Iterable[TopicPartition]) -> list[str]:
    return sorted(f"{each.topic}/{each.partition}" for each in partitions)


def _places(partitions: Iterable[TopicPartition]) -> frozenset[Partition]:
    return frozenset((each.topic, each.partition) for each in partitions)
