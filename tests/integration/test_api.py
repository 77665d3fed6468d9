"""The chat API on a real web process: who may read what, in pages, and what a refusal looks like."""

import base64
import hashlib
import hmac
import io
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import jwt
import psycopg
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import connection

from chats.models import Chat, ChatEvent, MessengerUser
from tests.conftest import database_url
from tests.support import crm
from tests.support.web import Web, change_roster, open_lead_chat, token
from tests.support.workers import ROOT

ANNA, BORIS, VERA = crm.new_id(), crm.new_id(), crm.new_id()


def test_a_chat_shows_its_roster_with_names(web: Web) -> None:
    """`/chats/{id}`: active participants, strongest role first, with names from the replica."""
    MessengerUser.objects.create(id=ANNA, display_name="Анна 🏡", updated_at="2026-01-01T00:00:00Z")
    lead, chat = open_lead_chat({ANNA: "Lawyer", BORIS: "Executor", VERA: "CoAgent"}, title="Two rooms")
    change_roster(lead, 1, {ANNA: "Lawyer", BORIS: "Executor", crm.new_id(): "Overseer"})
    answer = web.get(f"/chats/{chat.upper()}", ANNA)
    assert answer.status_code == 200
    found = answer.json()
    assert (found["ChatId"], found["Kind"], found["Status"], found["Title"]) == (chat, "Lead", "Active", "Two rooms")
    assert (found["LeadId"], found["DealId"], found["ClosedAt"]) == (lead, None, None)
    assert found["LastSeq"] == Chat.objects.get(id=chat).last_seq
    people = [(each["DisplayName"], each["Role"], each["RoleRaw"]) for each in found["Participants"]]
    assert people == [(None, "Executor", None), ("Анна 🏡", "Lawyer", None), (None, "Guest", "Overseer")]


def test_a_chat_one_is_not_in_looks_like_one_that_does_not_exist(web: Web) -> None:
    """Access by membership alone: never in it, removed from it, no such chat are one and the same answer."""
    lead, chat = open_lead_chat({ANNA: "Executor", BORIS: "CoAgent"})
    change_roster(lead, 1, {ANNA: "Executor"})
    for path in ("/chats/{}", "/chats/{}/events", "/chats/{}/events?after=1"):
        answers = [
            web.get(path.format(chat), BORIS),
            web.get(path.format(chat), VERA),
            web.get(path.format(crm.new_id()), ANNA),
        ]
        assert {(each.status_code, each.text) for each in answers} == {(404, answers[0].text)}
        assert answers[0].json()["Code"] == "NotFound"
        assert {tuple(sorted(set(each.headers) - {"date"})) for each in answers} == {
            tuple(sorted(set(answers[0].headers) - {"date"}))
        }
        assert web.get(path.format(chat), ANNA).status_code == 200
    assert web.get("/chats", BORIS).json()["Items"] == []


def test_my_chats_come_in_pages_newest_first(web: Web) -> None:
    """`/chats`: every chat once, whatever the size of the pages; chats of others never."""
    mine = [open_lead_chat({ANNA: "Executor"}, title=f"Lead {number}")[1] for number in range(7)]
    _, foreign = open_lead_chat({BORIS: "Executor"})
    # Some of the same moment: the order among them must hold from page to page.
    Chat.objects.filter(id__in=mine[2:5]).update(created_at=Chat.objects.get(id=mine[3]).created_at)
    whole = [chat["ChatId"] for chat in web.get("/chats", ANNA).json()["Items"]]
    assert sorted(whole) == sorted(mine) and whole[0] == mine[-1] and whole[-1] == mine[0]
    for size in (1, 3, 7):
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            page = web.get("/chats", ANNA, params={"limit": size} | ({"after": after} if after else {})).json()
            seen += [chat["ChatId"] for chat in page["Items"]]
            after = page["Next"]
        assert seen == whole
    assert web.get("/chats", ANNA, params={"after": foreign}).json() == {"Items": [], "Next": None}


