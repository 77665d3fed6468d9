"""Servers that a module's tests may stop, kill and freeze."""

import signal
from collections.abc import Iterator

import pytest

from demo.servers import EmbeddedKafka
from tests.support.broker import Broker
from tests.support.consumers import COMMAND, TOPIC, Start
from tests.support.groups import be_quick, wait_until_left
from tests.support.own_servers import OwnPostgres
from tests.support.workers import Worker


@pytest.fixture(scope="module")
def module_postgres() -> Iterator[OwnPostgres]:
    """One PostgreSQL for the tests of a module."""
    with OwnPostgres.running() as postgres:
        yield postgres


@pytest.fixture
def own_postgres(module_postgres: OwnPostgres) -> Iterator[OwnPostgres]:
    """The module's PostgreSQL; it runs at the beginning of every test."""
    yield module_postgres
    module_postgres.server.start()


@pytest.fixture(scope="module")
def module_kafka() -> Iterator[EmbeddedKafka]:
    """One Apache Kafka for the tests of a module."""
    with EmbeddedKafka() as kafka:
        yield kafka


@pytest.fixture
def own_kafka(module_kafka: EmbeddedKafka) -> Iterator[EmbeddedKafka]:
    """The module's Kafka; it runs at the beginning of every test."""
    yield module_kafka
    module_kafka.thaw()
    module_kafka.start()


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
