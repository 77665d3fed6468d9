"""The published OpenAPI document against the running API: schemathesis finds nothing."""

import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from chats.models import Chat
from tests.support import crm
from tests.support.web import Web, change_roster, open_lead_chat, token
from tests.support.workers import ROOT

ANNA = crm.new_id()
EXAMPLES = 10


@pytest.mark.slow
def test_schemathesis_finds_nothing(web: Web, tmp_path: Path) -> None:
    """Every answer is one the document knows: status, type, headers, form; also to what it says is wrong."""
    for number in range(3):
        lead, _ = open_lead_chat({ANNA: "Executor", crm.new_id(): "Overseer"}, title=f"Lead {number}")
        change_roster(lead, 1, {ANNA: "Responsible"})
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli"),
            *("--config-file", str(ROOT / "schemathesis.toml"), "--no-color"),
            *("run", f"{web.url}/api/v1/openapi.json", "--header", f"Authorization: Bearer {token(ANNA)}"),
            *("--max-examples", str(EXAMPLES), "--seed", "1", "--continue-on-failure"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stdout


@pytest.mark.parametrize("path", ["/chats", "/chats/{id}", "/chats/{id}/events"])
def test_answers_with_content_fit_the_document(web: Web, path: str) -> None:
    """A tester that knows no chat only ever sees empty ones: here they hold something."""
    lead, chat = open_lead_chat({ANNA: "Executor", crm.new_id(): "Overseer"})
    change_roster(lead, 1, {ANNA: "Responsible"})
    Chat.objects.filter(id=chat).update(title="🏡" * 256)
    document = web.get("/openapi.json").json()
    operation = document["paths"][f"/api/v1{path.replace('{id}', '{chat_id}')}"]["get"]
    schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
    answer = web.get(path.format(id=chat), ANNA)
    assert answer.status_code == 200
    jsonschema.validate(answer.json(), {**schema, "components": document["components"]})
