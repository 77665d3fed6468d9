"""`manage.py resync_lead_rosters`: the newest snapshots of the topic against the chats, shown or applied."""

import io
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer
from django.core.management import CommandError, call_command
from pytest_django.fixtures import Settings

from chats import resync
from chats.models import Chat, ParkedRoster
from messenger.topics import LEAD_CREATED, LEAD_PARTICIPANTS_CHANGED
from outbox.models import DeadLetter, OutboxMessage
from tests.support import crm
from tests.support.broker import Broker
from tests.support.leads import deliver, everything, feed_of, open_chat, roster_of, seats_of, version_of
from tests.support.observing import Ear
from tests.support.races import holding
from tests.support.triggers import own_connection
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.usefixtures("true_feeds")

ANNA, BORIS, VERA = sorted(crm.new_id() for _ in range(3))
BOTH = {ANNA: "Executor", BORIS: "Lawyer"}
Roster = Mapping[str, str]


def run(*arguments: str) -> list[str]:
    """Run the command in this process; the lines it says."""
    out = io.StringIO()
    call_command("resync_lead_rosters", *arguments, stdout=out)
    return out.getvalue().splitlines()


def summary(records: int, unreadable: int, **leads: int) -> str:
    """The last line: how many records and leads of each verdict."""
    counts = {"changed": 0, "equal": 0, "newer": 0, "chatless": 0} | leads
    changed = f"{counts.pop('would', 0)} would be changed" if "would" in counts else f"{counts['changed']} changed"
    return (
        f"{records} records read, {unreadable} unreadable, {sum(leads.values())} leads: {changed}, "
        f"{counts['equal']} equal, {counts['newer']} newer here, {counts['chatless']} without a chat"
    )


@pytest.fixture
def lead(broker: Broker) -> str:
    """A lead whose chat has been opened with Anna and Boris."""
    identifier = crm.new_id()
    open_chat(identifier, BOTH)
    return identifier


@pytest.fixture
def told(broker: Broker) -> Callable[..., dict[str, Any]]:
    """`told(lead, version, roster)`: crm has told the topic so; the message."""

    def tell(lead: str, version: int, roster: Roster, **changes: Any) -> dict[str, Any]:
        message = crm.lead_participants(lead, version, roster, **changes)
        broker.produce(LEAD_PARTICIPANTS_CHANGED, crm.encode(message), key=lead)
        return message

    return tell


Told = Callable[..., dict[str, Any]]


def test_a_chat_is_brought_to_the_newest_snapshot(lead: str, told: Told, ear: Ear) -> None:
    """Whatever the order in the topic: +added, -removed, ~role; feed, version and people online as after a delivery."""
    ear.heard()
    told(lead, 1, {ANNA: "Executor"})
    told(lead, 3, {BORIS: "Executor", VERA: "Lawyer"})
    told(lead, 2, BOTH)
    assert run() == [
        f"lead {lead} v3: different",
        f"  + {VERA} Lawyer",
        f"  - {ANNA} Executor",
        f"  ~ {BORIS} Lawyer -> Executor",
        summary(3, 0, changed=1),
    ]
    assert (roster_of(lead), version_of(lead)) == ({BORIS: "Executor", VERA: "Lawyer"}, 3)
    assert [kind for kind, *_ in feed_of(lead, after=3)] == [
        "ParticipantLeft",
        "ParticipantJoined",
        "ParticipantRoleChanged",
    ]
    assert ear.heard() == [str(Chat.objects.get(lead_id=lead).id)]
    assert run() == [summary(3, 0, equal=1)]


def test_an_equal_version_is_applied(lead: str, told: Told) -> None:
    """The consumer would call it stale; a roster that went wrong at its version is what this command is for."""
    deliver(told(lead, 3, BOTH))
    with own_connection() as somebody:
        somebody.execute("DELETE FROM messenger.participants WHERE user_id = %s", [BORIS])
        somebody.execute("UPDATE messenger.participants SET role = 'Guest' WHERE user_id = %s", [ANNA])
        somebody.execute("DELETE FROM messenger.chat_events WHERE user_id = %s", [BORIS])
        somebody.execute("UPDATE messenger.chat_events SET role = 'Guest', seq = 2 WHERE user_id = %s", [ANNA])
        somebody.execute("UPDATE messenger.chats SET last_seq = 2")
    assert run() == [
        f"lead {lead} v3: different (the chat is at v3)",
        f"  + {BORIS} Lawyer",
        f"  ~ {ANNA} Guest -> Executor",
        summary(1, 0, changed=1),
    ]
    assert (roster_of(lead), version_of(lead)) == (BOTH, 3)


