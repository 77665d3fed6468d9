"""What a process tells the outside: metrics as differences, spans, and the notices that wake people online."""

from collections.abc import Iterator
from types import TracebackType
from typing import Self

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import REGISTRY

from chats.realtime import CHANNEL, read_notice
from messenger import tracing
from tests.support.triggers import own_connection


def collect_spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Where this process's spans end up until `monkeypatch` is undone."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(tracing, "tracer", provider.get_tracer("messenger"))
    return exporter


class Metrics:
    """Counters of this process, from zero when the test began."""

    def __init__(self) -> None:
        self._before = dict(_samples())

    def __call__(self, name: str, **labels: str) -> float:
        """How much the metric has grown since."""
        key = (name, tuple(sorted(labels.items())))
        return dict(_samples()).get(key, 0.0) - self._before.get(key, 0.0)


def _samples() -> Iterator[tuple[tuple[str, tuple[tuple[str, str], ...]], float]]:
    for metric in REGISTRY.collect():
        for sample in metric.samples:
            yield (sample.name, tuple(sorted(sample.labels.items()))), sample.value


class Ear:
    """Hears which chats changed, as a web process does."""

    def __init__(self) -> None:
        self._session = own_connection()
        self._session.execute(f"LISTEN {CHANNEL}".encode())

    def heard(self) -> list[str]:
        """The chats named since the last call, one for each time; notices come in the order of commits."""
        self._session.execute(f"NOTIFY {CHANNEL}, 'that is all'".encode())
        chats: list[str] = []
        for notice in self._session.notifies(timeout=30):
            if notice.payload == "that is all":
                return chats
            chats += [str(chat) for chat in read_notice(notice.payload).chats]
        raise AssertionError("the notice of this test did not come back")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session.close()
