"""A roster whose chat does not exist yet is parked by lead: nobody waits for it, and it gets its turn."""

from datetime import timedelta
from uuid import UUID

import pytest
from django.db import connection
from django.utils import timezone
from pytest_django.fixtures import Settings

from chats.models import Chat, ParkedRoster
from outbox.models import DeadLetter, OutboxMessage, ProcessedMessage
from tests.integration.conftest import OWN_TABLES, Logs
from tests.support import crm
from tests.support.factories import LeadChatFactory
from tests.support.leads import (
    check_dead_letter,
    deliver,
    deliver_created,
    feed_of,
    make_due,
    open_chat,
    park_as_it_is,
    roster_of,
    tick,
    version_of,
)
from tests.support.observing import Ear, Metrics
from tests.support.races import racing, wait_for_blocked
from tests.support.triggers import Gate, trigger

pytestmark = [pytest.mark.usefixtures("true_feeds"), OWN_TABLES]
LEAD, OTHER, ANNA, BORIS, VERA = (crm.new_id() for _ in range(5))


@pytest.fixture
def patient(settings: Settings) -> None:
    """Locks are waited for as long as a test may need."""
    settings.CONSUMER_LOCK_TIMEOUT = 60
    settings.CONSUMER_STATEMENT_TIMEOUT = 60


def waiting_version() -> int:
    """The version of the one roster that waits."""
    return ParkedRoster.objects.get().version


# --- Waiting --------------------------------------------------------------------------------------


def test_other_leads_of_the_batch_go_on(metrics: Metrics) -> None:
    """Design: «parked by lead, not waited for: other leads of the partition go on», before and after it."""
    open_chat(OTHER, {ANNA: "Executor"})
    deliver(
        crm.lead_participants(OTHER, 1, {BORIS: "Executor"}),
        crm.lead_participants(LEAD, 1, {BORIS: "Executor"}),
        crm.lead_participants(OTHER, 2, {VERA: "Executor"}),
    )
    assert (roster_of(OTHER), version_of(OTHER)) == ({VERA: "Executor"}, 2)
    assert str(ParkedRoster.objects.get().subject_id) == LEAD
    assert metrics("messenger_lead_participants_not_provisioned_total") == 1


@pytest.mark.parametrize("one_batch", [True, False])
def test_a_newer_roster_of_the_lead_replaces_the_parked_one(one_batch: bool) -> None:
    """«A newer roster of the same lead replaces the parked one»; an older or equal one does not."""
    messages = [
        crm.lead_participants(LEAD, version, {ANNA: "Lawyer" if version == 5 else "Guest"}) for version in (2, 5, 3, 5)
    ]
    for batch in [messages] if one_batch else [[each] for each in messages]:
        deliver(*batch)
    assert waiting_version() == 5
    assert bytes(ParkedRoster.objects.get().value) == crm.encode(messages[1])
    open_chat(LEAD, {BORIS: "Executor"})
    assert (roster_of(LEAD), version_of(LEAD)) == ({ANNA: "Lawyer"}, 5)


def test_a_newer_roster_keeps_the_schedule_of_the_one_before() -> None:
    """A stream of rosters must not put the limit off for ever."""
    deliver(crm.lead_participants(LEAD, 1, {ANNA: "Executor"}))
    make_due()
    tick()
    before = ParkedRoster.objects.values_list("attempts", "next_attempt_at", "first_seen_at").get()
    deliver(crm.lead_participants(LEAD, 2, {ANNA: "Executor"}))
    assert ParkedRoster.objects.values_list("attempts", "next_attempt_at", "first_seen_at").get() == before
    assert (waiting_version(), before[0]) == (2, 1)


def test_a_redelivery_of_the_parked_record_changes_nothing() -> None:
    message = crm.lead_participants(LEAD, 1, {ANNA: "Executor"})
    (record,) = deliver(message)
    make_due()
    tick()
    before = ParkedRoster.objects.values().get()
    deliver(record)
    assert ParkedRoster.objects.values().get() == before


def test_the_limit_of_one_lead_is_not_the_others(settings: Settings) -> None:
    """At the limit a dead letter; younger ones of the same round go on waiting; a later roster waits anew."""
    settings.LEAD_NOT_PROVISIONED_MAX_ATTEMPTS = 2
    (old,) = deliver(crm.lead_participants(LEAD, 1, {ANNA: "Executor"}))
    make_due()
    tick()
    deliver(crm.lead_participants(OTHER, 1, {ANNA: "Executor"}))
    make_due()
    tick()
    check_dead_letter(old, code="MSG_CHAT_NOT_PROVISIONED")
    assert ParkedRoster.objects.values_list("subject_id", "attempts").get() == (UUID(OTHER), 1)
    deliver(crm.lead_participants(LEAD, 2, {BORIS: "Executor"}))
    open_chat(LEAD, {ANNA: "Executor"})
    assert (roster_of(LEAD), version_of(LEAD)) == ({BORIS: "Executor"}, 2)


