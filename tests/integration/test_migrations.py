"""Migrations say what the models say, and go there and back."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.core.management import call_command

from tests.conftest import database_url
from tests.support.triggers import own_connection
from tests.support.workers import ROOT

pytestmark = pytest.mark.usefixtures("tables")


def test_migrations_say_what_the_models_say() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.fixture
def scratch() -> Iterator[str]:
    """The URL of an empty database."""
    name = "messenger_scratch"
    with own_connection() as session:
        session.execute(f"DROP DATABASE IF EXISTS {name}")
        session.execute(f"CREATE DATABASE {name}")
        yield re.sub(r"/[^/]+$", f"/{name}", database_url())
        session.execute(f"DROP DATABASE {name} WITH (FORCE)")


MIGRATE = """
import json, sys, django
django.setup()
from django.core.management import call_command
from django.db import connection

def ours():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, relname || pg_get_indexdef(indexrelid) FROM pg_index JOIN pg_class ON oid = indrelid"
            " WHERE relnamespace = to_regnamespace('messenger') UNION ALL"
            " SELECT relname, conname || pg_get_constraintdef(c.oid)"
            " FROM pg_constraint c JOIN pg_class r ON r.oid = conrelid"
            " WHERE relnamespace = to_regnamespace('messenger') ORDER BY 2"
        )
        return [line for table, line in cursor.fetchall() if not table.startswith("django_")]

seen = []
for step in ["", "provisioning zero", "chats zero", "outbox zero", ""]:
    call_command("migrate", *step.split(), verbosity=0)
    seen.append(ours())
call_command("migrate", "outbox", "zero", verbosity=0)
with connection.cursor() as cursor:
    cursor.execute("SELECT count(*) FROM pg_namespace WHERE nspname = 'messenger'")
    print(json.dumps([seen, cursor.fetchone()[0]]))
"""


@pytest.mark.parametrize("path", ["", "?options=-c%20search_path%3Dpublic"], ids=["the role's own path", "public"])
def test_migrations_go_there_and_back(scratch: str, path: str) -> None:
    """`migrate <app> zero` leaves nothing of ours behind, and forward again makes the same tables.

    Django's own tables lie in the schema of the role's name if there is one: then the schema stays for them.
    """
    done = subprocess.run(
        [sys.executable, "-c", MIGRATE],
        cwd=ROOT,
        env=os.environ | {"DATABASE_URL": scratch + path, "DJANGO_SETTINGS_MODULE": "messenger.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (there, without_provisions, without_chats, gone, again), schemas = json.loads(done.stdout)
    assert "ux_chats_lead_id" in str(there)
    assert len(there) > len(without_provisions) > len(without_chats) > len(gone) == 0
    assert again == there
    assert schemas == 0 or not path
