"""Settling a batch: bisection to the record at fault, unexpected faults, the DLQ budget, spans of records."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import pytest
from django.db.backends.utils import CursorWrapper
from django.utils import timezone
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pytest_django.fixtures import Settings

from chats.models import Chat
from chats.roster_consumer import LEADS, RosterHandler, RosterWork
from messenger.faults import InfrastructureFault, MessengerError
from messenger.records import Record
from messenger.topics import LEAD_PARTICIPANTS_CHANGED
from outbox.dead_letters import BudgetSpent
from outbox.handling import Handler, Verdict
from outbox.models import DeadLetter, OutboxMessage
from outbox.settlement import DATA_REFUSED, MAX_TRIES, UNEXPECTED, Settlement
from tests.integration.conftest import OWN_TABLES, Logs
from tests.support import crm
from tests.support.broker import Broker
from tests.support.leads import (
    check_dead_letter,
    deliver,
    deliver_created,
    everything,
    feed_of,
    open_chat,
    roster_of,
    version_of,
)
from tests.support.observing import Metrics
from tests.support.triggers import constraint, trigger
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = [pytest.mark.usefixtures("true_feeds"), OWN_TABLES]
LEAD, ANNA, BORIS, VERA = (crm.new_id() for _ in range(4))
GROUP = "messenger-lead-participants-changed"
HIDDEN = "Anna Petrova"


def opened(count: int) -> list[str]:
    """So many leads, each with a chat."""
    leads = [crm.new_id() for _ in range(count)]
    deliver_created(*(crm.lead_created(lead, {ANNA: "Executor"}) for lead in leads))
    return leads


class Failing(RosterHandler):
    """The consumer's handler, with a mistake in the program that one lead brings out, so many times."""

    def __init__(self, lead: str, times: int = 1000) -> None:
        super().__init__(LEADS)
        self.lead = lead.encode()
        self.left = times
        self.sizes: list[int] = []

    def handle(self, cursor: CursorWrapper, records: Sequence[Record]) -> Verdict:
        verdict = super().handle(cursor, records)
        if any(self.lead in (record.value or b"") for record in records) and self.left:
            self.left -= 1
            self.sizes.append(len(records))
            raise KeyError(HIDDEN)
        return verdict


def settle(handler: Handler, records: Sequence[Record]) -> list[Record]:
    """What of `records` was settled."""
    return [record for part in Settlement(handler).settle(records) for record in part]


# --- Bisection --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 7, 19], ids=["first", "in the middle", "last"])
def test_one_record_the_database_refuses_is_dead_lettered_alone(place: int, metrics: Metrics) -> None:
    """Lane poison: «that record alone is dead-lettered, the rest of the batch is applied», in order."""
    leads = opened(20)
    batch = [
        crm.record(crm.lead_participants(lead, 1, {BORIS if at == place else VERA: "Executor"}))
        for at, lead in enumerate(leads)
    ]
    with constraint("participants", f"user_id <> '{BORIS}'"):
        deliver(*batch)
    check_dead_letter(batch[place], code=DATA_REFUSED)
    assert DeadLetter.objects.count() == 1
    assert roster_of(leads[place]) == {ANNA: "Executor"}
    for lead in leads[:place] + leads[place + 1 :]:
        assert (roster_of(lead), version_of(lead)) == ({VERA: "Executor"}, 1)
    assert metrics("messenger_participants_added_total") == 19
    assert metrics("messenger_lead_participants_dlq_total") == 1


def test_a_good_record_of_the_same_lead_is_applied_past_a_bad_one() -> None:
    """Versions 1 and 3 are good, 2 is refused by the database: the roster ends at 3, its feed without a gap."""
    open_chat(LEAD, {ANNA: "Executor"})
    rosters = [{ANNA: "Lawyer"}, {BORIS: "Executor"}, {VERA: "Executor"}]
    with constraint("participants", f"user_id <> '{BORIS}'"):
        records = deliver(*(crm.lead_participants(LEAD, at, roster) for at, roster in enumerate(rosters, start=1)))
    check_dead_letter(records[1], code=DATA_REFUSED)
    assert (roster_of(LEAD), version_of(LEAD)) == ({VERA: "Executor"}, 3)
    assert [line[0] for line in feed_of(LEAD, after=2)] == [
        "ParticipantRoleChanged",
        "ParticipantLeft",
        "ParticipantJoined",
    ]


