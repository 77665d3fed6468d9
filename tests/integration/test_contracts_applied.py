"""The examples of `docs/contracts` through the consumers: what is valid is applied, what is not is dead-lettered.

What the service itself writes (readiness events, dead letters) is held to the same schemas.
"""

import json
from collections.abc import Callable
from typing import Any

import pytest

from chats.lead_created import LeadCreatedHandler
from chats.lead_terminated import LeadTerminatedHandler
from chats.models import Chat, MessengerUser, Participant
from chats.roster import Role
from chats.roster_consumer import DEALS, LEADS, RosterWork
from chats.user_changed import UserChangedHandler
from messenger.consumer_loop import Work
from messenger.envelope import parse_instant
from messenger.records import Headers
from outbox.headers import from_json
from outbox.models import DeadLetter, OutboxMessage
from outbox.settlement import HandlerWork
from provisioning.deal_created import DealCreatedHandler
from provisioning.models import DealChatProvision
from tests.support import crm, provisions
from tests.support.contracts import INCOMING, OUTGOING, Contract, Example, examples, validator
from tests.support.leads import check_dead_letter
from tests.support.triggers import constraint

pytestmark = pytest.mark.usefixtures("tables")

WORKS: dict[str, Callable[[], Work]] = {
    "lead-created": lambda: HandlerWork(LeadCreatedHandler()),
    "lead-participants-changed": lambda: RosterWork(LEADS),
    "lead-terminated": lambda: HandlerWork(LeadTerminatedHandler()),
    "deal-created": lambda: HandlerWork(DealCreatedHandler()),
    "deal-members-changed": lambda: RosterWork(DEALS),
    "user-changed": lambda: HandlerWork(UserChangedHandler()),
}
GOOD = [example for example in examples() if example.code is None and example.contract in INCOMING]
BAD = [example for example in examples() if example.code is not None]
SOMEBODY = crm.new_id()


def consume(contract: str, message: dict[str, Any]) -> None:
    """Settle one message as its consumer does."""
    record = crm.record(message, topic=INCOMING[contract].topic)
    assert [each for part in WORKS[contract]().settle([record]) for each in part] == [record]


def prepare(example: Example) -> None:
    """What has to be there before the example comes: the chat of its lead or deal, with somebody in it."""
    payload = example.message["Payload"]
    if example.contract in ("lead-participants-changed", "lead-terminated"):
        consume("lead-created", crm.lead_created(payload["LeadId"], {SOMEBODY: "Executor"}))
    elif example.contract == "deal-members-changed":
        consume("deal-created", crm.deal_created(payload["DealId"], {SOMEBODY: "Executor"}))


def check_roster(entries: list[dict[str, str]]) -> None:
    """Everybody named is in, nobody else; with the role that is named, if it is one this service knows."""
    named: dict[str, set[str]] = {}
    for entry in entries:
        named.setdefault(entry["UserId"].lower(), set()).add(entry["Role"])
    active = {str(each.user_id): each for each in Participant.objects.filter(removed_at=None)}
    assert active.keys() == named.keys()
    for user, roles in named.items():
        seat = active[user]
        assert (seat.role_raw or seat.role) in roles
        assert seat.role in roles or (seat.role, seat.role_raw) == (Role.GUEST, *roles)


def check_chat(message: dict[str, Any]) -> None:
    """A chat was opened."""
    payload = message["Payload"]
    chat = Chat.objects.get()
    assert (chat.title, chat.status, chat.last_seq) == (payload["Title"], "Active", 1 + len(payload["Members"]))
    tenant = payload.get("TenantId", payload.get("DeveloperCompanyId"))
    assert [str(each) if each else None for each in (chat.project_id, chat.tenant_id)] == [
        payload.get("ProjectId"),
        tenant,
    ]
    check_roster(payload["Members"])


def check_snapshot(message: dict[str, Any]) -> None:
    """A chat was brought to the snapshot."""
    payload = message["Payload"]
    chat = Chat.objects.get()
    assert payload["Version"] in (chat.lead_member_version, chat.deal_member_version)
    check_roster(payload.get("ActiveParticipants") or payload["ActiveMembers"])


def check_end(message: dict[str, Any]) -> None:
    """A chat was closed."""
    chat = Chat.objects.get()
    assert (chat.status, chat.closed_at) == ("Closed", parse_instant(message["Payload"]["OccurredAt"]))


def check_provision(message: dict[str, Any]) -> None:
    """A deal's chat was opened and is ready."""
    assert DealChatProvision.objects.get().status == "Ready"
    check_chat(message)


def check_name(message: dict[str, Any]) -> None:
    """A name is shown."""
    payload = message["Payload"]
    assert MessengerUser.objects.get(id=payload["UserId"]).display_name == payload["DisplayName"]


EFFECTS: dict[str, Callable[[dict[str, Any]], None]] = {
    "lead-created": check_chat,
    "lead-participants-changed": check_snapshot,
    "lead-terminated": check_end,
    "deal-created": check_provision,
    "deal-members-changed": check_snapshot,
    "user-changed": check_name,
}


@pytest.mark.parametrize("example", GOOD, ids=lambda example: example.file)
def test_valid_examples_are_applied(example: Example) -> None:
    prepare(example)
    consume(example.contract, example.message)
    assert not DeadLetter.objects.exists()
    EFFECTS[example.contract](example.message)


def texts(headers: Headers) -> dict[str, str]:
    """Headers as the schemas see them: the last one of a name, as text."""
    return {name: value.decode() for name, value in headers if value is not None}


@pytest.mark.parametrize("example", BAD, ids=lambda example: example.file)
def test_invalid_examples_are_dead_lettered_with_their_code(example: Example) -> None:
    """The dead letter carries the code; its record for the DLQ topic has the headers of the document."""
    contract: Contract = INCOMING[example.contract]
    record = crm.record(
        json.dumps(example.message).encode(),
        topic=contract.topic,
        key=b"as it came",
        headers=(("message-id", b"as it came"), ("dlq-topic", b"of an earlier life")),
    )
    assert [each for part in WORKS[example.contract]().settle([record]) for each in part] == [record]
    assert example.code is not None and contract.topic.group is not None
    check_dead_letter(record, code=example.code, group=contract.topic.group, topic=contract.topic)
    headers = texts(from_json(OutboxMessage.objects.get().headers))
    assert list(validator("dead-letter-headers.json").iter_errors(headers)) == []
    assert not Chat.objects.exists()


def check_event(status: str, row: OutboxMessage) -> None:
    """A readiness event is what the document says."""
    message = json.loads(bytes(row.value or b""))
    assert list(validator(f"{OUTGOING}.json").iter_errors(message)) == []
    headers = texts(from_json(row.headers))
    assert list(validator("published-headers.json").iter_errors(headers)) == []
    assert headers["message-id"] == message["MessageId"]
    assert bytes(row.key or b"").decode() == message["AggregateId"] == message["Payload"]["DealId"]
    assert message["Payload"]["Status"] == status


def test_readiness_events_are_what_the_document_says() -> None:
    """Of the first attempt, and of the retry job: Ready, and Failed for good without a chat."""
    for example in GOOD:
        if example.contract == "deal-created":
            consume(example.contract, example.message)
    provisions.add(roster={crm.new_id(): "Executor"})
    provisions.run()
    with constraint("chats", "title <> 'Broken'"):
        provisions.add(attempts=9, title="Broken")
        provisions.run()
    statuses = ["Ready", "Ready", "Failed"]
    for status, row in zip(statuses, OutboxMessage.objects.order_by("id"), strict=True):
        check_event(status, row)
