"""A cycle of the retry job: batches of due rows until nothing is due or MaxRunDuration, one runner at a time."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from django.db.backends.utils import CursorWrapper

from chats.roster_consumer import DEALS
from messenger import metrics, tracing
from messenger.database import forget_connection, rows
from messenger.faults import Lane, describe, frames, lane_of
from messenger.lease import Lease
from messenger.logs import get_logger
from outbox import dead_letters
from outbox.settlement import read_only
from provisioning.options import RetryOptions
from provisioning.retry import Attempt, Result, Run, attempt, due

log = get_logger(__name__)

_BACKLOG = """
SELECT count(*), coalesce(extract(epoch FROM now() - min(created_at)), 0)::float8
  FROM messenger.deal_chat_provisions
 WHERE status = 'Failed' OR status = 'Provisioning' AND updated_at <= now() - make_interval(secs => %s)
"""


@dataclass(slots=True)
class Tally:
    """What a cycle did, row by row."""

    provisioned: int = 0
    retried: int = 0
    failed: int = 0
    passed: list[UUID] = field(default_factory=list)
    """Rows not to be taken up again in this run: locked by others, or as they were after a fault."""


class Cycle:
    """One run of the job under the lease; `proceed()` is asked before each row and stops the run."""

    def __init__(self, options: RetryOptions, lease: Lease, *, proceed: Callable[[], bool]) -> None:
        self._options = options
        self._lease = lease
        self._proceed = proceed
        self._run_id = str(uuid.uuid4())
        self._deadline = time.monotonic() + options.max_run_duration
        self._tally = Tally()

    def run(self) -> Tally:
        """Work until nothing is due. Raises InfrastructureFault if PostgreSQL is away before the first row."""
        started = time.monotonic()
        ((as_of,),) = read_only(lambda cursor: rows(cursor, "SELECT now()"))
        run = Run(self._run_id, as_of)
        log.info("cycle_started", job_run_id=self._run_id, as_of=as_of.isoformat())
        with tracing.tracer.start_as_current_span(
            "provision retry cycle", attributes={"messenger.job_run_id": self._run_id}
        ):
            while self._may_go_on() and (batch := self._batch(run)):
                for row_id in batch:
                    if not self._may_go_on():
                        break
                    self._row(row_id, run)
        self._completed(started)
        return self._tally

    def _may_go_on(self) -> bool:
        if not self._proceed():
            return False
        # Before the deadline is looked at: a runner that was frozen past both has something to tell.
        if not self._lease.is_held():
            log.warning("lease_lost", job_run_id=self._run_id, lease=self._lease.name)
            return False
        return time.monotonic() < self._deadline

    def _batch(self, run: Run) -> list[UUID]:
        batch = read_only(lambda cursor: due(cursor, self._options, run, self._tally.passed))
        if batch:
            log.info("batch_claimed", job_run_id=self._run_id, rows=len(batch))
        return batch

    def _row(self, row_id: UUID, run: Run) -> None:
        with tracing.tracer.start_as_current_span("provision attempt") as span:
            try:
                done = attempt(row_id, self._options, run, proceed=self._proceed)
            except Exception as error:
                span.set_attribute("messenger.outcome", "provision_passed_over")
                self._pass_over(row_id, error)
                return
            span.set_attribute("messenger.outcome", done.result.value)
            if done.deal_id is not None:
                span.set_attribute("messenger.deal_id", str(done.deal_id))
                span.set_attribute("messenger.attempts", done.attempts)
                span.set_attribute("messenger.deal_tenant_id", str(done.tenant_id) if done.tenant_id else "")
        self._tell(row_id, done)

    def _pass_over(self, row_id: UUID, error: Exception) -> None:
        """The row is as it was; it has its turn in the next run, so nothing spins.

        Not only infrastructure comes here: a row whose very bookkeeping fails must not keep the others from theirs.
        """
        self._tally.passed.append(row_id)
        forget_connection()
        fields = {"job_run_id": self._run_id, "provision_id": str(row_id), "error_code": describe(error)}
        if lane_of(error) in (Lane.INFRASTRUCTURE, Lane.TIMEOUT, Lane.CONFLICT):
            metrics.INFRASTRUCTURE_FAULTS.labels("provision-retry").inc()
            log.warning("provision_passed_over", **fields)
        else:
            log.error("provision_passed_over", **fields, frames=frames(error))

    def _tell(self, row_id: UUID, done: Attempt) -> None:
        if done.result is Result.PASSED:
            self._tally.passed.append(row_id)
            return
        fields = {
            "job_run_id": self._run_id,
            "deal_id": str(done.deal_id),
            "chat_id": str(done.chat_id) if done.chat_id else None,
            "attempts": done.attempts,
        }
        metrics.PROVISION_RETRIED.inc()
        if done.result is Result.PROVISIONED:
            self._tally.provisioned += 1
            metrics.PROVISION_SUCCEEDED.inc()
            log.info("chat_provisioned", **fields)
        elif done.result is Result.RETRY:
            self._tally.retried += 1
            log.warning("provision_retry", **fields, error_code=done.failure.code if done.failure else None)
        else:
            self._tally.failed += 1
            metrics.PROVISION_POISON.inc()
            log.error("provision_failed", **fields, poison=True, error_code=done.failure.code if done.failure else None)
        dead_letters.report(done.buried)
        for each in done.waiting:
            DEALS.reporter.settled(each, time.time())

    def _completed(self, started: float) -> None:
        measure(self._options)
        metrics.PROVISION_LAST_RUN.set_to_current_time()
        log.info(
            "cycle_completed",
            job_run_id=self._run_id,
            provisioned=self._tally.provisioned,
            retried=self._tally.retried,
            failed=self._tally.failed,
            passed_over=len(self._tally.passed),
            duration_ms=round((time.monotonic() - started) * 1000, 1),
        )


def measure(options: RetryOptions) -> None:
    """Set the gauges of the backlog (Failed and stuck) and of its oldest row."""

    def query(cursor: CursorWrapper) -> list[tuple[int, float]]:
        return rows(cursor, _BACKLOG, [options.stuck_after])

    ((backlog, oldest),) = read_only(query)
    metrics.PROVISION_FAILED.set(backlog)
    metrics.PROVISION_OLDEST_AGE.set(oldest)
