"""ChatProvisionRetryJob of the source document: a cycle every PollingInterval, single runner, no tick meanwhile."""

import time

from django.db import DatabaseError, InterfaceError

from messenger import metrics
from messenger.database import forget_connection
from messenger.faults import InfrastructureFault, Lane, describe, lane_of
from messenger.health import Heartbeat
from messenger.lease import Lease
from messenger.logs import get_logger
from messenger.shutdown import StopSignal
from provisioning.cycle import Cycle, Tally, measure
from provisioning.options import RetryOptions

log = get_logger(__name__)

LEASE = "provision-retry"
WORKER = "provision-retry"


class RetryJob:
    """Runs cycles until asked to stop; the next tick begins a PollingInterval after the last one began."""

    def __init__(self, options: RetryOptions, *, stop: StopSignal, heartbeat: Heartbeat) -> None:
        self._options = options
        self._stop = stop
        self._heartbeat = heartbeat
        self._lease = Lease(LEASE, ttl=options.lock_ttl)

    def run(self) -> None:
        """Tick until asked to stop."""
        next_tick = time.monotonic()
        while not self._stop.is_set():
            self._heartbeat.beat()
            if (left := next_tick - time.monotonic()) > 0:
                self._stop.wait(min(left, 1.0))
                continue
            next_tick = max(next_tick + self._options.polling_interval, time.monotonic())
            self._tick()

    def run_once(self) -> Tally | None:
        """One cycle; what it did, or None if another runner has the lease. Raises InfrastructureFault."""
        try:
            with self._lease:
                if not self._lease.try_acquire():
                    log.info("cycle_skipped", lease=LEASE)
                    # What the gauges tell is of the table: those of a runner that stands by must not stay behind.
                    measure(self._options)
                    return None
                return Cycle(self._options, self._lease, proceed=self._proceed).run()
        except (DatabaseError, InterfaceError) as error:
            if lane_of(error) not in (Lane.INFRASTRUCTURE, Lane.TIMEOUT, Lane.CONFLICT):
                raise
            raise InfrastructureFault(f"PostgreSQL cannot be used now ({describe(error)}).") from error

    def _proceed(self) -> bool:
        self._heartbeat.beat()
        return not self._stop.is_set()

    def _tick(self) -> None:
        try:
            self.run_once()
        except InfrastructureFault as fault:
            forget_connection()
            metrics.INFRASTRUCTURE_FAULTS.labels(WORKER).inc()
            next_in = self._options.polling_interval
            log.warning("infrastructure_away", error=str(fault), next_tick_s=next_in)
