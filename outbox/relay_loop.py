"""The relay as a process: one active by its lease, woken by NOTIFY with polling beneath."""

import time
from collections.abc import Callable
from typing import Protocol

from django.conf import settings
from django.db import DatabaseError, InterfaceError

from messenger import metrics
from messenger.backoff import Backoff
from messenger.database import forget_connection, rows
from messenger.faults import InfrastructureFault, Lane, describe, lane_of
from messenger.health import Heartbeat
from messenger.lease import Lease
from messenger.listening import Listener
from messenger.logs import get_logger
from messenger.shutdown import StopSignal
from outbox.outgoing import CHANNEL
from outbox.settlement import read_only

log = get_logger(__name__)

LEASE = "outbox-relay"
WORKER = "outbox-relay"
MEASURE_SECONDS = 5.0
_BACKLOG = """
SELECT count(*) FILTER (WHERE parked_at IS NULL),
       coalesce(extract(epoch FROM now() - min(created_at) FILTER (WHERE parked_at IS NULL)), 0)::float8,
       count(*) FILTER (WHERE parked_at IS NOT NULL)
  FROM messenger.outbox_messages WHERE published_at IS NULL
"""


class Drains(Protocol):
    """What publishes; `outbox.relay.Relay`."""

    def drain(self) -> int:
        """Publish what can go now; how many rows."""


class RelayLoop:
    """Takes the lease, drains, waits for a NOTIFY or the polling interval; stands by while another is active."""

    def __init__(self, *, stop: StopSignal, heartbeat: Heartbeat, make_relay: Callable[..., Drains]) -> None:
        self._stop = stop
        self._heartbeat = heartbeat
        self._lease = Lease(LEASE, ttl=settings.OUTBOX_LOCK_TTL)
        self._listener = Listener(CHANNEL)
        self._backoff = Backoff(settings.INFRASTRUCTURE_BACKOFF_BASE, settings.INFRASTRUCTURE_BACKOFF_CAP)
        self._relay = make_relay(may_go_on=self._may_go_on, stopping=stop.is_set)
        self._failures = 0
        self._active = False
        self._next_measure = 0.0

    def run(self) -> None:
        """Relay until asked to stop."""
        with self._lease, self._listener:
            while not self._stop.is_set():
                self._run_once()

    def run_once(self) -> int | None:
        """Publish what waits now; how many rows, or None if another relay has the lease."""
        with self._lease:
            try:
                return self._relay.drain() if self._lease.try_acquire() else None
            except (DatabaseError, InterfaceError) as error:
                raise InfrastructureFault(f"PostgreSQL cannot be used now ({describe(error)}).") from error

    def _run_once(self) -> None:
        self._heartbeat.beat()
        try:
            self._listener.open()
            if self._hold_lease():
                self._relay.drain()
                self._measure()
        except (InfrastructureFault, DatabaseError, InterfaceError) as error:
            self._back_off(error)
            return
        if self._failures:
            log.info("infrastructure_back", tries=self._failures)
            self._failures = 0
        # However rarely the table is to be polled: a standby looks for the lease within seconds, and the one who
        # has it shows life before its time is over.
        self._listener.wait(min(settings.OUTBOX_POLLING_INTERVAL, settings.OUTBOX_LOCK_TTL / 3), self._stop)

    def _hold_lease(self) -> bool:
        active = self._lease.try_acquire()
        if active is not self._active:
            self._active = active
            log.info("relay_active" if active else "relay_standing_by", lease=LEASE)
        return active

    def _may_go_on(self) -> bool:
        self._heartbeat.beat()
        return self._lease.is_held()

    def _back_off(self, error: Exception) -> None:
        if not isinstance(error, InfrastructureFault):
            if lane_of(error) not in (Lane.INFRASTRUCTURE, Lane.TIMEOUT, Lane.CONFLICT):
                raise error
            # What broke was PostgreSQL: every session of this process is suspect.
            forget_connection()
            self._lease.release()
            self._listener.close()
        delay = self._backoff.delay(self._failures)
        self._failures += 1
        metrics.INFRASTRUCTURE_FAULTS.labels(WORKER).inc()
        text = str(error) if isinstance(error, InfrastructureFault) else describe(error)
        log.warning("infrastructure_away", error=text, tries=self._failures, delay_s=round(delay, 2))
        self._rest(delay)

    def _rest(self, seconds: float) -> None:
        """Wait out a backoff, keeping the lease and the probe content."""
        until = time.monotonic() + seconds
        while not self._stop.is_set() and (left := until - time.monotonic()) > 0:
            self._heartbeat.beat()
            self._stop.wait(min(left, settings.OUTBOX_LOCK_TTL / 3))
            self._lease.is_held()

    def _measure(self) -> None:
        if time.monotonic() < self._next_measure:
            return
        self._next_measure = time.monotonic() + MEASURE_SECONDS
        ((backlog, oldest, parked),) = read_only(lambda cursor: rows(cursor, _BACKLOG))
        metrics.OUTBOX_BACKLOG.set(backlog)
        metrics.OUTBOX_OLDEST_AGE.set(oldest)
        metrics.OUTBOX_PARKED_ROWS.set(parked)
