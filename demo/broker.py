"""The demonstration's own view of Kafka: crm's producer, and how far the groups have read."""

import contextlib
import logging

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from demo.crm.messages import headers
from demo.ledger import Entry
from messenger.kafka import connection_settings
from messenger.topics import CONSUMED, PUBLISHED, Topic

_SECONDS = 10.0
# What the client library says of a broker that goes away at the end is no news.
_silent = logging.getLogger(f"{__name__}.client")
_silent.addHandler(logging.NullHandler())
_silent.propagate = False


class Broker:
    """crm's end of the line."""

    def __init__(self) -> None:
        # crm's own order is what the demonstration is about: retries must not turn it round.
        self._producer = Producer(connection_settings() | {"enable.idempotence": True, "linger.ms": 0}, logger=_silent)
        self.failures: list[str] = []
        """Records that Kafka did not take, and why."""

    def send(self, entry: Entry) -> None:
        """Send a record; `entry.place` is filled in when Kafka has it."""
        delivery = entry.fate.delivery

        def report(error: KafkaError | None, message: Message) -> None:
            partition, offset = message.partition(), message.offset()
            if error is not None or partition is None or offset is None:
                self.failures.append(f"Kafka did not take {entry}: {error}")
            else:
                entry.place = (partition, offset)

        self._producer.produce(
            delivery.topic.name,
            value=delivery.value,
            key=delivery.key,
            headers=list(headers(delivery)),
            on_delivery=report,
        )

    def serve(self) -> None:
        """Take up Kafka's reports."""
        self._producer.poll(0)


def remove_topics() -> None:
    """Remove this run's topics from a Kafka that goes on without it."""
    names = [topic.name for topic in (*CONSUMED, *PUBLISHED)] + [topic.dlq for topic in CONSUMED]
    admin = AdminClient(connection_settings(), logger=_silent)
    for removed in admin.delete_topics(names).values():
        # No more than tidiness: a Kafka that is away, or does not allow it, keeps them.
        with contextlib.suppress(KafkaException):
            removed.result(_SECONDS)


class Lags:
    """How many records of its topic each group has yet to commit."""

    def __init__(self) -> None:
        self._admin = AdminClient(connection_settings(), logger=_silent)
        self._consumer = Consumer(connection_settings() | {"group.id": "messenger-demo-lags"}, logger=_silent)

    def of(self, topic: Topic) -> int:
        """The lag of the topic's group, over all partitions."""
        assert topic.group is not None
        partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        ends: list[int] = [self._consumer.get_watermark_offsets(each, timeout=_SECONDS)[1] for each in partitions]
        request = ConsumerGroupTopicPartitions(topic.group, partitions)
        (answer,) = self._admin.list_consumer_group_offsets([request], request_timeout=_SECONDS).values()
        committed: list[int] = [max(0, each.offset) for each in answer.result().topic_partitions]
        return sum(ends) - sum(committed)

    def close(self) -> None:
        """Let go of the connections."""
        self._consumer.close()
