"""Rows of messages and provisions in every state that a person on call finds them in."""

# mypy: disable-error-code="no-untyped-call"

import json
import uuid
from datetime import UTC, datetime, timedelta

from factory.declarations import LazyAttribute, LazyFunction, Sequence, Trait
from factory.django import DjangoModelFactory

from chats.models import MessengerUser, ParkedRoster
from messenger.topics import DEAL_CHAT_STATUS_CHANGED, LEAD_PARTICIPANTS_CHANGED
from outbox.models import DeadLetter, OutboxMessage
from provisioning.events import AGGREGATE_TYPE
from provisioning.models import DealChatProvision
from provisioning.options import RetryOptions


def ago(**length: float) -> datetime:
    """A moment before now, in the words of `timedelta`."""
    return datetime.now(UTC) - timedelta(**length)


class MessengerUserFactory(DjangoModelFactory[MessengerUser]):
    """A name in the replica."""

    class Meta:
        model = MessengerUser

    id = LazyFunction(uuid.uuid4)
    display_name = "Anna"
    updated_at = LazyFunction(lambda: ago(days=2))


class ParkedRosterFactory(DjangoModelFactory[ParkedRoster]):
    """A roster that waits for its lead's chat."""

    class Meta:
        model = ParkedRoster

    chat_kind = "Lead"
    subject_id = LazyFunction(uuid.uuid4)
    version = 3
    topic = LEAD_PARTICIPANTS_CHANGED.contract
    partition = 1
    offset = Sequence(lambda number: number)
    key = LazyAttribute(lambda row: str(row.subject_id).encode())
    value = b'{"MessageId": "00000000-0000-4000-8000-000000000001"}'
    attempts = 2
    next_attempt_at = LazyFunction(lambda: ago(seconds=-30))
    first_seen_at = LazyFunction(lambda: ago(minutes=4))


class OutboxMessageFactory(DjangoModelFactory[OutboxMessage]):
    """A readiness event that waits; `parked=True` was given up, `published=True` is out."""

    class Meta:
        model = OutboxMessage

    class Params:
        parked = Trait(
            attempts=5, parked_at=LazyFunction(lambda: ago(minutes=7)), last_error="The record is too large."
        )
        published = Trait(published_at=LazyFunction(lambda: ago(minutes=1)))

    topic = DEAL_CHAT_STATUS_CHANGED.contract
    aggregate_type = AGGREGATE_TYPE
    aggregate_id = LazyFunction(lambda: str(uuid.uuid4()))
    key = LazyAttribute(lambda row: row.aggregate_id.encode())
    value = LazyAttribute(lambda row: json.dumps({"Payload": {"DealId": row.aggregate_id, "Status": "Ready"}}).encode())
    headers = [{"name": "message-id", "text": "00000000-0000-4000-8000-000000000002"}]
    created_at = LazyFunction(lambda: ago(minutes=9))


class DeadLetterFactory(DjangoModelFactory[DeadLetter]):
    """An open dead letter of the lead consumer."""

    class Meta:
        model = DeadLetter

    class Params:
        resolved = Trait(resolved_at=LazyFunction(lambda: ago(minutes=1)), resolution="not needed", resolved_by="anna")

    consumer_group = LEAD_PARTICIPANTS_CHANGED.group
    topic = LEAD_PARTICIPANTS_CHANGED.contract
    partition = 2
    offset = Sequence(lambda number: 100 + number)
    key = LazyFunction(lambda: str(uuid.uuid4()).encode())
    value = b'{"Version": 5.0}'
    headers = [{"name": "x", "base64": "/w=="}, {"name": "y"}]
    error_code = "MSG_LEAD_PARTICIPANTS_INVALID"
    error_detail = "Expected `int`, got `float` - at `$.Version`"
    first_seen_at = LazyFunction(lambda: ago(hours=2))


class DealChatProvisionFactory(DjangoModelFactory[DealChatProvision]):
    """A failed provision with attempts left; `poison`, `ready`, `stuck` and `at_work` are what else it may be."""

    class Meta:
        model = DealChatProvision

    class Params:
        poison = Trait(attempts=LazyFunction(lambda: RetryOptions.from_settings().max_attempts))
        ready = Trait(status="Ready", chat_id=LazyFunction(uuid.uuid4), last_error=None)
        stuck = Trait(status="Provisioning", updated_at=LazyFunction(lambda: ago(days=1)))
        at_work = Trait(status="Provisioning", updated_at=LazyFunction(lambda: ago(seconds=1)))

    deal_id = LazyFunction(uuid.uuid4)
    title = Sequence(lambda number: f"Object {number}, Riverside Park")
    status = "Failed"
    attempts = 1
    next_attempt_at = LazyFunction(lambda: ago(minutes=-4, seconds=-30))
    last_error = "CheckViolation 23514"
    created_at = LazyFunction(lambda: ago(minutes=20))
    updated_at = LazyFunction(lambda: ago(minutes=3))
