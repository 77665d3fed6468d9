"""The table «Retry и DLQ» of the lead participants consumer, row by row."""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from chats.models import ParkedRoster
from chats.roster_consumer import LEADS, RosterWork
from messenger.faults import InfrastructureFault
from messenger.records import Record
from outbox.models import DeadLetter, OutboxMessage
from outbox.settlement import CONFLICT
from tests.integration.conftest import OWN_TABLES, Logs
from tests.support import crm
from tests.support.leads import (
    check_dead_letter,
    deliver,
    everything,
    feed_of,
    make_due,
    open_chat,
    roster_of,
    tick,
    version_of,
)
from tests.support.observing import Metrics
from tests.support.races import holding
from tests.support.triggers import LOSE_CONNECTION, trigger

pytestmark = [pytest.mark.usefixtures("true_feeds"), OWN_TABLES]
LEAD, ANNA, BORIS, VERA = (crm.new_id() for _ in range(4))
ON_BORIS = f"IF NEW.user_id = '{BORIS}' THEN %s END IF;"


@pytest.fixture
def tries() -> Iterator[str]:
    """A sequence, which no rollback undoes: what counts tries inside the database."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE messenger.test_tries")
    yield "messenger.test_tries"
    with connection.cursor() as cursor:
        cursor.execute("DROP SEQUENCE messenger.test_tries")


def counted(sequence: str) -> int:
    """How far the sequence has come."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM {sequence}")
        return int(cursor.fetchone()[0])


def database_now() -> datetime:
    """The database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now: datetime = cursor.fetchone()[0]
        return now


# --- «Чат лида ещё не провизионирован | MSG_CHAT_NOT_PROVISIONED | Да, backoff | После лимита» ------


def test_not_provisioned_is_retried_with_backoff(settings: Settings) -> None:
    """Retry: «Да, backoff»: 1 s, doubling up to the cap, by the database's clock."""
    settings.LEAD_NOT_PROVISIONED_BACKOFF_CAP = 4
    deliver(crm.lead_participants(LEAD, 1, {ANNA: "Executor"}))
    for attempt, delay in enumerate([2, 4, 4], start=1):
        make_due()
        before = database_now()
        tick()
        parked = ParkedRoster.objects.get()
        assert parked.attempts == attempt
        assert before + timedelta(seconds=delay) <= parked.next_attempt_at
        assert parked.next_attempt_at <= database_now() + timedelta(seconds=delay * 1.1)
    assert not DeadLetter.objects.exists()


def test_not_provisioned_goes_to_the_dlq_after_the_limit(settings: Settings, logs: Logs, metrics: Metrics) -> None:
    """DLQ: «После лимита»: the record byte for byte, as MSG_CHAT_NOT_PROVISIONED; nothing waits any more."""
    settings.LEAD_NOT_PROVISIONED_MAX_ATTEMPTS = 3
    message = crm.lead_participants(LEAD, 1, {ANNA: "Executor"})
    (record,) = deliver(
        crm.record(message, headers=(("message-id", b"1"), ("empty", b""), ("none", None), ("x", b"\xff")))
    )
    for _ in range(2):
        make_due()
        tick()
        assert not DeadLetter.objects.exists()
    make_due()
    tick()
    check_dead_letter(record, code="MSG_CHAT_NOT_PROVISIONED")
    assert not ParkedRoster.objects.exists()
    assert metrics("messenger_lead_participants_dlq_total") == 1
    assert metrics("messenger_lead_participants_not_provisioned_total") == 4  # the first delivery and three tries
    assert [line["error_code"] for line in logs if line["event"] == "failed"] == ["MSG_CHAT_NOT_PROVISIONED"]
    make_due()
    tick()
    assert DeadLetter.objects.count() == OutboxMessage.objects.count() == 1


# --- «Инфраструктурный (PostgreSQL/Kafka) | Бесконечный backoff 1s→60s | DLQ: Нет» ------------------


