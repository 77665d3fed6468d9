"""«Конкурентная правка»: two consumers at one chat at the same moment, made to meet by locks and never by time."""

from collections.abc import Callable, Sequence

import pytest
from pytest_django.fixtures import Settings

from chats.models import Chat
from outbox.models import DeadLetter
from tests.integration.conftest import OWN_TABLES, Logs
from tests.support import crm
from tests.support.leads import deliver, deliver_created, feed_of, open_chat, roster_of, version_of
from tests.support.observing import Metrics
from tests.support.races import holding, racing, wait_for_blocked
from tests.support.triggers import Gate, trigger

pytestmark = OWN_TABLES
LEAD, ANNA, BORIS, VERA = (crm.new_id() for _ in range(4))


@pytest.fixture(autouse=True)
def patient(true_feeds: None, settings: Settings) -> None:
    """Locks are waited for as long as a test may need."""
    settings.CONSUMER_LOCK_TIMEOUT = 60
    settings.CONSUMER_STATEMENT_TIMEOUT = 60


def outcomes(logs: Logs) -> dict[int, str]:
    """What became of each version."""
    return {line["version"]: line["event"] for line in logs if "version" in line}


def meet(*targets: Callable[[], object]) -> None:
    """Start `targets` one after another while somebody holds the chat of LEAD; then let them go in that order."""
    with racing() as start:
        with holding("SELECT FROM messenger.chats WHERE lead_id = %s FOR UPDATE", LEAD):
            running = []
            for number, target in enumerate(targets, start=1):
                running.append(start(target))
                wait_for_blocked(number)
        for each in running:
            each.result(60)


@pytest.mark.parametrize("order", [(6, 7), (7, 6)], ids=["older first", "newer first"])
def test_concurrent_edits_end_at_the_newer_version(order: Sequence[int], logs: Logs) -> None:
    """Конкурентная правка: выигрывает последняя по version-guard, проигравшая перечитывает, состав не затирается."""
    open_chat(LEAD, {ANNA: "Executor"})
    rosters = {6: {ANNA: "Executor", BORIS: "Lawyer"}, 7: {ANNA: "Executor", VERA: "CoAgent"}}
    meet(
        *(lambda version=version: deliver(crm.lead_participants(LEAD, version, rosters[version])) for version in order)
    )
    assert (roster_of(LEAD), version_of(LEAD)) == (rosters[7], 7)
    assert outcomes(logs) == {7: "synced", 6: "synced" if order == (6, 7) else "skipped_stale"}
    assert not DeadLetter.objects.exists()


def test_the_loser_reads_again_what_the_winner_wrote() -> None:
    """The second transaction's difference is to the first one's roster: nobody joins twice, nobody is forgotten."""
    open_chat(LEAD, {ANNA: "Executor"})
    meet(
        lambda: deliver(crm.lead_participants(LEAD, 1, {ANNA: "Executor", BORIS: "Lawyer"})),
        lambda: deliver(crm.lead_participants(LEAD, 2, {BORIS: "Executor", VERA: "Lawyer"})),
    )
    assert feed_of(LEAD, after=2) == [
        ("ParticipantJoined", BORIS, "Lawyer", None),
        ("ParticipantLeft", ANNA, None, "Executor"),
        ("ParticipantJoined", VERA, "Lawyer", None),
        ("ParticipantRoleChanged", BORIS, "Executor", "Lawyer"),
    ]


def test_trial_15_the_same_record_at_two_consumers_is_applied_once(logs: Logs, metrics: Metrics) -> None:
    """Twins: the loser is a quiet no-op; one set of facts."""
    open_chat(LEAD, {ANNA: "Executor"})
    twin = crm.record(crm.lead_participants(LEAD, 1, {ANNA: "Executor", BORIS: "Lawyer"}))
    meet(lambda: deliver(twin), lambda: deliver(twin))
    assert feed_of(LEAD, after=2) == [("ParticipantJoined", BORIS, "Lawyer", None)]
    told = [line["event"] for line in logs if line.get("lead_id") == LEAD and "version" in line]
    assert sorted(told) == ["skipped_duplicate", "synced"]  # each tells of itself after its commit, in any order
    assert metrics("messenger_participants_added_total") == 1
    assert not [line for line in logs if line["event"] in ("failed", "message_id_reused")]


def test_one_message_id_at_two_leads_at_once_is_applied_to_one(logs: Logs) -> None:
    """A lost race for the idempotency key is a conflict: tried again, the second finds it processed and flags it."""
    other = crm.new_id()
    for lead in (LEAD, other):
        open_chat(lead, {ANNA: "Executor"})
    message_id = crm.new_id()
    with racing() as start, Gate() as gate, trigger("processed_messages", "AFTER INSERT", gate.halt):
        first = start(lambda: deliver(crm.lead_participants(LEAD, 1, {BORIS: "Executor"}, MessageId=message_id)))
        gate.wait_for_somebody()
        second = start(lambda: deliver(crm.lead_participants(other, 1, {BORIS: "Executor"}, MessageId=message_id)))
        wait_for_blocked(2)
        gate.open()
        first.result(60)
        second.result(60)
    assert roster_of(LEAD) == {BORIS: "Executor"}
    assert (roster_of(other), version_of(other)) == ({ANNA: "Executor"}, None)
    events = [line["event"] for line in logs]
    assert events.count("transaction_tried_again") == 1
    assert events.count("message_id_reused") == 1
    assert not DeadLetter.objects.exists()


def test_batches_with_the_same_chats_in_opposite_order_do_not_lock_each_other_out(logs: Logs) -> None:
    """«Chats are locked in id order»: the second waits for the first, nobody is chosen as a deadlock's victim."""
    leads = [crm.new_id() for _ in range(6)]
    deliver_created(*(crm.lead_created(lead, {ANNA: "Executor"}) for lead in leads))
    middle = Chat.objects.order_by("id")[3].lead_id

    def batch(version: int, order: Sequence[str]) -> None:
        deliver(*(crm.lead_participants(lead, version, {BORIS: "Executor"}) for lead in order))

    with racing() as start:
        with holding("SELECT FROM messenger.chats WHERE lead_id = %s FOR UPDATE", middle):
            running = [start(lambda: batch(1, leads)), start(lambda: batch(2, leads[::-1]))]
            wait_for_blocked(2)
        for each in running:
            each.result(60)
    assert [roster_of(lead) for lead in leads] == [{BORIS: "Executor"}] * 6
    assert [version_of(lead) for lead in leads] == [2] * 6
    assert not [line for line in logs if line["event"] == "transaction_tried_again"]


def test_a_batch_is_one_transaction_to_everybody_else() -> None:
    """Nobody sees half a batch: while its last write waits, none of its rosters can be seen."""
    leads = [crm.new_id() for _ in range(3)]
    deliver_created(*(crm.lead_created(lead, {ANNA: "Executor"}) for lead in leads))
    with racing() as start, Gate() as gate, trigger("processed_messages", "BEFORE INSERT", gate.halt):
        running = start(lambda: deliver(*(crm.lead_participants(lead, 1, {BORIS: "Executor"}) for lead in leads)))
        gate.wait_for_somebody()
        assert [roster_of(lead) for lead in leads] == [{ANNA: "Executor"}] * 3
        gate.open()
        running.result(60)
    assert [roster_of(lead) for lead in leads] == [{BORIS: "Executor"}] * 3
