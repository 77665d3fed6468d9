"""Trials 11, 12, 15 and 16: the lead consumer and its twin, a slow database, one that is away, and every order."""

from collections.abc import Iterator

import pytest

from chats.models import Chat
from messenger.topics import LEAD_PARTICIPANTS_CHANGED as TOPIC
from outbox.models import DeadLetter, ProcessedMessage
from tests.support import crm
from tests.support.broker import Broker
from tests.support.consumers import LOCK_CHAT, Start, resend, send, two_partitions, wait_applied, wait_no_lag
from tests.support.groups import members, wait_for_members, wait_until_left
from tests.support.leads import check_feeds, feed_of, open_chat, roster_of
from tests.support.own_servers import OwnPostgres
from tests.support.races import holding, wait_for_blocked
from tests.support.triggers import Gate, trigger
from tests.support.waiting import wait_until
from tests.support.workers import Worker

ANNA, BORIS = crm.new_id(), crm.new_id()
both_protocols = pytest.mark.parametrize("protocol", ["consumer", "classic"])


@pytest.fixture
def lead(tables: None) -> Iterator[str]:
    """A lead with a chat of Anna's; at the end its feed must replay to its roster."""
    lead = crm.new_id()
    open_chat(lead, {ANNA: "Executor"})
    yield lead
    check_feeds()


@both_protocols
def test_a_group_shares_its_partitions_and_takes_over(consume: Start, broker: Broker, protocol: str) -> None:
    """Both group protocols: alone, with a second member, and alone again; every record applied, all committed."""
    leads = [crm.new_id() for _ in range(12)]
    for lead in leads:
        open_chat(lead, {ANNA: "Executor"})

    def follow(version: int) -> None:
        for number, lead in enumerate(leads):
            send(broker, lead, version, {ANNA: "Executor", BORIS: "Lawyer"}, partition=number % 3)
        wait_until(lambda: not Chat.objects.exclude(lead_member_version=version).exists(), what=f"all at {version}")
        wait_no_lag(broker)

    first = consume(protocol)
    follow(1)
    second = consume(protocol)
    wait_for_members(broker, TOPIC, 2)
    follow(2)
    assert first.find("synced", version=2)
    assert second.find("synced", version=2)
    assert second.terminate() == 0
    wait_for_members(broker, TOPIC, 1)
    follow(3)
    assert first.terminate() == 0
    wait_until_left(broker, TOPIC)
    assert not DeadLetter.objects.exists()
    check_feeds()


class TestTrial11Slow:
    """A chat row is held past max.poll.interval; then it is let go."""

    def test_a_lock_costs_nobody_a_place(self, consume: Start, broker: Broker, lead: str) -> None:
        workers = [consume(CONSUMER_MAX_POLL_INTERVAL="4", CONSUMER_LOCK_TIMEOUT="1.1") for _ in range(2)]
        partition, _ = two_partitions(broker)
        shares = members(broker, TOPIC)

        def exceeded() -> int:
            return sum(len(worker.find("max_poll_interval_exceeded")) for worker in workers)

        before = exceeded()
        with holding(LOCK_CHAT, lead):
            send(broker, lead, 1, {BORIS: "Executor"}, partition=partition)
            # Two rounds of three tries of a second each: well past the interval of 4 s.
            wait_until(lambda: any(worker.find("infrastructure_away", tries=2) for worker in workers))
        wait_applied(lead, 1)
        wait_no_lag(broker)
        assert members(broker, TOPIC) == shares
        assert exceeded() == before
        self.check_once(lead, workers)

    @both_protocols
    def test_a_lost_place_is_taken_again(self, consume: Start, broker: Broker, lead: str, protocol: str) -> None:
        """One statement takes longer than the interval, so that no poll between tries keeps the place."""
        workers = [consume(protocol, CONSUMER_MAX_POLL_INTERVAL="4", CONSUMER_LOCK_TIMEOUT="3.5") for _ in range(2)]
        partition, _ = two_partitions(broker)
        with trigger(
            "chat_events", "BEFORE INSERT", "IF NEW.type = 'ParticipantLeft' THEN PERFORM pg_sleep(6); END IF;"
        ):
            send(broker, lead, 1, {BORIS: "Executor"}, partition=partition)
            wait_until(lambda: any(worker.find("max_poll_interval_exceeded") for worker in workers))
            wait_applied(lead, 1)
        wait_for_members(broker, TOPIC, 2)
        wait_no_lag(broker)
        self.check_once(lead, workers)
        # Whoever had lost its place is at work again: every partition is read.
        for each, version in zip(two_partitions(broker), (2, 3), strict=True):
            send(broker, lead, version, {BORIS: "Executor"}, partition=each)
            wait_applied(lead, version)

    @staticmethod
    def check_once(lead: str, workers: list[Worker]) -> None:
        """No exit, no dead letter, one set of facts."""
        assert [worker.process.poll() for worker in workers] == [None, None]
        assert not DeadLetter.objects.exists()
        assert sorted(kind for kind, *_ in feed_of(lead, after=2)) == ["ParticipantJoined", "ParticipantLeft"]
        assert sum(len(worker.find("synced", version=1)) for worker in workers) == 1


