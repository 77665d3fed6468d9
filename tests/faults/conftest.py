"""Servers that tests may stop, kill and freeze; other tests have theirs in peace."""

import signal
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from demo.servers import EmbeddedKafka
from tests.support.broker import Broker
from tests.support.consumers import COMMAND, TOPIC, Start
from tests.support.groups import be_quick, wait_until_left
from tests.support.own_servers import OwnPostgres
from tests.support.waiting import wait_until
from tests.support.workers import Worker


@pytest.fixture(scope="session")
def unlucky_postgres() -> Iterator[OwnPostgres]:
    """One PostgreSQL for all who stop it."""
    with OwnPostgres.running() as postgres:
        yield postgres


@pytest.fixture
def own_postgres(unlucky_postgres: OwnPostgres) -> OwnPostgres:
    """A PostgreSQL to stop; it runs at the beginning of every test."""
    unlucky_postgres.server.start()
    return unlucky_postgres


@pytest.fixture(scope="session")
def unlucky_kafka() -> Iterator[EmbeddedKafka]:
    """One Apache Kafka for all who stop it."""
    with EmbeddedKafka() as kafka:
        yield kafka


def _makes_topics(admin: AdminClient) -> bool:
    (future,) = admin.create_topics([NewTopic(f"probe-{uuid.uuid4()}", 1)]).values()
    return future.exception() is None


@pytest.fixture
def own_kafka(unlucky_kafka: EmbeddedKafka) -> Iterator[EmbeddedKafka]:
    """A Kafka to stop; it runs at the beginning of every test, and answers at the end."""
    unlucky_kafka.start()
    # One that was frozen for long is shut out by its own controller until it has shown life again.
    admin = AdminClient({"bootstrap.servers": unlucky_kafka.bootstrap_servers})
    wait_until(lambda: _makes_topics(admin), what="Kafka takes part again")
    yield unlucky_kafka
    unlucky_kafka.thaw()


@pytest.fixture
def consume(start: Start, broker: Broker) -> Iterator[Start]:
    """Start the lead consumer: `consume("classic", VAR="value")`. The group is without members before and after."""
    workers: list[Worker] = []

    def begin(protocol: str = "consumer", **env: str) -> Worker:
        fixed = {"KAFKA_GROUP_PROTOCOL": protocol, "CONSUMER_SESSION_TIMEOUT": "3"}
        workers.append(start(COMMAND, **fixed | env))
        return workers[-1]

    be_quick(broker, TOPIC)
    wait_until_left(broker, TOPIC)
    yield begin
    for worker in workers:
        worker.signal(signal.SIGCONT)
        worker.signal(signal.SIGTERM)
    wait_until_left(broker, TOPIC)
