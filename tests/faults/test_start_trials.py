"""What a worker needs is not there when it starts: it says so, waits, and works as soon as it comes."""

import pytest

from demo.servers import EmbeddedKafka
from messenger.topics import LEAD_PARTICIPANTS_CHANGED as TOPIC
from tests.support import crm
from tests.support.broker import Broker
from tests.support.consumers import COMMAND as CONSUME
from tests.support.consumers import Start, send, wait_applied, wait_no_lag
from tests.support.leads import open_chat
from tests.support.outgoing import COMMAND as RELAY
from tests.support.outgoing import add, wait_all_published
from tests.support.own_servers import OwnPostgres
from tests.support.waiting import wait_until

ANNA = crm.new_id()


def test_postgresql_is_missing(consume: Start, start: Start, broker: Broker, own_postgres: OwnPostgres) -> None:
    (lead,) = own_postgres.open_chats(1)
    own_postgres.server.stop()
    workers = [consume(DATABASE_URL=own_postgres.url), start(RELAY, DATABASE_URL=own_postgres.url)]
    send(broker, lead, 1, {ANNA: "Executor"})
    for worker in workers:
        line = worker.wait_for("infrastructure_away", tries=2)
        assert line["error"] in ("PostgreSQL cannot be used now (OperationalError).", "OperationalError")
        assert worker.get("/healthz")[0] == 200
    assert broker.committed(TOPIC) == {0: 0, 1: 0, 2: 0}
    own_postgres.server.start()
    for worker in workers:
        worker.wait_for("infrastructure_back")
    wait_until(lambda: own_postgres.versions([lead]) == {lead: 1}, what="the record is applied")
    wait_no_lag(broker)
    for worker in workers:
        assert worker.terminate() == 0
        assert "Traceback" not in worker.output


class TestKafkaIsMissing:
    """Neither has the broker that this class stops."""

    @pytest.fixture
    def kafka_servers(self, own_kafka: EmbeddedKafka) -> str:
        """Its address."""
        return own_kafka.bootstrap_servers

    def test_it_is_waited_for(self, start: Start, broker: Broker, own_kafka: EmbeddedKafka) -> None:
        lead = crm.new_id()
        open_chat(lead, {ANNA: "Executor"})
        add(broker, ("a", "text"))
        own_kafka.stop()
        consumer, relay = start(CONSUME), start(RELAY, OUTBOX_DELIVERY_TIMEOUT="1")
        for worker in (consumer, relay):
            worker.wait_for("kafka_unavailable", servers=own_kafka.bootstrap_servers)
        relay.wait_for("infrastructure_away", tries=2)
        assert [worker.get("/healthz")[0] for worker in (consumer, relay)] == [200, 200]
        # Said now and then, not at each of the many tries a second.
        assert all(len(worker.find("kafka_unavailable")) < 5 for worker in (consumer, relay))
        own_kafka.start()
        wait_all_published()
        send(broker, lead, 1, {ANNA: "Executor"})
        wait_applied(lead, 1)
        wait_no_lag(broker)
        for worker in (consumer, relay):
            assert worker.terminate() == 0
            assert "Traceback" not in worker.output
