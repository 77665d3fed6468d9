"""The retry job as processes that are stopped, killed, frozen and cut off (trials 14, 17 and 19)."""

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from messenger.lease import Lease
from provisioning.models import DealChatProvision
from provisioning.retry_job import LEASE
from tests.support import pgbouncer, provisions
from tests.support.own_servers import OwnPostgres
from tests.support.sessions import check_nothing_left, leases, named_url, sessions, terminate
from tests.support.triggers import Gate, trigger
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.usefixtures("tables")

NAME = "job-under-test"
PATIENT = {"CONSUMER_LOCK_TIMEOUT": "60", "CONSUMER_STATEMENT_TIMEOUT": "120"}
"""For rows that are held at a gate."""

Start = Callable[..., Worker]


@pytest.fixture
def start_job(tables: None) -> Iterator[Start]:
    """Start the job as a process that ticks every half second: `start_job("--once", VAR="value")`."""
    with ExitStack() as stack:

        def begin(*arguments: str, **env: str) -> Worker:
            fixed = {
                "DATABASE_URL": named_url(NAME),
                "PROVISION_RETRY_POLLING_INTERVAL": "0.5",
            }
            return stack.enter_context(Worker("run_provision_retry", *arguments, env=fixed | PATIENT | env))

        yield begin


def _ticks(job: Worker) -> int:
    return len(job.find("cycle_completed") + job.find("cycle_skipped") + job.find("infrastructure_away"))


def _statuses() -> Counter[str]:
    return Counter(DealChatProvision.objects.values_list("status", flat=True))


class TestKilled:
    """kill -9 at every step of a row: as before or done as a whole, and the next run completes it."""

    STEPS = {
        "claimed": ("chats", "BEFORE INSERT", False),
        "chat written": ("chats", "AFTER INSERT", False),
        "people written": ("participants", "AFTER INSERT", False),
        "row settled": ("deal_chat_provisions", "AFTER UPDATE", False),
        "event written": ("outbox_messages", "AFTER INSERT", False),
    }

    @pytest.mark.parametrize("step", STEPS)
    def test_at_a_step(self, step: str, start_job: Start) -> None:
        row = provisions.add(roster=provisions.people("Executor"))
        before = provisions.everything()
        table, event, deferred = self.STEPS[step]
        with Gate() as gate:
            with trigger(table, event, gate.halt, deferred=deferred):
                job = start_job()
                gate.wait_for_somebody()
                job.kill()
                gate.open()
            check_nothing_left(NAME)
        assert provisions.everything() == before
        provisions.run()
        provisions.check_each_once(1)
        assert DealChatProvision.objects.get(pk=row.pk).attempts == 1

    def test_while_it_commits(self, start_job: Start) -> None:
        """COMMIT was sent, its answer never read: the row is done, and the next run leaves it alone."""
        provisions.add(roster=provisions.people("Executor"))
        with Gate() as gate:
            with trigger("deal_chat_provisions", "AFTER UPDATE", gate.halt, deferred=True):
                job = start_job()
                gate.wait_for_somebody()
                job.kill()
                gate.open()
            check_nothing_left(NAME)
        provisions.check_each_once(1)
        provisions.run()
        provisions.check_each_once(1)


class TestFrozen:
    """A holder of the lock that hangs, or whose host is gone, loses it after LockTtl by PostgreSQL's own doing."""

    def test_past_its_time_to_live(self, start_job: Start) -> None:
        rows = [provisions.add(due_in=-10 + place) for place in range(3)]
        short = {"PROVISION_RETRY_LOCK_TTL": "1.5", "PROVISION_RETRY_MAX_RUN_DURATION": "1"}
        with (
            Gate() as gate,
            trigger("chats", "AFTER INSERT", f"IF NEW.deal_id = '{rows[0].deal_id}' THEN {gate.halt} END IF;"),
        ):
            frozen = start_job(**short)
            gate.wait_for_somebody()
            frozen.signal(signal.SIGSTOP)
            other = start_job(**short)
            for row in rows[1:]:
                other.wait_for("chat_provisioned", deal_id=str(row.deal_id))
            assert other.terminate() == 0
            late = provisions.add()
            gate.open()
            frozen.signal(signal.SIGCONT)
            done = frozen.wait_for("chat_provisioned", deal_id=str(rows[0].deal_id))  # the row at work ends as a whole
            frozen.wait_for("lease_lost", job_run_id=done["job_run_id"])
            completed = frozen.wait_for("cycle_completed", job_run_id=done["job_run_id"])
            assert completed["provisioned"] == 1  # nothing after it
            frozen.wait_for("chat_provisioned", deal_id=str(late.deal_id))  # with a lease of its own again
        assert frozen.terminate() == 0
        check_nothing_left(NAME)
        provisions.check_each_once(4)


