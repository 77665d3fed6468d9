"""The event stream: who is told what, and how a client goes on. A real web process, real clients, real changes."""

import time
import uuid

import httpx
import psycopg
import pytest
from django.db import connection, transaction

from chats.models import Chat, ChatEvent
from chats.places import Place
from chats.realtime import notify_changed
from chats.stream_client import Client, Line
from tests.conftest import database_url
from tests.support import crm
from tests.support.waiting import wait_until
from tests.support.web import KINDS, Web, change_roster, open_lead_chat, token

ANNA, BORIS, VERA = crm.new_id(), crm.new_id(), crm.new_id()


@pytest.mark.parametrize("kind", KINDS)
def test_people_in_the_chat_are_told_of_a_change_and_nobody_else(web: Web, kind: str) -> None:
    """Realtime: on commit `ChatUpdated {ChatId, Seq}` to the active participants who are online."""
    open_chat, change = KINDS[kind]
    subject, chat = open_chat({ANNA: "Executor"})
    with web.stream(ANNA) as anna, web.stream(BORIS) as boris, web.stream(VERA) as vera:
        change(subject, 1, {ANNA: "Executor", BORIS: "CoAgent"})
        seq = Chat.objects.get(id=chat).last_seq
        anna.wait_for("ChatUpdated", ChatId=chat, Seq=seq)
        boris.wait_for("ChatUpdated", ChatId=chat, Seq=seq)
        # What comes to Vera of another chat shows that nothing of this one was on its way.
        _, other = open_chat({VERA: "Executor"})
        vera.wait_for("ChatUpdated", ChatId=other)
        assert vera.of(chat) == []
        assert all(event_id for _, _, event_id in anna.events)


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_is_removed_is_told_so_and_hears_nothing_more(web: Web, kind: str) -> None:
    """Trial 16, acceptance criteria «снятие» and «каскад увольнения»: the subscription ends with the membership."""
    open_chat, change = KINDS[kind]
    subject, chat = open_chat({ANNA: "Executor", BORIS: "CoAgent"})
    with web.stream(ANNA) as anna, web.stream(BORIS) as boris:
        change(subject, 1, {ANNA: "Executor"})
        boris.wait_for("ChatRemoved", ChatId=chat)
        assert web.get(f"/chats/{chat}", BORIS).status_code == 404
        change(subject, 2, {ANNA: "Responsible"})
        change(subject, 3, {ANNA: "Executor", VERA: "Lawyer"})
        anna.wait_for("ChatUpdated", ChatId=chat, Seq=Chat.objects.get(id=chat).last_seq)
        _, other = open_chat({BORIS: "Executor"})
        boris.wait_for("ChatUpdated", ChatId=other)
        assert boris.of(chat)[-1] == ("ChatRemoved", None)
        assert [event for event, _ in boris.of(chat)].count("ChatRemoved") == 1

        # INV-PART-1: who comes back hears of the chat again.
        change(subject, 4, {ANNA: "Executor", BORIS: "Guest"})
        boris.wait_for("ChatUpdated", ChatId=chat, Seq=Chat.objects.get(id=chat).last_seq)


@pytest.mark.parametrize("kind", KINDS)
def test_a_removal_wins_every_race_with_changes(web: Web, kind: str) -> None:
    """Nobody removed is told the number of their removal or a later one, however fast changes follow each other."""
    open_chat, change = KINDS[kind]
    subject, chat = open_chat({ANNA: "Executor", BORIS: "CoAgent"})
    version = 0
    with web.stream(BORIS) as boris, web.stream(ANNA) as anna:
        for _ in range(30):
            version += 1
            change(subject, version, {ANNA: "Executor", BORIS: ("Lawyer", "CoAgent")[version % 2]})
            version += 1
            change(subject, version, {ANNA: "Executor"})
            version += 1
            change(subject, version, {ANNA: "Responsible"})
            version += 1
            change(subject, version, {ANNA: "Executor", BORIS: "CoAgent"})
        version += 1
        change(subject, version, {ANNA: "Assistant"})
        anna.wait_for("ChatUpdated", ChatId=chat, Seq=Chat.objects.get(id=chat).last_seq)
        wait_until(lambda: boris.of(chat)[-1:] == [("ChatRemoved", None)], what="Boris is out in the end")
        told = [seq for _, seq in boris.of(chat) if seq is not None]

    inside, allowed = True, set()
    for seq, kind, user in ChatEvent.objects.filter(chat_id=chat).order_by("seq").values_list("seq", "type", "user_id"):
        if str(user) == BORIS and kind in ("ParticipantJoined", "ParticipantLeft"):
            inside = kind == "ParticipantJoined"
        if inside:
            allowed.add(seq)
    assert set(told) <= allowed
    assert told == sorted(told)


