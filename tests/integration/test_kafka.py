"""The consumer and the producer of messenger.kafka in this process, on the real broker: what no log line shows."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from pytest_django.fixtures import Settings
from structlog.testing import capture_logs

from messenger.kafka import RecordConsumer, RecordProducer, RecordRefused
from messenger.records import Outgoing, Partition, Record
from messenger.topics import Topic
from tests.support.broker import Broker
from tests.support.raw_kafka import produce_with_header
from tests.support.waiting import wait_until

both_protocols = pytest.mark.parametrize("protocol", ["consumer", "classic"])


class Member:
    """A member of a group of its own, turned by the test as the loop would turn it."""

    def __init__(self, broker: Broker, group: str, topic: str) -> None:
        self.lost: list[Partition] = []
        self.resets = 0
        self.group = group
        self.topic = topic
        self.consumer = RecordConsumer(group=group, topics=[topic], on_lost=self.lost.extend, on_reset=self._reset)

    def _reset(self) -> None:
        self.resets += 1

    def read(self, count: int) -> list[int]:
        """Poll until so many records have come; their offsets."""
        found: list[int] = []

        def enough() -> bool:
            records = self.consumer.poll(100, 0.05)
            found.extend(record.offset for record in records)
            self.consumer.settled(records)
            return len(found) >= count

        wait_until(enough, what=f"{count} records of {self.topic}")
        return found


Join = Callable[[], Member]


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic with two partitions."""
    name = broker.name("own")
    broker.create(name, 2)
    return name


@pytest.fixture
def join(broker: Broker, topic: str) -> Iterator[Join]:
    """Join one more member to the group of this test."""
    group = f"test-{uuid.uuid4()}"
    with ExitStack() as stack:

        def begin() -> Member:
            member = Member(broker, group, topic)
            stack.enter_context(member.consumer)
            return member

        yield begin


def fill(broker: Broker, count: int) -> None:
    """So many records in each partition."""
    for number in range(2 * count):
        broker.produce("own", str(number), partition=number % 2)


def take(member: Member, records: list[Record]) -> list[Record]:
    """Poll once, and add what came to `records`, settled or not."""
    records += member.consumer.poll(100, 0.05)
    return records


def read_of(records: list[Record]) -> set[tuple[Partition, int]]:
    """Where they lie: one that comes twice, as it does when the group shares its partitions out anew, counts once."""
    return {(record.source, record.offset) for record in records}


def share(*members: Member) -> None:
    """Turn the members, paused, until each has one partition."""

    def shared() -> bool:
        for member in members:
            member.consumer.keep_alive(0.05)
        return all(len(member.consumer._consumer.assignment()) == 1 for member in members)

    wait_until(shared, what="each has a partition")


class TestRebalance:
    """Partitions that go and come."""

    @both_protocols
    def test_what_is_settled_is_committed_on_revoke(
        self, join: Join, broker: Broker, settings: Settings, protocol: str
    ) -> None:
        """Its offset was not sent before; who takes the partition over begins behind it."""
        settings.KAFKA_GROUP_PROTOCOL = protocol
        settings.CONSUMER_SESSION_TIMEOUT = 3
        fill(broker, 5)
        first = join()
        records: list[Record] = []
        wait_until(lambda: len(read_of(take(first, records))) == 10, what="all are read")
        first.consumer.settled([record for record in records if record.offset < 3])
        # In the same breath as the revocation: no commit of before has told of it.
        first.consumer._committing = True
        second = join()
        share(first, second)
        first.consumer._committing = False
        (gone,) = first.lost
        fill(broker, 1)
        assert second.read(3) == [3, 4, 5]
        assert second.resets == 0
        assert second.consumer._consumer.assignment()[0].partition == gone[1]

    @both_protocols
    def test_a_pause_does_not_come_back_with_a_partition(
        self, join: Join, broker: Broker, settings: Settings, protocol: str
    ) -> None:
        """The client remembers a pause across revocation; the partition must not stay silent when it returns."""
        settings.KAFKA_GROUP_PROTOCOL = protocol
        settings.CONSUMER_SESSION_TIMEOUT = 3
        fill(broker, 1)
        first = join()
        first.read(2)
        second = join()
        share(first, second)
        fill(broker, 1)
        first.read(1)
        second.consumer.__exit__(None, None, None)
        fill(broker, 1)
        assert len(first.read(3)) == 3

    @both_protocols
    def test_a_partition_that_comes_during_a_pause_is_paused(
        self, join: Join, broker: Broker, settings: Settings, protocol: str
    ) -> None:
        """What is fetched and not taken up would pile up for as long as PostgreSQL is away."""
        settings.KAFKA_GROUP_PROTOCOL = protocol
        settings.CONSUMER_SESSION_TIMEOUT = 3
        fill(broker, 50)
        first = join()

        def assigned() -> bool:
            first.consumer.keep_alive(0.05)
            return len(first.consumer._consumer.assignment()) == 2

        wait_until(assigned)
        for _ in range(40):
            first.consumer.keep_alive(0.05)
        assert len(first.consumer._held) < 10
        assert len(first.read(100)) == 100


