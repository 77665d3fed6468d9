"""The runbooks are read at night: every query in them runs, every command and setting in them exists."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.core.management import get_commands
from django.db import connection

DOCS = [*sorted((Path(__file__).resolve().parents[2] / "docs").rglob("*.md")), Path(__file__).parents[2] / "README.md"]
TEXTS = {path.name: path.read_text(encoding="utf-8") for path in DOCS}
QUERIES = [
    pytest.param(query, id=f"{name}-{place}")
    for name, text in TEXTS.items()
    for place, query in enumerate(re.findall(r"```sql\n(.*?)```", text, re.DOTALL))
]


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_runs(db: None, query: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(query)
        assert cursor.description


def test_there_are_queries() -> None:
    assert len(QUERIES) > 5


@pytest.mark.parametrize("name", TEXTS)
def test_commands_and_settings_exist(name: str) -> None:
    text = TEXTS[name]
    assert set(re.findall(r"manage\.py\s+([a-z_]+)", text)) - {"consume_"} <= set(get_commands())
    named = re.findall(
        r"`((?:PROVISION_RETRY|CONSUMER|OUTBOX|LEAD_NOT_PROVISIONED|RETENTION|LISTEN|JWT)_[A-Z_]+)`", text
    )
    assert all(hasattr(settings, each) for each in named), named
