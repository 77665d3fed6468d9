"""`manage.py reenqueue_provisions`, and where a provision stands: what people are told is what the job does."""

import io
import itertools
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from demo.servers.ports import free_port
from provisioning import reenqueue
from provisioning.models import DealChatProvision
from provisioning.options import RetryOptions
from provisioning.retry import due
from provisioning.standing import Standing, condition, standing_of, with_standing
from tests.conftest import database_url
from tests.support import provisions
from tests.support.message_factories import DealChatProvisionFactory
from tests.support.races import holding
from tests.support.triggers import trigger
from tests.support.workers import Worker

pytestmark = pytest.mark.usefixtures("tables")

HOLD = "SELECT FROM messenger.deal_chat_provisions WHERE id = %s FOR UPDATE"


def run(*arguments: object) -> str:
    out = io.StringIO()
    call_command("reenqueue_provisions", *map(str, arguments), stdout=out)
    return out.getvalue()


def attempts() -> dict[uuid.UUID, int]:
    return dict(DealChatProvision.objects.values_list("deal_id", "attempts"))


class TestStanding:
    """The filters of the admin: ready, waiting, stuck, poison."""

    def test_each_row_has_one_standing_and_the_job_takes_exactly_what_is_due(self) -> None:
        for status, tries, due_in, idle in itertools.product(
            ("Provisioning", "Failed", "Ready"), (0, 9, 10, 11), (-100, 500), (60, 200, 400, 5000)
        ):
            provisions.add(status=status, attempts=tries, due_in=due_in, idle=idle)
        options = RetryOptions.from_settings()
        rows = list(with_standing(DealChatProvision.objects.all(), options))
        filtered = {each: set(DealChatProvision.objects.filter(condition(each, options))) for each in Standing}
        assert sum(map(len, filtered.values())) == len(rows) == 96
        for row in rows:
            assert row in filtered[standing_of(row)]
        taken = {row.pk for row in rows if (at := vars(row)["taken_up_at"]) and at <= vars(row)["database_now"]}
        with connection.cursor() as cursor:
            assert taken == set(due(cursor, options, provisions.run_of_now(), [])) != set()
        never = {row.pk for row in rows if vars(row)["taken_up_at"] is None}
        assert never == {row.pk for row in filtered[Standing.POISON] | filtered[Standing.READY]}

    def test_a_row_counts_as_stuck_from_stuck_after_on(self) -> None:
        options = RetryOptions.from_settings()
        row = provisions.add(status="Provisioning", idle=options.stuck_after - 30)
        rows = with_standing(DealChatProvision.objects.all(), options)
        assert standing_of(rows.get()) is Standing.WAITING
        DealChatProvision.objects.update(updated_at=F("updated_at") - timedelta(seconds=30))
        assert standing_of(rows.get(pk=row.pk)) is Standing.STUCK