class TestTrial12Infrastructure:
    """PostgreSQL stops, a record each of two leads comes on one partition, PostgreSQL starts again: INFRA-OK."""

    def test_waited_out(self, consume: Start, broker: Broker, own_postgres: OwnPostgres) -> None:
        first, second = own_postgres.open_chats(2)
        waits = {"INFRASTRUCTURE_BACKOFF_BASE": "0.3", "INFRASTRUCTURE_BACKOFF_CAP": "60"}
        worker = consume(DATABASE_URL=own_postgres.url, **waits)
        wait_for_members(broker, TOPIC, 1)
        own_postgres.server.stop()
        send(broker, first, 6, {ANNA: "Executor"}, partition=1)
        send(broker, second, 1, {ANNA: "Executor"}, partition=1)
        pauses = [worker.wait_for("infrastructure_away", tries=tries)["delay_s"] for tries in (1, 2, 3)]
        assert all(low <= pause <= 1.1 * low for low, pause in zip((0.3, 0.6, 1.2), pauses, strict=True))
        assert broker.committed(TOPIC)[1] == 0
        own_postgres.server.start()
        worker.wait_for("infrastructure_back")
        wait_until(lambda: own_postgres.versions([first, second]) == {first: 6, second: 1})
        wait_no_lag(broker)
        assert [line["lead_id"] for line in worker.find("synced")] == [first, second]
        assert own_postgres.dead_letters() == 0
        assert worker.process.poll() is None

    def test_nothing_to_do(self, consume: Start, broker: Broker, own_postgres: OwnPostgres) -> None:
        """No record comes while it is away: the pauses grow all the same, and it is not back before it answers."""
        worker = consume(DATABASE_URL=own_postgres.url)
        wait_for_members(broker, TOPIC, 1)
        own_postgres.server.stop()
        worker.wait_for("infrastructure_away", tries=4)
        assert not worker.find("infrastructure_back")
        own_postgres.server.start()
        worker.wait_for("infrastructure_back")

    def test_killed_while_it_waits(self, consume: Start, broker: Broker, own_postgres: OwnPostgres) -> None:
        first, second = own_postgres.open_chats(2)
        worker = consume(DATABASE_URL=own_postgres.url)
        send(broker, first, 5, {ANNA: "Executor"}, partition=1)
        wait_until(lambda: own_postgres.versions([first]) == {first: 5})
        wait_no_lag(broker)
        own_postgres.server.kill()
        send(broker, first, 6, {BORIS: "Executor"}, partition=1)
        send(broker, second, 1, {ANNA: "Executor"}, partition=1)
        worker.wait_for("infrastructure_away", tries=3)
        worker.kill()
        assert broker.committed(TOPIC)[1] == 1
        own_postgres.server.start()
        assert own_postgres.versions([first, second]) == {first: 5, second: 0}
        again = consume(DATABASE_URL=own_postgres.url)
        wait_until(lambda: own_postgres.versions([first, second]) == {first: 6, second: 1})
        wait_no_lag(broker)
        assert [line["version"] for line in again.find("synced")] == [6, 1]
        assert own_postgres.dead_letters() == 0