def test_an_older_version_is_never_applied(lead: str, told: Told) -> None:
    """The topic's retention or a lost record: what the chat has is newer and stays."""
    told(lead, 3, {VERA: "Executor"})
    deliver(crm.lead_participants(lead, 5, {ANNA: "Executor"}))
    before = everything()
    assert run() == [f"lead {lead} v3: older than the chat (the chat is at v5)", summary(1, 0, newer=1)]
    assert everything() == before


def test_of_equal_versions_the_first_counts(lead: str, told: Told) -> None:
    """As the consumer has it, to which the second is stale."""
    first, second = told(lead, 3, {ANNA: "Executor"}), told(lead, 3, {BORIS: "Executor"})
    deliver(first, second)
    assert run() == [summary(2, 0, equal=1)]
    assert roster_of(lead) == {ANNA: "Executor"}


def test_a_dry_run_shows_the_same_and_changes_nothing(lead: str, told: Told, ear: Ear) -> None:
    told(lead, 2, {BORIS: "Lawyer", VERA: "Executor"})
    before, _ = everything(), ear.heard()
    shown = run("--dry-run")
    assert shown[-1] == summary(1, 0, would=1)
    assert everything() == before
    assert ear.heard() == []
    applied = run()
    assert applied[:-1] == shown[:-1] == [f"lead {lead} v2: different", f"  + {VERA} Executor", f"  - {ANNA} Executor"]
    assert applied[-1] == summary(1, 0, changed=1)


def test_a_role_this_service_does_not_know_is_shown_as_it_came(lead: str, told: Told) -> None:
    """Kept true though it is no fact of membership; its letters do not reach the terminal raw."""
    deliver(crm.lead_participants(lead, 1, {ANNA: "Overseer", BORIS: "Lawyer"}))
    told(lead, 2, {ANNA: "\x1b[31mWatcher", BORIS: "Watcher"})
    assert run() == [
        f"lead {lead} v2: different (the chat is at v1)",
        f"  ~ {BORIS} Lawyer -> Guest ('Watcher' in crm)",
        f"  ~ {ANNA} Guest ('\\x1b[31mWatcher' in crm)",
        summary(1, 0, changed=1),
    ]
    assert seats_of(lead) == {ANNA: ("Guest", "\x1b[31mWatcher"), BORIS: ("Guest", "Watcher")}


def test_the_version_alone_is_brought_forward(lead: str, told: Told) -> None:
    told(lead, 4, BOTH)
    assert run() == [f"lead {lead} v4: different", summary(1, 0, changed=1)]
    assert version_of(lead) == 4
    assert run() == [summary(1, 0, equal=1)]


def test_one_lead_alone(lead: str, told: Told) -> None:
    other = crm.new_id()
    open_chat(other, BOTH)
    told(lead, 1, {ANNA: "Executor"})
    told(other, 1, {BORIS: "Executor"})
    assert run("--lead", lead.upper()) == [
        f"lead {lead} v1: different",
        f"  - {BORIS} Lawyer",
        summary(2, 0, changed=1),
    ]
    assert (roster_of(lead), roster_of(other)) == ({ANNA: "Executor"}, BOTH)


def test_a_lead_without_a_chat_is_told_of_and_left_alone(told: Told) -> None:
    """Opening is for lead-created; nothing is parked by this command either."""
    lead = crm.new_id()
    told(lead, 1, BOTH)
    assert run() == [f"lead {lead} v1: no chat", summary(1, 0, chatless=1)]
    assert not Chat.objects.exists()
    assert not ParkedRoster.objects.exists()


def test_a_lead_the_topic_does_not_know(lead: str, told: Told) -> None:
    """One sentence, and an exit code that is not 0."""
    told(crm.new_id(), 1, BOTH)
    with pytest.raises(CommandError, match=f"The topic holds no roster of lead {lead}; retention may have removed it"):
        run("--lead", lead)


@pytest.mark.parametrize("wrong", ["7", "{0d7c2b9e-5a41-4f63-9c1e-7b0f2f6a1d11}", str(UUID(int=0))])
def test_a_lead_that_is_no_identifier(wrong: str) -> None:
    with pytest.raises(CommandError, match="--lead"):
        run("--lead", wrong)


def test_what_cannot_be_read_is_counted_and_passed_over(lead: str, told: Told, broker: Broker) -> None:
    """The consumer has dead-lettered it; nothing is dead-lettered a second time."""
    told(lead, 1, {ANNA: "Executor"})
    for value in (b"junk", b"", None, crm.encode(crm.lead_participants(lead, 9, {}))):
        broker.produce(LEAD_PARTICIPANTS_CHANGED, value, key=lead)
    assert run()[-1] == summary(5, 4, changed=1)
    assert (roster_of(lead), version_of(lead)) == ({ANNA: "Executor"}, 1)
    assert not DeadLetter.objects.exists()
    assert not OutboxMessage.objects.exists()


