"""Trial 13, offsets gone; and what offsets are for: the committed one is never ahead of the database."""

import random
from collections.abc import Callable

import pytest
from confluent_kafka import TopicPartition

from chats.models import Chat
from messenger.kafka import create_topics
from messenger.topics import LEAD_PARTICIPANTS_CHANGED as TOPIC
from outbox.models import DeadLetter
from tests.support import crm
from tests.support.broker import Broker
from tests.support.consumers import LOCK_CHAT, Start, resend, send, wait_applied, wait_no_lag
from tests.support.groups import has_offsets, wait_until_left
from tests.support.leads import check_feeds, everything, open_chat, roster_of, version_of
from tests.support.races import holding
from tests.support.triggers import trigger
from tests.support.waiting import wait_until
from tests.support.workers import Worker

ANNA, BORIS = crm.new_id(), crm.new_id()
RESETS = "messenger_consumer_offsets_reset_total"
Settled = Callable[[str], tuple[list[str], list[bytes]]]
both_protocols = pytest.mark.parametrize("protocol", ["consumer", "classic"])


def delete_records(broker: Broker, partition: int, before: int) -> None:
    """What retention does: the partition begins at `before` from now on."""
    place = TopicPartition(broker.name(TOPIC), partition, before)
    for future in broker.admin.delete_records([place]).values():
        future.result()


def delete_topic(broker: Broker) -> None:
    """Delete the topic, and wait until the broker knows nothing of it."""
    name = broker.name(TOPIC)
    for future in broker.admin.delete_topics([name]).values():
        future.result()
    wait_until(lambda: name not in broker.admin.list_topics(timeout=10).topics, what="the topic is deleted")


def create_topic(broker: Broker) -> None:
    """Create the topic anew."""
    wait_until(lambda: create_topics({broker.name(TOPIC): TOPIC.partitions}, replication=1), what="it is made anew")
    broker.ends(TOPIC)  # who produces to it next is not told of before


def check_loud(worker: Worker, *, partitions: set[int]) -> None:
    """It said so, in the log and by the metric, for each of these partitions."""
    resets = worker.find("offsets_reset", group=TOPIC.group)
    assert {line["partition"] for line in resets} == partitions
    assert all(line["level"] == "warning" for line in resets)
    wait_until(
        lambda: worker.metric(RESETS, group=str(TOPIC.group)) == len(worker.find("offsets_reset")), what="the metric"
    )


@pytest.fixture
def settled(consume: Start, broker: Broker) -> Settled:
    """Three leads, one a partition, each with five versions and a dead letter, settled by a consumer that has left."""

    def run(protocol: str) -> tuple[list[str], list[bytes]]:
        leads = [crm.new_id() for _ in range(3)]
        values = []
        worker = consume(protocol)
        for partition, lead in enumerate(leads):
            open_chat(lead, {ANNA: "Executor"})
            for version in range(1, 6):
                values.append(crm.encode(crm.lead_participants(lead, version, {BORIS: "Executor"})))
                resend(broker, values[-1], lead, partition=partition)
            resend(broker, b"junk", lead, partition=partition)
        wait_no_lag(broker)
        assert worker.terminate() == 0
        wait_until_left(broker, TOPIC)
        return leads, values

    return run


