"""`traceparent` travels through the headers of Kafka."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from messenger import tracing
from messenger.records import Record
from tests.support.observing import collect_spans

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def record(*values: bytes | None) -> Record:
    """A record with these values of the header."""
    return Record("topic", 0, 5, None, None, tuple(("traceparent", value) for value in values))


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Finished spans of this test."""
    return collect_spans(monkeypatch)


def test_a_records_span_is_a_child_of_its_traceparent(spans: InMemorySpanExporter) -> None:
    tracing.record_span(
        record(f"00-{TRACE}-{SPAN}-01".encode()), name="consume topic", start=1_000, end=2_000, attributes={"a": 1}
    )
    (span,) = spans.get_finished_spans()
    assert span.parent is not None
    assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    assert (span.name, span.kind, span.start_time, span.end_time) == (
        "consume topic",
        trace.SpanKind.CONSUMER,
        1_000,
        2_000,
    )
    assert dict(span.attributes or {}) == {"a": 1}


@pytest.mark.parametrize("values", [(), (None,), (b"",), (b"junk",), (b"\xff",), (b"00-0-0-00",), (b"\x00" * 9,)])
def test_without_a_good_traceparent_it_is_a_trace_of_its_own(
    spans: InMemorySpanExporter, values: tuple[bytes | None, ...]
) -> None:
    """Trial 1: whatever stands in a header, the record is traced. A span at work here is not its parent."""
    with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False))):
        tracing.record_span(record(*values), name="consume topic", start=1, end=2, attributes={})
    (span,) = spans.get_finished_spans()
    assert span.parent is None


def test_an_outgoing_record_carries_the_span_at_work(spans: InMemorySpanExporter) -> None:
    assert tracing.current_traceparent() is None
    with tracing.tracer.start_as_current_span("cycle") as span:
        carried = tracing.current_traceparent()
    context = span.get_span_context()
    assert carried is not None
    assert carried.startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")
