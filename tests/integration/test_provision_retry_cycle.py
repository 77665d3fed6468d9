"""A cycle of the retry job: batches in order, an end in time, the schedule of the next attempt (trial 21)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from django.db import connection
from django.db.models import F
from structlog.testing import capture_logs

from outbox.models import OutboxMessage
from provisioning.models import DealChatProvision
from provisioning.options import RetryOptions
from tests.support import provisions
from tests.support.triggers import constraint, trigger

pytestmark = pytest.mark.usefixtures("tables")


def test_batches_in_order_of_next_attempt() -> None:
    """Batch size: BatchSize rows at a time, most overdue first, until nothing is due."""
    rows = [provisions.add(due_in=-each) for each in (3, 9, 1, 7, 5)]
    with capture_logs() as logs:
        provisions.run(batch_size=2)
    assert [line["rows"] for line in logs if line["event"] == "batch_claimed"] == [2, 2, 1]
    wanted = [str(rows[at].deal_id) for at in (1, 3, 4, 0, 2)]
    assert [line["deal_id"] for line in logs if line["event"] == "chat_provisioned"] == wanted
    published = OutboxMessage.objects.order_by("id").values_list("aggregate_id", flat=True)
    assert list(published) == wanted


def test_max_run_duration() -> None:
    """Max duration: a run ends in time, and the next tick does the rest."""
    for each in range(4):
        provisions.add(due_in=-10 + each)
    with trigger("chats", "BEFORE INSERT", "PERFORM pg_sleep(2.2);"):
        tally = provisions.run(max_run_duration=2)
    assert tally is not None and tally.provisioned == 1
    tally = provisions.run()
    assert tally is not None and tally.provisioned == 3


def test_schedule_of_the_next_attempt() -> None:
    """NextAttemptAt = AsOf + backoff(Attempts): base·factor^attempts, within cap and jitter, written with the count."""
    row = provisions.add(attempts=1)
    with constraint("chats", "title <> 'Object 1'"):
        provisions.run()
    after = DealChatProvision.objects.get()
    assert (after.attempts, after.status) == (2, "Failed")
    assert timedelta(seconds=240) <= after.next_attempt_at - after.updated_at <= timedelta(seconds=264)
    assert (after.deal_id, after.row_version) == (row.deal_id, row.row_version + 1)


def test_options_of_the_installation(settings: pytest.FixtureRequest) -> None:
    """ChatProvisionRetryOptions come from the settings, with the defaults of the source document."""
    options = RetryOptions.from_settings()
    assert replace(options, backoff=None) == RetryOptions(60, 100, 10, 180, 300, 300, None)  # type: ignore[arg-type]
    assert (options.backoff.base, options.backoff.factor, options.backoff.cap) == (60, 2.0, 900)


class TestBackoff:
    """Trial 21."""

    def test_extremes(self) -> None:
        """Above zero, at most the cap and its jitter, and it never raises, whatever the attempts."""
        for attempts in (0, 38, 47, 1024, 1_000_000):
            provisions.add(attempts=attempts, title=f"Broken {attempts}")
        with constraint("chats", "title NOT LIKE 'Broken%'"):
            tally = provisions.run(max_attempts=2_000_000)
        assert tally is not None and tally.retried == 5
        for row in DealChatProvision.objects.all():
            assert timedelta(0) < row.next_attempt_at - row.updated_at <= timedelta(seconds=900 * 1.1), row.title

    @pytest.mark.parametrize("minutes", [10, -10])
    def test_the_clock_of_the_database_decides(self, minutes: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """The clock of the process and that of the database are ten minutes apart, either way, and more."""
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() - 60 * minutes)
        due = provisions.add(title="Due", due_in=-1)
        later = provisions.add(title="Later", due_in=60)
        stuck = provisions.add(title="Stuck", status="Provisioning", idle=301)
        at_work = provisions.add(title="At work", status="Provisioning", idle=200)
        broken = provisions.add(title="Broken", due_in=-1)
        with _database_clock(ahead_by=timedelta(minutes=minutes)) as shift, constraint("chats", "title <> 'Broken'"):
            DealChatProvision.objects.update(**shift)
            provisions.run()
        assert dict(DealChatProvision.objects.values_list("title", "status")) == {
            due.title: "Ready",
            stuck.title: "Ready",
            later.title: "Failed",
            at_work.title: "Provisioning",
            broken.title: "Failed",
        }
        after = DealChatProvision.objects.get(pk=broken.pk)
        assert timedelta(seconds=120) <= after.next_attempt_at - after.updated_at <= timedelta(seconds=132)
        assert abs(after.updated_at - broken.updated_at - timedelta(minutes=minutes, seconds=60)) < timedelta(
            seconds=30
        )


@contextmanager
def _database_clock(*, ahead_by: timedelta) -> Iterator[dict[str, object]]:
    """Have `now()` of this session tell another time than the machine; yields the shift for stamps that are there."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA skewed")
        cursor.execute(
            "CREATE FUNCTION skewed.now() RETURNS timestamptz LANGUAGE sql STABLE AS "
            f"$$ SELECT pg_catalog.now() + interval '{ahead_by.total_seconds()} seconds' $$"
        )
        cursor.execute("SET search_path = skewed, pg_catalog, public")
    try:
        yield {name: F(name) + ahead_by for name in ("next_attempt_at", "updated_at")}
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET search_path")
            cursor.execute("DROP SCHEMA skewed CASCADE")
