"""The retry job against itself and against the consumer, at the same moment (trial 18, second half)."""

import threading
from uuid import UUID

import pytest
from django.db import connection
from django.db.models import Max

from chats.models import Chat, ChatEvent
from chats.roster_consumer import DEALS, RosterWork
from messenger.records import Record
from messenger.topics import DEAL_MEMBERS_CHANGED
from provisioning.models import DealChatProvision
from provisioning.options import RetryOptions
from provisioning.retry import Result, attempt
from tests.support import crm, provisions
from tests.support.background import in_background
from tests.support.triggers import Gate, trigger

pytestmark = pytest.mark.usefixtures("tables")


class TestTwoRunnersWithoutTheLock:
    """«При обходе skip-locked не даёт двойного claim; двойная провизия идемпотентна.»"""

    def test_on_the_same_rows(self) -> None:
        """Two runners meet at a barrier before each row: one has it, the other passes."""
        rows = [provisions.add(roster=provisions.people("Executor")) for _ in range(40)]
        options, run = RetryOptions.from_settings(), provisions.run_of_now()
        barrier = threading.Barrier(2, timeout=60)

        def runner() -> list[Result]:
            results = []
            for row in rows:
                barrier.wait()
                results.append(attempt(row.id, options, run).result)
            return results

        first, second = in_background(runner), in_background(runner)
        for pair in zip(first.result(60), second.result(60), strict=True):
            assert sorted(pair) == [Result.PROVISIONED, Result.PASSED]
        provisions.check_each_once(40)
        assert set(DealChatProvision.objects.values_list("attempts", flat=True)) == {1}

    def test_while_one_of_them_is_inside(self) -> None:
        row = provisions.add()
        with Gate() as gate, trigger("chats", "AFTER INSERT", gate.halt):
            inside = in_background(lambda: provisions.attempt_now(row))
            gate.wait_for_somebody()
            assert provisions.attempt_now(row).result is Result.PASSED  # and does not wait for it
            gate.open()
            assert inside.result(30).result is Result.PROVISIONED
        assert provisions.attempt_now(row).result is Result.PASSED
        provisions.check_each_once(1)


class TestAgainstTheConsumer:
    """Trial 18, second half: the deal-members consumer and the job on one chat."""

    ROUNDS = 40

    def test_on_one_chat(self) -> None:
        """No deadlock reaches anybody, no half roster, and no one who left comes back by a retry."""
        users = [crm.new_id() for _ in range(50)]
        row = provisions.add(roster=dict.fromkeys(users, "Lawyer"))
        deal = row.deal_id
        provisions.add_chat(deal)
        barrier = threading.Barrier(2, timeout=60)

        def consume() -> None:
            work = RosterWork(DEALS)
            for version in range(1, self.ROUNDS + 1):
                members = dict.fromkeys(reversed(users[version % 7 :]), "Lawyer")
                record = crm.record(crm.deal_members(str(deal), version, members), topic=DEAL_MEMBERS_CHANGED)
                barrier.wait()
                assert list(work.settle([record]))[-1] == [record]

        def retry() -> list[Result]:
            results = []
            for _ in range(self.ROUNDS):
                _fail_again(deal)
                barrier.wait()
                results.append(provisions.attempt_now(DealChatProvision.objects.get()).result)
            return results

        consumer, job = in_background(consume), in_background(retry)
        consumer.result(120)
        assert set(job.result(120)) == {Result.PROVISIONED}
        assert set(provisions.roster_of(deal)) == set(users[self.ROUNDS % 7 :])
        assert Chat.objects.get().deal_member_version == self.ROUNDS
        assert provisions.statuses_of(deal) == ["Ready"] * self.ROUNDS
        self._feed_has_no_gap()

    @staticmethod
    def _feed_has_no_gap() -> None:
        numbers = ChatEvent.objects.aggregate(last=Max("seq"))["last"]
        assert ChatEvent.objects.count() == numbers == Chat.objects.get().last_seq

    def test_while_the_chat_is_opened(self) -> None:
        """The first roster of crm meets the row the job is at work on: parked or applied, never lost."""
        for _ in range(20):
            row = provisions.add(roster=provisions.people("Executor"))
            later = provisions.people("Lawyer")
            record = crm.record(crm.deal_members(str(row.deal_id), 1, later), topic=DEAL_MEMBERS_CHANGED)
            barrier = threading.Barrier(2, timeout=60)

            def consume(record: Record = record, barrier: threading.Barrier = barrier) -> None:
                barrier.wait()
                list(RosterWork(DEALS).settle([record]))

            consumer = in_background(consume)
            barrier.wait()
            assert provisions.attempt_now(row).result is Result.PROVISIONED
            consumer.result(60)
            assert provisions.roster_of(row.deal_id) == later


def _fail_again(deal: UUID) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE messenger.deal_chat_provisions SET status = 'Failed', next_attempt_at = now(), attempts = 0 "
            "WHERE deal_id = %s",
            [deal],
        )