def test_the_feed_comes_in_pages_by_number(web: Web) -> None:
    """`/chats/{id}/events?after=seq`: gap-free, oldest first, and an end that says so."""
    lead, chat = open_lead_chat({ANNA: "Executor"})
    for version in range(1, 8):
        change_roster(lead, version, {ANNA: ("Executor", "Responsible")[version % 2]})
    wanted = list(ChatEvent.objects.filter(chat_id=chat).order_by("seq").values_list("seq", "type"))
    seen: list[tuple[int, str]] = []
    after: int | None = 0
    while after is not None:
        page = web.get(f"/chats/{chat}/events", ANNA, params={"after": after, "limit": 4}).json()
        assert page["LastSeq"] == wanted[-1][0]
        seen += [(event["Seq"], event["Type"]) for event in page["Items"]]
        after = page["Next"]
    assert seen == wanted
    beyond = web.get(f"/chats/{chat}/events", ANNA, params={"after": 2**63 - 1})
    assert beyond.json() == {"Items": [], "LastSeq": wanted[-1][0], "Next": None}


@pytest.mark.parametrize(
    "path",
    [
        "/chats?limit=0",
        "/chats?limit=501",
        "/chats?limit=1_0",
        "/chats?after=1",
        "/chats/1",
        "/chats/00000000-0000-0000-0000-000000000000",
        "/chats/{plain}",
        "/chats/{{{id}}}",
        "/chats/{id}/events?after=-1",
        "/chats/{id}/events?after=9223372036854775808",
        "/chats/{id}/events?after=5.0",
        "/chats/{id}/events?after=true",
    ],
)
def test_values_of_another_form_are_refused_by_place(web: Web, path: str) -> None:
    """422 as typed JSON that names the value at fault; identifiers and integers as strict as in the contracts."""
    identifier = uuid.uuid4()
    answer = web.get(path.format(id=identifier, plain=identifier.hex), ANNA)
    assert answer.status_code == 422
    assert answer.json()["Code"] == "Invalid"
    assert answer.json()["Problems"][0]["Place"][0] in ("query", "path")


def _signed(key: Any = None, algorithm: str = "HS256", **changes: Any) -> str:
    claims = {"sub": ANNA, "exp": time.time() + 60, **changes}
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, key or settings.JWT_KEY, algorithm=algorithm)


def _part(content: bytes) -> bytes:
    return base64.urlsafe_b64encode(content).rstrip(b"=")


def _unsigned() -> str:
    claims = json.dumps({"sub": ANNA, "exp": time.time() + 60})
    return b".".join((_part(b'{"alg":"none"}'), _part(claims.encode()), b"")).decode()


BAD_TOKENS: dict[str, Callable[[], str]] = {
    "junk": lambda: "junk",
    "of another key": lambda: _signed("another key of thirty-two bytes or more"),
    "of another algorithm": lambda: _signed(settings.JWT_KEY * 2, "HS512"),
    "unsigned": _unsigned,
    "expired": lambda: _signed(exp=time.time() - 5),
    "without an end": lambda: _signed(exp=None),
    "for nobody": lambda: _signed(sub=None),
    "for no UserId": lambda: _signed(sub="anna"),
    "for the nil UserId": lambda: _signed(sub=str(uuid.UUID(int=0))),
    "not yet good": lambda: _signed(nbf=time.time() + 600),
}