class TestTrial13OffsetsGone:
    """Loud log and metric, never a silent jump to the end, full replay harmless."""

    def test_retention_while_it_is_away(self, consume: Start, broker: Broker, settled: Settled) -> None:
        leads, _ = settled("consumer")
        for version in range(6, 12):
            send(broker, leads[1], version, {ANNA: "Executor"}, partition=1)
        delete_records(broker, 1, before=9)
        worker = consume()
        wait_applied(leads[1], 11)
        wait_no_lag(broker)
        # Six were committed, the next three are gone, and the first that is left is the first that is read.
        assert [line["version"] for line in worker.find("synced")] == [9, 10, 11]
        check_loud(worker, partitions={1})
        assert worker.find("offsets_reset", start=9)

    @both_protocols
    def test_retention_overtakes_it(self, consume: Start, broker: Broker, protocol: str) -> None:
        """It runs, waits for a lock, and meanwhile what it would read next is deleted."""
        held, other = crm.new_id(), crm.new_id()
        for lead in (held, other):
            open_chat(lead, {ANNA: "Executor"})
        worker = consume(protocol, CONSUMER_LOCK_TIMEOUT="0.5")
        send(broker, other, 1, {ANNA: "Executor"}, partition=1)
        wait_no_lag(broker)
        resets = len(worker.find("offsets_reset"))
        with holding(LOCK_CHAT, held):
            send(broker, held, 1, {BORIS: "Executor"}, partition=1)
            worker.wait_for("infrastructure_away", tries=2)
            for version in range(2, 8):
                send(broker, other, version, {ANNA: "Executor"}, partition=1)
            delete_records(broker, 1, before=5)
        wait_applied(other, 7)
        wait_no_lag(broker)
        # What it had read before is applied all the same.
        assert roster_of(held) == {BORIS: "Executor"}
        assert [line["version"] for line in worker.find("synced", lead_id=other)] == [1, 5, 6, 7]
        assert [line["partition"] for line in worker.find("offsets_reset")[resets:]] == [1]

    @pytest.mark.parametrize(
        ("protocol", "running"),
        [("consumer", False), ("consumer", True), ("classic", True)],
        ids=["away", "running-consumer", "running-classic"],
    )
    def test_a_topic_made_anew(
        self, consume: Start, broker: Broker, settled: Settled, protocol: str, running: bool
    ) -> None:
        """Shorter than the committed offset: read from its beginning, whether it was replaced under way or not."""
        leads, _ = settled(protocol)
        worker = consume(protocol) if running else None
        if worker is not None:
            worker.wait_for("partitions_assigned")
        delete_topic(broker)
        create_topic(broker)
        for partition, lead in enumerate(leads):
            send(broker, lead, 6, {ANNA: "Executor"}, partition=partition)
        worker = worker or consume(protocol)
        for lead in leads:
            wait_applied(lead, 6)
        wait_no_lag(broker)
        check_loud(worker, partitions={0, 1, 2})
        assert worker.terminate() == 0
        check_feeds()

    def test_a_deleted_group(self, consume: Start, broker: Broker, settled: Settled) -> None:
        _, values = settled("classic")
        before = everything(), list(DeadLetter.objects.order_by("id").values())
        for future in broker.admin.delete_consumer_groups([str(TOPIC.group)]).values():
            future.result()
        worker = consume("classic")
        wait_no_lag(broker)
        check_loud(worker, partitions={0, 1, 2})
        assert len(worker.find("skipped_duplicate")) == len(values)
        assert (everything(), list(DeadLetter.objects.order_by("id").values())) == before

    def test_an_idle_partition_is_loud_once(self, consume: Start, broker: Broker) -> None:
        """A first start has no offsets; the second knows where it was, also where nothing ever came."""
        for resets in (3, 0):
            worker = consume()
            worker.wait_for("partitions_assigned")
            wait_until(lambda: has_offsets(broker, TOPIC), what="every partition has an offset")
            assert worker.terminate() == 0
            assert len(worker.find("offsets_reset")) == resets


def wait_committed(broker: Broker, count: int) -> None:
    """Wait until offsets of so many records are committed."""
    wait_until(lambda: sum(broker.committed(TOPIC).values()) >= count, what=f"{count} records are committed")


def test_the_committed_offset_is_never_ahead(consume: Start, broker: Broker) -> None:
    """kill -9 at random moments, mostly inside a transaction: what Kafka takes for done, the database has."""
    dice = random.Random(13)
    leads = [crm.new_id() for _ in range(6)]
    for lead in leads:
        open_chat(lead, {ANNA: "Executor"})
    sent: list[tuple[int, int, str, int]] = []
    with trigger("processed_messages", "BEFORE INSERT", "PERFORM pg_sleep(0.02);"):
        for turn in range(3):
            worker = consume(CONSUMER_BATCH_SIZE="3")
            for version in range(turn * 10 + 1, turn * 10 + 11):
                for number, lead in enumerate(leads):
                    roster = {ANNA: "Executor"} if version % 2 else {BORIS: "Executor"}
                    sent.append((*send(broker, lead, version, roster, partition=number % 3), lead, version))
            wait_committed(broker, dice.randrange(5, 50) + turn * 60)
            worker.kill()
            committed = broker.committed(TOPIC)
            for partition, offset, lead, version in sent:
                done = (version_of(lead) or 0) >= version
                assert done or offset >= committed[partition], (partition, offset, committed)
    consume()
    wait_no_lag(broker)
    assert set(Chat.objects.values_list("lead_member_version", flat=True)) == {30}
    check_feeds()