def test_what_is_not_due_is_left_alone() -> None:
    deliver(crm.lead_participants(LEAD, 1, {ANNA: "Executor"}))
    ParkedRoster.objects.update(next_attempt_at=timezone.now() + timedelta(hours=1))
    tick()
    assert ParkedRoster.objects.get().attempts == 0


# --- Its turn -------------------------------------------------------------------------------------


def test_the_opening_of_the_chat_gives_the_turn_in_one_transaction(logs: Logs, metrics: Metrics, ear: Ear) -> None:
    """«At once when the lead's chat is opened»: chat, roster, feed and both marks have one transaction's number."""
    message = crm.lead_participants(LEAD, 4, {ANNA: "Executor", BORIS: "Lawyer"})
    deliver(message)
    chat = open_chat(LEAD, {ANNA: "Executor", VERA: "CoAgent"})
    assert (roster_of(LEAD), version_of(LEAD)) == ({ANNA: "Executor", BORIS: "Lawyer"}, 4)
    assert [line[0] for line in feed_of(LEAD)] == [
        "LeadChatProvisioned",
        *["ParticipantJoined"] * 2,
        "ParticipantLeft",
        "ParticipantJoined",
    ]
    assert not ParkedRoster.objects.exists()
    with connection.cursor() as cursor:
        tables = ("chats", "participants", "chat_events", "processed_messages")
        cursor.execute(" UNION ".join(f"SELECT xmin::text FROM messenger.{table}" for table in tables))
        assert len(cursor.fetchall()) == 1
    assert ProcessedMessage.objects.filter(key=f"messenger-lead-participants:{message['MessageId']}").exists()
    assert ear.heard() == [str(chat)]
    told = [line["event"] for line in logs if line.get("message_id") == message["MessageId"]]
    assert told == ["retry_not_provisioned", "synced"]
    group = "messenger-lead-participants-changed"
    assert metrics("messenger_consumer_records_total", group=group, outcome="synced") == 1


def test_the_turn_by_the_clock() -> None:
    """The chat is there by another way than lead-created: the parked roster finds it when it looks again."""
    (record,) = deliver(crm.lead_participants(LEAD, 2, {ANNA: "Executor"}))
    LeadChatFactory.create(lead_id=LEAD)
    make_due()
    tick()
    assert (roster_of(LEAD), version_of(LEAD)) == ({ANNA: "Executor"}, 2)
    assert not ParkedRoster.objects.exists()
    deliver(record)
    assert [line[0] for line in feed_of(LEAD)] == ["ParticipantJoined"]


def test_a_parked_roster_that_is_stale_by_its_turn_is_dropped(logs: Logs) -> None:
    """The version guard holds for the retry as well."""
    deliver(crm.lead_participants(LEAD, 2, {ANNA: "Executor"}))
    LeadChatFactory.create(lead_id=LEAD)
    deliver(crm.lead_participants(LEAD, 3, {BORIS: "Executor"}))
    make_due()
    tick()
    assert (roster_of(LEAD), version_of(LEAD)) == ({BORIS: "Executor"}, 3)
    assert not ParkedRoster.objects.exists()
    assert [line["version"] for line in logs if line["event"] == "skipped_stale"] == [2]


def test_a_parked_record_this_parser_refuses_does_not_keep_the_chat_closed(metrics: Metrics) -> None:
    """Parked by a laxer version of this service: a dead letter of its own consumer; the chat opens all the same."""
    record = park_as_it_is(b"junk", lead=LEAD)
    open_chat(LEAD, {ANNA: "Executor"})
    check_dead_letter(record, code="MSG_ENVELOPE_INVALID")
    assert not ParkedRoster.objects.exists()
    assert metrics("messenger_lead_participants_dlq_total") == 1
    assert roster_of(LEAD) == {ANNA: "Executor"}


def test_a_parked_record_the_database_refuses_is_dead_lettered_alone() -> None:
    """Bisection holds for the retry as well, and the dead one waits no more."""
    leads = [crm.new_id() for _ in range(5)]
    records = [
        crm.record(crm.lead_participants(lead, 1, {BORIS if at == 2 else ANNA: "Executor"}))
        for at, lead in enumerate(leads)
    ]
    deliver(*records)
    for lead in leads:
        LeadChatFactory.create(lead_id=lead)
    make_due()
    refuse = f"IF NEW.user_id = '{BORIS}' THEN RAISE EXCEPTION 'no' USING ERRCODE = '23514'; END IF;"
    with trigger("participants", "BEFORE INSERT", refuse):
        tick()
    check_dead_letter(records[2], code="MSG_DATA_REFUSED")
    assert DeadLetter.objects.count() == 1
    assert not ParkedRoster.objects.exists()
    assert [roster_of(lead) for lead in leads] == [{ANNA: "Executor"} if at != 2 else {} for at in range(5)]


