"""The event stream when things go wrong or grow large: a lost LISTEN session, a slow reader, a crowd, the end."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import httpx
import psycopg
import pytest
from django.db import connection, transaction

from chats.models import Chat
from chats.realtime import CHANNEL, notify_changed
from demo.servers.ports import free_port
from tests.conftest import database_url
from tests.support import crm
from tests.support.waiting import wait_until
from tests.support.web import KINDS, Web, change_roster, open_lead_chat, token
from tests.support.workers import ROOT

ANNA, BORIS, VERA = crm.new_id(), crm.new_id(), crm.new_id()
PATIENT = ("--graceful-shutdown", "60")


def sessions(web: Web, purpose: str = "%") -> list[tuple[int, str]]:
    """The sessions that a web process keeps on this database, of its hub or its API: (pid, last statement)."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid, query FROM pg_stat_activity WHERE application_name LIKE %s AND datname = current_database()",
            [f"messenger-{purpose}-{web.worker.process.pid}"],
        )
        return list(cursor.fetchall())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("times", [1, 2])
def test_a_lost_listening_session_is_noticed_and_its_gap_told(web: Web, times: int, kind: str) -> None:
    """Trial 24: the LISTEN session is killed, the roster changes in the gap and again; a client learns of both."""
    open_chat, change = KINDS[kind]
    subject, chat = open_chat({ANNA: "Executor", BORIS: "CoAgent", VERA: "Lawyer"})
    lost_subject, lost = open_chat({ANNA: "Executor", VERA: "Lawyer"})
    with web.stream(ANNA) as anna, web.stream(VERA) as vera:
        for _ in range(times):
            listening = len(web.worker.find("listening"))
            # The change is made before the hub can be back: whoever holds this lock keeps its new session waiting.
            with psycopg.connect(database_url()) as gate:
                gate.execute("LOCK TABLE messenger.participants IN ACCESS EXCLUSIVE MODE")
                for pid, _ in sessions(web, "hub"):
                    gate.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
                gate.execute(
                    "UPDATE messenger.participants SET removed_at = now() "
                    "WHERE chat_id = %s AND user_id = %s AND removed_at IS NULL",
                    [lost, VERA],
                )
                gate.execute("UPDATE messenger.chats SET last_seq = last_seq + 1 WHERE id = %s", [chat])
            seq = Chat.objects.get(id=chat).last_seq
            anna.wait_for("ChatUpdated", ChatId=chat, Seq=seq)
            vera.wait_for("ChatRemoved", ChatId=lost)
            web.worker.wait_for("listening", count=listening + 1)
        change(subject, 1, {ANNA: "Executor", VERA: "CoAgent"})
        anna.wait_for("ChatUpdated", ChatId=chat, Seq=Chat.objects.get(id=chat).last_seq)
        vera.wait_for("ChatUpdated", ChatId=chat, Seq=Chat.objects.get(id=chat).last_seq)
        change(lost_subject, 1, {ANNA: "Responsible"})
        anna.wait_for("ChatUpdated", ChatId=lost, Seq=Chat.objects.get(id=lost).last_seq)
        told = [event for event, _ in vera.of(lost)]
        assert told[told.index("ChatRemoved") :] == ["ChatRemoved"]
    assert web.worker.find("listen_session_lost")
    wait_until(lambda: len(sessions(web, "hub")) == 2, what="the hub has its two sessions, and no others")


def test_a_listening_session_that_has_gone_deaf_is_given_up(web: Web) -> None:
    """A session that is there but delivers nothing is worse than a lost one: the mark that does not come shows it."""
    lead, chat = open_lead_chat({ANNA: "Executor"})
    with web.stream(ANNA) as anna:
        before = len(web.worker.find("listening"))
        (pid,) = wait_until(lambda: [pid for pid, query in sessions(web, "hub") if query.startswith("LISTEN")])
        os.kill(pid, signal.SIGSTOP)
        try:
            change_roster(lead, 1, {ANNA: "Responsible"})
            anna.wait_for("ChatUpdated", ChatId=chat, Seq=Chat.objects.get(id=chat).last_seq)
            web.worker.wait_for("listening", count=before + 1)
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_session_that_is_only_slow_is_kept(own_web: Callable[..., Web]) -> None:
    """A mark that comes late is no lost session: sound ones given up would only add to what made it late."""
    web = own_web(STREAM_KEEPALIVE="3")
    lead, chat = open_lead_chat({ANNA: "Executor"})
    with web.stream(ANNA) as anna:
        (pid,) = wait_until(lambda: [pid for pid, query in sessions(web, "hub") if query.startswith("LISTEN")])
        os.kill(pid, signal.SIGSTOP)
        try:
            with connection.cursor() as cursor:
                # Longer than until the next mark and as long again, shorter than what counts as lost.
                cursor.execute("SELECT pg_sleep(6.5)")
        finally:
            os.kill(pid, signal.SIGCONT)
        change_roster(lead, 1, {ANNA: "Responsible"})
        anna.wait_for("ChatUpdated", ChatId=chat, Seq=Chat.objects.get(id=chat).last_seq)
    assert not web.worker.find("listen_session_lost")


