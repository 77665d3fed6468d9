"""`manage.py run_provision_retry` as its operators meet it: options, exit codes, and what it shows of itself."""

from uuid import uuid4

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from demo.servers.ports import free_port
from messenger.lease import Lease
from provisioning.models import DealChatProvision
from provisioning.retry_job import LEASE
from tests.conftest import database_url
from tests.support import provisions
from tests.support.triggers import LOSE_CONNECTION, constraint, trigger
from tests.support.waiting import wait_until
from tests.support.workers import Worker

NOWHERE = "postgresql://messenger@127.0.0.1:{}/messenger"


class TestOptions:
    """«Валидация на старте»: a bad option stops the process with a sentence that names it, exit code 2."""

    @pytest.mark.parametrize(
        ("name", "value", "says"),
        [
            ("LOCK_TTL", "180", "must exceed PROVISION_RETRY_MAX_RUN_DURATION (180 s)"),
            ("LOCK_TTL", "1e9", "is invalid"),
            ("BATCH_SIZE", "0", "is invalid"),
            ("BACKOFF_CAP", "59", "must not be below PROVISION_RETRY_BACKOFF_BASE (60 s)"),
            ("POLLING_INTERVAL", "nan", "is invalid"),
        ],
    )
    def test_refused(self, name: str, value: str, says: str) -> None:
        env = {f"PROVISION_RETRY_{name}": value}
        with Worker("run_provision_retry", "--once", env=env) as worker:
            assert worker.wait() == 2
            assert worker.output.startswith(f"messenger cannot start. PROVISION_RETRY_{name}")
            assert says in worker.output
            assert worker.output.count("\n") == 1


@pytest.mark.usefixtures("tables")
class TestOnce:
    """`--once`, for a scheduler outside."""

    def test_a_cycle(self) -> None:
        row = provisions.add(roster=provisions.people("Executor"))
        with Worker("run_provision_retry", "--once", env={"DATABASE_URL": database_url()}) as worker:
            assert worker.wait() == 0
            assert "1 provisioned, 0 to retry, 0 failed for good" in worker.output
            worker.wait_for("chat_provisioned", deal_id=str(row.deal_id), attempts=1)
        assert DealChatProvision.objects.get().status == "Ready"

    def test_another_runner_is_at_work(self) -> None:
        provisions.add()
        with Lease(LEASE, ttl=60) as other:
            assert other.try_acquire()
            with Worker("run_provision_retry", "--once", env={"DATABASE_URL": database_url()}) as worker:
                assert worker.wait() == 0
                assert "another runner has the lock" in worker.output
        assert DealChatProvision.objects.get().status == "Failed"

    def test_postgres_away(self) -> None:
        """A sentence and exit code 1; no stack of calls."""
        env = {"DATABASE_URL": NOWHERE.format(free_port())}
        with Worker("run_provision_retry", "--once", env=env) as worker:
            assert worker.wait() == 1
            assert "CommandError: PostgreSQL cannot be used now (OperationalError)." in worker.output
            assert "Traceback" not in worker.output


@pytest.mark.usefixtures("tables")
class TestTicks:
    """The timer: a cycle every PollingInterval, from the start on."""

    def test_cycle_after_cycle(self) -> None:
        env = {"DATABASE_URL": database_url(), "PROVISION_RETRY_POLLING_INTERVAL": "0.2"}
        with Worker("run_provision_retry", env=env) as worker:
            worker.wait_for("cycle_completed", count=2)
            row = provisions.add()
            worker.wait_for("chat_provisioned", deal_id=str(row.deal_id))
            assert worker.get("/healthz")[0] == 200
            assert worker.metric("messenger_chat_provision_succeeded_total") == 1
            last_run = worker.metric("messenger_chat_provision_last_run_timestamp_seconds")
            wait_until(lambda: worker.metric("messenger_chat_provision_last_run_timestamp_seconds") > last_run)
            assert worker.terminate() == 0

    def test_a_row_that_loses_its_connection(self) -> None:
        """Infrastructure: once in a run and no more, no attempt counted, and the job goes on."""
        env = {"DATABASE_URL": database_url(), "PROVISION_RETRY_POLLING_INTERVAL": "0.2"}
        row = provisions.add()
        with trigger("chats", "BEFORE INSERT", LOSE_CONNECTION), Worker("run_provision_retry", env=env) as worker:
            worker.wait_for("provision_passed_over", count=2)
            for line in worker.find("cycle_completed"):
                assert (line["provisioned"], line["passed_over"]) == (0, 1)
            assert DealChatProvision.objects.get().attempts == 0
            assert worker.terminate() == 0
        assert (DealChatProvision.objects.get().status, DealChatProvision.objects.get().pk) == ("Failed", row.pk)


