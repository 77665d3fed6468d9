"""Retention: what is processed, published or resolved for long goes; nothing unsent, parked or unresolved ever."""

import io
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from pytest_django.fixtures import Settings

from chats.lead_terminated import LeadTerminatedHandler
from chats.models import Chat
from messenger.topics import LEAD_TERMINATED
from outbox import pruning
from outbox.models import DeadLetter, OutboxMessage, ProcessedMessage
from outbox.relay import Relay
from outbox.settlement import HandlerWork
from tests.support import crm
from tests.support.broker import Broker
from tests.support.leads import deliver, open_chat
from tests.support.message_factories import DeadLetterFactory, OutboxMessageFactory, ago
from tests.support.races import holding
from tests.support.workers import Worker

pytestmark = pytest.mark.usefixtures("tables")

OLD = {"days": 15}
YOUNG = {"days": 13}


def prune(*arguments: str) -> str:
    """Run the command in this process; what it says."""
    out = io.StringIO()
    call_command("prune_messages", *arguments, stdout=out)
    return out.getvalue()


def processed(key: str, **length: float) -> None:
    """A key that was processed so long ago."""
    ProcessedMessage.objects.create(key=key, processed_at=ago(**length))


def keys() -> set[str]:
    """The processed keys."""
    return set(ProcessedMessage.objects.values_list("key", flat=True))


def letters() -> set[str]:
    """The dead letters, by the names this module gives them."""
    return set(DeadLetter.objects.values_list("error_detail", flat=True))


def rows() -> set[str]:
    """The outbox rows, likewise."""
    return set(OutboxMessage.objects.values_list("aggregate_id", flat=True))


def test_processed_keys_go_by_their_age() -> None:
    processed("messenger-lead-created:old", **OLD)
    processed("messenger-lead-created:young", **YOUNG)
    assert prune() == "processed_messages: 1 deleted\noutbox_messages: 0 deleted\ndead_letters: 0 deleted\n"
    assert keys() == {"messenger-lead-created:young"}


def test_published_rows_go_by_the_age_of_their_publication(broker: Broker) -> None:
    """Trial 22: cleaning removes nothing unsent, however old, tried, or parked; and what it leaves still goes out."""
    waiting: dict[str, dict[str, Any]] = {
        "published long ago": {"published_at": ago(**OLD), "created_at": ago(days=40)},
        "published lately, written long ago": {"published_at": ago(**YOUNG), "created_at": ago(days=40)},
        "unsent": {"created_at": ago(days=400)},
        "unsent and tried": {"created_at": ago(days=400), "attempts": 3, "last_error": "Kafka is away."},
        "parked": {"created_at": ago(days=400), "parked_at": ago(days=399), "attempts": 5},
    }
    for name, fields in waiting.items():
        OutboxMessageFactory.create(aggregate_id=name, topic=broker.name("pin.crm.user-changed.v1"), **fields)
    assert "outbox_messages: 1 deleted\n" in prune()
    assert rows() == {"published lately, written long ago", "unsent", "unsent and tried", "parked"}
    assert Relay(may_go_on=lambda: True, stopping=lambda: False).drain() == 2
    assert "outbox_messages: 0 deleted\n" in prune()
    assert OutboxMessage.objects.get(aggregate_id="parked").published_at is None


def test_dead_letters_go_only_once_resolved() -> None:
    """An unresolved one stays however old it is: somebody has to look at it."""
    for name, fields in {
        "resolved long ago": {"resolved_at": ago(**OLD), "first_seen_at": ago(days=40)},
        "resolved lately": {"resolved_at": ago(**YOUNG), "first_seen_at": ago(days=40)},
        "unresolved": {"first_seen_at": ago(days=400)},
    }.items():
        DeadLetterFactory.create(error_detail=name, **fields)
    assert "dead_letters: 1 deleted\n" in prune()
    assert letters() == {"resolved lately", "unresolved"}


