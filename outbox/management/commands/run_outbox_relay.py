"""`manage.py run_outbox_relay`: publishes the outbox."""

from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError

from messenger.faults import InfrastructureFault
from messenger.health import Heartbeat
from messenger.shutdown import StopSignal
from messenger.worker import WorkerCommand
from outbox.relay import Relay
from outbox.relay_loop import RelayLoop


class Command(WorkerCommand):
    """One relay is active; others stand by and take over within seconds."""

    help = "Publish outbox rows to Kafka, in order per key."
    worker = "outbox-relay"

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--once", action="store_true", help="publish what waits now, then end")

    def work(self, stop: StopSignal, heartbeat: Heartbeat, options: dict[str, Any]) -> None:
        loop = RelayLoop(stop=stop, heartbeat=heartbeat, make_relay=Relay)
        if not options["once"]:
            loop.run()
            return
        try:
            published = loop.run_once()
        except InfrastructureFault as fault:
            raise CommandError(f"{fault} Nothing is lost: the rows wait in the outbox.") from fault
        if published is None:
            self.stdout.write(f"another relay is at work ({settings.OUTBOX_LOCK_TTL:g} s lease); nothing to do here")
        else:
            self.stdout.write(f"published {published} rows")
