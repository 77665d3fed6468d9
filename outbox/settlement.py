"""Settling a batch: one transaction, three fault lanes, bisection down to the record at fault.

A handler sees a batch inside a transaction and says which records it refuses; everything else it has applied,
recognised or parked. The refused are dead-lettered in the same transaction. A batch that fails as a whole is
halved until the record at fault stands alone, so that it alone is dead-lettered.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TypeVar

from django.conf import settings
from django.db import DatabaseError, InterfaceError
from django.db.backends.utils import CursorWrapper

from messenger import metrics
from messenger.database import forget_connection, unit_of_work
from messenger.faults import InfrastructureFault, Lane, MessengerError, describe, frames, lane_of
from messenger.logs import get_logger
from messenger.records import Record
from outbox import dead_letters
from outbox.dead_letters import Budget, Refusal, bury
from outbox.handling import Handler

log = get_logger(__name__)

MAX_TRIES = 3
"""How often a conflict or an unexpected fault is tried in all (source document: «3 попытки»)."""
DATA_REFUSED = "MSG_DATA_REFUSED"
CONFLICT = "MSG_CONFLICT"
UNEXPECTED = "MSG_UNEXPECTED"


class _AtFault(Exception):
    """The part failed for good as a whole; `code` and `detail` say how."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


T = TypeVar("T")


def read_only(query: Callable[[CursorWrapper], T]) -> T:
    """Run `query` in a transaction of its own; any fault of the database is an InfrastructureFault."""
    try:
        with _transaction() as cursor:
            return query(cursor)
    except (DatabaseError, InterfaceError) as error:
        forget_connection()
        raise InfrastructureFault(f"PostgreSQL cannot be used now ({describe(error)}).") from error


def _transaction() -> AbstractContextManager[CursorWrapper]:
    return unit_of_work(
        lock_timeout=settings.CONSUMER_LOCK_TIMEOUT, statement_timeout=settings.CONSUMER_STATEMENT_TIMEOUT
    )


class Settlement:
    """Settles batches of `handler`."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._budget = Budget(settings.CONSUMER_DLQ_BUDGET, settings.CONSUMER_DLQ_BUDGET_WINDOW)

    def settle(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """Settle `records` in order; yields each part once committed, and an empty one between tries."""
        waiting = [records]
        while waiting:
            part = waiting.pop()
            if not part:
                continue
            try:
                yield from self._try(partial(self._handle, part), alone=len(part) == 1)
            except _AtFault as fault:
                if len(part) > 1:
                    middle = len(part) // 2
                    waiting += [part[middle:], part[:middle]]
                    continue
                yield from self._give_up(Refusal(part[0], self._handler.group, fault.code, fault.detail))
            yield part

    def _give_up(self, refusal: Refusal) -> Iterator[Sequence[Record]]:
        try:
            yield from self._try(partial(self._abandon, refusal), alone=True)
        except _AtFault as fault:
            record = refusal.record
            raise MessengerError(
                f"The record at {record.topic}/{record.partition}@{record.offset} cannot even be dead-lettered "
                f"({fault.detail}); the consumer stops before it, nothing is lost."
            ) from fault

    def _try(self, step: Callable[[], None], *, alone: bool) -> Iterator[Sequence[Record]]:
        """Run `step` until it commits; raises InfrastructureFault or `_AtFault` when trying does not help."""
        for tries in range(1, MAX_TRIES + 1):
            try:
                step()
                return
            except Exception as error:
                lane = self._judge(error, last=tries == MAX_TRIES, alone=alone)
                log.info("transaction_tried_again", lane=lane.value, error=describe(error), tries=tries)
                metrics.CONFLICT_RETRIES.labels(self._handler.group).inc()
            yield ()

    def _judge(self, error: Exception, *, last: bool, alone: bool) -> Lane:
        """The lane of `error` if it is worth another try now; raises what it has come to otherwise."""
        lane = lane_of(error)
        if lane is Lane.INFRASTRUCTURE or (lane is Lane.TIMEOUT and last):
            forget_connection()
            raise InfrastructureFault(f"PostgreSQL cannot be used now ({describe(error)}).") from error
        if isinstance(error, MessengerError) and lane is Lane.UNEXPECTED:
            raise error  # a decision to stop, not a fault of the data
        if lane is Lane.POISON:
            raise _AtFault(DATA_REFUSED, f"The database refuses this record: {describe(error)}.") from error
        if lane is Lane.CONFLICT and last:
            raise _AtFault(CONFLICT, f"Lost to others {MAX_TRIES} times: {describe(error)}.") from error
        if lane is Lane.UNEXPECTED and (last or not alone):
            log.error("unexpected_fault", error=describe(error), frames=frames(error))
            raise _AtFault(UNEXPECTED, f"Unexpected: {describe(error)}.") from error
        return lane

    def _handle(self, part: Sequence[Record]) -> None:
        started = time.time()
        with _transaction() as cursor:
            verdict = self._handler.handle(cursor, part)
            fresh = bury(cursor, verdict.refusals, self._budget)
        self._tell(partial(verdict.report, started))
        self._buried(fresh)

    def _abandon(self, refusal: Refusal) -> None:
        with _transaction() as cursor:
            self._handler.abandon(cursor, refusal.record)
            fresh = bury(cursor, [refusal], self._budget)
        self._buried(fresh)

    @staticmethod
    def _tell(report: Callable[[], None]) -> None:
        # The records are committed: a fault in telling of them must not pass for a fault of theirs.
        try:
            report()
        except Exception as error:
            log.error("report_failed", error=describe(error), frames=frames(error))

    def _buried(self, refusals: Sequence[Refusal]) -> None:
        dead_letters.report(refusals)
        self._handler.buried(refusals)


class HandlerWork:
    """`Work` of a consumer that has nothing to do by the clock."""

    def __init__(self, handler: Handler) -> None:
        self._settlement = Settlement(handler)

    def settle(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """Settle records of the topic."""
        return self._settlement.settle(records)

    def tick(self) -> Iterator[object]:
        """Nothing is due."""
        return iter(())