class TestCommand:
    """The same as in the admin, from a shell: poison rows only, and said of each row."""

    def test_deals_by_id(self) -> None:
        poison, upper = (DealChatProvisionFactory.create(poison=True) for _ in range(2))
        other, waiting = DealChatProvisionFactory.create(poison=True), DealChatProvisionFactory.create()
        ready = DealChatProvisionFactory.create(ready=True)
        deals = (poison.deal_id, str(upper.deal_id).upper())
        out = run("--deal", *deals, "--deal", waiting.deal_id, ready.deal_id, poison.deal_id)
        for line in (
            f"deal {poison.deal_id}: re-enqueued (attempts 10 -> 0, due now)",
            f"deal {upper.deal_id}: re-enqueued (attempts 10 -> 0, due now)",
            f"deal {waiting.deal_id}: left alone (waiting, and tried again by itself)",
            f"deal {ready.deal_id}: left alone (its chat is ready)",
            "2 re-enqueued",
        ):
            assert out.splitlines().count(line) == 1
        assert attempts() == {
            poison.deal_id: 0,
            upper.deal_id: 0,
            other.deal_id: 10,
            waiting.deal_id: 1,
            ready.deal_id: 1,
        }
        after = DealChatProvision.objects.get(pk=poison.pk)
        assert (after.status, after.row_version, after.last_error) == ("Failed", 1, poison.last_error)
        assert DealChatProvision.objects.filter(pk=poison.pk, next_attempt_at__lte=Now()).exists()

    def test_all_poison_in_steps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reenqueue, "STEP", 3)
        DealChatProvisionFactory.create_batch(8, poison=True)
        waiting = DealChatProvisionFactory.create()
        out = run("--all-poison")
        assert out.count("(attempts 10 -> 0, due now)") == 8
        assert "8 re-enqueued" in out
        assert str(waiting.deal_id) not in out
        assert sorted(attempts().values()) == [0] * 8 + [1]
        assert run("--all-poison") == "0 re-enqueued\n"

    @pytest.mark.parametrize("which", ["--deal", "--all-poison"])
    def test_a_dry_run_only_says(self, which: str) -> None:
        row = DealChatProvisionFactory.create(poison=True)
        before = provisions.everything()
        out = run(which, *([row.deal_id] if which == "--deal" else []), "--dry-run")
        assert f"deal {row.deal_id}: would be re-enqueued (attempts 10 -> 0, due now)" in out
        assert "1 would be re-enqueued" in out
        assert provisions.everything() == before

    @pytest.mark.parametrize("bad", ["junk", "12", "", "{}"])
    def test_what_is_no_id_or_unknown_changes_nothing(self, bad: str) -> None:
        row = DealChatProvisionFactory.create(poison=True)
        with pytest.raises(CommandError, match="is not the id of a deal"):
            run("--deal", row.deal_id, f"x{bad}")
        unknown = uuid.uuid4()
        with pytest.raises(CommandError, match=f"no provision of deal {unknown}; nothing was changed"):
            run("--deal", row.deal_id, unknown)
        assert attempts() == {row.deal_id: 10}

    def test_a_row_the_job_holds_is_reported_busy(self) -> None:
        held, free = DealChatProvisionFactory.create(poison=True), DealChatProvisionFactory.create(poison=True)
        out = io.StringIO()
        with holding(HOLD, held.pk), pytest.raises(CommandError, match="1 could not be looked at"):
            call_command("reenqueue_provisions", "--all-poison", stdout=out)
        assert f"deal {held.deal_id}: busy" in out.getvalue()
        assert attempts() == {held.deal_id: 10, free.deal_id: 0}

    @pytest.mark.parametrize("arguments", [[], ["--all-poison", "--deal", str(uuid.uuid4())]])
    def test_either_deals_or_all(self, arguments: list[str]) -> None:
        with pytest.raises(CommandError):
            run(*arguments)


class TestProcess:
    """Exit codes, and one sentence."""

    def test_done_then_unknown_then_away(self) -> None:
        row = DealChatProvisionFactory.create(poison=True)
        here = {"DATABASE_URL": database_url()}
        away = {"DATABASE_URL": f"postgresql://messenger@127.0.0.1:{free_port()}/messenger"}
        expected: list[tuple[dict[str, Any], str, int, str]] = [
            (here, str(row.deal_id), 0, "1 re-enqueued"),
            (here, "junk", 1, "'junk' is not the id of a deal (a UUID); nothing was changed."),
            (away, str(row.deal_id), 1, "PostgreSQL cannot be used now"),
        ]
        for env, deal, code, says in expected:
            with Worker("reenqueue_provisions", "--deal", deal, env=env) as worker:
                assert worker.wait() == code
                assert says in worker.output
                assert "Traceback" not in worker.output
                assert code == 0 or worker.output.count("\n") == 1
        assert attempts() == {row.deal_id: 0}


def test_what_was_failed_for_good_becomes_ready_and_crm_hears_both() -> None:
    """Runbook «Poison-строка»: mend the cause, re-enqueue by hand, and the job brings the row to Ready."""
    row = provisions.add(attempts=9, roster=provisions.people("Executor"))
    with trigger("chats", "BEFORE INSERT", "RAISE EXCEPTION 'no' USING ERRCODE = 'check_violation';"):
        assert provisions.run() is not None
    assert provisions.statuses_of(row.deal_id) == ["Failed"]
    assert provisions.run() is not None
    assert "1 re-enqueued" in run("--all-poison")
    assert provisions.run() is not None
    assert provisions.statuses_of(row.deal_id) == ["Failed", "Ready"]
    assert DealChatProvision.objects.get().attempts == 1