@pytest.mark.parametrize("name", BAD_TOKENS)
def test_a_token_that_proves_nothing_opens_nothing(web: Web, name: str) -> None:
    """401 with a challenge, whatever is wrong, on every endpoint."""
    bad = BAD_TOKENS[name]()
    for path in ("/chats", f"/chats/{crm.new_id()}", f"/chats/{crm.new_id()}/events", "/stream"):
        for header in ({}, {"Authorization": "Bearer"}, {"Authorization": bad}, {"Authorization": f"Bearer {bad}"}):
            answer = web.get(path, headers=header)
            assert answer.status_code == 401, path
            assert answer.json()["Code"] == "Unauthorized"
            assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_rs256_with_audience_and_issuer(own_web: Callable[..., Web]) -> None:
    """Where the settings say so, tokens are those of crm's identity provider, for this service alone."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    web = own_web(
        JWT_ALGORITHM="RS256", JWT_KEY=public.decode().replace("\n", "\\n"), JWT_AUDIENCE="messenger", JWT_ISSUER="crm"
    )

    def status(**changes: Any) -> int:
        signed = _signed(private, "RS256", **{"aud": "messenger", "iss": "crm", **changes})
        return web.get("/chats", headers={"Authorization": f"Bearer {signed}"}).status_code

    assert status() == 200
    assert [status(aud="other"), status(aud=None), status(iss="other"), status(iss=None)] == [401] * 4
    # The classic confusion: the public key taken for a shared secret.
    claims = json.dumps({"sub": ANNA, "exp": time.time() + 60, "aud": "messenger", "iss": "crm"})
    forged = b".".join(_part(part) for part in (b'{"alg":"HS256"}', claims.encode()))
    forged += b"." + _part(hmac.new(public, forged, hashlib.sha256).digest())
    assert web.get("/chats", headers={"Authorization": f"Bearer {forged.decode()}"}).status_code == 401


def test_the_api_says_when_the_database_is_away(own_web: Callable[..., Web]) -> None:
    """503 as typed JSON, and at once good again when PostgreSQL is."""
    web = own_web(API_DATABASE_TIMEOUT="3")
    assert web.get("/chats", ANNA).status_code == 200
    with psycopg.connect(database_url()) as gate:
        gate.execute("LOCK TABLE messenger.participants IN ACCESS EXCLUSIVE MODE")
        answer = web.get("/chats", ANNA)
        assert (answer.status_code, answer.json()["Code"]) == (503, "Unavailable")
        assert answer.headers["Retry-After"] == "2"
    assert web.get("/chats", ANNA).status_code == 200
    # Sessions that the server has ended in the meantime are not what a reader hears of.
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = %s",
            [f"messenger-api-{web.worker.process.pid}"],
        )
        assert cursor.fetchall()
    assert web.get("/chats", ANNA).status_code == 200


def test_issue_token(web: Web) -> None:
    """`manage.py issue_token`: one line, good for the user it names; with --link, the page's address."""
    _, chat = open_lead_chat({ANNA: "Executor"})
    out = io.StringIO()
    call_command("issue_token", "--user", ANNA, stdout=out)
    answer = web.get("/chats", headers={"Authorization": f"Bearer {out.getvalue().strip()}"})
    assert [each["ChatId"] for each in answer.json()["Items"]] == [chat]
    out = io.StringIO()
    call_command("issue_token", "--user", ANNA, "--ttl", "60", "--link", web.url, stdout=out)
    address, _, fragment = out.getvalue().strip().partition("#token=")
    assert address == f"{web.url}/chats/"
    assert jwt.decode(fragment, settings.JWT_KEY, algorithms=["HS256"])["sub"] == ANNA
    for wrong in (["--user", "anna"], ["--user", ANNA, "--ttl", "0"]):
        with pytest.raises(CommandError):
            call_command("issue_token", *wrong)


def test_issue_token_without_a_key_that_signs(settings: pytest.FixtureRequest) -> None:
    """With RS256 the private key is somewhere else, and the command says so."""
    settings.JWT_ALGORITHM = "RS256"  # type: ignore[attr-defined]
    with pytest.raises(CommandError, match="HS256 only"):
        call_command("issue_token", "--user", ANNA)


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({"JWT_KEY": "short"}, "JWT_KEY"),
        ({"JWT_ALGORITHM": "RS256", "JWT_KEY": "x" * 40}, "JWT_KEY"),
        ({"JWT_ALGORITHM": "none"}, "JWT_ALGORITHM"),
        ({"MESSENGER_ENVIRONMENT": "production", "SECRET_KEY": "s" * 50}, "JWT_KEY"),
        ({"STREAM_HEARTBEAT": "0"}, "STREAM_HEARTBEAT"),
    ],
)
def test_a_key_that_protects_nothing_stops_the_web_process(env: dict[str, str], named: str) -> None:
    """A sentence that names the variable, exit code 2; in production there is no key by default."""
    done = subprocess.run(
        [sys.executable, "manage.py", "serve", "--port", "0"],
        cwd=ROOT,
        env={**os.environ, "DATABASE_URL": database_url(), "KAFKA_BOOTSTRAP_SERVERS": "localhost:9092", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert named in done.stderr


def test_the_document_is_published(web: Web) -> None:
    """OpenAPI at a fixed address, to anybody, with the stream in it."""
    document = httpx.get(f"{web.url}/api/v1/openapi.json", timeout=30).json()
    assert set(document["paths"]) == {
        "/api/v1/chats",
        "/api/v1/chats/{chat_id}",
        "/api/v1/chats/{chat_id}/events",
        "/api/v1/stream",
    }
    for operations in document["paths"].values():
        assert operations["get"]["responses"]["401"]
    assert token(ANNA) not in httpx.get(f"{web.url}/chats/", timeout=30).text
