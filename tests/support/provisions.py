"""Rows of `deal_chat_provisions` as a test wants them, the job in this process, and what became of it all."""

import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db import connection

from chats.models import Chat, ChatEvent, Participant
from messenger.health import Heartbeat
from messenger.shutdown import StopSignal
from outbox.models import OutboxMessage
from provisioning.cycle import Tally
from provisioning.models import DealChatProvision
from provisioning.options import RetryOptions
from provisioning.retry import Attempt, Run, attempt
from provisioning.retry_job import RetryJob

_ADD = """
INSERT INTO messenger.deal_chat_provisions
       (id, deal_id, title, deal_tenant_id, status, attempts, next_attempt_at, created_at, updated_at)
SELECT gen_random_uuid(), gen_random_uuid(), %(title)s, %(tenant)s, %(status)s, %(attempts)s,
       now() + make_interval(secs => %(due_in)s), now() - make_interval(secs => %(age)s),
       now() - make_interval(secs => %(idle)s)
RETURNING id
"""
_ADD_MEMBER = """
INSERT INTO messenger.deal_chat_provision_members (provision_id, user_id, role, role_raw) VALUES (%s, %s, %s, %s)
"""


def add(
    *,
    status: str = "Failed",
    attempts: int = 0,
    due_in: float = -1.0,
    age: float = 60.0,
    idle: float = 60.0,
    title: str = "Object 1",
    tenant: UUID | None = None,
    roster: Mapping[str, str] | None = None,
) -> DealChatProvision:
    """A provision due in `due_in` seconds, made `age` and last changed `idle` seconds ago, by the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute(
            _ADD,
            {
                "title": title,
                "tenant": tenant,
                "status": status,
                "attempts": attempts,
                "due_in": due_in,
                "age": age,
                "idle": idle,
            },
        )
        (row_id,) = cursor.fetchone()
        for user, role in (roster or {}).items():
            cursor.execute(_ADD_MEMBER, [row_id, user, role, None])
    return DealChatProvision.objects.get(pk=row_id)


def add_chat(deal: UUID, *, version: int | None = None, roster: Mapping[str, str] | None = None) -> Chat:
    """A deal's chat that is there already, as its opening left it."""
    chat = Chat.objects.create(kind="Deal", title="Object 1", deal_id=deal, deal_member_version=version, last_seq=1)
    ChatEvent.objects.create(chat=chat, seq=1, type="DealChatProvisioned", occurred_at=chat.created_at)
    for user, role in (roster or {}).items():
        Participant.objects.create(chat=chat, user_id=user, role=role, joined_at=chat.created_at)
    return chat


def run(**changes: Any) -> Tally | None:
    """One cycle of the job in this process, with these options changed."""
    with StopSignal() as stop:
        options = replace(RetryOptions.from_settings(), **changes)
        return RetryJob(options, stop=stop, heartbeat=Heartbeat(stall_after=60)).run_once()


def run_of_now() -> Run:
    """What a run that begins now would pass to its rows."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        return Run(str(uuid.uuid4()), cursor.fetchone()[0])


def attempt_now(row: DealChatProvision) -> Attempt:
    """The job's attempt at one row, without the job and its lease."""
    return attempt(row.id, RetryOptions.from_settings(), run_of_now())


def make_due() -> None:
    """Bring the next attempt of every failed row forward to now."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE messenger.deal_chat_provisions SET next_attempt_at = now() WHERE status = 'Failed'")


def roster_of(deal: UUID | str) -> dict[str, str]:
    """The active participants (user: role) of a deal's chat."""
    active = Participant.objects.filter(chat__deal_id=deal, removed_at=None)
    return {str(user): role for user, role in active.values_list("user_id", "role")}


def feed_of(deal: UUID | str) -> list[str]:
    """The types in the feed of a deal's chat, in order."""
    return list(ChatEvent.objects.filter(chat__deal_id=deal).order_by("seq").values_list("type", flat=True))


def events_of(deal: UUID | str) -> list[dict[str, Any]]:
    """The readiness events of a deal in the outbox, in order: whole envelopes."""
    found = OutboxMessage.objects.filter(aggregate_type="DealChatProvision", aggregate_id=str(deal)).order_by("id")
    return [json.loads(bytes(row.value or b"")) for row in found]


def statuses_of(deal: UUID | str) -> list[str]:
    """The statuses a deal's readiness events tell of, in order."""
    return [event["Payload"]["Status"] for event in events_of(deal)]


def check_each_once(rows: int) -> None:
    """All of `rows` deals have one chat, opened once, and crm was told Ready once of each."""
    found = list(DealChatProvision.objects.values_list("deal_id", "status"))
    assert [status for _, status in found] == ["Ready"] * rows
    assert Chat.objects.count() == ChatEvent.objects.filter(type="DealChatProvisioned").count() == rows
    assert {tuple(statuses_of(deal)) for deal, _ in found} == {("Ready",)}


def people(*roles: str) -> dict[str, str]:
    """Somebody new in each of these roles."""
    return {str(uuid.uuid4()): role for role in roles}


def everything() -> list[Any]:
    """All that the job could have changed, to be compared."""
    tables = (DealChatProvision, Chat, Participant, ChatEvent, OutboxMessage)
    return [list(table.objects.order_by("pk").values()) for table in tables]