def test_a_notice_nobody_can_read_harms_nobody(web: Web) -> None:
    """Whatever it was meant to say, the tables know."""
    _, chat = open_lead_chat({ANNA: "Executor"})
    with web.stream(ANNA) as anna:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE messenger.chats SET last_seq = 50 WHERE id = %s", [chat])
            cursor.execute("SELECT pg_notify(%s, 'junk')", [CHANNEL])
        anna.wait_for("ChatUpdated", ChatId=chat, Seq=50)


def test_tokens_stay_out_of_the_logs(own_web: Callable[..., Web]) -> None:
    """`access_token` is in the request line, which no log of this service may show."""
    secret = token(ANNA)
    web = own_web()
    with httpx.stream("GET", f"{web.url}/api/v1/stream", params={"access_token": secret}, timeout=30) as response:
        assert response.status_code == 200
    httpx.get(f"{web.url}/chats/nothing?access_token={secret}", timeout=30)
    wait_until(lambda: web.metric("messenger_stream_clients") == 0)
    web.worker.terminate()
    assert secret not in web.worker.output
    assert not [line for line in web.worker.events if line["logger"] == "uvicorn.access"]


def test_a_plain_uvicorn_hides_tokens_and_ends_streams_too(tables: None, tmp_path: Path) -> None:
    """Whoever starts the ASGI application without `manage.py serve` gets an access log, but no token in it."""
    secret = token(ANNA)
    port = free_port()
    log = tmp_path / "log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "messenger.asgi:application", "--port", str(port)],
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": database_url()},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: b"listening" in log.read_bytes(), what="the hub listens")
        url = f"http://127.0.0.1:{port}/api/v1/stream"
        with httpx.stream("GET", url, params={"access_token": secret}, timeout=60) as response:
            chunks = response.iter_raw()
            while b"StreamOpened" not in next(chunks):
                pass
            started = time.monotonic()
            process.send_signal(signal.SIGTERM)
            for chunk in chunks:
                assert b"event:" not in chunk
                assert time.monotonic() - started < 60, "the stream does not end"
        assert process.wait(60) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()
    assert b"access_token=hidden" in log.read_bytes()
    assert secret.encode() not in log.read_bytes()


def test_a_reader_who_does_not_read_is_dropped_and_delays_nobody(own_web: Callable[..., Web]) -> None:
    """Back-pressure: at most one line a chat waits for a slow reader, and not for long."""
    web = own_web(*PATIENT)
    chats = [Chat(kind="Lead", title="Lead", lead_id=uuid.uuid4()) for _ in range(400)]
    Chat.objects.bulk_create(chats)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO messenger.participants (id, chat_id, user_id, role, joined_at) "
            "SELECT gen_random_uuid(), id, who::uuid, 'Executor', now() "
            "  FROM messenger.chats, unnest(%s::text[]) AS who",
            [[ANNA, BORIS]],
        )
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(("127.0.0.1", web.port))
        stalled.sendall(
            f"GET /api/v1/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token(ANNA)}\r\n\r\n".encode()
        )
        wait_until(lambda: web.metric("messenger_stream_clients") == 1, what="the slow reader is there")
        with web.stream(BORIS) as boris:
            rounds = 0
            while web.metric("messenger_stream_dropped_total") == 0:
                rounds += 1
                assert rounds < 400, "never dropped"
                with transaction.atomic(), connection.cursor() as cursor:
                    cursor.execute("UPDATE messenger.chats SET last_seq = %s", [rounds])
                    notify_changed(cursor, [chat.id for chat in chats])
                for chat in (chats[0], chats[-1]):
                    boris.wait_for("ChatUpdated", ChatId=str(chat.id), Seq=rounds)
            assert web.metric("messenger_stream_clients") == 1
            web.worker.wait_for("stream_dropped", user_id=ANNA)
        # Its connection is gone with the bytes nobody took, so that nothing has to be waited for at the end either.
        started = time.monotonic()
        assert web.worker.terminate(seconds=90) == 0
        assert time.monotonic() - started < 30, "the server waited for a reader who does not read"