# --- Races ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("patient")
def test_a_roster_that_comes_while_its_chat_is_being_opened_is_applied() -> None:
    """The opening is not committed yet: the roster's consumer waits for it instead of parking for nobody."""
    with racing() as start, Gate() as gate, trigger("chats", "BEFORE INSERT", gate.halt):
        opening = start(lambda: deliver_created(crm.lead_created(LEAD, {ANNA: "Executor"})))
        gate.wait_for_somebody()
        roster = start(lambda: deliver(crm.lead_participants(LEAD, 1, {BORIS: "Executor"})))
        wait_for_blocked(2)
        gate.open()
        opening.result(60), roster.result(60)
    assert (roster_of(LEAD), version_of(LEAD)) == ({BORIS: "Executor"}, 1)
    assert not ParkedRoster.objects.exists()


@pytest.mark.usefixtures("patient")
def test_a_chat_that_is_opened_while_its_roster_is_being_parked_finds_it() -> None:
    """The parked row is not committed yet: the opening waits for it instead of overlooking it."""
    with racing() as start, Gate() as gate, trigger("parked_rosters", "BEFORE INSERT", gate.halt):
        roster = start(lambda: deliver(crm.lead_participants(LEAD, 1, {BORIS: "Executor"})))
        gate.wait_for_somebody()
        opening = start(lambda: deliver_created(crm.lead_created(LEAD, {ANNA: "Executor"})))
        wait_for_blocked(2)
        gate.open()
        opening.result(60), roster.result(60)
    assert (roster_of(LEAD), version_of(LEAD)) == ({BORIS: "Executor"}, 1)
    assert not ParkedRoster.objects.exists()


@pytest.mark.usefixtures("patient")
def test_two_consumers_at_one_parked_roster_count_one_attempt(settings: Settings) -> None:
    """Both read it as due; the second finds, under the claim, that it had its turn."""
    settings.LEAD_NOT_PROVISIONED_BACKOFF_BASE = 60
    deliver(crm.lead_participants(LEAD, 1, {BORIS: "Executor"}))
    make_due()
    with racing() as start, Gate() as gate, trigger("parked_rosters", "BEFORE UPDATE", gate.halt):
        first = start(tick)
        gate.wait_for_somebody()
        second = start(tick)
        wait_for_blocked(2)
        gate.open()
        first.result(60), second.result(60)
    assert ParkedRoster.objects.get().attempts == 1


@pytest.mark.usefixtures("patient")
def test_a_turn_by_the_clock_while_the_chat_is_being_opened_is_taken_once() -> None:
    """Retry and opening meet: one of them applies it, once."""
    deliver(crm.lead_participants(LEAD, 1, {BORIS: "Executor"}))
    make_due()
    with racing() as start, Gate() as gate, trigger("chats", "BEFORE INSERT", gate.halt):
        opening = start(lambda: deliver_created(crm.lead_created(LEAD, {ANNA: "Executor"})))
        gate.wait_for_somebody()
        retry = start(tick)
        wait_for_blocked(2)
        gate.open()
        opening.result(60), retry.result(60)
    assert roster_of(LEAD) == {BORIS: "Executor"}
    assert [line[0] for line in feed_of(LEAD)][2:] == ["ParticipantLeft", "ParticipantJoined"]
    assert not ParkedRoster.objects.exists()


@pytest.mark.usefixtures("patient")
def test_one_lead_created_twice_at_once_is_one_chat() -> None:
    """INV-CHAT-2 under a race, and INV-CE-2: one LeadChatProvisioned."""
    with racing() as start, Gate() as gate, trigger("chats", "BEFORE INSERT", gate.halt):
        first = start(lambda: deliver_created(crm.lead_created(LEAD, {ANNA: "Executor"})))
        gate.wait_for_somebody()
        second = start(lambda: deliver_created(crm.lead_created(LEAD, {BORIS: "Executor"})))
        wait_for_blocked(2)
        gate.open()
        first.result(60), second.result(60)
    assert Chat.objects.count() == 1
    assert feed_of(LEAD) == [
        ("LeadChatProvisioned", None, None, None),
        ("ParticipantJoined", ANNA, "Executor", None),
    ]
    assert not OutboxMessage.objects.exists()