@pytest.mark.timeout(60)
def test_a_pause_whose_time_is_over_ends(join: Join, broker: Broker, topic: str) -> None:
    """Less than no time is no time; the client itself would take it for ever, and nothing comes to end that."""
    fill(broker, 1)
    member = join()
    member.read(2)
    for _ in range(20):
        member.consumer.keep_alive(0.05)
    member.consumer.keep_alive(-0.001)


def test_a_header_name_that_is_not_utf8_stops_nobody(join: Join, broker: Broker, topic: str) -> None:
    """Trial 1, beyond what this client itself could send: the record is read, its headers are given up, and said so."""
    produce_with_header(broker.servers, topic, b"value", name=b"\xff\xfe")
    member = join()
    with capture_logs() as logs:
        assert member.read(1) == [0]
    assert [line["topic"] for line in logs if line["event"] == "headers_unreadable"] == [topic]


def test_positions_of_before_say_nothing_of_a_topic_made_anew(join: Join, broker: Broker, topic: str) -> None:
    """What was read of the old one is applied late; its offsets, beyond the end of the new one, are not committed."""
    fill(broker, 10)
    member = join()
    old: list[Record] = []
    wait_until(lambda: len(read_of(take(member, old))) == 20, what="all are read")
    for future in broker.admin.delete_topics([topic]).values():
        future.result()
    wait_until(lambda: topic not in broker.admin.list_topics(timeout=10).topics, what="the topic is gone")
    broker.create(topic, 2)
    broker.ends("own")  # all know of it
    fill(broker, 2)
    resets = member.resets
    new: list[Record] = []
    wait_until(lambda: len(read_of(take(member, new))) == 4, what="the new ones are read")
    assert member.resets >= resets + 2
    member.consumer.settled(old)
    wait_until(lambda: take(member, new) and not member.consumer._settled, what="what there is to commit is committed")
    group = Topic("own", group=member.group)
    assert max(broker.committed(group).values()) <= 2

    def committed() -> bool:
        member.consumer.settled(take(member, new))
        return broker.committed(group) == {0: 2, 1: 2}

    wait_until(committed, what="the new ones are committed")


class TestProducer:
    """What becomes of a record, one by one."""

    def test_a_refused_record_does_not_take_its_batch_down(self, broker: Broker, topic: str) -> None:
        broker.create(broker.name("small"), 1, **{"max.message.bytes": "2000"})
        small = broker.name("small")
        values = [b"a", b"b" * 3000, b"c", b"d" * 3000, b"e"]
        records = [Outgoing(n, small, None, value) for n, value in enumerate(values)]
        records.append(Outgoing(9, topic, None, b"elsewhere"))
        reports = RecordProducer().publish(records, stopping=lambda: False)
        refused = {reference for reference, fault in reports.items() if isinstance(fault, RecordRefused)}
        assert refused == {1, 3}
        assert all(fault is None for reference, fault in reports.items() if reference not in refused)
        assert sorted(record.value or b"" for record in broker.read("small")) == [b"a", b"c", b"e"]
