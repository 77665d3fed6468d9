"""The demonstration's own view of Kafka: crm's producer, and how far the groups have read."""

import contextlib
import logging

from confluent_kafka import (
    Consumer,
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
        with contextlib.suppress(KafkaException, TimeoutError):
            removed.result(_SECONDS)


class Lags:
    """How many records of its topic each group has yet to commit."""

    def __init__(self) -> None:
        # Consumers that never join: the admin client may crash on a coordinator that is still loading.
        self._consumers: dict[str, Consumer] = {}

    def of(self, topic: Topic) -> int:
        """The lag of the topic's group, over all partitions."""
        assert topic.group is not None
        partitions = [TopicPartition(topic.name, number) for number in range(topic.partitions)]
        consumer = self._consumer(topic.group)
        ends: list[int] = [consumer.get_watermark_offsets(each, timeout=_SECONDS)[1] for each in partitions]
        committed = [max(0, each.offset) for each in consumer.committed(partitions, timeout=_SECONDS)]
        return sum(ends) - sum(committed)

    def _consumer(self, group: str) -> Consumer:
        if group not in self._consumers:
            self._consumers[group] = Consumer(connection_settings() | {"group.id": group}, logger=_silent)
        return self._consumers[group]

    def close(self) -> None:
        """Let go of the connections."""
        for consumer in self._consumers.values():
            consumer.close()