def test_the_end_of_a_lead_without_a_chat_is_never_forgotten() -> None:
    """It is kept as a processed key, and still honoured when the chat is opened a year later."""
    lead = crm.new_id()
    ended = crm.record(crm.lead_terminated(lead, at="2025-01-01T00:00:00Z"), topic=LEAD_TERMINATED)
    list(HandlerWork(LeadTerminatedHandler()).settle([ended]))
    ProcessedMessage.objects.filter(key__startswith="messenger-lead-terminated:").update(processed_at=ago(days=400))
    assert "processed_messages: 1 deleted\n" in prune()
    open_chat(lead, {crm.new_id(): "Executor"})
    chat = Chat.objects.get(lead_id=lead)
    assert (chat.status, chat.closed_at) == ("Closed", datetime(2025, 1, 1, tzinfo=UTC))


def test_what_is_delivered_again_after_its_key_is_gone_changes_nothing() -> None:
    """The version guard needs no key: a replay older than the retention is stale."""
    lead, anna, boris = crm.new_id(), crm.new_id(), crm.new_id()
    open_chat(lead, {anna: "Executor"})
    (record,) = deliver(crm.lead_participants(lead, 1, {boris: "Executor"}))
    deliver(crm.lead_participants(lead, 2, {anna: "Executor"}))
    ProcessedMessage.objects.update(processed_at=ago(**OLD))
    prune()
    assert keys() == set()
    before = list(Chat.objects.values())
    deliver(record)
    assert list(Chat.objects.values()) == before


@pytest.mark.parametrize(("setting", "arguments"), [(30, ()), (14, ("--days", "30"))])
def test_how_long_is_a_setting_and_an_option(settings: Settings, setting: int, arguments: tuple[str, ...]) -> None:
    settings.RETENTION_DAYS = setting
    processed("kept", days=29)
    processed("gone", days=31)
    prune(*arguments)
    assert keys() == {"kept"}


@pytest.mark.parametrize("days", ["0", "-3"])
def test_nobody_deletes_everything_by_a_slip(days: str) -> None:
    processed("old", days=400)
    with pytest.raises(CommandError, match="--days must be 1 or more"):
        prune(f"--days={days}")
    assert keys() == {"old"}


def test_deleted_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction deletes more than a step, so that no lock is held long; and all of it goes in the end."""
    monkeypatch.setattr(pruning, "STEP", 2)
    for number in range(5):
        processed(f"key-{number}", **OLD)
        OutboxMessageFactory.create(published_at=ago(**OLD))
        DeadLetterFactory.create(resolved_at=ago(**OLD))
    steps = list(pruning.prune(days=14))
    assert steps == [
        (table, count) for table in ("processed_messages", "outbox_messages", "dead_letters") for count in (2, 2, 1)
    ]
    assert (keys(), rows(), letters()) == (set(), set(), set())


def test_a_row_that_somebody_holds_is_left_for_the_next_time() -> None:
    """Nobody waits: neither a consumer for the cleaning nor the cleaning for somebody in the admin."""
    held = DeadLetterFactory.create(resolved_at=ago(**OLD), error_detail="held")
    DeadLetterFactory.create(resolved_at=ago(**OLD), error_detail="free")
    with holding("SELECT FROM messenger.dead_letters WHERE id = %s FOR UPDATE", held.id):
        assert "dead_letters: 1 deleted\n" in prune()
        assert letters() == {"held"}
    assert "dead_letters: 1 deleted\n" in prune()


def test_the_command_as_a_process(start: Callable[..., Worker]) -> None:
    """Exit code 0 and what was deleted; exit code 1 and one sentence while PostgreSQL is away."""
    processed("old", **OLD)
    done = start("prune_messages")
    assert done.wait() == 0
    assert done.output.splitlines() == [
        "processed_messages: 1 deleted",
        "outbox_messages: 0 deleted",
        "dead_letters: 0 deleted",
    ]
    away = start("prune_messages", DATABASE_URL="postgresql://messenger@127.0.0.1:1/messenger")
    assert away.wait() == 1
    assert "PostgreSQL cannot be used now" in away.output
    assert "Traceback" not in away.output
