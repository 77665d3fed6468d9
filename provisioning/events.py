"""The readiness event `pin.messenger.deal-chat-status-changed.v1`: an outbox row in the row's own transaction."""

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from django.db.backends.utils import CursorWrapper

from messenger import tracing
from messenger.database import rows
from messenger.records import Headers
from messenger.topics import DEAL_CHAT_STATUS_CHANGED
from outbox.outgoing import Message, enqueue
from provisioning.models import ProvisionStatus

AGGREGATE_TYPE = "DealChatProvision"
CONTRACT_VERSION = 1


@dataclass(frozen=True, slots=True)
class DealChatStatusChanged:
    """A deal's chat is ready, or for good not. No personal data."""

    deal_id: UUID
    chat_id: UUID | None
    status: ProvisionStatus
    correlation_id: str | None = None
    traceparent: str | None = None
    """Where it belongs in a trace; None for the span at work."""


def publish(cursor: CursorWrapper, events: Sequence[DealChatStatusChanged]) -> None:
    """Write `events` to the outbox in their order. They happened when the transaction began, by its clock."""
    if events:
        ((now,),) = rows(cursor, "SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
        enqueue(cursor, [_message(event, now) for event in events])


def _message(event: DealChatStatusChanged, occurred_at: str) -> Message:
    message_id = uuid.uuid4()
    envelope = {
        "MessageId": str(message_id),
        "ContractVersion": CONTRACT_VERSION,
        "OccurredAt": occurred_at,
        "AggregateType": AGGREGATE_TYPE,
        "AggregateId": str(event.deal_id),
        "CorrelationId": event.correlation_id,
        "Payload": {
            "DealId": str(event.deal_id),
            "ChatId": str(event.chat_id) if event.chat_id else None,
            "Status": event.status.value,
            "OccurredAt": occurred_at,
        },
    }
    return Message(
        topic=DEAL_CHAT_STATUS_CHANGED.name,
        key=str(event.deal_id).encode(),
        value=json.dumps(envelope, ensure_ascii=False).encode(),
        headers=_headers(message_id, event),
        aggregate_type=AGGREGATE_TYPE,
        aggregate_id=str(event.deal_id),
        message_id=message_id,
    )


def _headers(message_id: UUID, event: DealChatStatusChanged) -> Headers:
    named = {
        "message-id": str(message_id),
        "contract-version": str(CONTRACT_VERSION),
        "correlation-id": event.correlation_id,
        "traceparent": event.traceparent or tracing.current_traceparent(),
    }
    return tuple((name, value.encode()) for name, value in named.items() if value is not None)
