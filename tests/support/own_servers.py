"""Servers of a test's own, to be stopped, killed and frozen while workers use them."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import psycopg

from demo.servers import EmbeddedPostgres
from tests.support.crm import new_id
from tests.support.workers import ROOT


def answer(url: str, query: str) -> object:
    """The one value that `query` finds on the server at `url`."""
    with psycopg.connect(url) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]


class OwnPostgres:
    """A PostgreSQL with the service's tables; each question to it goes on a session of its own."""

    def __init__(self, server: EmbeddedPostgres) -> None:
        self.server = server

    @property
    def url(self) -> str:
        """Its DATABASE_URL."""
        return self.server.url

    @classmethod
    @contextmanager
    def running(cls) -> Iterator[Self]:
        """One that is started and migrated, and removed at the end."""
        with EmbeddedPostgres() as server:
            env = {**os.environ, "MESSENGER_ENVIRONMENT": "development", "DATABASE_URL": server.url}
            subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], cwd=ROOT, env=env, check=True)
            yield cls(server)

    def ask(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """The rows `query` finds."""
        with psycopg.connect(self.url, autocommit=True) as session:
            cursor = session.execute(query.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def open_chats(self, count: int) -> list[str]:
        """So many leads, each with an empty chat."""
        leads = [new_id() for _ in range(count)]
        self.ask(
            "INSERT INTO messenger.chats (id, kind, status, title, lead_id) "
            "SELECT gen_random_uuid(), 'Lead', 'Active', 'Lead', lead FROM unnest(%s::uuid[]) AS lead",
            leads,
        )
        return leads

    def versions(self, leads: Sequence[str]) -> Mapping[str, int]:
        """The applied version of each lead's chat; 0 for none."""
        found = self.ask(
            "SELECT lead_id, coalesce(lead_member_version, 0) FROM messenger.chats WHERE lead_id = ANY(%s::uuid[])",
            list(leads),
        )
        return {str(lead): version for lead, version in found}

    def dead_letters(self) -> int:
        """How many dead letters there are."""
        ((count,),) = self.ask("SELECT count(*) FROM messenger.dead_letters")
        return int(count)
