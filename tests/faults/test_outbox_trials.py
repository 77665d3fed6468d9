"""Trials 22 and 23, and the promises of the relay: at least once, in order per key, one at a time, nothing stuck."""

import itertools
import signal

import psycopg
import pytest
from django.core.management import call_command

from demo.servers import EmbeddedKafka
from messenger.topics import DEAL_CHAT_STATUS_CHANGED as TOPIC
from outbox.models import OutboxMessage
from tests.support.broker import Broker
from tests.support.outgoing import COMMAND, Start, add, first_deliveries, published, wait_all_published, waiting
from tests.support.sessions import check_nothing_left, lease_age, leases, listeners, named_url, sessions, terminate
from tests.support.triggers import Gate, own_connection, trigger
from tests.support.waiting import wait_until
from tests.support.workers import Worker

NAME = "relay"
SHORT = {"OUTBOX_LOCK_TTL": "4", "OUTBOX_POLLING_INTERVAL": "0.3"}
LONG = {"OUTBOX_LOCK_TTL": "180", "OUTBOX_POLLING_INTERVAL": "60"}
INSERT = """
INSERT INTO messenger.outbox_messages (message_id, topic, key, value, headers, aggregate_type, aggregate_id)
VALUES (gen_random_uuid(), %s, %s, %s, '[]', 'Test', 'none')
"""


@pytest.fixture(autouse=True)
def nobody_else(tables: None) -> None:
    """The server has noticed the end of the relays of earlier tests."""
    wait_until(lambda: not sessions(NAME), what="nobody else is at work")


def relay(start: Start, **env: str) -> Worker:
    """A relay whose sessions are called NAME."""
    return start(COMMAND, **{"DATABASE_URL": named_url(NAME), **env})


def insert(session: psycopg.Connection[tuple[object, ...]], broker: Broker, text: str) -> None:
    """Write a row in the session's transaction."""
    session.execute(INSERT, [broker.name(TOPIC), text.encode(), text.encode()])


class TestTrial22Gaps:
    """A transaction holds a lower id open while a higher one commits and is relayed; then the lower one commits."""

    @pytest.mark.parametrize("restarted", [False, True], ids=["under way", "after a restart"])
    def test_both_are_published(self, start: Start, broker: Broker, restarted: bool) -> None:
        worker = relay(start)
        with own_connection() as slow:
            with slow.transaction():
                insert(slow, broker, "ten")
                add(broker, ("eleven", "eleven"))
                wait_until(lambda: published(broker) == ["eleven"], what="the later row is published")
                wait_until(lambda: not waiting(), what="it is marked")
                if restarted:
                    assert worker.terminate() == 0
            if restarted:
                relay(start)
        wait_all_published()
        assert sorted(published(broker)) == ["eleven", "ten"]

    def test_cleaning_removes_nothing_unsent(self, broker: Broker, tables: None) -> None:
        add(broker, ("a", "unsent"), ("b", "parked"), ("c", "sent"))
        with own_connection() as session:
            session.execute("UPDATE messenger.outbox_messages SET created_at = now() - interval '1 year'")
            session.execute("UPDATE messenger.outbox_messages SET parked_at = created_at WHERE aggregate_id = 'b'")
            session.execute("UPDATE messenger.outbox_messages SET published_at = created_at WHERE aggregate_id = 'c'")
        call_command("prune_messages")
        assert set(OutboxMessage.objects.values_list("aggregate_id", flat=True)) == {"a", "b"}


class TestTrial23Kill:
    """kill -9 after the broker has the record and before the row is marked: one duplicate, never a loss."""

    def test_one_duplicate_with_the_same_id(self, start: Start, broker: Broker) -> None:
        with Gate() as gate, trigger("outbox_messages", "BEFORE UPDATE", gate.halt):
            worker = relay(start, CONSUMER_LOCK_TIMEOUT="60")
            add(broker, ("key", "text"))
            gate.wait_for_somebody()
            worker.kill()
            gate.open()
        relay(start)
        wait_all_published()
        one, other = broker.read(TOPIC)
        assert (one.key, one.value, one.headers) == (other.key, other.value, other.headers)
        assert one.header("message-id") == str(OutboxMessage.objects.get().message_id)