def test_several_records_at_fault_are_all_found() -> None:
    leads = opened(9)
    batch = [
        crm.record(crm.lead_participants(lead, 1, {BORIS if at % 3 == 1 else VERA: "Executor"}))
        for at, lead in enumerate(leads)
    ]
    with constraint("participants", f"user_id <> '{BORIS}'"):
        deliver(*batch)
    assert set(DeadLetter.objects.values_list("offset", flat=True)) == {batch[at].offset for at in (1, 4, 7)}
    assert sum(roster_of(lead) == {VERA: "Executor"} for lead in leads) == 6


def test_parts_that_were_committed_stay_so_when_postgresql_goes_away() -> None:
    """What was yielded is settled: the loop goes on after it, and nothing is applied twice."""
    leads = opened(4)
    batch = [
        crm.record(crm.lead_participants(lead, 1, {user: "Executor"}))
        for lead, user in zip(leads, (VERA, BORIS, VERA, crm.new_id()), strict=True)
    ]
    done: list[Record] = []
    lose = "IF NEW.consumer_group <> '' THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF;"
    with constraint("participants", f"user_id <> '{BORIS}'"), trigger("dead_letters", "BEFORE INSERT", lose):
        with pytest.raises(InfrastructureFault):
            for part in RosterWork(LEADS).settle(batch):
                done += part
        assert done == batch[:1]
    deliver(*batch[1:])
    assert [version_of(lead) for lead in leads] == [1, 1, 1, 1]
    assert not DeadLetter.objects.exists()


# --- Unexpected faults ------------------------------------------------------------------------------


def test_an_unexpected_exception_is_dead_lettered_after_bounded_tries(logs: Logs) -> None:
    """«An unexpected exception after bounded tries»: that record alone, and its text is told nowhere."""
    leads = opened(4)
    batch = [crm.record(crm.lead_participants(lead, 1, {VERA: "Executor"})) for lead in leads]
    handler = Failing(leads[2])
    assert settle(handler, batch) == batch
    assert handler.sizes == [4, 2, *[1] * MAX_TRIES]
    dead = check_dead_letter(batch[2], code=UNEXPECTED)
    assert dead.error_detail == "Unexpected: KeyError."
    assert [roster_of(lead) == {VERA: "Executor"} for lead in leads] == [True, True, False, True]
    told = [line for line in logs if line["event"] == "unexpected_fault"]
    assert told
    assert all(line["frames"][-1].startswith("test_settlement.py:") for line in told)
    assert HIDDEN not in str(logs)


def test_an_unexpected_exception_that_passes_costs_nothing() -> None:
    (lead,) = opened(1)
    record = crm.record(crm.lead_participants(lead, 1, {VERA: "Executor"}))
    assert settle(Failing(lead, times=MAX_TRIES - 1), [record]) == [record]
    assert roster_of(lead) == {VERA: "Executor"}
    assert not DeadLetter.objects.exists()


def test_an_unforeseen_code_of_the_database_is_unexpected(logs: Logs) -> None:
    """P0001 raise_exception belongs to no lane: tried, then dead-lettered, its message never quoted."""
    (lead,) = opened(1)
    with trigger("participants", "BEFORE INSERT", f"RAISE EXCEPTION '{HIDDEN}';"):
        (record,) = deliver(crm.lead_participants(lead, 1, {VERA: "Executor"}))
    dead = check_dead_letter(record, code=UNEXPECTED)
    assert dead.error_detail == "Unexpected: RaiseException P0001."
    assert HIDDEN not in str(logs)


def test_a_record_that_cannot_even_be_dead_lettered_stops_the_consumer() -> None:
    """Nothing is skipped: it ends before that record, with a sentence, and what came before stays settled."""
    leads = opened(2)
    batch = [
        crm.record(crm.lead_participants(lead, 1, {user: "Executor"}))
        for lead, user in zip(leads, (VERA, BORIS), strict=True)
    ]
    done: list[Record] = []
    with (
        constraint("participants", f"user_id <> '{BORIS}'"),
        constraint("dead_letters", "error_code <> 'MSG_DATA_REFUSED'"),
        pytest.raises(MessengerError, match=r"cannot even be dead-lettered .* nothing is lost"),
    ):
        for part in RosterWork(LEADS).settle(batch):
            done += part
    assert done == batch[:1]


