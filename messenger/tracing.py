"""Traces: spans by the OpenTelemetry API, exported where OTEL_EXPORTER_OTLP_ENDPOINT names a collector."""

from collections.abc import Mapping

from django.conf import settings
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from messenger.records import Record

tracer = trace.get_tracer("messenger")
_propagator = TraceContextTextMapPropagator()


def configure(service: str) -> None:
    """Export spans of this process as `service`; without a collector spans cost next to nothing."""
    if settings.OTEL_EXPORTER_OTLP_ENDPOINT:
        provider = TracerProvider(resource=Resource.create({"service.name": service}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)


def flush() -> None:
    """Send what is still buffered, before the process ends."""
    provider = trace.get_tracer_provider()
    if isinstance(provider, TracerProvider):
        provider.shutdown()


def context_of(record: Record) -> Context:
    """The trace context that travelled in the record's `traceparent` header."""
    traceparent = record.header("traceparent")
    return _propagator.extract({"traceparent": traceparent} if traceparent else {}, context=Context())


def traceparent_of(record: Record) -> str | None:
    """The `traceparent` that came with `record`, for what it gives rise to; None where it has no valid one."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context=context_of(record))
    return carrier.get("traceparent")


def current_traceparent() -> str | None:
    """The `traceparent` of the span at work, for an outgoing record; None outside of one."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get("traceparent")


def record_span(record: Record, *, name: str, start: int, end: int, attributes: Mapping[str, str | int]) -> None:
    """One finished span for one record of a batch; `start` and `end` are nanoseconds since the epoch.

    A batch is settled as a whole, so a record's span is written down afterwards rather than opened around it.
    """
    span = tracer.start_span(
        name, context=context_of(record), kind=trace.SpanKind.CONSUMER, start_time=start, attributes=dict(attributes)
    )
    span.end(end)
