"""The end of a lead (INV-CHAT-8): its chat is closed for good, its roster stays true, deal chats are left alone."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from chats.lead_terminated import LEAD_TERMINATED_INVALID, LeadTerminatedHandler
from chats.models import Chat, ParkedRoster
from messenger.envelope import ENVELOPE_INVALID
from messenger.records import Record
from messenger.topics import DEAL_CREATED, LEAD_TERMINATED
from outbox.models import DeadLetter, ProcessedMessage
from outbox.settlement import HandlerWork
from provisioning.deal_created import DealCreatedHandler
from tests.integration.conftest import Logs
from tests.support import crm, provisions
from tests.support.leads import (
    check_dead_letter,
    deliver,
    deliver_created,
    everything,
    feed_of,
    open_chat,
    roster_of,
    version_of,
)
from tests.support.observing import Ear, Metrics
from tests.support.races import racing, wait_for_blocked
from tests.support.triggers import Gate, trigger

pytestmark = pytest.mark.usefixtures("true_feeds")

LEAD, ANNA, BORIS = (crm.new_id() for _ in range(3))
BOTH = {ANNA: "Executor", BORIS: "Lawyer"}
END = "2026-04-01T21:00:00.1234567+03:00"
ENDED_AT = datetime(2026, 4, 1, 18, 0, 0, 123456, UTC)
GROUP = "messenger-lead-terminated"
CLOSED = ("ChatClosed", None, None, None)


def end(*messages: Mapping[str, Any] | Record) -> list[Record]:
    """Settle these as one batch of `lead-terminated`; all of them must be settled (ack)."""
    records = [crm.record(each, topic=LEAD_TERMINATED) if isinstance(each, Mapping) else each for each in messages]
    settled = [record for part in HandlerWork(LeadTerminatedHandler()).settle(records) for record in part]
    assert settled == records
    return records


def terminated(status: str = "Archived", **changes: Any) -> dict[str, Any]:
    """The end of `LEAD`."""
    return crm.lead_terminated(LEAD, status, at=END, **changes)


def standing(lead: str = LEAD) -> tuple[str, datetime | None]:
    """Status of a lead's chat, and when it was closed."""
    chat = Chat.objects.get(lead_id=lead)
    return chat.status, chat.closed_at


def outcomes(logs: Logs) -> list[str]:
    """What became of each record of the consumer."""
    of_a_record = {"chat_closed", "already_closed", "end_remembered", "skipped_duplicate"}
    return [line["event"] for line in logs if line["event"] in of_a_record]


def chats_of_deals() -> list[tuple[dict[str, Any], list[str]]]:
    """Every chat of a deal, field by field, and what its feed tells of."""
    chats = Chat.objects.filter(kind="Deal").order_by("pk").values()
    return [(dict(chat), provisions.feed_of(str(chat["deal_id"]))) for chat in chats]


@pytest.mark.parametrize("status", ["Archived", "Expired"])
def test_inv_chat_8_the_end_of_a_lead_closes_its_chat(status: str, ear: Ear, logs: Logs, metrics: Metrics) -> None:
    """Closed at the moment of the end, told in the feed and to people online; who was in it stays in it."""
    chat = open_chat(LEAD, BOTH)
    ear.heard()
    end(terminated(status, CorrelationId="order-7"))
    assert standing() == ("Closed", ENDED_AT)
    assert feed_of(LEAD, after=3) == [CLOSED]
    assert roster_of(LEAD) == BOTH
    assert ear.heard() == [str(chat)]
    (line,) = [line for line in logs if line["event"] == "chat_closed"]
    assert (line["lead_id"], line["chat_id"], line["correlation_id"]) == (LEAD, str(chat), "order-7")
    assert metrics("messenger_consumer_records_total", group=GROUP, outcome="chat_closed") == 1


def test_inv_chat_8_deal_chats_are_left_alone(ear: Ear) -> None:
    """«Активные Deal-чаты лида при этом не трогаются»; not even the chat of a deal with the very id of the lead."""
    open_chat(LEAD, BOTH)
    records = [crm.record(crm.deal_created(deal, BOTH), topic=DEAL_CREATED) for deal in (LEAD, crm.new_id())]
    list(HandlerWork(DealCreatedHandler()).settle(records))
    before = chats_of_deals()
    assert [chat["status"] for chat, _ in before] == ["Active", "Active"]
    ear.heard()
    end(terminated())
    assert standing()[0] == "Closed"
    assert chats_of_deals() == before
    assert not {str(chat["id"]) for chat, _ in before} & set(ear.heard())


