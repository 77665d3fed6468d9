"""Trial 14: SIGTERM in every state of a consumer. Exit 0 in time, group left, offsets as the database, nothing left."""

import signal

import pytest

from demo.servers import EmbeddedKafka
from messenger.kafka import CLOSE_SECONDS
from messenger.topics import LEAD_PARTICIPANTS_CHANGED as TOPIC
from outbox.models import DeadLetter
from tests.support import crm
from tests.support.broker import Broker
from tests.support.consumers import COMMAND, LOCK_CHAT, Start, send, wait_applied, wait_no_lag
from tests.support.groups import be_quick, wait_for_members, wait_until_left
from tests.support.leads import open_chat, version_of
from tests.support.own_servers import OwnPostgres
from tests.support.races import holding, wait_for_blocked
from tests.support.sessions import check_nothing_left, named_url
from tests.support.triggers import Gate, trigger
from tests.support.waiting import wait_until
from tests.support.workers import Worker

ANNA, BORIS = crm.new_id(), crm.new_id()
NAME = "trial-14"
IN_TIME = 25.0
"""Seconds; a supervisor gives 30 before it kills."""
SESSION = 45
"""Seconds until the group misses a member that did not leave it in good order."""


@pytest.fixture
def long_session(consume: Start, broker: Broker) -> None:
    """Longer than anything here waits for the group to be left."""
    be_quick(broker, TOPIC, session=SESSION)


who_leaves_is_told = pytest.mark.usefixtures("long_session")


@pytest.fixture
def lead(tables: None) -> str:
    """A lead with a chat."""
    lead = crm.new_id()
    open_chat(lead, {ANNA: "Executor"})
    return lead


def check_stopped(worker: Worker, broker: Broker) -> None:
    """It ended by itself, in good order: the group is left at once, not when a session runs out."""
    assert worker.wait(seconds=IN_TIME) == 0
    wait_until_left(broker, TOPIC, seconds=SESSION / 2)
    assert "Traceback" not in worker.output
    check_nothing_left(NAME)


@who_leaves_is_told
@pytest.mark.parametrize(("protocol", "number"), [("consumer", signal.SIGTERM), ("classic", signal.SIGINT)])
def test_idle(consume: Start, broker: Broker, lead: str, protocol: str, number: signal.Signals) -> None:
    worker = consume(protocol, DATABASE_URL=named_url(NAME), CONSUMER_SESSION_TIMEOUT=str(SESSION))
    send(broker, lead, 1, {BORIS: "Executor"})
    wait_applied(lead, 1)
    worker.signal(number)
    check_stopped(worker, broker)
    assert broker.lag(TOPIC) == 0


@who_leaves_is_told
def test_asked_until_it_ends(consume: Start, broker: Broker) -> None:
    """Also while the interpreter winds up: who asks once more must not turn a good end into a signal's."""
    worker = consume(DATABASE_URL=named_url(NAME))
    worker.wait_for("partitions_assigned")

    def ended() -> bool:
        worker.signal(signal.SIGTERM)
        return worker.process.poll() is not None

    wait_until(ended, what="it ends")
    check_stopped(worker, broker)


@who_leaves_is_told
def test_inside_a_transaction(consume: Start, broker: Broker, lead: str) -> None:
    """What is under way is finished, and committed on both sides; what comes behind it is left alone."""
    worker = consume(DATABASE_URL=named_url(NAME), CONSUMER_BATCH_SIZE="1", CONSUMER_LOCK_TIMEOUT="60")
    halt = "IF NEW.type = 'ParticipantLeft' THEN {} END IF;"
    with Gate() as gate, trigger("chat_events", "BEFORE INSERT", halt.format(gate.halt)):
        for version, user in ((1, BORIS), (2, ANNA)):
            send(broker, lead, version, {user: "Executor"}, partition=0)
        gate.wait_for_somebody()
        worker.signal(signal.SIGTERM)
        gate.open()
        check_stopped(worker, broker)
    assert version_of(lead) == broker.committed(TOPIC)[0] == 1


@who_leaves_is_told
def test_inside_a_transaction_that_cannot_go_on(consume: Start, broker: Broker, lead: str) -> None:
    """And asked more than once, as impatient people do."""
    worker = consume(DATABASE_URL=named_url(NAME), CONSUMER_LOCK_TIMEOUT="2")
    with holding(LOCK_CHAT, lead):
        send(broker, lead, 1, {BORIS: "Executor"})
        wait_for_blocked(1)
        for _ in range(3):
            worker.signal(signal.SIGTERM)
        check_stopped(worker, broker)
    assert version_of(lead) is None
    assert broker.lag(TOPIC) == 1
    assert not DeadLetter.objects.exists()


@who_leaves_is_told
def test_in_a_backoff_of_a_minute(consume: Start, broker: Broker, own_postgres: OwnPostgres) -> None:
    (lead,) = own_postgres.open_chats(1)
    env = {"INFRASTRUCTURE_BACKOFF_BASE": "60", "INFRASTRUCTURE_BACKOFF_CAP": "60"}
    worker = consume(DATABASE_URL=own_postgres.url, **env)
    wait_for_members(broker, TOPIC, 1)
    own_postgres.server.stop()
    send(broker, lead, 1, {BORIS: "Executor"})
    assert worker.wait_for("infrastructure_away")["delay_s"] >= 60
    worker.signal(signal.SIGTERM)
    check_stopped(worker, broker)
    assert broker.lag(TOPIC) == 1


class TestBrokerAway:
    """Nobody can be told; the process ends all the same, and what it could not commit comes again as a duplicate."""

    @pytest.fixture
    def kafka_servers(self, own_kafka: EmbeddedKafka) -> str:
        """The broker that this class freezes; it answers nobody, and the client's own close would wait for ever."""
        return own_kafka.bootstrap_servers

    def test_it_ends(self, start: Start, broker: Broker, own_kafka: EmbeddedKafka, lead: str) -> None:
        """One consumer with an offset to commit, and an idle one with the other protocol."""
        env = {"CONSUMER_SESSION_TIMEOUT": "3", "DATABASE_URL": named_url(NAME)}
        idle = start("consume_lead_created", KAFKA_GROUP_PROTOCOL="classic", **env)
        idle.wait_for("partitions_assigned")
        worker = start(COMMAND, KAFKA_GROUP_PROTOCOL="consumer", **env)
        with holding(LOCK_CHAT, lead):
            send(broker, lead, 1, {BORIS: "Executor"})
            wait_for_blocked(1)
            own_kafka.freeze()
        wait_applied(lead, 1)
        for each in (idle, worker):
            each.signal(signal.SIGTERM)
        for each in (idle, worker):
            # The last commit and leaving are each given their time, no more.
            assert each.wait(seconds=2 * CLOSE_SECONDS + 15) == 0
            assert "Traceback" not in each.output
        check_nothing_left(NAME)
        own_kafka.thaw()
        again = start(COMMAND, **env)
        wait_no_lag(broker)
        assert not again.find("synced")