def test_infrastructure_is_waited_out_without_end_and_without_dlq(logs: Logs, metrics: Metrics) -> None:
    """The server ends the session in the transaction, again and again: nothing is settled, nothing dead-lettered."""
    open_chat(LEAD, {ANNA: "Executor"})
    other = crm.new_id()
    open_chat(other, {ANNA: "Executor"})
    batch = [crm.lead_participants(other, 1, {VERA: "Executor"}), crm.lead_participants(LEAD, 1, {BORIS: "Executor"})]
    records = [crm.record(message) for message in batch]
    before = everything()
    with trigger("participants", "BEFORE INSERT", ON_BORIS % LOSE_CONNECTION):
        for _ in range(5):
            with pytest.raises(InfrastructureFault, match="PostgreSQL cannot be used now"):
                list(RosterWork(LEADS).settle(records))
            assert everything() == before
    assert not DeadLetter.objects.exists()
    deliver(*records)
    assert (roster_of(other), roster_of(LEAD)) == ({VERA: "Executor"}, {BORIS: "Executor"})
    assert [line[0] for line in feed_of(LEAD, after=2)] == ["ParticipantLeft", "ParticipantJoined"]
    assert metrics("messenger_lead_participants_dlq_total") == 0
    assert not [line for line in logs if line["event"] == "failed"]


def test_a_standby_after_failover_is_infrastructure() -> None:
    """25006 read_only_sql_transaction: the connection is dropped, and the next try is made on a fresh one."""
    open_chat(LEAD, {ANNA: "Executor"})
    message = crm.lead_participants(LEAD, 1, {BORIS: "Executor"})
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    with pytest.raises(InfrastructureFault, match="25006"):
        deliver(message)
    deliver(message)
    assert roster_of(LEAD) == {BORIS: "Executor"}


def test_a_parked_record_survives_infrastructure_faults() -> None:
    """The same lane for what is retried: the row stays as it was, no attempt is counted."""
    deliver(crm.lead_participants(LEAD, 1, {BORIS: "Executor"}))
    make_due()
    with trigger("parked_rosters", "BEFORE UPDATE", LOSE_CONNECTION), pytest.raises(InfrastructureFault):
        tick()
    assert ParkedRoster.objects.get().attempts == 0
    tick()
    assert ParkedRoster.objects.get().attempts == 1
    assert not DeadLetter.objects.exists()


# --- «Конкурентная правка состава | 3 попытки (перечитать чат) | После исчерпания» ------------------


@pytest.mark.parametrize("code", ["40001", "40P01", "23505"])
def test_a_conflict_is_tried_three_times_and_may_succeed(code: str, tries: str, logs: Logs) -> None:
    """Retry: «3 попытки (перечитать чат)»: twice in vain, then applied, with one set of facts."""
    open_chat(LEAD, {ANNA: "Executor"})
    fail_twice = f"IF nextval('{tries}') <= 2 THEN RAISE EXCEPTION 'lost' USING ERRCODE = '{code}'; END IF;"
    with trigger("participants", "BEFORE INSERT", ON_BORIS % fail_twice):
        deliver(crm.lead_participants(LEAD, 1, {ANNA: "Executor", BORIS: "Lawyer"}))
    assert counted(tries) == 3
    assert roster_of(LEAD) == {ANNA: "Executor", BORIS: "Lawyer"}
    assert feed_of(LEAD, after=2) == [("ParticipantJoined", BORIS, "Lawyer", None)]
    again = [line for line in logs if line["event"] == "transaction_tried_again"]
    assert [(line["tries"], line["lane"]) for line in again] == [(1, "conflict"), (2, "conflict")]
    assert not DeadLetter.objects.exists()


def test_a_conflict_without_end_goes_to_the_dlq(tries: str) -> None:
    """DLQ: «После исчерпания»: that record alone, after three tries of its own; the next one is applied."""
    open_chat(LEAD, {ANNA: "Executor"})
    fail = f"PERFORM nextval('{tries}'); RAISE EXCEPTION 'lost' USING ERRCODE = '40001';"
    with trigger("participants", "BEFORE INSERT", ON_BORIS % fail):
        (record,) = deliver(crm.lead_participants(LEAD, 1, {BORIS: "Executor"}))
        assert counted(tries) == 3
        deliver(crm.lead_participants(LEAD, 2, {VERA: "Executor"}))
    check_dead_letter(record, code=CONFLICT)
    assert (roster_of(LEAD), version_of(LEAD)) == ({VERA: "Executor"}, 2)


