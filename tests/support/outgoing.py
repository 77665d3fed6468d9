"""Rows of the outbox, and what the relay made of them, in which order."""

import uuid
from collections.abc import Callable, Iterable

from django.db import connection, transaction

from messenger.records import Record
from messenger.topics import DEAL_CHAT_STATUS_CHANGED, Topic
from outbox.models import OutboxMessage
from outbox.outgoing import Message, enqueue
from tests.support.broker import Broker
from tests.support.waiting import wait_until
from tests.support.workers import Worker

TOPIC = DEAL_CHAT_STATUS_CHANGED
COMMAND = "run_outbox_relay"

Start = Callable[..., Worker]


def message(topic: str, key: str | None, text: str) -> Message:
    """A row to be; its value is `text`, its header the id that a duplicate shares."""
    identifier = uuid.uuid4()
    return Message(
        topic=topic,
        key=key.encode() if key is not None else None,
        value=text.encode(),
        headers=(("message-id", str(identifier).encode()),),
        aggregate_type="Test",
        aggregate_id=key or "none",
        message_id=identifier,
    )


def add(broker: Broker, *rows: tuple[str | None, str], topic: Topic | str = TOPIC) -> None:
    """Commit rows (key, text) for `topic`, in one transaction."""
    name = broker.name(topic)
    with transaction.atomic(), connection.cursor() as cursor:
        enqueue(cursor, [message(name, key, text) for key, text in rows])


def published(broker: Broker, topic: Topic | str = TOPIC) -> list[str]:
    """The texts that came out, in order per partition, duplicates and all."""
    return [(record.value or b"").decode() for record in broker.read(topic)]


def waiting() -> int:
    """How many rows wait or are parked."""
    return OutboxMessage.objects.filter(published_at=None).count()


def wait_all_published() -> None:
    """Wait until every row is marked as published."""
    wait_until(lambda: waiting() == 0, what="all rows are published")


def first_deliveries(records: Iterable[Record]) -> dict[bytes | None, list[str]]:
    """By key, the texts in the order in which each came for the first time."""
    orders: dict[bytes | None, list[str]] = {}
    for record in records:
        texts = orders.setdefault(record.key, [])
        text = (record.value or b"").decode()
        if text not in texts:
            texts.append(text)
    return orders
