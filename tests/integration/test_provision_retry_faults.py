"""The retry job against refusals, conflicts and lost connections, row by row (trials 3, 10, 17 and 20)."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection
from structlog.testing import capture_logs

from chats import opening
from chats.models import Chat
from chats.opening import ChatCreated
from messenger.backoff import Backoff
from provisioning.models import DealChatProvision
from provisioning.options import RetryOptions
from provisioning.reenqueue import Outcome, reenqueue_these
from provisioning.retry import Result
from tests.support import provisions
from tests.support.background import in_background
from tests.support.triggers import LOSE_CONNECTION, Gate, constraint, own_connection, trigger

pytestmark = pytest.mark.usefixtures("tables")

IF_BROKEN = "IF NEW.title = 'Broken' THEN {} END IF;"


def _statuses() -> dict[str, str]:
    return dict(DealChatProvision.objects.values_list("title", "status"))


@contextmanager
def _refusal_by_the_domain(title: str, error: Exception) -> Iterator[None]:
    def refuse(fact: ChatCreated) -> None:
        if fact.opening.title == title:
            raise error

    heard = opening.CHAT_CREATED_SUBSCRIBERS
    opening.CHAT_CREATED_SUBSCRIBERS = (*heard, refuse)
    try:
        yield
    finally:
        opening.CHAT_CREATED_SUBSCRIBERS = heard


class TestMembershipStays:
    """A retry never undoes a later change of membership (design, section 6)."""

    def test_no_one_is_added_once_crm_has_sent_a_roster(self) -> None:
        there, gone = provisions.people("Executor"), provisions.people("Lawyer")
        row = provisions.add(roster={**there, **gone})
        chat = provisions.add_chat(row.deal_id, version=3, roster=there)
        provisions.run()
        assert provisions.roster_of(row.deal_id) == there
        assert provisions.feed_of(row.deal_id) == ["DealChatProvisioned"]
        (event,) = provisions.events_of(row.deal_id)
        assert (event["Payload"]["Status"], event["Payload"]["ChatId"]) == ("Ready", str(chat.id))
        assert Chat.objects.get().deal_member_version == 3


class TestReenqueue:
    """«Ручной re-enqueue» of the runbook, while the job is at work."""

    def test_the_job_holds_the_row(self) -> None:
        """The last attempt is under way: the person is told so, waits for nothing, and changes nothing."""
        row = provisions.add(attempts=9)
        with Gate() as gate, trigger("chats", "BEFORE INSERT", f"{gate.halt} RAISE EXCEPTION 'no';"):
            job = in_background(lambda: provisions.attempt_now(row))
            gate.wait_for_somebody()
            (verdict,) = reenqueue_these(wanted={row.id: None}, options=RetryOptions.from_settings())
            gate.open()
            assert job.result(30).result is Result.POISON
        assert verdict.outcome is Outcome.BUSY
        assert provisions.statuses_of(row.deal_id) == ["Failed"]
        assert DealChatProvision.objects.get().attempts == 10

    def test_from_poison_to_ready(self) -> None:
        """Attempts begin anew, and crm, which had Failed, gets Ready after it."""
        row = provisions.add(attempts=9)
        with constraint("chats", "title <> 'Object 1'"):
            provisions.run()
        stale = DealChatProvision.objects.get().row_version - 1
        options = RetryOptions.from_settings()
        (verdict,) = reenqueue_these(wanted={row.id: stale}, options=options)
        assert verdict.outcome is Outcome.CHANGED  # another row than the one that was confirmed
        (verdict,) = reenqueue_these(wanted={row.id: stale + 1}, options=options)
        assert verdict.outcome is Outcome.REENQUEUED
        provisions.run()
        assert provisions.statuses_of(row.deal_id) == ["Failed", "Ready"]
        after = DealChatProvision.objects.get()
        assert (after.status, after.attempts, after.last_error) == ("Ready", 1, None)


class TestStuckAndExhausted:
    """A row stuck in Provisioning with its attempts used up is terminalised as well, never forgotten."""

    def test_terminal_with_its_event(self) -> None:
        row = provisions.add(status="Provisioning", attempts=10, idle=400, roster=provisions.people("Executor"))
        with capture_logs() as logs:
            tally = provisions.run()
        assert tally is not None and tally.failed == 1
        after = DealChatProvision.objects.get()
        assert (after.status, after.attempts) == ("Failed", 10)
        assert after.last_error is not None and "no attempts left" in after.last_error
        assert provisions.statuses_of(row.deal_id) == ["Failed"]
        assert Chat.objects.count() == 0
        assert [line["event"] for line in logs if line["log_level"] == "error"] == ["provision_failed"]
        before = provisions.everything()
        provisions.make_due()
        provisions.run()
        assert provisions.statuses_of(row.deal_id) == ["Failed"]
        assert len(provisions.everything()[0]) == len(before[0])


class TestTenRows:
    """Trial 20: the fourth of ten rows can not be done."""

    @pytest.fixture(autouse=True)
    def ten_rows(self, tables: None) -> None:
        for place in range(10):
            title = "Broken" if place == 3 else f"Object {place}"
            provisions.add(title=title, due_in=-20 + place, roster=provisions.people("Executor"))

    @staticmethod
    def _broken() -> DealChatProvision:
        return DealChatProvision.objects.get(title="Broken")

    def _nine_are_done(self) -> None:
        statuses = _statuses()
        assert statuses.pop("Broken") == "Failed"
        assert set(statuses.values()) == {"Ready"} and len(statuses) == 9

    def test_a_check_constraint(self) -> None:
        with constraint("chats", "title <> 'Broken'"):
            tally = provisions.run(max_attempts=3)
            assert tally is not None and (tally.provisioned, tally.retried) == (9, 1)
            self._nine_are_done()
            broken = self._broken()
            assert (broken.attempts, broken.last_error) == (1, "CheckViolation 23514")
            assert broken.next_attempt_at - broken.updated_at >= timedelta(seconds=120)
            for _ in range(2):
                provisions.make_due()
                provisions.run(max_attempts=3)
        assert self._broken().attempts == 3
        assert provisions.statuses_of(self._broken().deal_id) == ["Failed"]

    def test_no_hot_loop(self) -> None:
        """However short the backoff, one run attempts a row once: it «остаётся на следующий цикл»."""
        with constraint("chats", "title <> 'Broken'"):
            provisions.run(backoff=Backoff(base=1e-6, cap=1e-6), batch_size=1)
        assert self._broken().attempts == 1

    @pytest.mark.parametrize(
        ("text", "start"),
        [
            ("\x00 in a name", "ValueError: \\u0000 in a name"),
            ("😀" * 10_000, "ValueError: 😀😀"),
            ("\ud800", "ValueError"),
        ],
        ids=["U+0000", "10 kB of emoji", "half a surrogate pair"],
    )
    def test_an_error_whose_text_the_column_cannot_hold(self, text: str, start: str) -> None:
        """Trials 3 and 10: the failure path does not fail on the same text."""
        with _refusal_by_the_domain("Broken", ValueError(text)), capture_logs() as logs:
            provisions.run()
        self._nine_are_done()
        last_error = self._broken().last_error
        assert last_error is not None and last_error.startswith(start)
        assert len(last_error) <= 512 and "\x00" not in last_error
        (line,) = [line for line in logs if line["event"] == "provision_retry"]
        assert (line["error_code"], line["attempts"]) == ("ValueError", 1)

    def test_the_bookkeeping_itself_is_refused(self) -> None:
        """What can not even be counted is left as it was, loudly, and keeps no other row from its turn."""
        before = DealChatProvision.objects.filter(title="Broken").values().get()
        body = IF_BROKEN.format("RAISE EXCEPTION 'no';")
        with trigger("deal_chat_provisions", "BEFORE UPDATE", body), capture_logs() as logs:
            tally = provisions.run(batch_size=3)
        self._nine_are_done()
        assert tally is not None and tally.passed == [before["id"]]
        assert DealChatProvision.objects.filter(title="Broken").values().get() == before
        (line,) = [line for line in logs if line["event"] == "provision_passed_over"]
        assert (line["log_level"], line["error_code"]) == ("error", "RaiseException P0001")
        assert any("settle" in frame for frame in line["frames"])

    def test_a_member_nobody_can_read(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE messenger.deal_chat_provision_members AS member SET role = 'Nobody' "
                "FROM messenger.deal_chat_provisions AS row WHERE row.id = provision_id AND title = 'Broken'"
            )
        tally = provisions.run()
        self._nine_are_done()
        assert tally is not None and tally.provisioned == 9

    def test_connection_lost(self) -> None:
        """Infrastructure: the row is untouched and not taken again in this run; the others are done."""
        before = DealChatProvision.objects.filter(title="Broken").values().get()
        body = IF_BROKEN.format(LOSE_CONNECTION)
        with trigger("chats", "AFTER INSERT", body), capture_logs() as logs:
            tally = provisions.run(batch_size=3)
        self._nine_are_done()
        assert tally is not None and (tally.provisioned, tally.passed) == (9, [before["id"]])
        assert DealChatProvision.objects.filter(title="Broken").values().get() == before
        assert [line["log_level"] for line in logs if line["event"] == "provision_passed_over"] == ["warning"]
        provisions.run()
        assert set(_statuses().values()) == {"Ready"}

    def test_a_lock_that_is_not_let_go(self, settings: pytest.FixtureRequest) -> None:
        """A lock timeout counts as infrastructure once the tries are spent: no attempt is counted for it."""
        settings.CONSUMER_LOCK_TIMEOUT = 1  # type: ignore[attr-defined]
        broken = self._broken()
        chat = provisions.add_chat(broken.deal_id)
        with own_connection() as session, session.transaction():
            session.execute("SELECT FROM messenger.chats WHERE id = %s FOR UPDATE", [chat.id])
            provisions.run()
        self._nine_are_done()
        assert (self._broken().attempts, self._broken().last_error) == (0, None)


class TestConflicts:
    """A conflict is tried again whole, at most three times; then it counts as a failed attempt."""

    DEADLOCK = "RAISE EXCEPTION 'deadlock' USING ERRCODE = 'deadlock_detected';"

    @pytest.fixture(autouse=True)
    def counter(self, tables: None) -> Iterator[None]:
        with connection.cursor() as cursor:
            cursor.execute("CREATE SEQUENCE messenger.test_tries")
        yield
        with connection.cursor() as cursor:
            cursor.execute("DROP SEQUENCE messenger.test_tries")

    def _tries(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT nextval('messenger.test_tries') - 1")
            return int(cursor.fetchone()[0])

    def test_the_third_try(self) -> None:
        row = provisions.add(roster=provisions.people("Executor"))
        body = f"IF nextval('messenger.test_tries') < 3 THEN {self.DEADLOCK} END IF;"
        with trigger("chats", "BEFORE INSERT", body):
            provisions.run()
        after = DealChatProvision.objects.get()
        assert (after.status, after.attempts, after.row_version) == ("Ready", 1, row.row_version + 1)
        assert provisions.statuses_of(row.deal_id) == ["Ready"]

    def test_every_try(self) -> None:
        row = provisions.add()
        with trigger("chats", "BEFORE INSERT", f"PERFORM nextval('messenger.test_tries'); {self.DEADLOCK}"):
            provisions.run()
        after = DealChatProvision.objects.get()
        assert (after.status, after.attempts, after.last_error) == ("Failed", 1, "DeadlockDetected 40P01")
        assert self._tries() == 3
        assert provisions.events_of(row.deal_id) == []

    def test_while_nothing_but_the_claim_was_made(self) -> None:
        """A conflict outside of the attempt leaves the row alone, and the job alive."""
        row = provisions.add()
        before = provisions.everything()
        body = "RAISE EXCEPTION 'race' USING ERRCODE = 'serialization_failure';"
        with trigger("deal_chat_provisions", "BEFORE UPDATE", body), capture_logs() as logs:
            tally = provisions.run()
        assert tally is not None and tally.passed == [row.id]
        assert provisions.everything() == before
        assert [line["log_level"] for line in logs if line["event"] == "provision_passed_over"] == ["warning"]
