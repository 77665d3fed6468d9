"""One JSON object a line, with the trace it belongs to; from structlog and the standard library alike."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import redirect_stdout

import pytest
import structlog
from django.conf import settings
from opentelemetry.sdk.trace import TracerProvider

from messenger.logs import configure, get_logger


def configure_on(out: io.StringIO, format: str) -> None:
    """Configure logs as a process does whose standard output is `out`."""
    with redirect_stdout(out):
        configure({"level": "INFO", "format": format})


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    """Standard output, with logs on it as production has them."""
    out = io.StringIO()
    configure_on(out, "json")
    yield out
    structlog.contextvars.clear_contextvars()
    configure(settings.LOGGING)


def printed(out: io.StringIO) -> list[dict[str, object]]:
    """The lines so far, each of which must be JSON."""
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_is_one_json_object(out: io.StringIO) -> None:
    structlog.contextvars.bind_contextvars(worker="lead-participants")
    get_logger("chats.reporting").info("synced", message_id="m", added=1, removed=0, note="two\nlines")
    (line,) = printed(out)
    assert line.pop("timestamp")
    assert line == {
        "event": "synced",
        "level": "info",
        "logger": "chats.reporting",
        "worker": "lead-participants",
        "message_id": "m",
        "added": 1,
        "removed": 0,
        "note": "two\nlines",
    }


def test_the_standard_library_speaks_the_same(out: io.StringIO) -> None:
    """Django and librdkafka log by it."""
    logging.getLogger("librdkafka").warning("broker %s is down", "b1")
    (line,) = printed(out)
    assert (line["event"], line["level"], line["logger"]) == ("broker b1 is down", "warning", "librdkafka")


def test_the_web_servers_lines_come_once(out: io.StringIO) -> None:
    logging.getLogger("uvicorn.access").info("GET /healthz")
    assert len(printed(out)) == 1


def test_what_is_below_the_level_is_not_said(out: io.StringIO) -> None:
    get_logger("chats").debug("detail")
    assert printed(out) == []


def test_a_line_within_a_span_names_it(out: io.StringIO) -> None:
    with TracerProvider().get_tracer("test").start_as_current_span("work") as span:
        get_logger("chats").info("within")
    get_logger("chats").info("without")
    within, without = printed(out)
    assert within["trace_id"] == f"{span.get_span_context().trace_id:032x}"
    assert within["span_id"] == f"{span.get_span_context().span_id:016x}"
    assert "trace_id" not in without


def test_an_exception_stays_on_its_line(out: io.StringIO) -> None:
    try:
        raise KeyError("x")
    except KeyError:
        get_logger("chats").exception("broken")
    (line,) = printed(out)
    assert "KeyError" in str(line["exception"])


def test_the_console_is_for_people(out: io.StringIO) -> None:
    configure_on(out, "console")
    get_logger("chats").info("synced", added=1)
    assert "synced" in out.getvalue()
    assert not out.getvalue().startswith("{")