def test_an_empty_topic(broker: Broker) -> None:
    wait_until(lambda: broker.ends(LEAD_PARTICIPANTS_CHANGED), what="the topic of this test is there")
    assert run() == [summary(0, 0)]


def test_the_end_of_the_topic_may_hold_no_record(lead: str, broker: Broker) -> None:
    """A producer with transactions ends each with a marker that nobody is given, and an aborted one gives nothing."""
    name = broker.name(LEAD_PARTICIPANTS_CHANGED)
    producer = Producer({"bootstrap.servers": broker.servers, "transactional.id": f"crm-{lead}"})
    producer.init_transactions(30)
    for version, roster in ((1, {ANNA: "Executor"}), (2, {VERA: "Executor"})):
        producer.begin_transaction()
        producer.produce(name, crm.encode(crm.lead_participants(lead, version, roster)), key=lead)
        if version == 1:
            producer.commit_transaction(30)
        else:
            producer.flush(30)
            producer.abort_transaction(30)
    assert run()[-1] == summary(1, 0, changed=1)
    assert (roster_of(lead), version_of(lead)) == ({ANNA: "Executor"}, 1)


def test_many_leads_in_transactions_of_bounded_size(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is committed stays, whatever becomes of the rest; the leads are told in the order of their ids."""
    monkeypatch.setattr(resync, "CHUNK", 2)
    leads = sorted(crm.new_id() for _ in range(5))
    for lead in reversed(leads):
        open_chat(lead, BOTH)
        told(lead, 1, {VERA: "Executor"})
    lines = run()
    assert [line for line in lines if line.startswith("lead")] == [f"lead {lead} v1: different" for lead in leads]
    assert lines[-1] == summary(5, 0, changed=5)
    assert [roster_of(lead) for lead in leads] == [{VERA: "Executor"}] * 5


def test_a_chat_that_somebody_holds(lead: str, told: Told, settings: Settings) -> None:
    """One sentence that says to run it again, and nothing half done."""
    settings.CONSUMER_LOCK_TIMEOUT = 0.2
    told(lead, 1, {ANNA: "Executor"})
    before = everything()
    with (
        holding("SELECT FROM messenger.chats WHERE lead_id = %s FOR UPDATE", lead),
        pytest.raises(CommandError, match=r"PostgreSQL cannot be used now \(LockNotAvailable 55P03\); run it again"),
    ):
        run()
    assert everything() == before
    assert run()[-1] == summary(1, 0, changed=1)


def test_a_topic_that_is_not_there(broker: Broker, settings: Settings) -> None:
    settings.KAFKA_TOPIC_PREFIX = f"{broker.prefix}nowhere."
    with pytest.raises(CommandError, match=r"Topic .*lead-participants-changed.v1 cannot be read"):
        run()


def test_beside_the_running_consumers(start: Callable[..., Worker], broker: Broker, told: Told) -> None:
    """As a process: a throwaway group that leaves no trace, the consumers' offsets where they were, exit code 0."""
    workers = [start("consume_lead_created"), start("consume_lead_participants")]
    lead = crm.new_id()
    broker.produce(LEAD_CREATED, crm.encode(crm.lead_created(lead, BOTH)), key=lead)
    told(lead, 1, {BORIS: "Executor"})
    wait_until(lambda: Chat.objects.filter(lead_id=lead, lead_member_version=1).exists(), what="version 1 applied")
    wait_until(lambda: broker.lag(LEAD_PARTICIPANTS_CHANGED) == 0, what="offsets committed")
    committed = broker.committed(LEAD_PARTICIPANTS_CHANGED)

    shown = start("resync_lead_rosters", "--dry-run")
    assert shown.wait() == 0
    assert shown.output.splitlines()[-1] == summary(1, 0, equal=1).replace("0 changed", "0 would be changed")
    unknown = start("resync_lead_rosters", "--lead", crm.new_id())
    assert unknown.wait() == 1
    assert "The topic holds no roster of lead" in unknown.output
    assert "Traceback" not in unknown.output

    assert broker.committed(LEAD_PARTICIPANTS_CHANGED) == committed
    groups = broker.admin.list_consumer_groups().result().valid
    assert not [group.group_id for group in groups if group.group_id.startswith("messenger-read")]
    told(lead, 2, {VERA: "Executor"})
    wait_until(lambda: roster_of(lead) == {VERA: "Executor"}, what="the consumers go on")
    assert [worker.terminate() for worker in workers] == [0, 0]
