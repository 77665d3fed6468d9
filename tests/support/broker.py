"""A test's own view of the broker: produce, read back, offsets. Topics carry the test's prefix."""

import uuid
from collections.abc import Sequence

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from messenger.records import Record
from messenger.topics import Topic
from tests.support.waiting import wait_until

COORDINATOR_NOT_YET = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
    KafkaError._TIMED_OUT,
)
"""The answers of a broker that has just started, to those who ask about groups."""

HeaderList = Sequence[tuple[str, bytes | None]]


class Broker:
    """Speaks to the broker at `servers` about topics with `prefix`."""

    def __init__(self, servers: str, prefix: str) -> None:
        self.servers = servers
        self.prefix = prefix
        self.admin = AdminClient({"bootstrap.servers": servers})
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})

    def name(self, topic: Topic | str) -> str:
        """The topic's name on the broker."""
        return self.prefix + (topic.contract if isinstance(topic, Topic) else topic)

    def create(self, topic: str, partitions: int = 1, **config: str) -> None:
        """Create a topic by its full name."""
        new = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
        for future in self.admin.create_topics([new]).values():
            future.result()

    def produce(
        self,
        topic: Topic | str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: HeaderList = (),
        partition: int = -1,
    ) -> tuple[int, int]:
        """Produce one record and return its (partition, offset)."""
        places: list[tuple[int, int]] = []

        def report(error: object, message: object) -> None:
            assert error is None, error
            places.append((message.partition(), message.offset()))  # type: ignore[attr-defined]

        self._producer.produce(
            self.name(topic), value=value, key=key, headers=list(headers), partition=partition, on_delivery=report
        )
        assert self._producer.flush(30) == 0
        return places[0]

    def read(self, topic: Topic | str) -> list[Record]:
        """Every record of the topic, to its end, in order per partition."""
        name = self.name(topic)
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": f"test-{uuid.uuid4()}"})
        try:
            ends = _watermarks(consumer, name)
            consumer.assign([TopicPartition(name, number, low) for number, (low, _) in ends.items()])
            wanted = sum(high - low for low, high in ends.values())
            found: list[Record] = []
            while len(found) < wanted:
                for message in consumer.consume(wanted - len(found), 10):
                    assert message.error() is None, message.error()
                    found.append(
                        Record(
                            message.topic() or "",
                            message.partition() or 0,
                            message.offset() or 0,
                            message.key(),
                            message.value(),
                            tuple(message.headers() or ()),  # type: ignore[arg-type]
                        )
                    )
            return sorted(found, key=lambda record: (record.partition, record.offset))
        finally:
            consumer.close()

    def ends(self, topic: Topic | str) -> dict[int, int]:
        """End offset by partition."""
        name = self.name(topic)
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": f"test-{uuid.uuid4()}"})
        try:
            return {number: end for number, (_, end) in _watermarks(consumer, name).items()}
        finally:
            consumer.close()

    def committed(self, topic: Topic) -> dict[int, int]:
        """Committed offset by partition of the topic's consumer group (0 where none)."""
        return {number: max(0, offset) for number, (offset, _) in self.offsets(topic).items()}

    def lag(self, topic: Topic) -> int:
        """Records of the topic that its group has not committed yet."""
        return sum(end - max(0, offset) for offset, end in self.offsets(topic).values())

    def offsets(self, topic: Topic) -> dict[int, tuple[int, int]]:
        """Committed offset of the topic's consumer group (negative where none) and end offset, by partition."""
        assert topic.group is not None, "a topic this service consumes"
        name = self.name(topic)
        # A consumer that never joins: the admin client crashes on a coordinator that is still loading.
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": topic.group})
        try:
            ends = {number: end for number, (_, end) in _watermarks(consumer, name).items()}
            places = wait_until(
                lambda: _committed(consumer, name, list(ends)), what=f"the coordinator of {topic.group}"
            )
            return {each.partition: (each.offset, ends[each.partition]) for each in places}
        finally:
            consumer.close()


def _committed(consumer: Consumer, name: str, partitions: list[int]) -> list[TopicPartition]:
    """Committed offsets; none yet of a broker that has just started."""
    try:
        return consumer.committed([TopicPartition(name, number) for number in partitions], timeout=10)
    except KafkaException as error:
        if error.args[0].code() not in COORDINATOR_NOT_YET:
            raise
        return []


def _watermarks(consumer: Consumer, name: str) -> dict[int, tuple[int, int]]:
    """First and end offset by partition; of a topic just made, once all of its partitions have their leaders."""

    def ask() -> dict[int, tuple[int, int]]:
        numbers = list(consumer.list_topics(name, 10).topics[name].partitions)
        try:
            return {number: consumer.get_watermark_offsets(TopicPartition(name, number), 10) for number in numbers}
        except KafkaException as error:
            if error.args[0].code() not in (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE):
                raise
            return {}

    return wait_until(ask, what=f"leaders of {name}")
