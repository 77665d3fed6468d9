"""The lead consumers in this process, on the real database: deliver records, and see what became of them."""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from chats.lead_created import LeadCreatedHandler
from chats.models import Chat, ChatEvent, ParkedRoster, Participant
from chats.roster import replay
from chats.roster_consumer import LEADS, RosterWork
from messenger.records import Record
from messenger.topics import LEAD_CREATED, Topic, dead_letter_topic
from outbox.headers import from_json
from outbox.models import DeadLetter, OutboxMessage, ProcessedMessage
from outbox.settlement import HandlerWork
from tests.support import crm

Message = Mapping[str, Any] | Record


def deliver(*messages: Message) -> list[Record]:
    """Settle these as one batch of `lead-participants-changed`; all of them must be settled, in order (ack)."""
    records = [crm.record(each) if isinstance(each, Mapping) else each for each in messages]
    settled = [record for part in RosterWork(LEADS).settle(records) for record in part]
    assert settled == records
    return records


def deliver_created(*messages: Message) -> list[Record]:
    """Settle these as one batch of `lead-created`."""
    records = [crm.record(each, topic=LEAD_CREATED) if isinstance(each, Mapping) else each for each in messages]
    settled = [record for part in HandlerWork(LeadCreatedHandler()).settle(records) for record in part]
    assert settled == records
    return records


def open_chat(lead: str, roster: Mapping[str, str]) -> UUID:
    """Open the chat of `lead` by its `lead-created` and return the chat's id."""
    deliver_created(crm.lead_created(lead, roster))
    return Chat.objects.get(lead_id=lead).id


def park_as_it_is(value: bytes, *, lead: str) -> Record:
    """Have a record wait, due now, that this parser would not have parked: as an older version of it may have done."""
    record = crm.record(value)
    ParkedRoster.objects.create(
        chat_kind="Lead",
        subject_id=lead,
        version=1,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        key=record.key,
        value=value,
        next_attempt_at=Now(),
    )
    return record


def make_due() -> None:
    """Bring the turn of every parked roster forward to now."""
    ParkedRoster.objects.update(next_attempt_at=Now())


def tick() -> None:
    """What the consumer does by the clock: the parked rosters that are due."""
    for _ in RosterWork(LEADS).tick():
        pass


def roster_of(lead: str) -> dict[str, str]:
    """The active participants (user: role) of a lead's chat."""
    return {user: role if isinstance(role, str) else role[0] for user, role in seats_of(lead).items()}


def seats_of(lead: str) -> dict[str, str | tuple[str, str]]:
    """Likewise, with the role as it came beside it where it was not known."""
    active = Participant.objects.filter(chat__lead_id=lead, removed_at=None)
    found = active.values_list("user_id", "role", "role_raw")
    return {str(user): role if raw is None else (role, raw) for user, role, raw in found}


def version_of(lead: str) -> int | None:
    """The version applied last."""
    return Chat.objects.get(lead_id=lead).lead_member_version


def feed_of(lead: str, *, after: int = 0) -> list[tuple[str, str | None, str | None, str | None]]:
    """The feed of a lead's chat after line number `after`: type, user, role, previous role."""
    lines = ChatEvent.objects.filter(chat__lead_id=lead, seq__gt=after).order_by("seq")
    return [
        (kind, str(user) if user else None, role, previous)
        for kind, user, role, previous in lines.values_list("type", "user_id", "role", "previous_role")
    ]


def check_feeds() -> None:
    """Every chat's feed counts from 1 without gaps and replays to its roster."""
    for chat in Chat.objects.all():
        lines = list(chat.events.order_by("seq").values_list("seq", "type", "user_id", "role"))
        assert [seq for seq, *_ in lines] == list(range(1, chat.last_seq + 1))
        active = chat.participants.filter(removed_at=None)
        told = replay((kind, user, role) for _, kind, user, role in lines)
        assert told == dict(active.values_list("user_id", "role"))


def everything() -> list[Any]:
    """All that an applied record changes, to be compared."""
    tables = (Chat, Participant, ChatEvent, ProcessedMessage, ParkedRoster)
    return [list(table.objects.order_by("pk").values()) for table in tables]


def check_dead_letter(record: Record, *, code: str, group: str = LEADS.group, topic: Topic = LEADS.topic) -> DeadLetter:
    """One dead letter and one record for the DLQ topic, both with the original bytes; returns the former."""
    dead = DeadLetter.objects.get(
        consumer_group=group, topic=topic.name, partition=record.partition, offset=record.offset
    )
    assert (dead.error_code, _bytes(dead.key), _bytes(dead.value)) == (code, record.key, record.value)
    assert from_json(dead.headers) == record.headers
    assert dead.resolved_at is None
    row = OutboxMessage.objects.get(aggregate_type="DeadLetter", aggregate_id=f"{record.partition}@{record.offset}")
    assert (row.topic, _bytes(row.key), _bytes(row.value)) == (
        dead_letter_topic(topic.name),
        record.key,
        record.value,
    )
    headers = from_json(row.headers)
    assert headers[: len(record.headers)] == record.headers
    notes = dict(headers[len(record.headers) :])
    assert notes.pop("dlq-failed-at")
    assert notes == {
        "dlq-error-code": code.encode(),
        "dlq-error-detail": dead.error_detail.encode(),
        "dlq-topic": topic.name.encode(),
        "dlq-partition": str(record.partition).encode(),
        "dlq-offset": str(record.offset).encode(),
        "dlq-group": group.encode(),
    }
    return dead


def _bytes(stored: Any) -> bytes | None:
    return None if stored is None else bytes(stored)