def test_the_process_stops_with_open_streams(own_web: Callable[..., Web]) -> None:
    """SIGTERM: streams end at once rather than when the patience of the server does; exit code 0."""
    web = own_web(*PATIENT)
    with web.stream(ANNA) as anna, web.stream(BORIS) as boris:
        started = time.monotonic()
        assert web.worker.terminate(seconds=90) == 0
        assert time.monotonic() - started < 30, "streams ended only at the limit"
        assert anna.ended.wait(10) and boris.ended.wait(10)
    wait_until(lambda: not sessions(web), what="its sessions end")


def test_the_process_ends_well_however_often_it_is_asked(own_web: Callable[..., Web]) -> None:
    """SIGTERM again and again, also while the interpreter winds up: exit code 0."""
    web = own_web(*PATIENT)

    def ended() -> bool:
        web.worker.signal(signal.SIGTERM)
        return web.worker.process.poll() is not None

    wait_until(ended, what="it ends")
    assert web.worker.wait() == 0
    assert "Traceback" not in web.worker.output


def test_push_delay_is_measured(web: Web) -> None:
    """The delay from commit to push is a metric."""
    before = web.metric("messenger_stream_push_delay_seconds_count")
    with web.stream(ANNA) as anna:

        def measured() -> bool:
            # What is told after an outage has no delay to measure: another change is.
            _, chat = open_lead_chat({ANNA: "Executor"})
            anna.wait_for("ChatUpdated", ChatId=chat)
            return web.metric("messenger_stream_push_delay_seconds_count") > before

        wait_until(measured, what="a delay is measured")


@pytest.mark.slow
def test_a_thousand_clients_on_a_flat_number_of_connections(own_web: Callable[..., Web]) -> None:
    """1,000 clients on one process: two sessions of the hub, four of the API, and each client hears and reads."""
    web = own_web(STREAM_HEARTBEAT="15", STREAM_KEEPALIVE="5", API_DATABASE_TIMEOUT="60")
    people = [crm.new_id() for _ in range(1000)]
    lead, chat = open_lead_chat({ANNA: "Executor"})
    change_roster(lead, 1, {ANNA: "Executor"} | dict.fromkeys(people, "InvestorSecondary"))
    before = Chat.objects.get(id=chat).last_seq
    opened, told, read = [], [], []

    async def request(path: str, person: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
        head = f"GET /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token(person)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n".encode())
        return reader, writer

    async def listen(person: str) -> None:
        stream, writer = await request("/stream", person)
        await stream.readuntil(b"StreamOpened")
        opened.append(person)
        news = {"Seq": before}
        while news["Seq"] <= before:  # the change before this crowd may still be on its way
            await stream.readuntil(b"ChatUpdated\ndata: ")
            news = json.loads(await stream.readuntil(b"\n"))
        told.append(news)
        # All of them at once read the feed on from where they are.
        answer, other = await request(f"/chats/{chat}/events?after={told[-1]['Seq'] - 1}", person)
        read.append((await answer.read()).partition(b"\r\n")[0])
        other.close()
        writer.close()

    async def listen_all() -> None:
        await asyncio.gather(*(listen(person) for person in people))

    crowd = threading.Thread(target=asyncio.run, args=(listen_all(),), daemon=True)
    crowd.start()
    wait_until(lambda: len(opened) == 1000, seconds=90, what="1000 are online")
    assert web.metric("messenger_stream_clients") == 1000
    wait_until(lambda: len(sessions(web)) == 2, what="the sessions of the hub, and no others")
    change_roster(lead, 2, {ANNA: "Responsible"} | dict.fromkeys(people, "InvestorSecondary"))
    most = 0
    while crowd.is_alive():
        most = max(most, len(sessions(web, "api")))
        crowd.join(0.05)
    most = max(most, len(sessions(web, "api")))
    assert told == [{"ChatId": chat, "Seq": Chat.objects.get(id=chat).last_seq}] * 1000
    assert read == [b"HTTP/1.1 200 OK"] * 1000
    assert 0 < most <= 4
