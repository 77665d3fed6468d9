"""`manage.py run_provision_retry`: ChatProvisionRetryJob of the source document."""

from argparse import ArgumentParser
from typing import Any

from messenger.health import Heartbeat
from messenger.shutdown import StopSignal
from messenger.worker import WorkerCommand
from provisioning.options import RetryOptions
from provisioning.retry_job import RetryJob


class Command(WorkerCommand):
    """Brings each deal's chat to Ready, or to a terminal Failed that a person re-enqueues."""

    help = "Retry failed and stuck deal chat provisions."
    worker = "provision-retry"

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--once", action="store_true", help="run one cycle, then end (for an outside scheduler)")

    def work(self, stop: StopSignal, heartbeat: Heartbeat, options: dict[str, Any]) -> None:
        job = RetryJob(RetryOptions.from_settings(), stop=stop, heartbeat=heartbeat)
        if not options["once"]:
            job.run()
            return
        tally = job.run_once()
        if tally is None:
            self.stdout.write("another runner has the lock; nothing to do here")
        else:
            self.stdout.write(
                f"{tally.provisioned} provisioned, {tally.retried} to retry, {tally.failed} failed for good"
            )
