"""The command of every consumer: the loop, bound to a topic and to what is done with its records."""

from abc import abstractmethod
from typing import Any

from django.conf import settings
from prometheus_client import Gauge

from messenger.backoff import Backoff
from messenger.consumer_loop import ConsumerLoop, Work
from messenger.health import Heartbeat
from messenger.shutdown import StopSignal
from messenger.topics import Topic
from messenger.worker import WorkerCommand


class ConsumerCommand(WorkerCommand):
    """Consumes `topic` until asked to stop."""

    topic: Topic
    lag: Gauge | None = None
    """A metric of this consumer's own for its lag, beside the one that every consumer has."""

    @abstractmethod
    def make_work(self) -> Work:
        """What is done with the records."""

    def work(self, stop: StopSignal, heartbeat: Heartbeat, options: dict[str, Any]) -> None:
        assert self.topic.group is not None
        ConsumerLoop(
            group=self.topic.group,
            topics=[self.topic.name],
            work=self.make_work(),
            stop=stop,
            heartbeat=heartbeat,
            backoff=Backoff(settings.INFRASTRUCTURE_BACKOFF_BASE, settings.INFRASTRUCTURE_BACKOFF_CAP),
            batch_size=settings.CONSUMER_BATCH_SIZE,
            lag=self.lag,
        ).run()