def test_a_newer_version_on_the_row_is_never_overwritten(tries: str) -> None:
    """«Правка не должна затирать более свежее состояние (guard по строке чата)»: the guard is in the UPDATE as well."""
    open_chat(LEAD, {ANNA: "Executor"})
    overtake = (
        f"PERFORM nextval('{tries}'); UPDATE messenger.chats SET lead_member_version = 99 WHERE id = NEW.chat_id;"
    )
    with trigger("participants", "BEFORE INSERT", ON_BORIS % overtake):
        (record,) = deliver(crm.lead_participants(LEAD, 5, {BORIS: "Executor"}))
    assert counted(tries) == 3
    check_dead_letter(record, code=CONFLICT)
    assert (roster_of(LEAD), version_of(LEAD)) == ({ANNA: "Executor"}, None)


def test_a_lock_that_is_not_given_up_becomes_infrastructure(settings: Settings) -> None:
    """A timeout is tried as a conflict, then waited out: somebody slow must not cost a record."""
    settings.CONSUMER_LOCK_TIMEOUT = 0.1
    open_chat(LEAD, {ANNA: "Executor"})
    record = crm.record(crm.lead_participants(LEAD, 1, {BORIS: "Executor"}))
    with holding("SELECT FROM messenger.chats WHERE lead_id = %s FOR UPDATE", LEAD):
        parts: list[Sequence[Record]] = []
        with pytest.raises(InfrastructureFault, match="55P03"):
            parts += RosterWork(LEADS).settle([record])
    assert parts == [(), ()]  # two tries in vain, between which the loop polls; the third gives up
    deliver(record)
    assert not DeadLetter.objects.exists()
    assert roster_of(LEAD) == {BORIS: "Executor"}


def test_a_lock_that_is_given_up_between_tries_is_a_conflict_survived(settings: Settings) -> None:
    settings.CONSUMER_LOCK_TIMEOUT = 0.1
    open_chat(LEAD, {ANNA: "Executor"})
    record = crm.record(crm.lead_participants(LEAD, 1, {BORIS: "Executor"}))
    settling = iter(RosterWork(LEADS).settle([record]))
    with holding("SELECT FROM messenger.chats WHERE lead_id = %s FOR UPDATE", LEAD):
        assert next(settling) == ()  # a try in vain; the loop polls meanwhile
    assert [each for part in settling for each in part] == [record]
    assert roster_of(LEAD) == {BORIS: "Executor"}


# --- «Пустой/невалидный ActiveParticipants | MSG_LEAD_PARTICIPANTS_INVALID | Нет | Да + алерт» ------


def test_an_invalid_roster_is_not_retried(logs: Logs, metrics: Metrics) -> None:
    """Retry: «Нет»; DLQ: «Да + алерт» (messenger_lead_participants_dlq_total > 0); a redelivery adds nothing."""
    open_chat(LEAD, {ANNA: "Executor"})
    (record,) = deliver(crm.lead_participants(LEAD, 1, {}))
    assert not [line for line in logs if line["event"] == "transaction_tried_again"]
    deliver(record)
    check_dead_letter(record, code="MSG_LEAD_PARTICIPANTS_INVALID")
    assert metrics("messenger_lead_participants_dlq_total") == 1
    assert OutboxMessage.objects.count() == 1


# --- «ContractVersion mismatch | warn-and-proceed | Нет» --------------------------------------------


def test_contract_version_mismatch_warns_and_proceeds(logs: Logs, metrics: Metrics) -> None:
    """warn-and-proceed (messenger_lead_participants_contract_mismatch_total); DLQ: «Нет»."""
    open_chat(LEAD, {ANNA: "Executor"})
    deliver(crm.lead_participants(LEAD, 1, {BORIS: "Executor"}, ContractVersion=2))
    assert roster_of(LEAD) == {BORIS: "Executor"}
    (line,) = [line for line in logs if line["event"] == "contract_mismatch"]
    assert (line["log_level"], line["contract_version"], line["lead_id"]) == ("warning", 2, LEAD)
    assert metrics("messenger_lead_participants_contract_mismatch_total") == 1
    assert not DeadLetter.objects.exists()
