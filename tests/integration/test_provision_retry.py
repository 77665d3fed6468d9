"""The test table of ChatProvisionRetryJob's source document, row by row, on a real PostgreSQL."""

import json
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest
from django.db import connection
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from chats.models import Chat, Participant
from messenger.database import unit_of_work
from messenger.faults import LostRace
from messenger.health import Heartbeat
from messenger.lease import Lease
from messenger.shutdown import StopSignal
from outbox.models import OutboxMessage
from outbox.settlement import Settlement
from provisioning import intents
from provisioning.cycle import Cycle
from provisioning.deal_created import DealCreatedHandler
from provisioning.models import DealChatProvision, ProvisionStatus
from provisioning.options import RetryOptions
from provisioning.retry import Result, attempt, due
from provisioning.retry_job import LEASE, RetryJob
from tests.support import crm, provisions
from tests.support.background import in_background
from tests.support.triggers import Gate, constraint, own_connection, trigger

pytestmark = pytest.mark.usefixtures("tables")


def _sample(name: str) -> float:
    return REGISTRY.get_sample_value(f"messenger_chat_provision_{name}") or 0.0


def test_empty_batch() -> None:
    """Empty batch: nothing Failed or stuck is due; a success that changes nothing and publishes nothing."""
    provisions.add(status="Ready")
    provisions.add(status="Failed", due_in=60)
    provisions.add(status="Failed", attempts=10)
    provisions.add(status="Provisioning", idle=1)
    before = provisions.everything()
    with capture_logs() as logs:
        tally = provisions.run()
    assert tally is not None and (tally.provisioned, tally.retried, tally.failed) == (0, 0, 0)
    assert provisions.everything() == before
    assert [line["event"] for line in logs] == ["cycle_started", "cycle_completed"]


def test_failure_of_the_consumer_then_retry() -> None:
    """Сбой консюмера → повтор: a Failed row without a chat gets its chat, its people, Ready and the event."""
    roster = provisions.people("Executor", "Lawyer")
    tenant = uuid4()
    row = provisions.add(roster=roster, title="Объект №7, ЖК «Речной»", tenant=tenant)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE messenger.deal_chat_provisions SET last_error = 'DataError 22000'")
    assert provisions.run() is not None

    chat = Chat.objects.get(deal_id=row.deal_id)
    assert (chat.kind, chat.status, chat.title, chat.tenant_id) == ("Deal", "Active", "Объект №7, ЖК «Речной»", tenant)
    assert provisions.roster_of(row.deal_id) == roster
    # INV-CE-2: exactly one DealChatProvisioned, before anybody joins.
    assert provisions.feed_of(row.deal_id) == ["DealChatProvisioned", "ParticipantJoined", "ParticipantJoined"]
    after = DealChatProvision.objects.get()
    assert (after.status, after.chat_id, after.attempts, after.last_error) == ("Ready", chat.id, 1, None)
    assert after.row_version == row.row_version + 1
    assert after.updated_at > row.updated_at
    (event,) = provisions.events_of(row.deal_id)
    assert event["Payload"] == {
        "DealId": str(row.deal_id),
        "ChatId": str(chat.id),
        "Status": "Ready",
        "OccurredAt": event["OccurredAt"],
    }


def test_stuck_provisioning() -> None:
    """Застрявший Provisioning: a row without progress for StuckProvisioningAfter is brought to Ready."""
    stuck = provisions.add(status="Provisioning", idle=301, roster=provisions.people("Executor"))
    at_work = provisions.add(status="Provisioning", idle=240)
    not_due = provisions.add(status="Provisioning", idle=301, due_in=30)
    provisions.run()
    found = {row.id: row.status for row in DealChatProvision.objects.all()}
    assert found == {stuck.id: "Ready", at_work.id: "Provisioning", not_due.id: "Provisioning"}
    assert provisions.statuses_of(stuck.deal_id) == ["Ready"]


