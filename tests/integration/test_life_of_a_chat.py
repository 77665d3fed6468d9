"""A chat's whole life: a lead from created to closed, and a deal from created to its agent's dismissal.

Every process of the service runs as in production, on the real broker and the real database; crm speaks through its
topics alone, and people look through the API and its event stream.
"""

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from demo.processes import WORKERS
from messenger.records import Record
from messenger.topics import (
    CONSUMED,
    DEAL_CHAT_STATUS_CHANGED,
    DEAL_CREATED,
    DEAL_MEMBERS_CHANGED,
    LEAD_CREATED,
    LEAD_PARTICIPANTS_CHANGED,
    LEAD_TERMINATED,
    USER_CHANGED,
    Topic,
)
from tests.support import crm
from tests.support.broker import Broker
from tests.support.contracts import OUTGOING, validator
from tests.support.leads import check_feeds
from tests.support.triggers import constraint
from tests.support.waiting import wait_until
from tests.support.web import Web
from tests.support.workers import Worker

# Retries come at once and never come to an end here: how long they take is not what this is about.
IMPATIENT = {
    "PROVISION_RETRY_POLLING_INTERVAL": "0.2",
    "PROVISION_RETRY_BACKOFF_BASE": "0.1",
    "PROVISION_RETRY_BACKOFF_CAP": "0.2",
    "PROVISION_RETRY_MAX_ATTEMPTS": "100000",
}
ANNA, BORIS, VERA, GLEB = (crm.new_id() for _ in range(4))
NAMES = {ANNA: "Anna", BORIS: "Boris", VERA: "Vera", GLEB: "Gleb"}
FLAT = "Quiet Harbour, flat 12"


class World:
    """crm on the one side of the service, people on the other."""

    def __init__(self, broker: Broker, web: Web, workers: Mapping[str, Worker]) -> None:
        self.broker = broker
        self.web = web
        self.workers = workers

    def say(self, topic: Topic, message: Mapping[str, Any]) -> None:
        """crm says something."""
        self.broker.produce(topic, crm.encode(message), key=message["AggregateId"])

    def hear(self, topic: Topic | str, count: int) -> list[Record]:
        """What crm finds in a topic, once there is so much of it."""

        def enough() -> list[Record]:
            found = self.broker.read(topic)
            return found if len(found) >= count else []

        return wait_until(enough, what=f"{count} records in {topic}")

    def chats(self, user: str) -> dict[str, str]:
        """The chats somebody sees: title and status."""
        return {chat["Title"]: chat["Status"] for chat in self.web.get("/chats", user).json()["Items"]}

    def chat(self, user: str, title: str) -> str:
        """The id of the chat somebody sees under this title, once there is one."""

        def found() -> list[str]:
            items = self.web.get("/chats", user).json()["Items"]
            return [chat["ChatId"] for chat in items if chat["Title"] == title]

        return wait_until(found, what=f"a chat «{title}»")[0]

    def wait_for_people(self, user: str, chat: str, **roster: str) -> None:
        """Wait until somebody sees exactly these people (name=role) in a chat."""

        def seen() -> bool:
            people = self.web.get(f"/chats/{chat}", user).json().get("Participants", [])
            return {each["DisplayName"]: each["Role"] for each in people} == roster

        wait_until(seen, what=f"{roster} in {self.web.get(f'/chats/{chat}', user).text}")

    def feed(self, user: str, chat: str) -> list[str]:
        """What somebody reads in a chat's feed."""
        return [event["Type"] for event in self.web.get(f"/chats/{chat}/events", user).json()["Items"]]


@pytest.fixture
def world(start: Callable[..., Worker], own_web: Callable[..., Web], broker: Broker) -> Iterator[World]:
    """The whole service at work; at the end every process must leave in order, with everything consumed."""
    web = own_web()
    workers = {name: start(name, **IMPATIENT) for name in WORKERS}
    for worker in workers.values():
        worker.wait_for("started", seconds=120)  # so many at once take their time on a busy machine
    world = World(broker, web, workers)
    yield world
    wait_until(lambda: all(broker.lag(topic) == 0 for topic in CONSUMED), what="every offset committed")
    for worker in workers.values():
        worker.signal(signal.SIGTERM)
    assert {name: worker.wait(seconds=60) for name, worker in workers.items()} == dict.fromkeys(WORKERS, 0)