class TestTrial23Frozen:
    """The broker is there and does not answer, or is not there at all."""

    @pytest.fixture
    def kafka_servers(self, own_kafka: EmbeddedKafka) -> str:
        """The broker that this class stops."""
        return own_kafka.bootstrap_servers

    def test_a_row_goes_out_later(self, start: Start, broker: Broker, own_kafka: EmbeddedKafka) -> None:
        """And the lease, whose time is shorter than the wait for the broker, stays where it is."""
        env = {**SHORT, "OUTBOX_DELIVERY_TIMEOUT": "6"}
        worker = relay(start, **env)
        worker.wait_for("relay_active")
        standby = relay(start, **env)
        standby.wait_for("started")
        own_kafka.freeze()
        add(broker, ("key", "text"))
        worker.wait_for("infrastructure_away", tries=2)
        assert OutboxMessage.objects.get().published_at is None
        own_kafka.thaw()
        wait_all_published()
        assert set(published(broker)) == {"text"}
        worker.wait_for("infrastructure_back")
        assert not standby.find("relay_active")
        assert worker.metric("messenger_infrastructure_faults_total", worker="outbox-relay") >= 2

    @pytest.mark.parametrize("how", ["freeze", "kill"])
    def test_sigterm_while_it_flushes(self, start: Start, broker: Broker, own_kafka: EmbeddedKafka, how: str) -> None:
        """Trial 14: exit 0 in time, no session and no lock left, the row kept."""
        worker = relay(start, **LONG)
        worker.wait_for("relay_active")
        getattr(own_kafka, how)()
        held_for = wait_until(lambda: lease_age(NAME))
        add(broker, ("key", "text"))
        # Nothing but waiting for the broker's report makes it look after its lease so often.
        wait_until(lambda: leases(NAME, alive_for=held_for + 0.5), what="it waits for the broker")
        worker.signal(signal.SIGTERM)
        worker.signal(signal.SIGTERM)
        assert worker.wait(seconds=20) == 0
        assert "Traceback" not in worker.output
        check_nothing_left(NAME)
        assert waiting() == 1


class TestTakingOver:
    """One relay is active; a standby takes over within seconds, and no key's order suffers."""

    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
    def test_in_order(self, start: Start, broker: Broker, how: signal.Signals) -> None:
        first = relay(start, **SHORT, OUTBOX_BATCH_SIZE="7")
        first.wait_for("relay_active")
        second = relay(start, **SHORT, OUTBOX_BATCH_SIZE="7")
        second.wait_for("started")
        keys = ["a", "b", "c"]
        numbers = itertools.count()
        for _ in range(20):
            add(broker, *((key, f"{next(numbers):03}") for key in keys))
        wait_until(lambda: waiting() < 50, what="some are published")
        first.signal(how)
        for _ in range(20):
            add(broker, *((key, f"{next(numbers):03}") for key in keys))
        second.wait_for("relay_active")
        wait_all_published()
        if how is signal.SIGSTOP:
            first.signal(signal.SIGCONT)
            first.wait_for("relay_standing_by")
            assert first.terminate() == 0
        orders = first_deliveries(broker.read(TOPIC))
        assert orders == {key.encode(): [f"{n:03}" for n in range(at, 120, 3)] for at, key in enumerate(keys)}

    def test_a_long_polling_interval_does_not_cost_the_lease(self, start: Start, broker: Broker) -> None:
        """The time to live is counted anew while there is nothing to do, and a standby does not sleep for so long."""
        env = {"OUTBOX_LOCK_TTL": "4", "OUTBOX_POLLING_INTERVAL": "60"}
        first = relay(start, **env)
        first.wait_for("relay_active")
        (lease,) = wait_until(lambda: leases(NAME))
        second = relay(start, **env)
        second.wait_for("started")
        held = wait_until(lambda: leases(NAME, alive_for=6), what="the lease is older than its time to live")
        assert held == [lease]
        first.kill()
        second.wait_for("relay_active")