def test_other_leads_are_left_alone() -> None:
    other = crm.new_id()
    open_chat(LEAD, BOTH)
    open_chat(other, BOTH)
    end(terminated())
    assert (standing()[0], standing(other)) == ("Closed", ("Active", None))


def test_late_rosters_keep_the_membership_of_a_closed_chat_true() -> None:
    """A dismissed agent loses a closed chat as well; the chat stays closed, at the moment it was closed."""
    open_chat(LEAD, BOTH)
    end(terminated())
    deliver(crm.lead_participants(LEAD, 1, {BORIS: "Executor"}))
    assert (roster_of(LEAD), version_of(LEAD)) == ({BORIS: "Executor"}, 1)
    assert standing() == ("Closed", ENDED_AT)
    assert feed_of(LEAD, after=4) == [
        ("ParticipantLeft", ANNA, None, "Executor"),
        ("ParticipantRoleChanged", BORIS, "Executor", "Lawyer"),
    ]


def test_a_second_lead_created_does_not_open_a_closed_chat_again() -> None:
    open_chat(LEAD, BOTH)
    end(terminated())
    before = everything()[:3]
    deliver_created(crm.lead_created(LEAD, {ANNA: "Executor"}))
    assert everything()[:3] == before


class TestEndedBeforeOpened:
    """The topics of a lead's creation and of its end keep no common order: the end is remembered."""

    def test_the_chat_is_closed_when_it_is_opened(self, logs: Logs) -> None:
        """Opened with its people and closed at the moment of the end, in one transaction; then nothing is left over."""
        end(terminated())
        assert not Chat.objects.exists()
        open_chat(LEAD, BOTH)
        assert standing() == ("Closed", ENDED_AT)
        assert [kind for kind, *_ in feed_of(LEAD)] == [
            "LeadChatProvisioned",
            "ParticipantJoined",
            "ParticipantJoined",
            "ChatClosed",
        ]
        assert roster_of(LEAD) == BOTH
        assert not ProcessedMessage.objects.filter(key__startswith="messenger-lead-ended").exists()
        assert outcomes(logs) == ["end_remembered"]

    def test_a_roster_that_waited_has_its_turn_all_the_same(self) -> None:
        deliver(crm.lead_participants(LEAD, 4, {BORIS: "Executor"}))
        end(terminated())
        open_chat(LEAD, {ANNA: "Executor"})
        assert not ParkedRoster.objects.exists()
        assert (roster_of(LEAD), version_of(LEAD)) == ({BORIS: "Executor"}, 4)
        assert standing() == ("Closed", ENDED_AT)

    def test_the_first_end_counts(self, logs: Logs) -> None:
        """In one batch and in the next: the chat is closed once, at the moment that was said first."""
        later = crm.lead_terminated(LEAD, "Expired", at="2026-05-01T00:00:00Z")
        end(terminated(), later)
        end(crm.lead_terminated(LEAD, "Expired", at="2026-06-01T00:00:00Z"))
        open_chat(LEAD, BOTH)
        assert standing() == ("Closed", ENDED_AT)
        assert feed_of(LEAD).count(CLOSED) == 1
        assert outcomes(logs) == ["end_remembered"] * 3

    def test_a_redelivery_after_the_opening_changes_nothing(self) -> None:
        (record,) = end(terminated())
        open_chat(LEAD, BOTH)
        before = everything()
        end(record)
        assert everything() == before

    @pytest.mark.parametrize("first", ["end", "opening"])
    def test_at_the_same_moment(self, first: str) -> None:
        """One is halted in its open transaction, the other waits for it: neither misses what the other has written."""
        works: dict[str, Callable[[], object]] = {
            "end": lambda: end(terminated()),
            "opening": lambda: deliver_created(crm.lead_created(LEAD, BOTH)),
        }
        second = works[next(name for name in works if name != first)]
        with Gate() as gate, trigger("processed_messages", "BEFORE INSERT", gate.halt), racing() as start:
            running = [start(works[first])]
            gate.wait_for_somebody()
            running.append(start(second))
            wait_for_blocked(2)
            gate.open()
            for each in running:
                each.result(30)
        assert standing() == ("Closed", ENDED_AT)
        assert feed_of(LEAD).count(CLOSED) == 1