def test_idempotence() -> None:
    """Идемпотентность: with a chat there already, only who is missing is added and Ready is said again (INV-CHAT-2)."""
    there, missing, gone = provisions.people("Executor"), provisions.people("Lawyer"), provisions.people("Assistant")
    row = provisions.add(roster={**there, **missing, **gone})
    # Whoever is there keeps the role they have; whoever left before any roster of crm came is revived (INV-PART-1).
    chat = provisions.add_chat(row.deal_id, roster={**dict.fromkeys(there, "CoAgent"), **gone})
    Participant.objects.filter(user_id__in=gone).update(removed_at=datetime.now(UTC))
    provisions.run()

    assert Chat.objects.count() == 1
    assert Participant.objects.count() == 3
    assert provisions.roster_of(row.deal_id) == {**dict.fromkeys(there, "CoAgent"), **missing, **gone}
    assert provisions.feed_of(row.deal_id) == ["DealChatProvisioned", "ParticipantJoined", "ParticipantJoined"]
    assert DealChatProvision.objects.get().chat_id == chat.id
    assert provisions.statuses_of(row.deal_id) == ["Ready"]

    # Once more, as after a re-enqueue: nobody to add, the feed stays, Ready is said again.
    DealChatProvision.objects.update(status="Failed")
    provisions.make_due()
    provisions.run()
    assert len(provisions.feed_of(row.deal_id)) == 3
    assert provisions.statuses_of(row.deal_id) == ["Ready", "Ready"]


def test_poison_to_fail() -> None:
    """Poison → fail: at MaxAttempts terminal Failed with its event, the metric and an alert; taken up no more."""
    row = provisions.add(attempts=1, roster=provisions.people("Executor"))
    poison = _sample("poison_total")
    with constraint("chats", "title <> 'Object 1'"), capture_logs() as logs:
        provisions.run(max_attempts=3)
        assert provisions.statuses_of(row.deal_id) == []  # crm is told of the end, not of each try
        provisions.make_due()
        provisions.run(max_attempts=3)
    after = DealChatProvision.objects.get()
    assert (after.status, after.attempts, after.chat_id) == ("Failed", 3, None)
    assert after.last_error == "CheckViolation 23514"
    (event,) = provisions.events_of(row.deal_id)
    assert (event["Payload"]["Status"], event["Payload"]["ChatId"]) == ("Failed", None)
    assert _sample("poison_total") == poison + 1
    (alert,) = [line for line in logs if line["event"] == "provision_failed"]
    assert alert["log_level"] == "error"
    assert (alert["deal_id"], alert["attempts"], alert["poison"]) == (str(row.deal_id), 3, True)

    provisions.make_due()
    before = provisions.everything()
    provisions.run(max_attempts=3)  # its cause is gone, and still it waits for a person
    assert provisions.everything() == before


def test_parallel_instances() -> None:
    """Параллельные инстансы: the lock lets one runner work; where it is gone round, skip-locked parts the rows."""
    held, free = provisions.add(due_in=-2), provisions.add(due_in=-1)
    with Lease(LEASE, ttl=60) as other, capture_logs() as logs:
        assert other.try_acquire()
        assert provisions.run() is None
    assert [line["event"] for line in logs] == ["cycle_skipped"]
    assert OutboxMessage.objects.count() == 0
    assert _sample("failed") == 2  # the backlog is known all the same

    with own_connection() as session, session.transaction():
        session.execute("SELECT FROM messenger.deal_chat_provisions WHERE id = %s FOR UPDATE", [held.id])
        with capture_logs() as logs:
            tally = provisions.run()
    assert tally is not None and tally.passed == [held.id]
    assert "provision_passed_over" not in [line["event"] for line in logs]  # skipped, not waited for
    assert {row.id: row.status for row in DealChatProvision.objects.all()} == {held.id: "Failed", free.id: "Ready"}
    provisions.run()
    assert provisions.statuses_of(held.deal_id) == ["Ready"]


