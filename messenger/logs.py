"""Logs: one JSON object a line on standard output, from structlog and the standard library alike."""

import logging
import re
import sys
from typing import Any

import structlog
from opentelemetry import trace
from structlog.typing import EventDict, Processor, WrappedLogger


def _add_trace(logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        event["trace_id"] = trace.format_trace_id(context.trace_id)
        event["span_id"] = trace.format_span_id(context.span_id)
    return event


class HideTokens(logging.Filter):
    """Takes tokens out of the request lines of the web server: a browser's EventSource can only send them there."""

    _TOKEN = re.compile(r"(access_token=)[^&\s\"]*")

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(self._hide(each) for each in record.args)
        return True

    def _hide(self, value: object) -> object:
        return self._TOKEN.sub(r"\1hidden", value) if isinstance(value, str) else value


def configure(options: dict[str, Any]) -> None:
    """Django's LOGGING_CONFIG: `options` has `level` and `format` (`json` or `console`)."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _add_trace,
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    renderer: Processor = (
        structlog.dev.ConsoleRenderer() if options["format"] == "console" else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(options["level"])
    # The web server's lines pass through the same handler; its own would print them a second time.
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers[:] = []
        logging.getLogger(name).propagate = True
    logging.getLogger("uvicorn.access").addFilter(HideTokens())


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """The logger of module `name`. Ids and roles may be logged; names of people, titles and payloads never."""
    logger: structlog.stdlib.BoundLogger = structlog.stdlib.get_logger(name)
    return logger
