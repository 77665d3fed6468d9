"""Fixtures that show what the code under test says (log lines, metrics, spans, notices), and web processes."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pytest_django import DjangoDbBlocker
from structlog.testing import capture_logs

from tests.conftest import database_url
from tests.support.leads import check_feeds
from tests.support.observing import Ear, Metrics, collect_spans
from tests.support.web import Web

Logs = list[MutableMapping[str, Any]]
OWN_TABLES = pytest.mark.django_db(transaction=True, available_apps=["outbox", "chats", "provisioning"])
"""For tests of consumers: Django's own tables are left as they are, which takes half of the time between tests."""
IMPATIENT = {"STREAM_KEEPALIVE": "0.5", "STREAM_HEARTBEAT": "0.3", "STREAM_SEND_TIMEOUT": "1"}


@pytest.fixture
def true_feeds(tables: None) -> Iterator[None]:
    """Empty tables; at the end every feed must be free of gaps and replay to its roster."""
    yield
    check_feeds()


@pytest.fixture
def logs() -> Iterator[Logs]:
    """Log lines of this test, as dictionaries."""
    with capture_logs() as lines:
        yield lines


@pytest.fixture
def metrics() -> Metrics:
    """Counters, from zero when the test began."""
    return Metrics()


@pytest.fixture
def ear(tables: None) -> Iterator[Ear]:
    """Somebody who hears which chats changed."""
    with Ear() as listening:
        yield listening


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Finished spans of this test."""
    return collect_spans(monkeypatch)


@pytest.fixture(scope="module")
def module_web(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Web]:
    """One web process for the tests of a module."""
    with Web({"DATABASE_URL": database_url(), **IMPATIENT}) as running:
        yield running


@pytest.fixture
def web(module_web: Web, tables: None) -> Web:
    """The module's web process, on empty tables."""
    return module_web


@pytest.fixture
def own_web(tables: None) -> Iterator[Callable[..., Web]]:
    """Web processes of this test's own: `own_web("--option", VAR="value")`."""
    with ExitStack() as stack:

        def start(*arguments: str, **env: str) -> Web:
            return stack.enter_context(Web({"DATABASE_URL": database_url(), **IMPATIENT, **env}, *arguments))

        yield start


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)
