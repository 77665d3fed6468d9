"""How every client reaches the broker, and what comes from it as plain values."""

import logging
import time
from collections.abc import Iterable
from operator import methodcaller
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from django.conf import settings

from messenger.faults import MessengerError
from messenger.logs import get_logger
from messenger.records import Headers, Partition, Record

log = get_logger(__name__)
_librdkafka_log = logging.getLogger("librdkafka")

TOPIC_FAULTS = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)


class KafkaRefused(MessengerError):
    """Kafka refused in a way that no waiting mends; the process has to end."""


C = TypeVar("C", Consumer, Producer, AdminClient)


def set_up(kind: type[C], config: dict[str, Any]) -> C:
    """A client of this kind; raises KafkaRefused if its settings cannot be used."""
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


def record_of(message: Message) -> Record:
    """The record of a message that is no error."""
    kind, milliseconds = message.timestamp()
    topic, partition = place_of(message)
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


def place_of(message: Message) -> Partition:
    """Topic and partition of a message, or of the error about them."""
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


def names(partitions: Iterable[TopicPartition]) -> list[str]:
    """Partitions as a log line has them."""
    return sorted(f"{each.topic}/{each.partition}" for each in partitions)


def places(partitions: Iterable[TopicPartition]) -> frozenset[Partition]:
    """Partitions as plain values."""
    return frozenset((each.topic, each.partition) for each in partitions)