@pytest.mark.slow
def test_a_chats_whole_life(world: World) -> None:
    lead, deal = crm.new_id(), crm.new_id()
    for user, name in NAMES.items():
        world.say(USER_CHANGED, crm.user_changed(user, name))

    with world.web.stream(ANNA) as annas_screen:
        # A lead is created: its chat is there, with its first people, and Anna sees it come.
        first = {ANNA: "Executor", BORIS: "InvestorPrimary"}
        world.say(LEAD_CREATED, crm.lead_created(lead, first, title="Two rooms by the water"))
        lead_chat = world.chat(ANNA, "Two rooms by the water")
        world.wait_for_people(ANNA, lead_chat, Anna="Executor", Boris="InvestorPrimary")
        annas_screen.wait_for("ChatUpdated", ChatId=lead_chat)

        # Vera joins, then takes over from Anna; the first of the two records comes once more, late.
        joined = crm.lead_participants(lead, 1, first | {VERA: "CoAgent"})
        handed_over = crm.lead_participants(lead, 2, {ANNA: "CoAgent", VERA: "Executor", BORIS: "InvestorPrimary"})
        for message in (joined, handed_over, joined):
            world.say(LEAD_PARTICIPANTS_CHANGED, message)
        world.wait_for_people(BORIS, lead_chat, Anna="CoAgent", Boris="InvestorPrimary", Vera="Executor")

        # An empty roster is a mistake of crm's: it changes nothing and comes back with the reason.
        world.say(LEAD_PARTICIPANTS_CHANGED, crm.lead_participants(lead, 3, {}))
        (dead,) = world.hear(f"{LEAD_PARTICIPANTS_CHANGED.contract}.messenger.dlq", 1)
        assert dead.header("dlq-error-code") == "MSG_LEAD_PARTICIPANTS_INVALID"
        assert dead.key == lead.encode()

        # A deal comes of the lead. At first the database refuses its chat; the retry job brings it to Ready, and crm
        # is told. The lead's chat goes on beside it.
        with constraint("chats", f"title <> '{FLAT}'"):
            world.say(DEAL_CREATED, crm.deal_created(deal, first, title=FLAT))
            world.workers["consume_deal_created"].wait_for("provision_retry", deal_id=deal)
            assert FLAT not in world.chats(ANNA)
        deal_chat = world.chat(ANNA, FLAT)
        (told,) = world.hear(DEAL_CHAT_STATUS_CHANGED, 1)
        check_ready(told, deal=deal, chat=deal_chat)
        assert world.chats(ANNA) == {"Two rooms by the water": "Active", FLAT: "Active"}

        # A lawyer joins the deal, not the lead.
        world.say(DEAL_MEMBERS_CHANGED, crm.deal_members(deal, 1, first | {GLEB: "Lawyer"}))
        world.wait_for_people(GLEB, deal_chat, Anna="Executor", Boris="InvestorPrimary", Gleb="Lawyer")
        assert world.chats(GLEB) == {FLAT: "Active"}

        # Anna is dismissed: crm takes her out of the lead and of the deal, and she loses both chats at once.
        world.say(
            LEAD_PARTICIPANTS_CHANGED, crm.lead_participants(lead, 4, {VERA: "Executor", BORIS: "InvestorPrimary"})
        )
        world.say(
            DEAL_MEMBERS_CHANGED,
            crm.deal_members(deal, 2, {VERA: "Executor", BORIS: "InvestorPrimary", GLEB: "Lawyer"}),
        )
        for chat in (lead_chat, deal_chat):
            annas_screen.wait_for("ChatRemoved", ChatId=chat)
            assert world.web.get(f"/chats/{chat}", ANNA).status_code == 404
        assert world.chats(ANNA) == {}
        world.wait_for_people(VERA, deal_chat, Vera="Executor", Boris="InvestorPrimary", Gleb="Lawyer")

        # The lead is archived: its chat is closed, the deal's is not. A late roster still keeps the closed chat true.
        world.say(LEAD_TERMINATED, crm.lead_terminated(lead, "Archived"))
        wait_until(lambda: world.chats(VERA) == {"Two rooms by the water": "Closed", FLAT: "Active"}, what="closed")
        world.say(LEAD_PARTICIPANTS_CHANGED, crm.lead_participants(lead, 5, {VERA: "Executor"}))
        world.wait_for_people(VERA, lead_chat, Vera="Executor")
        assert world.chats(VERA) == {"Two rooms by the water": "Closed", FLAT: "Active"}
        assert world.chats(BORIS) == {FLAT: "Active"}

        # Nothing of either chat has reached Anna after she was out.
        assert [annas_screen.of(chat)[-1][0] for chat in (lead_chat, deal_chat)] == ["ChatRemoved"] * 2

    # What happened is told in the feeds, once and in order.
    assert world.feed(VERA, lead_chat) == [
        "LeadChatProvisioned",
        *["ParticipantJoined"] * 2,  # Anna and Boris
        "ParticipantJoined",  # Vera
        *["ParticipantRoleChanged"] * 2,  # Vera for Anna
        "ParticipantLeft",  # Anna
        "ChatClosed",
        "ParticipantLeft",  # Boris
    ]
    assert world.feed(VERA, deal_chat) == [
        "DealChatProvisioned",
        *["ParticipantJoined"] * 2,  # Anna and Boris
        "ParticipantJoined",  # Gleb
        "ParticipantLeft",  # Anna
        "ParticipantJoined",  # Vera
    ]
    check_feeds()
    assert len(world.hear(DEAL_CHAT_STATUS_CHANGED, 1)) == 1


def check_ready(record: Record, *, deal: str, chat: str) -> None:
    """The readiness event as crm reads it: by the contract, and about this deal's chat."""
    message = json.loads(record.value or b"")
    assert list(validator(f"{OUTGOING}.json").iter_errors(message)) == []
    assert record.key == deal.encode()
    payload = message["Payload"]
    assert (payload["DealId"], payload["ChatId"], payload["Status"]) == (deal, chat, "Ready")
