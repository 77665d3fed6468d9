"""Trials 17 and 18: sessions are ended under the workers' hands, and the same people are written from two sides."""

from collections.abc import Iterator

import pytest
from django.db import connection

from chats.models import Chat
from messenger.topics import LEAD_PARTICIPANTS_CHANGED as TOPIC
from outbox.models import DeadLetter
from tests.support import crm
from tests.support.broker import Broker
from tests.support.consumers import Start, resend, send, two_partitions, wait_applied, wait_no_lag
from tests.support.groups import wait_for_members
from tests.support.leads import check_feeds, feed_of, open_chat, roster_of
from tests.support.outgoing import COMMAND as RELAY
from tests.support.outgoing import TOPIC as OUT
from tests.support.outgoing import add, first_deliveries, wait_all_published
from tests.support.sessions import named_url, sessions, terminate
from tests.support.triggers import Gate, trigger
from tests.support.waiting import wait_until
from tests.support.workers import Worker

NAME = "trial-17"
ANNA, BORIS = crm.new_id(), crm.new_id()
ROUNDS = 200


@pytest.fixture
def lead(tables: None) -> Iterator[str]:
    """A lead with a chat of Anna's; at the end its feed must replay to its roster."""
    lead = crm.new_id()
    open_chat(lead, {ANNA: "Executor"})
    yield lead
    check_feeds()


def check_one_failure(worker: Worker) -> None:
    """It lost its sessions once, said so once, and is back."""
    worker.wait_for("infrastructure_back")
    assert len(worker.find("infrastructure_away")) == 1
    assert len(worker.find("infrastructure_back")) == 1
    assert worker.process.poll() is None
    assert "Traceback" not in worker.output
    assert not DeadLetter.objects.exists()


class TestTrial17Terminated:
    """pg_terminate_backend on every session of the workers: INFRA-OK, one logged failure, reconnected."""

    def test_idle(self, consume: Start, start: Start, broker: Broker, lead: str) -> None:
        """A consumer has one session, a relay three: its work, its lease, its ear."""
        workers = [consume(DATABASE_URL=named_url(NAME)), start(RELAY, DATABASE_URL=named_url(NAME))]
        wait_for_members(broker, TOPIC, 1)
        wait_until(lambda: len(sessions(NAME)) == 4, what="both are connected")
        terminate(*sessions(NAME))
        for worker in workers:
            check_one_failure(worker)
        send(broker, lead, 1, {BORIS: "Executor"})
        add(broker, ("a", "text"))
        wait_applied(lead, 1)
        wait_all_published()
        assert len(sessions(NAME)) == 4

    def test_a_consumer_in_a_transaction(self, consume: Start, broker: Broker, lead: str) -> None:
        with Gate() as gate, trigger("processed_messages", "AFTER INSERT", gate.halt):
            worker = consume(DATABASE_URL=named_url(NAME), CONSUMER_LOCK_TIMEOUT="60")
            send(broker, lead, 1, {BORIS: "Executor"})
            gate.wait_for_somebody()
            terminate(*sessions(NAME))
            gate.open()
        wait_no_lag(broker)
        check_one_failure(worker)
        assert roster_of(lead) == {BORIS: "Executor"}
        assert len(feed_of(lead, after=2)) == 2
        assert len(worker.find("synced")) == 1

    def test_a_relay_in_a_transaction(self, start: Start, broker: Broker) -> None:
        with Gate() as gate, trigger("outbox_messages", "BEFORE UPDATE", gate.halt):
            worker = start(RELAY, DATABASE_URL=named_url(NAME), CONSUMER_LOCK_TIMEOUT="60")
            add(broker, ("a", "1"), ("a", "2"))
            gate.wait_for_somebody()
            terminate(*sessions(NAME))
            gate.open()
        wait_all_published()
        check_one_failure(worker)
        assert first_deliveries(broker.read(OUT)) == {b"a": ["1", "2"]}


def test_trial_18_the_same_people_from_two_sides(consume: Start, broker: Broker) -> None:
    """Two consumers, 50 users in opposite order in different leads, 200 rounds: no deadlock, no half roster."""
    leads = [crm.new_id(), crm.new_id()]
    for lead in leads:
        open_chat(lead, {ANNA: "Executor"})
    users = sorted(crm.new_id() for _ in range(50))
    workers = [consume(CONSUMER_BATCH_SIZE="4"), consume(CONSUMER_BATCH_SIZE="4")]
    partitions = two_partitions(broker)
    before = deadlocks()
    # Now all of them, now every other one, so that each round writes, removes or revives.
    rosters = [[(user, "Lawyer") for user in users], [(user, "CoAgent") for user in users[::2]]]
    for number in range(1, ROUNDS + 1):
        for lead, step, partition in zip(leads, (1, -1), partitions, strict=True):
            message = crm.lead_participants(lead, number, rosters[number % 2][::step])
            resend(broker, crm.encode(message), lead, partition=partition)
    wait_no_lag(broker)
    assert set(Chat.objects.values_list("lead_member_version", flat=True)) == {ROUNDS}
    assert roster_of(leads[0]) == roster_of(leads[1]) == dict(rosters[0])
    assert sum(len(worker.find("synced")) for worker in workers) == 2 * ROUNDS
    assert all(worker.find("synced") for worker in workers)
    assert not any(worker.find("infrastructure_away") for worker in workers)
    assert not DeadLetter.objects.exists()
    assert deadlocks() == before
    check_feeds()


def deadlocks() -> int:
    """Deadlocks of this database since it was made."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])
