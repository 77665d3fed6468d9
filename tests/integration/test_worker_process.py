"""What every worker shares, as its operators meet it: probes, metrics, exit codes, sentences and no tracebacks."""

import socket

import pytest

from messenger.topics import LEAD_PARTICIPANTS_CHANGED as TOPIC
from outbox.models import DeadLetter
from tests.support import crm
from tests.support.broker import Broker
from tests.support.consumers import COMMAND as CONSUME
from tests.support.consumers import LOCK_CHAT, Start, resend, send, wait_applied, wait_no_lag
from tests.support.groups import be_quick, wait_until_left
from tests.support.leads import open_chat
from tests.support.outgoing import COMMAND as RELAY
from tests.support.races import holding, wait_for_blocked
from tests.support.waiting import wait_until
from tests.support.workers import Worker

ANNA, BORIS = crm.new_id(), crm.new_id()


@pytest.fixture
def quiet_group(broker: Broker) -> None:
    """Nobody is left in the consumer's group from another test."""
    be_quick(broker, TOPIC)
    wait_until_left(broker, TOPIC)


@pytest.fixture
def lead(tables: None) -> str:
    """A lead with a chat."""
    lead = crm.new_id()
    open_chat(lead, {ANNA: "Executor"})
    return lead


def check_gave_up(worker: Worker, sentence: str) -> None:
    """It ended with exit code 1 and said why in one sentence, to a person and in the log."""
    assert worker.wait() == 1
    assert f"CommandError: {sentence}" in worker.output
    assert sentence in worker.find("gave_up")[0]["error"]
    assert "Traceback" not in worker.output


class TestProbes:
    """`/metrics` and `/healthz` on `--metrics-port`."""

    @pytest.mark.parametrize(
        ("command", "metric"),
        [(CONSUME, "messenger_lead_participants_lag_seconds"), (RELAY, "messenger_outbox_backlog")],
    )
    def test_a_worker_that_works(self, start: Start, quiet_group: None, command: str, metric: str) -> None:
        worker = start(command)
        status, page = worker.get("/healthz")
        assert (status, page.split(":")[0]) == (200, "ok")
        status, page = worker.get("/metrics")
        assert status == 200
        assert f"\n{metric} " in page
        assert worker.get("/elsewhere")[0] == 404
        assert worker.terminate() == 0

    def test_a_loop_that_stalls(self, start: Start, broker: Broker, quiet_group: None, lead: str) -> None:
        """It hangs in one statement for longer than HEALTH_STALL_AFTER, and recovers."""
        worker = start(CONSUME, HEALTH_STALL_AFTER="1", CONSUMER_LOCK_TIMEOUT="60")
        wait_until(lambda: worker.get("/healthz")[0] == 200, what="it is well")

        def stalled() -> str:
            status, page = worker.get("/healthz")
            return page if status == 503 else ""

        with holding(LOCK_CHAT, lead):
            send(broker, lead, 1, {BORIS: "Executor"})
            wait_for_blocked(1)
            assert wait_until(stalled, what="it is reported").startswith("stalled: the loop last turned ")
        wait_applied(lead, 1)
        wait_until(lambda: worker.get("/healthz")[0] == 200, what="it is well again")

    def test_a_lock_that_is_tried_again_is_no_stall(
        self, start: Start, broker: Broker, quiet_group: None, lead: str
    ) -> None:
        """Waiting out what passes is what the loop is for: nobody gains from a restart."""
        worker = start(CONSUME, HEALTH_STALL_AFTER="5", CONSUMER_LOCK_TIMEOUT="0.5")
        with holding(LOCK_CHAT, lead):
            send(broker, lead, 1, {BORIS: "Executor"})
            worker.wait_for("infrastructure_away", tries=4)  # with three tries of the lock each: longer than that
            assert worker.get("/healthz")[0] == 200
        wait_applied(lead, 1)


class TestGivingUp:
    """Exit code 1 after one sentence, wherever a person has to do something."""

    def test_the_port_is_taken(self, start: Start) -> None:
        with socket.create_server(("0.0.0.0", 0)) as taken:
            port = taken.getsockname()[1]
            worker = start(RELAY, "--metrics-port", str(port))
            check_gave_up(worker, f"Port {port} for metrics cannot be opened (Address already in use): name a free one")

    @pytest.mark.parametrize("port", ["65536", "-1"])
    def test_there_is_no_such_port(self, start: Start, port: str) -> None:
        worker = start(RELAY, f"--metrics-port={port}")
        check_gave_up(worker, f"Port {port} for metrics cannot be opened (there is no such port): name a free one")

    @pytest.mark.parametrize("command", [CONSUME, RELAY])
    def test_the_settings_of_kafka_do_not_fit(self, start: Start, command: str) -> None:
        worker = start(command, KAFKA_SECURITY_PROTOCOL="SSL", KAFKA_SSL_CA_LOCATION="/nowhere/ca.pem")
        check_gave_up(worker, "The Kafka client cannot be set up (")
        assert "ssl.ca.location" in worker.output

    def test_the_dlq_budget_is_spent(self, start: Start, broker: Broker, quiet_group: None, lead: str) -> None:
        """The offset stays before the batch that would go beyond it; a higher budget goes on from there."""
        for _ in range(3):
            resend(broker, b"junk", lead, partition=0)
        send(broker, lead, 1, {BORIS: "Executor"}, partition=0)
        worker = start(CONSUME, CONSUMER_DLQ_BUDGET="2")
        check_gave_up(worker, f"{TOPIC.group} has made more than 2 dead letters")
        assert (broker.committed(TOPIC)[0], DeadLetter.objects.count()) == (0, 0)
        start(CONSUME, CONSUMER_DLQ_BUDGET="3")
        wait_applied(lead, 1)
        wait_no_lag(broker)
        assert DeadLetter.objects.count() == 3

    def test_members_with_the_other_protocol(self, start: Start, broker: Broker, quiet_group: None) -> None:
        """Kafka does not mix this client's two protocols; a consumer that just sat there would look healthy."""
        old = []
        for _ in range(2):
            # One by one: members that have never yet told the group what they own, Kafka would take over into the new.
            old.append(start(CONSUME, KAFKA_GROUP_PROTOCOL="classic", CONSUMER_SESSION_TIMEOUT="3"))
            old[-1].wait_for("partitions_assigned")
        newer = start(CONSUME, KAFKA_GROUP_PROTOCOL="consumer")
        check_gave_up(newer, "Kafka refused this consumer for good")
        assert "the members with the old one have to end first" in newer.output
        assert [worker.terminate() for worker in old] == [0, 0]
        start(CONSUME, KAFKA_GROUP_PROTOCOL="consumer").wait_for("partitions_assigned")


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_missing_topic(start: Start, broker: Broker, quiet_group: None, lead: str, protocol: str) -> None:
    """Said clearly and waited for."""
    name = broker.name(TOPIC)
    for future in broker.admin.delete_topics([name]).values():
        future.result()
    wait_until(lambda: name not in broker.admin.list_topics(timeout=10).topics, what="the topic is gone")
    worker = start(CONSUME, KAFKA_GROUP_PROTOCOL=protocol, CONSUMER_SESSION_TIMEOUT="3")
    line = worker.wait_for("topic_not_readable", topic=name)
    assert (line["level"], line["error"]) == ("error", "UNKNOWN_TOPIC_OR_PART")
    broker.create(name, TOPIC.partitions)
    send(broker, lead, 1, {BORIS: "Executor"})
    wait_applied(lead, 1)
    assert worker.terminate() == 0
