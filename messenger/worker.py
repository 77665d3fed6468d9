"""What every long-running command shares: signals, logs, traces, `/metrics`, `/healthz`, exit codes."""

from abc import abstractmethod
from argparse import ArgumentParser
from typing import Any

import structlog
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from messenger import tracing
from messenger.database import forget_connection
from messenger.faults import MessengerError
from messenger.health import HealthServer, Heartbeat
from messenger.logs import get_logger
from messenger.shutdown import StopSignal

log = get_logger(__name__)


class WorkerCommand(BaseCommand):
    """A process that works until SIGTERM or SIGINT, then ends with exit code 0.

    Exit code 1, after one sentence on standard error, when it cannot go on (`MessengerError`).
    """

    requires_system_checks = []
    worker: str

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--metrics-port",
            type=int,
            default=settings.METRICS_PORT,
            help="port of /metrics and /healthz; 0 takes a free one (default: %(default)s, METRICS_PORT)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        structlog.contextvars.bind_contextvars(worker=self.worker)
        tracing.configure(f"messenger-{self.worker}")
        heartbeat = Heartbeat(stall_after=settings.HEALTH_STALL_AFTER)
        with StopSignal(end_of_process=True) as stop:
            try:
                with HealthServer(options["metrics_port"], heartbeat) as server:
                    log.info("started", metrics_port=server.port)
                    self.work(stop, heartbeat, options)
                log.info("stopped")
            except MessengerError as error:
                log.error("gave_up", error=str(error))
                raise CommandError(str(error)) from error
            finally:
                forget_connection()
                tracing.flush()

    @abstractmethod
    def work(self, stop: StopSignal, heartbeat: Heartbeat, options: dict[str, Any]) -> None:
        """Work until `stop` is set, beating `heartbeat` whenever the loop turns."""