class TestRefused:
    """A row that cannot be published is parked after bounded tries; its key waits, other keys flow."""

    def test_too_large(self, start: Start, broker: Broker) -> None:
        """All in one partition, and so in one batch, which the broker refuses as a whole."""
        broker.create(broker.name("small"), 1, **{"max.message.bytes": "2000"})
        rows = [
            ("a", "a1"),
            ("b", "b" * 3000),
            ("b", "b2"),
            ("c", "c1"),
            (None, "n1"),
            (None, "n" * 3000),
            (None, "n2"),
        ]
        add(broker, *rows, topic="small")
        worker = relay(start, OUTBOX_MAX_ATTEMPTS="3")
        for size in (1, 2):
            worker.wait_for("outbox_row_parked", count=size, attempts=3)
        wait_until(lambda: waiting() == 3, what="all that may go has gone")
        add(broker, ("b", "b3"), ("c", "c2"), (None, "n3"), topic="small")
        wait_until(lambda: waiting() == 4, what="later rows of other keys have gone too")
        assert sorted(published(broker, "small")) == ["a1", "c1", "c2", "n1", "n2", "n3"]
        parked = OutboxMessage.objects.exclude(parked_at=None).order_by("id")
        assert [(len(bytes(row.value or b"")), row.attempts) for row in parked] == [(3000, 3), (3000, 3)]
        assert all("MSG_SIZE_TOO_LARGE" in (row.last_error or "") for row in parked)
        assert worker.metric("messenger_outbox_parked_total", topic=broker.name("small")) == 2
        # A person takes the row out of the way; what waited for it goes out in order.
        parked.delete()
        wait_all_published()
        assert first_deliveries(broker.read("small"))[b"b"] == ["b2", "b3"]

    def test_a_topic_that_is_not_there(self, start: Start, broker: Broker) -> None:
        add(broker, ("a", "lost"), topic="missing")
        add(broker, ("a", "found"))
        worker = relay(start)
        wait_until(lambda: published(broker) == ["found"], what="the other topic's row is published")
        worker.wait_for("topic_not_writable", topic=broker.name("missing"))
        assert waiting() == 1
        add(broker, ("a", "again"))
        wait_until(lambda: waiting() == 1, what="the other topic goes on")
        broker.create(broker.name("missing"))
        wait_all_published()
        assert published(broker, "missing") == ["lost"]
        assert not worker.find("outbox_row_parked")

    def test_a_topic_made_anew(self, start: Start, broker: Broker) -> None:
        """The producer numbers its records per partition; a new partition knows nothing of the old numbers."""
        broker.create(broker.name("anew"))
        worker = relay(start)
        add(broker, *(("a", f"old {n}") for n in range(3)), topic="anew")
        wait_all_published()
        for future in broker.admin.delete_topics([broker.name("anew")]).values():
            future.result()
        wait_until(lambda: broker.name("anew") not in broker.admin.list_topics(timeout=10).topics)
        broker.create(broker.name("anew"))
        add(broker, *(("a", f"new {n}") for n in range(3)), topic="anew")
        wait_all_published()
        assert first_deliveries(broker.read("anew"))[b"a"] == ["new 0", "new 1", "new 2"]
        assert worker.terminate() == 0


class TestWaking:
    """NOTIFY wakes the relay; polling beneath it goes on whatever becomes of the session that listens."""

    def test_by_notify(self, start: Start, broker: Broker) -> None:
        worker = relay(start, **LONG)
        worker.wait_for("relay_active")
        for number in range(3):
            add(broker, ("a", str(number)))
            wait_all_published()

    def test_the_listening_session_is_killed(self, start: Start, broker: Broker) -> None:
        worker = relay(start, **LONG)
        worker.wait_for("relay_active")
        (ear,) = wait_until(lambda: listeners(NAME))
        terminate(ear)
        worker.wait_for("listen_session_lost")
        wait_until(lambda: listeners(NAME) not in ([], [ear]), what="it listens again")
        add(broker, ("a", "text"))
        wait_all_published()
        assert not worker.find("infrastructure_away")


class TestOnce:
    """`--once`: what waits now, then the end."""

    def test_published(self, start: Start, broker: Broker) -> None:
        add(broker, ("a", "1"), ("a", "2"))
        worker = start(COMMAND, "--once")
        assert worker.wait() == 0
        assert "published 2 rows" in worker.output
        assert published(broker) == ["1", "2"]

    def test_another_is_at_work(self, start: Start, broker: Broker) -> None:
        relay(start, **LONG).wait_for("relay_active")
        worker = start(COMMAND, "--once", **LONG)
        assert worker.wait() == 0
        assert "another relay is at work" in worker.output

    def test_the_broker_is_away(self, start: Start, broker: Broker) -> None:
        add(broker, ("a", "1"))
        worker = start(COMMAND, "--once", KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:9", OUTBOX_DELIVERY_TIMEOUT="1")
        assert worker.wait() == 1
        assert "Nothing is lost: the rows wait in the outbox." in worker.output
        assert "Traceback" not in worker.output
        assert waiting() == 1
