"""Loaded before Django's settings are read: brings a real PostgreSQL to every test run."""

import os
from collections.abc import Generator, Iterator

import pytest

from demo.servers import EmbeddedPostgres

os.environ.setdefault("MESSENGER_ENVIRONMENT", "development")
# A test that waits for a pause of a minute proves no more than one that waits for a tenth of a second.
os.environ.setdefault("INFRASTRUCTURE_BACKOFF_BASE", "0.1")
os.environ.setdefault("INFRASTRUCTURE_BACKOFF_CAP", "0.5")
os.environ.setdefault("CONSUMER_DLQ_BUDGET", "100000")

STARTED = "TEST_DATABASE_URL"
"""The DATABASE_URL that a test run above this one has set itself, as opposed to one that was given."""

_servers: list[EmbeddedPostgres] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--require-all`, for CI: there every program is installed, and a skipped test would hide that one is not."""
    parser.addoption("--require-all", action="store_true", help="a skipped test has failed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under `--require-all`, a skipped test has failed."""
    report = yield
    skipped = report.skipped and not hasattr(report, "wasxfail")  # pytest reports an expected failure as a skip
    if skipped and item.config.getoption("require_all"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"--require-all, but this test was skipped. {reason}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests() -> Iterator[None]:
    """Start PostgreSQL before pytest-django imports the settings that name it.

    A worker of pytest-xdist starts one too, rather than share the one whose URL it inherits: the locks and the
    sessions that tests look at are those of the whole server.
    """
    if os.environ.get("DATABASE_URL", "") == os.environ.get(STARTED, ""):
        server = EmbeddedPostgres()
        server.start()
        _servers.append(server)
        os.environ["DATABASE_URL"] = os.environ[STARTED] = server.url
    return (yield)


def pytest_unconfigure() -> None:
    """Stop what was started."""
    while _servers:
        _servers.pop().close()
