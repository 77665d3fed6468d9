"""The loop of every consumer: poll a batch, have it settled, commit its offsets. It knows nothing of chats."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from prometheus_client import Gauge

from messenger import metrics
from messenger.backoff import Backoff
from messenger.faults import InfrastructureFault
from messenger.health import Heartbeat
from messenger.kafka import RecordConsumer
from messenger.logs import get_logger
from messenger.records import Partition, Record
from messenger.shutdown import StopSignal

log = get_logger(__name__)

POLL_SECONDS = 0.25
"""How long an idle poll waits, and so how soon a stop is noticed."""
KEEP_ALIVE_AFTER_SECONDS = 1.0
"""A batch that takes longer than this is interleaved with polls, so that the group keeps its member."""


class Work(Protocol):
    """What a consumer does with records; all state is in the database."""

    def settle(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """Settle `records` in order, yielding each part once it is committed (an empty part: still at it).

        Raises InfrastructureFault where waiting is all that helps: what was yielded stays settled.
        """

    def tick(self) -> Iterator[object]:
        """Work that is due by the clock (parked records), in the same manner; yields between its steps."""


class ConsumerLoop:
    """Runs until asked to stop. Infrastructure faults pause it, membership kept; anything else passes up."""

    def __init__(
        self,
        *,
        group: str,
        topics: Sequence[str],
        work: Work,
        stop: StopSignal,
        heartbeat: Heartbeat,
        backoff: Backoff,
        batch_size: int,
        lag: Gauge | None = None,
        tick_seconds: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._work = work
        self._stop = stop
        self._heartbeat = heartbeat
        self._backoff = backoff
        self._batch_size = batch_size
        self._lag = lag
        self._tick_seconds = tick_seconds
        self._clock = clock
        self._pending: list[Record] = []
        self._failures = 0
        self._resume_at = 0.0
        self._next_tick = 0.0
        self._last_poll = clock()
        self._consumer = RecordConsumer(group=group, topics=topics, on_lost=self._forget, on_reset=self._count_reset)

    def run(self) -> None:
        """Consume until asked to stop; then commit, leave the group and return."""
        with self._consumer:
            while not self._stop.is_set():
                self._run_once()

    def _run_once(self) -> None:
        self._heartbeat.beat()
        self._measure_lag()
        if self._failures and (left := self._resume_at - self._clock()) > 0:
            self._keep_alive(min(POLL_SECONDS, left))
            return
        if not self._pending:
            self._last_poll = self._clock()
            self._pending = self._consumer.poll(self._batch_size, POLL_SECONDS)
            self._measure_lag()
        try:
            self._settle_pending()
            self._tick()
        except InfrastructureFault as fault:
            self._back_off(fault)
        else:
            self._recovered()

    def _measure_lag(self) -> None:
        stamps = [record.timestamp for record in self._pending[:1] if record.timestamp is not None]
        lag = max(0.0, time.time() - stamps[0]) if stamps else 0.0
        metrics.CONSUMER_LAG.labels(self._group).set(lag)
        if self._lag is not None:
            self._lag.set(lag)

    def _settle_pending(self) -> None:
        if not self._pending:
            return
        for part in self._work.settle(tuple(self._pending)):
            self._consumer.settled(part)
            self._pending = self._pending[len(part) :] if part else self._pending
            if self._between_steps():
                return
        self._pending = []
        self._consumer.commit()

    def _tick(self) -> None:
        if self._clock() < self._next_tick:
            return
        self._next_tick = self._clock() + self._tick_seconds
        for _ in self._work.tick():
            if self._between_steps():
                return

    def _between_steps(self) -> bool:
        """Show life to the group and to the probe; whether to break off."""
        self._heartbeat.beat()
        if self._clock() - self._last_poll > KEEP_ALIVE_AFTER_SECONDS:
            mine = len(self._pending)
            self._keep_alive(0)
            # A partition that went to another member took its records along: what is left is begun anew.
            if len(self._pending) != mine:
                return True
        return self._stop.is_set()

    def _keep_alive(self, seconds: float) -> None:
        self._consumer.keep_alive(seconds)
        self._last_poll = self._clock()

    def _back_off(self, fault: InfrastructureFault) -> None:
        delay = self._backoff.delay(self._failures)
        self._failures += 1
        self._resume_at = self._clock() + delay
        self._next_tick = 0.0  # whatever is done next is done on PostgreSQL: only that tells whether it is back
        metrics.INFRASTRUCTURE_FAULTS.labels(self._group).inc()
        log.warning("infrastructure_away", group=self._group, error=str(fault), tries=self._failures, delay_s=delay)

    def _recovered(self) -> None:
        if self._failures:
            log.info("infrastructure_back", group=self._group, tries=self._failures)
            self._failures = 0

    def _forget(self, gone: frozenset[Partition]) -> None:
        self._pending = [record for record in self._pending if record.source not in gone]

    def _count_reset(self) -> None:
        metrics.OFFSETS_RESET.labels(self._group).inc()