class TestDuplicates:
    """At least once in, once applied."""

    def test_the_same_message_again(self, logs: Logs) -> None:
        open_chat(LEAD, BOTH)
        (record,) = end(terminated())
        before = everything()
        end(record)
        end(record, record)
        assert everything() == before
        assert outcomes(logs) == ["chat_closed"] + ["skipped_duplicate"] * 3

    def test_the_same_message_twice_in_a_batch(self, logs: Logs) -> None:
        open_chat(LEAD, BOTH)
        message = terminated()
        end(message, message)
        assert feed_of(LEAD).count(CLOSED) == 1
        assert outcomes(logs) == ["chat_closed", "skipped_duplicate"]

    def test_another_end_of_a_closed_lead(self, logs: Logs, ear: Ear) -> None:
        """Archived, then Expired: it stays closed at the first moment, and nobody is told again."""
        open_chat(LEAD, BOTH)
        end(terminated())
        ear.heard()
        end(crm.lead_terminated(LEAD, "Expired", at="2026-05-01T00:00:00Z"))
        assert standing() == ("Closed", ENDED_AT)
        assert feed_of(LEAD).count(CLOSED) == 1
        assert ear.heard() == []
        assert outcomes(logs) == ["chat_closed", "already_closed"]

    def test_trial_15_a_reused_message_id_is_flagged_and_nothing_of_it_applied(
        self, logs: Logs, metrics: Metrics
    ) -> None:
        other = crm.new_id()
        open_chat(LEAD, BOTH)
        open_chat(other, BOTH)
        message = terminated()
        end(message)
        end(crm.lead_terminated(other, MessageId=message["MessageId"]))
        assert standing(other) == ("Active", None)
        assert metrics("messenger_consumer_message_id_reused_total", group=GROUP) == 1
        assert [line["lead_id"] for line in logs if line["event"] == "message_id_reused"] == [other]


class TestInvalid:
    """Poison: that record alone is dead-lettered, the rest of the batch is applied."""

    @pytest.mark.parametrize(
        ("message", "code"),
        [
            (terminated("Won"), LEAD_TERMINATED_INVALID),
            (terminated("archived"), LEAD_TERMINATED_INVALID),
            (terminated() | {"Payload": {"LeadId": LEAD, "Status": "Archived"}}, LEAD_TERMINATED_INVALID),
            (crm.lead_terminated(LEAD, at="2026-04-01T21:00:00"), LEAD_TERMINATED_INVALID),
            (terminated(MessageId="7"), ENVELOPE_INVALID),
        ],
        ids=["unknown status", "status in another case", "no moment", "moment without offset", "message id"],
    )
    def test_is_dead_lettered_alone(self, message: dict[str, Any], code: str) -> None:
        other = crm.new_id()
        open_chat(LEAD, BOTH)
        open_chat(other, BOTH)
        bad, _ = end(message, crm.lead_terminated(other, at=END))
        check_dead_letter(bad, code=code, group=GROUP, topic=LEAD_TERMINATED)
        assert standing() == ("Active", None)
        assert standing(other) == ("Closed", ENDED_AT)

    def test_bytes_that_are_no_message(self) -> None:
        bad, _ = end(crm.record(b"junk", topic=LEAD_TERMINATED, key=b"\xff"), terminated())
        check_dead_letter(bad, code=ENVELOPE_INVALID, group=GROUP, topic=LEAD_TERMINATED)
        assert DeadLetter.objects.count() == 1

    def test_another_contract_version_is_applied_and_counted(self, logs: Logs, metrics: Metrics) -> None:
        open_chat(LEAD, BOTH)
        end(terminated(ContractVersion=2))
        assert standing()[0] == "Closed"
        assert metrics("messenger_consumer_contract_mismatch_total", group=GROUP) == 1
        assert "contract_mismatch" in [line["event"] for line in logs]