class TestTrial15Twins:
    """The same message more than once: at one moment, after a kill, and with another body."""

    def test_the_same_bytes_at_the_same_moment(self, consume: Start, broker: Broker, lead: str) -> None:
        workers = [consume(), consume()]
        value = crm.encode(crm.lead_participants(lead, 1, {BORIS: "Executor"}))
        partitions = two_partitions(broker)
        with holding(LOCK_CHAT, lead):
            for partition in partitions:
                resend(broker, value, lead, partition=partition)
            wait_for_blocked(2)
        wait_no_lag(broker)
        outcomes = [line["event"] for worker in workers for line in worker.events if line.get("lead_id") == lead]
        assert sorted(outcomes) == ["skipped_duplicate", "synced"]
        assert len(feed_of(lead, after=2)) == 2
        assert not DeadLetter.objects.exists()
        assert not any(worker.find("failed") or worker.find("infrastructure_away") for worker in workers)

    def test_killed_just_after_the_idempotency_row(self, consume: Start, broker: Broker, lead: str) -> None:
        with Gate() as gate, trigger("processed_messages", "AFTER INSERT", gate.halt):
            worker = consume(CONSUMER_LOCK_TIMEOUT="60")
            send(broker, lead, 1, {BORIS: "Executor"})
            gate.wait_for_somebody()
            worker.kill()
            gate.open()
            # Its session ends when it has nobody to answer to; nothing of it stays.
            assert not ProcessedMessage.objects.filter(key__startswith="messenger-lead-participants:").exists()
            assert roster_of(lead) == {ANNA: "Executor"}
            assert broker.lag(TOPIC) == 1
            consume()
            wait_applied(lead, 1)
        wait_no_lag(broker)
        assert roster_of(lead) == {BORIS: "Executor"}
        assert len(feed_of(lead, after=2)) == 2

    def test_the_same_id_with_another_body(self, consume: Start, broker: Broker, lead: str) -> None:
        worker = consume()
        message = crm.lead_participants(lead, 1, {BORIS: "Executor"})
        other = crm.lead_participants(lead, 2, {ANNA: "Lawyer"}, MessageId=message["MessageId"])
        for each in (message, other):
            resend(broker, crm.encode(each), lead)
        wait_no_lag(broker)
        worker.wait_for("message_id_reused", message_id=message["MessageId"], lead_id=lead)
        assert worker.metric("messenger_consumer_message_id_reused_total", group=str(TOPIC.group)) == 1
        assert roster_of(lead) == {BORIS: "Executor"}


class TestTrial16Order:
    """v5 {A,B}, v7 {A}, v6 {A,B}, v7 under a new MessageId, v8 {A,B}: B is out after v6; v8 revives the same row."""

    def test_one_after_another(self, consume: Start, broker: Broker, lead: str) -> None:
        """On two partitions, so that two consumers share them; each record has a MessageId of its own."""
        workers = [consume(), consume()]
        partitions = two_partitions(broker)
        both, alone = {ANNA: "Executor", BORIS: "Lawyer"}, {ANNA: "Executor"}
        rows = set()
        for step, (version, roster) in enumerate([(5, both), (7, alone), (6, both), (7, alone), (8, both)]):
            send(broker, lead, version, roster, partition=partitions[step % 2])
            wait_no_lag(broker)
            assert roster_of(lead) == (both if step in (0, 4) else alone)
            rows.add(tuple(Chat.objects.filter(lead_id=lead, participants__user_id=BORIS).values_list("participants")))
        assert len(rows) == 1
        stale = [line["version"] for worker in workers for line in worker.find("skipped_stale")]
        assert sorted(stale) == [6, 7]
        kinds = [kind for kind, user, *_ in feed_of(lead) if user == BORIS]
        assert kinds == ["ParticipantJoined", "ParticipantLeft", "ParticipantJoined"]

    def test_at_the_same_moment(self, consume: Start, broker: Broker, lead: str) -> None:
        workers = [consume(), consume()]
        one, other = two_partitions(broker)
        with holding(LOCK_CHAT, lead):
            send(broker, lead, 6, {ANNA: "Executor", BORIS: "Lawyer"}, partition=one)
            send(broker, lead, 7, {ANNA: "Executor"}, partition=other)
            wait_for_blocked(2)
        wait_no_lag(broker)
        assert roster_of(lead) == {ANNA: "Executor"}
        assert Chat.objects.get(lead_id=lead).lead_member_version == 7
        assert not DeadLetter.objects.exists()
        assert not any(worker.find("infrastructure_away") for worker in workers)
