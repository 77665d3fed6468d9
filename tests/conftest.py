"""Fixtures of every test: real PostgreSQL, real Kafka, topics and tables of its own."""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from django.conf import settings
from django.db import connection

from demo.servers import EmbeddedKafka
from messenger import topics
from tests.support.broker import Broker
from tests.support.workers import Worker

TABLES = (
    "chat_events, participants, chats, parked_rosters, messenger_users, outbox_messages, processed_messages, "
    "dead_letters, deal_chat_provision_members, deal_chat_provisions"
)


@pytest.fixture
def tables(transactional_db: None) -> Iterator[None]:
    """Empty tables, real commits."""
    yield
    with connection.cursor() as cursor:
        cursor.execute(", ".join(f"messenger.{name.strip()}" for name in TABLES.split(",")).join(("TRUNCATE ", "")))


@pytest.fixture(scope="session")
def kafka_servers() -> Iterator[str]:
    """Addresses of a real Apache Kafka."""
    given = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    if given:
        yield given
        return
    with EmbeddedKafka() as kafka:
        yield kafka.bootstrap_servers


@pytest.fixture
def broker(kafka_servers: str, settings: pytest.FixtureRequest) -> Broker:
    """The broker with the service's topics, made for this test alone by their prefix."""
    from messenger.kafka import create_topics

    prefix = f"t{uuid.uuid4().hex[:8]}."
    settings.KAFKA_BOOTSTRAP_SERVERS = kafka_servers  # type: ignore[attr-defined]
    settings.KAFKA_TOPIC_PREFIX = prefix  # type: ignore[attr-defined]
    wanted = {topic.name: topic.partitions for topic in (*topics.CONSUMED, *topics.PUBLISHED)}
    create_topics(wanted | {topic.dlq: 1 for topic in topics.CONSUMED}, replication=1)
    return Broker(kafka_servers, prefix)


def database_url() -> str:
    """The URL of the test database, for processes of their own."""
    database = connection.settings_dict
    password = f":{database['PASSWORD']}" if database["PASSWORD"] else ""
    return f"postgresql://{database['USER']}{password}@{database['HOST']}:{database['PORT']}/{database['NAME']}"


@pytest.fixture
def start(tables: None, broker: Broker) -> Iterator[Callable[..., Worker]]:
    """Start a management command as a process on this test's database and topics: `start("command", VAR="value")`."""
    with ExitStack() as stack:

        def begin(*command: str, **env: str) -> Worker:
            fixed = {
                "DATABASE_URL": database_url(),
                "KAFKA_BOOTSTRAP_SERVERS": settings.KAFKA_BOOTSTRAP_SERVERS,
                "KAFKA_TOPIC_PREFIX": broker.prefix,
            }
            return stack.enter_context(Worker(*command, env=fixed | env))

        yield begin