@pytest.mark.parametrize("kind", KINDS)
def test_a_roster_of_400_is_announced_whole(web: Web, kind: str) -> None:
    """Trial 24: NOTIFY's limit of 8000 bytes fails no transaction, and everybody hears of it."""
    open_chat, change = KINDS[kind]
    crowd = [crm.new_id() for _ in range(400)]
    subject, chat = open_chat({ANNA: "Executor"})
    with web.stream(ANNA) as anna, web.stream(crowd[0]) as first, web.stream(crowd[-1]) as last:
        change(subject, 1, {ANNA: "Executor"} | dict.fromkeys(crowd, "InvestorSecondary"))
        seq = Chat.objects.get(id=chat).last_seq
        for stream in (anna, first, last):
            stream.wait_for("ChatUpdated", ChatId=chat, Seq=seq)
        change(subject, 2, {ANNA: "Executor"})
        first.wait_for("ChatRemoved", ChatId=chat)
        last.wait_for("ChatRemoved", ChatId=chat)


def test_a_batch_of_chats_is_announced_whole(web: Web) -> None:
    """Trial 24: more chats in one transaction than one NOTIFY may name."""
    chats = [str(Chat.objects.create(kind="Lead", title="Lead", lead_id=uuid.uuid4()).id) for _ in range(450)]
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO messenger.participants (id, chat_id, user_id, role, joined_at) "
            "SELECT gen_random_uuid(), id, %s, 'Executor', now() FROM messenger.chats",
            [ANNA],
        )
    with web.stream(ANNA) as anna:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("UPDATE messenger.chats SET last_seq = last_seq + 1")
            notify_changed(cursor, [uuid.UUID(chat) for chat in chats])
        wait_until(lambda: {data.get("ChatId") for _, data, _ in anna.events} >= set(chats), what="all 450 told")


def test_a_change_that_is_rolled_back_is_not_told(web: Web) -> None:
    """Persist, then push."""
    _, chat = open_lead_chat({ANNA: "Executor"})
    with web.stream(ANNA) as anna:
        with pytest.raises(ZeroDivisionError), transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("UPDATE messenger.chats SET last_seq = 99 WHERE id = %s", [chat])
            notify_changed(cursor, [uuid.UUID(chat)])
            raise ZeroDivisionError
        _, other = open_lead_chat({ANNA: "Executor"})
        anna.wait_for("ChatUpdated", ChatId=other)
        assert ("ChatUpdated", 99) not in anna.of(chat)


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_goes_on_where_it_was_cut_off(web: Web, kind: str) -> None:
    """`Last-Event-ID`: what changed and what was lost meanwhile is told, what did not change is not."""
    open_chat, change = KINDS[kind]
    subject, changed = open_chat({ANNA: "Executor"})
    lost_subject, lost = open_chat({ANNA: "Executor", BORIS: "CoAgent"})
    _, quiet = open_chat({ANNA: "Executor"})
    with web.stream(ANNA) as anna:
        assert anna.events[0][:2] == ("StreamOpened", {"Resumed": False})
        # Heartbeats move the place on, past the opening of these chats.
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_xact_id()::text::bigint")
            (now,) = cursor.fetchone()
        wait_until(lambda: int(anna.last_event_id.rpartition(".")[2]) >= now, what="the place moves on in quiet times")
        place = anna.last_event_id
    change(subject, 1, {ANNA: "Executor", VERA: "Lawyer"})
    change(lost_subject, 1, {BORIS: "Executor"})
    _, gained = open_chat({ANNA: "Executor"})

    with web.stream(ANNA, last_event_id=place) as anna:
        anna.wait_for("ChatUpdated", ChatId=gained)
        anna.wait_for("ChatRemoved", ChatId=lost)
        anna.wait_for("ChatUpdated", ChatId=changed, Seq=Chat.objects.get(id=changed).last_seq)
        assert anna.events[0][:2] == ("StreamOpened", {"Resumed": True})
        assert anna.of(quiet) == []