def test_a_fault_in_telling_is_no_fault_of_the_records(logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed is settled, whatever becomes of its log line."""

    def fail(self: object, started: float) -> None:
        raise ValueError(HIDDEN)

    class Mute(RosterHandler):
        def handle(self, cursor: CursorWrapper, records: Sequence[Record]) -> Verdict:
            verdict = super().handle(cursor, records)
            verdict.report = lambda started: fail(self, started)
            return verdict

    (lead,) = opened(1)
    record = crm.record(crm.lead_participants(lead, 1, {VERA: "Executor"}))
    assert settle(Mute(LEADS), [record]) == [record]
    assert roster_of(lead) == {VERA: "Executor"}
    assert [line["error"] for line in logs if line["event"] == "report_failed"] == ["ValueError"]
    assert not DeadLetter.objects.exists()


# --- The DLQ budget ---------------------------------------------------------------------------------


@pytest.fixture
def budget(settings: Settings) -> Iterator[None]:
    """Two dead letters an hour."""
    settings.CONSUMER_DLQ_BUDGET = 2
    settings.CONSUMER_DLQ_BUDGET_WINDOW = 3600
    yield


@pytest.mark.usefixtures("budget")
def test_the_budget_stops_before_the_batch_that_would_exceed_it() -> None:
    """«A DLQ budget stops the consumer loudly when a bad deploy would dead-letter everything»: nothing moves."""
    open_chat(LEAD, {ANNA: "Executor"})
    before = everything()
    with pytest.raises(BudgetSpent, match="CONSUMER_DLQ_BUDGET"):
        deliver(crm.lead_participants(LEAD, 1, {VERA: "Executor"}), *[crm.record(b"junk") for _ in range(3)])
    assert everything() == before
    assert not DeadLetter.objects.exists()
    assert not OutboxMessage.objects.exists()


@pytest.mark.usefixtures("budget")
def test_the_budget_counts_what_is_open_and_recent_in_its_own_group() -> None:
    spent = deliver(crm.record(b"one"), crm.record(b"two"))
    with pytest.raises(BudgetSpent):
        deliver(crm.record(b"three"))
    deliver(*spent)  # a redelivery makes no new dead letters, so there is nothing to stop for
    DeadLetter.objects.filter(value=b"one").update(resolved_at=timezone.now(), resolution="discarded")
    deliver(crm.record(b"three"))
    DeadLetter.objects.filter(value=b"two").update(first_seen_at=timezone.now() - timedelta(seconds=3601))
    deliver(crm.record(b"four"))
    DeadLetter.objects.filter(value=b"three").update(consumer_group="another")
    deliver(crm.record(b"five"))
    with pytest.raises(BudgetSpent):
        deliver(crm.record(b"six"))


def test_a_spent_budget_ends_the_process_with_a_sentence(start: Callable[..., Worker], broker: Broker) -> None:
    """Loudly: exit code 1, a line that says what to do, and the offset stays before the records."""
    for _ in range(3):
        broker.produce(LEAD_PARTICIPANTS_CHANGED, b"junk", key=LEAD, partition=0)
    worker = start("consume_lead_participants", CONSUMER_DLQ_BUDGET="2", CONSUMER_BATCH_SIZE="1")
    assert worker.wait(seconds=60) == 1
    (line,) = worker.find("gave_up")
    assert line["level"] == "error"
    assert "CONSUMER_DLQ_BUDGET" in line["error"]
    assert broker.committed(LEAD_PARTICIPANTS_CHANGED)[0] == DeadLetter.objects.count() == 2
    again = start("consume_lead_participants", CONSUMER_DLQ_BUDGET="100")
    wait_until(lambda: broker.lag(LEAD_PARTICIPANTS_CHANGED) == 0, what="the rest is dead-lettered")
    assert again.terminate() == 0
    assert DeadLetter.objects.count() == 3


# --- Traces -----------------------------------------------------------------------------------------


def test_each_record_has_a_span_beneath_the_one_that_sent_it(spans: InMemorySpanExporter) -> None:
    """«Traces: приём события → обработка; корреляция из метаданных события»."""
    chat = open_chat(LEAD, {ANNA: "Executor"})
    spans.clear()
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    messages = [crm.lead_participants(LEAD, version, {ANNA: "Executor"}) for version in (1, 1)]
    sent, bare = deliver(crm.record(messages[0], headers=(("traceparent", traceparent.encode()),)), messages[1])
    first, second = spans.get_finished_spans()
    assert first.parent is not None
    assert f"{first.parent.trace_id:032x}-{first.parent.span_id:016x}" == traceparent[3:-3]
    assert second.parent is None
    assert dict(first.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.destination.name": sent.topic,
        "messaging.message.id": messages[0]["MessageId"],
        "messaging.kafka.offset": sent.offset,
        "messenger.lead_id": LEAD,
        "messenger.outcome": "synced",
    }
    assert (second.attributes or {})["messenger.outcome"] == "skipped_stale"
    assert first.name == f"consume {bare.topic}"
    assert first.start_time is not None
    assert first.end_time is not None
    assert first.start_time < first.end_time
    assert Chat.objects.get().id == chat