def _sample(name: str) -> float:
    return REGISTRY.get_sample_value(f"messenger_chat_provision_{name}") or 0.0


@pytest.mark.usefixtures("tables")
class TestObservability:
    """The source document's names, and the fields it gives them."""

    @pytest.fixture(autouse=True)
    def three_rows(self, tables: None) -> None:
        """One for each way a row can end."""
        provisions.add(title="Object 1", due_in=-3, age=500, tenant=uuid4(), attempts=2)
        provisions.add(title="Broken", due_in=-2, age=400)
        provisions.add(title="Broken", due_in=-1, age=300, attempts=9)
        provisions.add(title="At work", status="Provisioning", idle=10, age=900)

    def test_log_events(self) -> None:
        with constraint("chats", "title <> 'Broken'"), capture_logs() as logs:
            provisions.run()
        assert {line.pop("job_run_id") for line in logs} != {None}
        deals = {row.attempts: str(row.deal_id) for row in DealChatProvision.objects.exclude(title="At work")}
        chat_id = str(DealChatProvision.objects.get(status="Ready").chat_id)
        started, claimed, done, again, poison, completed = logs
        assert started.keys() == {"event", "log_level", "as_of"}
        assert claimed == {"event": "batch_claimed", "log_level": "info", "rows": 3}
        common = {"deal_id": deals[3], "chat_id": chat_id, "attempts": 3}
        assert done == {"event": "chat_provisioned", "log_level": "info"} | common
        failure = {"chat_id": None, "error_code": "CheckViolation 23514"}
        common = {"deal_id": deals[1], "attempts": 1} | failure
        assert again == {"event": "provision_retry", "log_level": "warning"} | common
        common = {"deal_id": deals[10], "attempts": 10} | failure
        assert poison == {"event": "provision_failed", "log_level": "error", "poison": True} | common
        counts = {"provisioned": 1, "retried": 1, "failed": 1, "passed_over": 0}
        assert completed.pop("duration_ms") > 0
        assert completed == {"event": "cycle_completed", "log_level": "info"} | counts

    def test_metrics(self) -> None:
        names = ("retried_total", "succeeded_total", "poison_total")
        before = {name: _sample(name) for name in names}
        with constraint("chats", "title <> 'Broken'"):
            provisions.run()
        assert {name: _sample(name) - before[name] for name in names} == {
            "retried_total": 3,
            "succeeded_total": 1,
            "poison_total": 1,
        }
        assert _sample("failed") == 2  # Failed, one of them for good; the row at work is not stuck
        assert 400 <= _sample("oldest_age_seconds") < 460
        assert _sample("last_run_timestamp_seconds") > 0

    def test_spans(self, spans: InMemorySpanExporter) -> None:
        """A span for the cycle, one within it for each attempt."""
        with constraint("chats", "title <> 'Broken'"), capture_logs() as logs:
            provisions.run()
        *attempts, run = spans.get_finished_spans()
        assert _attributes(run) == {"messenger.job_run_id": logs[0]["job_run_id"]}
        assert run.context is not None
        assert {span.parent.span_id for span in attempts if span.parent} == {run.context.span_id}
        first, second, third = (_attributes(span) for span in attempts)
        ready = DealChatProvision.objects.get(status="Ready")
        assert first == {
            "messenger.outcome": "chat_provisioned",
            "messenger.deal_id": str(ready.deal_id),
            "messenger.attempts": 3,
            "messenger.deal_tenant_id": str(ready.deal_tenant_id),
        }
        assert (second["messenger.outcome"], third["messenger.outcome"]) == ("provision_retry", "provision_failed")


def _attributes(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})