class TestStopped:
    """Trial 14: SIGTERM, whatever the job is at: exit code 0 in time, no session and no lock left."""

    @pytest.mark.parametrize("often", [1, 2])
    def test_asleep(self, often: int, start_job: Start) -> None:
        job = start_job(PROVISION_RETRY_POLLING_INTERVAL="3600")
        job.wait_for("cycle_completed")
        for _ in range(often):
            job.signal(signal.SIGTERM)
        assert job.wait(seconds=20) == 0
        check_nothing_left(NAME)

    @pytest.mark.parametrize("often", [1, 2])
    def test_in_the_middle_of_a_row(self, often: int, start_job: Start) -> None:
        first, second = provisions.add(due_in=-2), provisions.add(due_in=-1)
        with Gate() as gate, trigger("chats", "AFTER INSERT", gate.halt):
            job = start_job()
            gate.wait_for_somebody()
            for _ in range(often):
                job.signal(signal.SIGTERM)
            gate.open()
            assert job.wait(seconds=20) == 0
        check_nothing_left(NAME)
        found = {row.pk: row.status for row in DealChatProvision.objects.all()}
        assert found == {first.pk: "Ready", second.pk: "Failed"}
        assert job.find("cycle_completed", provisioned=1)

    def test_while_postgres_is_away(self, start_job: Start) -> None:
        job = start_job(DATABASE_URL="postgresql://messenger@127.0.0.1:1/messenger")
        job.wait_for("infrastructure_away", count=2)
        assert job.terminate() == 0


class TestPostgresGoesAway:
    """Trial 17, and PostgreSQL stopped and started: the job is the same process before and after."""

    def test_every_session_is_terminated(self, start_job: Start) -> None:
        rows = [provisions.add(due_in=-10 + place) for place in range(3)]
        with (
            Gate() as gate,
            trigger("chats", "AFTER INSERT", f"IF NEW.deal_id = '{rows[0].deal_id}' THEN {gate.halt} END IF;"),
        ):
            job = start_job()
            gate.wait_for_somebody()
            # The lease first: without the row at work the job would go on, and perhaps finish before it is lost.
            terminate(*leases(NAME))
            terminate(*sessions(NAME))
            job.wait_for("provision_passed_over")
            job.wait_for("lease_lost")
            gate.open()
            wait_until(lambda: _statuses() == {"Ready": 3}, what="the next runs do the rest")
        assert len(job.find("provision_passed_over")) == 1
        assert job.terminate() == 0
        provisions.check_each_once(3)

    def test_stopped_and_started(self, start_job: Start, own_postgres: OwnPostgres) -> None:
        job = start_job(DATABASE_URL=own_postgres.url)
        job.wait_for("cycle_completed")
        own_postgres.server.stop()
        job.wait_for("infrastructure_away", count=2)
        assert job.get("/healthz")[0] == 200
        assert job.metric("messenger_infrastructure_faults_total", worker="provision-retry") >= 2
        own_postgres.server.start()
        own_postgres.ask(
            "INSERT INTO messenger.deal_chat_provisions (id, deal_id, title, status) "
            "VALUES (gen_random_uuid(), gen_random_uuid(), 'Object 1', 'Failed')"
        )
        job.wait_for("chat_provisioned", attempts=1)
        assert job.terminate() == 0


@pytest.mark.pgbouncer
@pytest.mark.skipif(pgbouncer.binary() is None, reason="there is no pgbouncer here (apt-get install pgbouncer)")
class TestBehindPgbouncer:
    """Trial 19: transaction mode, a pool of two."""

    ROWS = 40
    WRONGS = ("DuplicatePreparedStatement", "InvalidSqlStatementName", "Traceback")
    """What a statement prepared by another session would be called, and what nobody should meet at all."""

    def test_killed_in_the_middle_of_a_run(self, start_job: Start) -> None:
        for place in range(self.ROWS):
            provisions.add(due_in=-100 + place, roster=provisions.people("Executor", "Lawyer"))
        sixth = "IF (SELECT count(*) FROM messenger.chats) > 5 THEN {} END IF;"
        with pgbouncer.PgBouncer(pool=2) as pool:
            url = f"{pool.url}?application_name={NAME}"
            with Gate() as gate, trigger("chats", "AFTER INSERT", sixth.format(gate.halt)):
                jobs = [start_job(DATABASE_URL=url), start_job(DATABASE_URL=url)]
                gate.wait_for_somebody()
                assert len([job for job in jobs if job.find("batch_claimed")]) == 1  # the other one stands by
                for job in jobs:
                    job.kill()
                gate.open()
                assert _statuses() == {"Ready": 5, "Failed": self.ROWS - 5}
                third = start_job(DATABASE_URL=url)
                wait_until(lambda: _statuses() == {"Ready": self.ROWS}, what="the next one does the rest")
            assert len(third.find("cycle_skipped")) <= 1, "the lock of a dead holder is free within an interval"
            # Two tick on together, on sessions that have served others before.
            jobs += [third, start_job(DATABASE_URL=url)]
            for job in jobs[2:]:
                wait_until(lambda job=job: _ticks(job) >= 5, what="ticks")  # type: ignore[misc]
            assert [job.terminate() for job in jobs[2:]] == [0, 0]
        assert not [(wrong, job.output) for job in jobs for wrong in self.WRONGS if wrong in job.output]
        check_nothing_left(NAME)
        provisions.check_each_once(self.ROWS)

    def test_the_lock_holds_across_the_pool(self, start_job: Start) -> None:
        """A lock of the session would go back to the pool with it; that of the open transaction does not."""
        with pgbouncer.PgBouncer(pool=2) as pool:
            row = provisions.add()
            with Gate() as gate, trigger("chats", "AFTER INSERT", gate.halt):
                holder = start_job(DATABASE_URL=pool.url)
                gate.wait_for_somebody()
                with Lease(LEASE, ttl=60) as directly:
                    assert not directly.try_acquire()
                gate.open()
                holder.wait_for("chat_provisioned", deal_id=str(row.deal_id))
                holder.wait_for("cycle_completed")
            assert holder.terminate() == 0
            with Lease(LEASE, ttl=60) as directly:
                assert directly.try_acquire()  # while the sessions of the pool live on
        check_nothing_left(NAME)