def test_a_transaction_that_commits_late_under_an_early_id_is_not_missed(web: Web) -> None:
    """The place moves past no transaction that still runs (the kind of trial 22, on the stream)."""
    _, early = open_lead_chat({ANNA: "Executor"})
    lead, other = open_lead_chat({ANNA: "Executor"})
    with psycopg.connect(database_url()) as slow:
        slow.execute("UPDATE messenger.chats SET last_seq = last_seq + 1 WHERE id = %s", [early])
        with web.stream(ANNA) as anna:
            change_roster(lead, 1, {ANNA: "Responsible"})
            anna.wait_for("ChatUpdated", ChatId=other, Seq=Chat.objects.get(id=other).last_seq)
            heard = anna.comments
            wait_until(lambda: anna.comments > heard + 4, what="marks come and go")
            place = anna.last_event_id
    with web.stream(ANNA, last_event_id=place) as anna:
        anna.wait_for("ChatUpdated", ChatId=early, Seq=Chat.objects.get(id=early).last_seq)


@pytest.mark.parametrize("place", ["junk", "1-00000001.5", "9" * 5000, "7-00000001.99999999999999999"])
def test_a_place_that_means_nothing_here_counts_as_none(web: Web, place: str) -> None:
    """After a restore, from another installation, made up: the client is told to read its chats anew."""
    with web.stream(ANNA, last_event_id=place) as anna:
        assert anna.events[0][:2] == ("StreamOpened", {"Resumed": False})


def test_only_the_last_of_several_events_moves_the_place() -> None:
    """A stream cut off between two events must go on before the second."""
    client = Client(uuid.UUID(ANNA), None)
    client.open(Place("1-00000001", 10), resumed=False)
    client.take(Place("1-00000001", 10))
    for _ in range(3):
        client.tell(Line(uuid.uuid4(), removed=False, number=1))
    text, _ = client.take(Place("1-00000001", 20))
    ids = [line.partition(": ")[2] for line in text.splitlines() if line.startswith("id")]
    assert ids == ["1-00000001.10", "1-00000001.10", "1-00000001.20"]


def test_without_a_good_token_there_is_no_stream(web: Web) -> None:
    """401, as typed JSON; an expired token is no better than none."""
    for answer in (
        web.get("/stream"),
        web.get("/stream", headers={"Authorization": "Bearer junk"}),
        web.get("/stream", headers={"Authorization": f"Bearer {token(ANNA, ttl=-5)}"}),
        web.get("/stream", params={"access_token": "junk"}),
    ):
        assert answer.status_code == 401
        assert answer.json()["Code"] == "Unauthorized"
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    answer = httpx.post(f"{web.url}/api/v1/stream", timeout=30)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET")


def test_a_stream_ends_with_its_token(web: Web) -> None:
    """A token that has expired opens nothing, and keeps nothing open."""

    def opened(ttl: float) -> bool:
        """Whether it was before the token had expired; it ends with it in any case."""
        params = {"access_token": token(ANNA, ttl=ttl)}
        started, received = time.monotonic(), b""
        with httpx.stream("GET", f"{web.url}/api/v1/stream", params=params, timeout=30) as response:
            for chunk in response.iter_raw():
                received += chunk
                assert time.monotonic() - started < ttl + 30, "the stream outlives its token"
        return b"StreamOpened" in received

    # A busy machine may need more than a moment to begin.
    assert any(opened(ttl) for ttl in (1.5, 5, 20))
    wait_until(lambda: web.metric("messenger_stream_clients") == 0, what="nobody is counted as online")
