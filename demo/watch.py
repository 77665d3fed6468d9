"""Looks at the processes and the consumer groups, beside the main thread, so that a slow answer holds up nothing."""

import time

from confluent_kafka import KafkaException

from demo.background import Background
from demo.broker import Lags
from demo.processes import Processes
from messenger.topics import Topic

_EVERY_SECONDS = 1.0


class Watch(Background):
    """What was seen last, about once a second."""

    def __init__(self, processes: Processes, topics: tuple[Topic, ...]) -> None:
        super().__init__()
        self._processes = processes
        self._topics = topics
        self._looked = 0.0
        self.healthy: dict[str, bool] = {}
        """By process."""
        self.lag: dict[str, int | None] = {}
        """By topic (its contract name); None where Kafka did not say."""

    def caught_up(self, *, since: float) -> bool:
        """Whether a look begun after `since` (monotonic seconds) saw every group at the end of its topic."""
        return self._looked > since and not any(lag is None or lag for lag in self.lag.values())

    def run(self) -> None:
        lags = Lags()
        while not self.ending.wait(_EVERY_SECONDS):
            began = time.monotonic()
            for process in self._processes.all:
                self.healthy[process.name] = process.healthy()
            for topic in self._topics:
                try:
                    self.lag[topic.contract] = lags.of(topic)
                except KafkaException:
                    self.lag[topic.contract] = None
            self._looked = began
        lags.close()
