"""Loaded before Django's settings are read: brings a real PostgreSQL to every test run."""

import os
from collections.abc import Iterator

import pytest

from demo.servers import EmbeddedPostgres

os.environ.setdefault("MESSENGER_ENVIRONMENT", "development")
# A test that waits for a pause of a minute proves no more than one that waits for a tenth of a second.
os.environ.setdefault("INFRASTRUCTURE_BACKOFF_BASE", "0.1")
os.environ.setdefault("INFRASTRUCTURE_BACKOFF_CAP", "0.5")
os.environ.setdefault("CONSUMER_DLQ_BUDGET", "100000")

_servers: list[EmbeddedPostgres] = []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests() -> Iterator[None]:
    """Start PostgreSQL before pytest-django imports the settings that name it."""
    if not os.environ.get("DATABASE_URL"):
        server = EmbeddedPostgres()
        server.start()
        _servers.append(server)
        os.environ["DATABASE_URL"] = server.url
    return (yield)


def pytest_unconfigure() -> None:
    """Stop what was started."""
    while _servers:
        _servers.pop().close()
