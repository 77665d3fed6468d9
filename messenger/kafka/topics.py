"""Once and done: making topics, and reading one to its end."""

import time
import uuid
from collections.abc import Iterator

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from django.conf import settings

from messenger.faults import InfrastructureFault
from messenger.kafka.client import (
    KafkaRefused,
    connection_settings,
    place_of,
    record_of,
    set_up,
)
from messenger.records import Record

_NO_LEADER_YET = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE})


def create_topics(wanted: dict[str, int], *, replication: int, seconds: float = 30) -> list[str]:
    """Create the topics that are missing (name: partitions) and return their names.

    Raises InfrastructureFault if the broker does not answer in time, KafkaRefused if it refuses.
    """
    admin = set_up(AdminClient, connection_settings())
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
    consumer = set_up(Consumer, config)
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
            _, number = place_of(message)
            end = left.get(number, (0, 0))[1]
            record = record_of(message) if error is None else None
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