class TestRaceWithTheConsumer:
    """Гонка с консюмером: whatever the consumer commits or holds, the job does not do it a second time."""

    def test_ready_before_the_tick(self) -> None:
        deal = crm.new_id()
        message = crm.record(crm.deal_created(deal, provisions.people("Executor")))
        list(Settlement(DealCreatedHandler()).settle([message]))
        before = provisions.everything()
        provisions.run()
        assert provisions.everything() == before
        assert provisions.statuses_of(deal) == ["Ready"]

    def test_ready_between_listing_and_claim(self) -> None:
        row = provisions.add(roster=provisions.people("Executor"))
        options, run = RetryOptions.from_settings(), provisions.run_of_now()
        with unit_of_work(lock_timeout=5, statement_timeout=5) as cursor:
            assert due(cursor, options, run, []) == [row.id]
        assert provisions.attempt_now(row).result is Result.PROVISIONED  # somebody else has it meanwhile
        before = provisions.everything()
        assert attempt(row.id, options, run).result is Result.PASSED
        assert provisions.everything() == before

    def test_the_optimistic_lock(self) -> None:
        """Whoever read the row before its last change loses, and changes nothing."""
        row = provisions.add()
        with unit_of_work(lock_timeout=5, statement_timeout=5) as cursor:
            columns = "id, deal_id, title, project_id, deal_tenant_id, status, attempts, row_version, created_at"
            cursor.execute(f"SELECT {columns} FROM messenger.deal_chat_provisions")
            stale = intents.intent_of(cursor.fetchone(), {})
        provisions.attempt_now(row)
        before = provisions.everything()
        with pytest.raises(LostRace), unit_of_work(lock_timeout=5, statement_timeout=5) as cursor:
            intents.settle(cursor, stale, ProvisionStatus.FAILED, attempts=9, next_in=1)
        assert provisions.everything() == before

    def test_consumer_in_its_transaction(self) -> None:
        """The row the consumer is at work on is not seen, and the job waits for nobody."""
        deal = crm.new_id()
        message = crm.record(crm.deal_created(deal, provisions.people("Executor")))
        with Gate() as gate, trigger("chats", "AFTER INSERT", gate.halt):
            consumer = in_background(lambda: list(Settlement(DealCreatedHandler()).settle([message])))
            gate.wait_for_somebody()
            tally = provisions.run(stuck_after=0.001)
            gate.open()
            consumer.result(30)
        assert tally is not None and (tally.provisioned, tally.passed) == (0, [])
        assert provisions.statuses_of(deal) == ["Ready"]
        assert DealChatProvision.objects.get().attempts == 0


class TestCancellation:
    """Cancellation: a stop lets the row at work end, takes no further one, and frees the lock."""

    def test_between_rows(self) -> None:
        first, second = provisions.add(due_in=-2), provisions.add(due_in=-1)
        asked: list[bool] = []

        def proceed() -> bool:
            asked.append(True)
            return len(asked) <= 2  # before the batch, before the first row

        with Lease(LEASE, ttl=60) as lease:
            assert lease.try_acquire()
            tally = Cycle(RetryOptions.from_settings(), lease, proceed=proceed).run()
        assert tally.provisioned == 1
        assert {row.id: row.status for row in DealChatProvision.objects.all()} == {
            first.id: "Ready",
            second.id: "Failed",
        }
        with Lease(LEASE, ttl=60) as free:
            assert free.try_acquire()

    def test_stopped_before_a_tick(self) -> None:
        provisions.add()
        before = provisions.everything()
        with StopSignal() as stop:
            job = RetryJob(RetryOptions.from_settings(), stop=stop, heartbeat=Heartbeat(stall_after=60))
            stop.stop()
            job.run()
            assert job.run_once() is not None
        assert provisions.everything() == before

    def test_stop_while_a_row_is_tried_again(self) -> None:
        """A conflict is not tried again once the host is stopping: the row stays as it was."""
        row = provisions.add()
        before = provisions.everything()
        body = "RAISE EXCEPTION 'deadlock' USING ERRCODE = 'deadlock_detected';"
        tries: list[bool] = []

        def proceed() -> bool:
            tries.append(True)
            return False

        with trigger("chats", "BEFORE INSERT", body), pytest.raises(Exception, match="deadlock"):
            attempt(row.id, RetryOptions.from_settings(), provisions.run_of_now(), proceed=proceed)
        assert len(tries) == 1
        assert provisions.everything() == before


def test_events_carry_the_run() -> None:
    """CorrelationId is jobRunId; a row of the outbox is the event to the letter, and tells of no person."""
    user = provisions.people("Executor")
    row = provisions.add(roster=user, title="Ivanova's flat")
    with capture_logs() as logs:
        provisions.run()
    (run_id,) = {line["job_run_id"] for line in logs}
    message = OutboxMessage.objects.get()
    envelope = json.loads(bytes(message.value or b""))
    assert set(envelope) == {
        "MessageId",
        "ContractVersion",
        "OccurredAt",
        "AggregateType",
        "AggregateId",
        "CorrelationId",
        "Payload",
    }
    assert (envelope["CorrelationId"], envelope["ContractVersion"]) == (run_id, 1)
    assert (envelope["AggregateType"], envelope["AggregateId"]) == ("DealChatProvision", str(row.deal_id))
    assert UUID(envelope["MessageId"]) == message.message_id
    assert datetime.fromisoformat(envelope["OccurredAt"]).tzinfo is not None
    assert bytes(message.key or b"") == str(row.deal_id).encode()
    text = bytes(message.value or b"").decode()
    assert "Ivanova" not in text and next(iter(user)) not in text
