"""The consumer of deal-created: the intent and the first attempt in one transaction."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from chats.models import Chat, ParkedRoster, Participant
from chats.roster_consumer import DEALS, RosterWork
from messenger.faults import InfrastructureFault
from messenger.records import Record
from messenger.topics import DEAL_CREATED, DEAL_MEMBERS_CHANGED
from outbox.models import DeadLetter, OutboxMessage, ProcessedMessage
from outbox.settlement import Settlement
from provisioning.deal_created import DealCreatedHandler
from provisioning.models import DealChatProvision, DealChatProvisionMember
from tests.support import crm, provisions
from tests.support.broker import Broker
from tests.support.triggers import LOSE_CONNECTION, constraint, trigger
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.usefixtures("tables")

GROUP = "messenger-deal-created"


@pytest.fixture
def deal() -> str:
    """A deal this service has not heard of."""
    return crm.new_id()


def _created(deal: str, roster: dict[str, str] | None = None, **changes: object) -> Record:
    return crm.record(crm.deal_created(deal, roster or {}, **changes), topic=DEAL_CREATED)  # type: ignore[arg-type]


def _consume(*records: Record) -> None:
    for _ in Settlement(DealCreatedHandler()).settle(records):
        pass


def _row(deal: str) -> DealChatProvision:
    return DealChatProvision.objects.get(deal_id=deal)


class TestSuccess:
    """Success gives Ready and the event."""

    def test_ready_with_its_event(self, deal: str) -> None:
        roster = provisions.people("Executor", "InvestorPrimary")
        message = crm.deal_created(deal, roster, title="Объект №7", CorrelationId="crm-1")
        tenant, project = crm.new_id(), crm.new_id()
        message["Payload"] |= {"DeveloperCompanyId": tenant, "ProjectId": project}
        _consume(crm.record(message, topic=DEAL_CREATED))

        chat = Chat.objects.get()
        assert (chat.kind, chat.status, str(chat.deal_id), chat.title) == ("Deal", "Active", deal, "Объект №7")
        assert (str(chat.tenant_id), str(chat.project_id)) == (tenant, project)
        assert provisions.roster_of(deal) == roster
        assert provisions.feed_of(deal) == ["DealChatProvisioned", "ParticipantJoined", "ParticipantJoined"]
        row = _row(deal)
        assert (row.status, row.chat_id, row.attempts, row.last_error) == ("Ready", chat.id, 0, None)
        assert (row.title, str(row.deal_tenant_id), str(row.project_id)) == ("Объект №7", tenant, project)
        assert row.created_at == row.updated_at == row.next_attempt_at
        stored = DealChatProvisionMember.objects.filter(provision=row).values_list("user_id", "role")
        assert {str(user): role for user, role in stored} == roster
        (event,) = provisions.events_of(deal)
        assert (event["Payload"]["Status"], event["Payload"]["ChatId"]) == ("Ready", str(chat.id))
        assert event["CorrelationId"] == "crm-1"

    def test_second_deal_created_is_a_no_op(self, deal: str) -> None:
        """The same message, another one for the deal, one batch or two: nothing changes (ux_dcp_deal)."""
        first = crm.deal_created(deal, provisions.people("Executor"), title="First")
        _consume(crm.record(first, topic=DEAL_CREATED), crm.record(first, topic=DEAL_CREATED))
        before = provisions.everything()
        _consume(crm.record(first, topic=DEAL_CREATED))
        with capture_logs() as logs:
            _consume(_created(deal, provisions.people("Lawyer"), title="Second"))
        assert provisions.everything() == before
        assert [line["event"] for line in logs] == ["consumed", "skipped_duplicate"]

    def test_one_batch_for_one_deal(self, deal: str) -> None:
        """Of two messages for one deal the first counts, in order of the topic."""
        anna, boris = provisions.people("Executor"), provisions.people("Lawyer")
        _consume(_created(deal, anna, title="First"), _created(deal, boris, title="Second"))
        assert (_row(deal).title, provisions.roster_of(deal)) == ("First", anna)
        assert provisions.statuses_of(deal) == ["Ready"]

    def test_a_message_id_used_twice(self, deal: str) -> None:
        """Trial 15: another body under a known MessageId is flagged, and nothing of it applied; one batch or two."""
        other, third, taken = crm.new_id(), crm.new_id(), crm.new_id()
        counter = ("messenger_consumer_message_id_reused_total", {"group": GROUP})
        before = REGISTRY.get_sample_value(*counter) or 0.0
        with capture_logs() as logs:
            _consume(_created(deal, MessageId=taken), _created(other, MessageId=taken))
            _consume(_created(third, MessageId=taken))
        assert {str(row.deal_id) for row in DealChatProvision.objects.all()} == {deal}
        flagged = [line["deal_id"] for line in logs if line["event"] == "message_id_reused"]
        assert flagged == [other, third]
        assert REGISTRY.get_sample_value(*counter) == before + 2

    def test_empty_members(self, deal: str) -> None:
        """A deal may begin with nobody; its people come by deal-members-changed."""
        _consume(_created(deal, {}))
        assert provisions.feed_of(deal) == ["DealChatProvisioned"]
        assert provisions.statuses_of(deal) == ["Ready"]

    def test_unknown_roles(self, deal: str) -> None:
        """An unknown role is kept as it came, counts as Guest, and logs a warning."""
        (user,) = roster = provisions.people("Overseer")
        with capture_logs() as logs:
            _consume(_created(deal, roster))
        participant = Participant.objects.get()
        assert (str(participant.user_id), participant.role, participant.role_raw) == (user, "Guest", "Overseer")
        (warning,) = [line for line in logs if line["event"] == "unknown_role"]
        assert (warning["log_level"], warning["roles"]) == ("warning", ["Overseer"])

    def test_one_user_with_two_roles(self, deal: str) -> None:
        message = crm.deal_created(deal, {})
        (user,) = provisions.people("Lawyer")
        message["Payload"]["Members"] = crm.members([(user, "Lawyer"), (user, "Executor"), (user, "Lawyer")])
        with capture_logs() as logs:
            _consume(crm.record(message, topic=DEAL_CREATED))
        assert provisions.roster_of(deal) == {user: "Executor"}
        assert [line["users"] for line in logs if line["event"] == "user_named_twice"] == [1]

    @pytest.mark.parametrize("width", [256, 257, 4000])
    def test_long_title(self, deal: str, width: int) -> None:
        """Trial 10: a title is cut on a code point."""
        _consume(_created(deal, title="😀" * width))
        assert _row(deal).title == Chat.objects.get().title == "😀" * 256
        assert _row(deal).status == "Ready"

    def test_chat_there_already(self, deal: str) -> None:
        roster = provisions.people("Executor")
        chat = provisions.add_chat(UUID(deal))
        _consume(_created(deal, roster))
        assert (_row(deal).chat_id, provisions.roster_of(deal)) == (chat.id, roster)
        assert provisions.feed_of(deal) == ["DealChatProvisioned", "ParticipantJoined"]

    def test_traceparent_travels(self, deal: str) -> None:
        """`traceparent` travels through Kafka headers and through the outbox row (design, section 8)."""
        traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        message = crm.deal_created(deal, {})
        _consume(crm.record(message, topic=DEAL_CREATED, headers=(("traceparent", traceparent.encode()),)))
        headers = {header["name"]: header.get("text") for header in OutboxMessage.objects.get().headers}
        assert headers["traceparent"] == traceparent

    def test_a_roster_that_waited_gets_its_turn(self, deal: str) -> None:
        """deal-members-changed before deal-created: parked, applied with the chat's opening, and there to stay."""
        first, later = provisions.people("Executor"), provisions.people("Lawyer")
        work = RosterWork(DEALS)
        list(work.settle([crm.record(crm.deal_members(deal, 4, later), topic=DEAL_MEMBERS_CHANGED)]))
        assert ParkedRoster.objects.get().version == 4
        with capture_logs() as logs:
            _consume(_created(deal, first))
        assert not ParkedRoster.objects.exists()
        assert provisions.roster_of(deal) == later
        assert Chat.objects.get().deal_member_version == 4
        assert [line["event"] for line in logs] == ["consumed", "chat_provisioned", "synced"]
        assert provisions.feed_of(deal) == [
            "DealChatProvisioned",
            "ParticipantJoined",
            "ParticipantLeft",
            "ParticipantJoined",
        ]


class TestRefusal:
    """A refusal or database error that leaves the connection alive: the row is Failed, no event, the offset goes on."""

    @pytest.fixture
    def broken(self, tables: None) -> Iterator[None]:
        """The database refuses chats of one title."""
        with constraint("chats", "title <> 'Broken'"):
            yield

    def test_failed_with_its_first_next_attempt(self, deal: str, broken: None) -> None:
        roster = provisions.people("Executor")
        with capture_logs() as logs:
            _consume(_created(deal, roster, title="Broken"))
        row = _row(deal)
        assert (row.status, row.attempts, row.chat_id, row.last_error) == ("Failed", 0, None, "CheckViolation 23514")
        assert timedelta(seconds=60) <= row.next_attempt_at - row.updated_at <= timedelta(seconds=66)
        assert not (Chat.objects.exists() or OutboxMessage.objects.exists() or DeadLetter.objects.exists())
        assert ProcessedMessage.objects.count() == 1
        (line,) = [line for line in logs if line["event"] == "provision_retry"]
        assert (line["deal_id"], line["attempts"], line["error_code"]) == (deal, 0, "CheckViolation 23514")

    def test_the_retry_job_has_the_rest(self, deal: str) -> None:
        """The first roster is kept with the row, and the job needs nothing else."""
        roster = provisions.people("Executor", "Overseer")
        with constraint("chats", "title <> 'Broken'"):
            _consume(_created(deal, roster, title="Broken"))
        provisions.make_due()
        provisions.run()
        assert provisions.roster_of(deal) == {user: role.replace("Overseer", "Guest") for user, role in roster.items()}
        assert Participant.objects.get(role="Guest").role_raw == "Overseer"
        assert provisions.statuses_of(deal) == ["Ready"]

    def test_one_of_a_batch_fails_alone(self, broken: None) -> None:
        deals = [crm.new_id() for _ in range(5)]
        records = [_created(each, title="Broken" if each == deals[2] else "Fine") for each in deals]
        _consume(*records)
        statuses = {str(row.deal_id): row.status for row in DealChatProvision.objects.all()}
        assert statuses == {each: "Failed" if each == deals[2] else "Ready" for each in deals}
        assert [provisions.statuses_of(each) for each in deals] == [["Ready"], ["Ready"], [], ["Ready"], ["Ready"]]
        assert not DeadLetter.objects.exists()

    def test_a_waiting_roster_of_a_failed_deal_waits_on(self, deal: str) -> None:
        roster = provisions.people("Executor")
        list(RosterWork(DEALS).settle([crm.record(crm.deal_members(deal, 1, roster), topic=DEAL_MEMBERS_CHANGED)]))
        with constraint("chats", "title <> 'Broken'"):
            _consume(_created(deal, provisions.people("Lawyer"), title="Broken"))
        assert ParkedRoster.objects.count() == 1
        provisions.make_due()
        provisions.run()
        assert (provisions.roster_of(deal), ParkedRoster.objects.count()) == (roster, 0)

    def test_the_intent_itself_is_refused(self, deal: str) -> None:
        """Where not even the intent can be written, the record is poison, and no other one with it."""
        other = crm.new_id()
        with constraint("deal_chat_provisions", "title <> 'Broken'"):
            _consume(_created(deal, title="Broken"), _created(other))
        assert DeadLetter.objects.get().error_code == "MSG_DATA_REFUSED"
        assert provisions.statuses_of(other) == ["Ready"]
        assert DealChatProvision.objects.count() == 1

    @pytest.mark.parametrize(
        "fault",
        [LOSE_CONNECTION, "RAISE EXCEPTION 'full' USING ERRCODE = 'disk_full';"],
        ids=["connection lost", "disk full"],
    )
    def test_infrastructure_leaves_nothing(self, deal: str, fault: str) -> None:
        """Kafka delivers again, and then it is done once."""
        record = _created(deal, provisions.people("Executor"))
        with trigger("outbox_messages", "AFTER INSERT", fault), pytest.raises(InfrastructureFault):
            _consume(record)
        assert provisions.everything() == [[], [], [], [], []]
        assert not ProcessedMessage.objects.exists()
        _consume(record)
        assert provisions.statuses_of(deal) == ["Ready"]

    @pytest.mark.parametrize(
        "payload",
        [
            {"DealId": None},
            {"Members": None},
            {"Members": [{"Role": "Lawyer"}]},
            {"Title": "a\x00b"},
            {"Title": None},
            {"ProjectId": "7"},
        ],
        ids=str,
    )
    def test_a_broken_contract(self, deal: str, payload: dict[str, object]) -> None:
        """Poison: that record alone is dead-lettered; no intent is made of half a message."""
        message = crm.deal_created(deal, provisions.people("Executor"))
        message["Payload"] |= payload
        other = crm.new_id()
        _consume(crm.record(message, topic=DEAL_CREATED), _created(other))
        assert DeadLetter.objects.get().error_code == "MSG_DEAL_CREATED_INVALID"
        assert [str(row.deal_id) for row in DealChatProvision.objects.all()] == [other]


def test_from_the_topic(start: Callable[..., Worker], broker: Broker) -> None:
    """A good deal, a refused one, junk, and a good one behind them: all settled, and the offsets with them."""
    good, broken, behind = (crm.new_id() for _ in range(3))
    messages = {
        good: crm.deal_created(good, provisions.people("Executor")),
        broken: crm.deal_created(broken, {}, title="Broken"),
        behind: crm.deal_created(behind, {}),
    }
    with constraint("chats", "title <> 'Broken'"):
        for deal in (good, broken):
            broker.produce(DEAL_CREATED, crm.encode(messages[deal]), key=deal, partition=0)
        broker.produce(DEAL_CREATED, b"junk", key=behind, partition=0)
        broker.produce(DEAL_CREATED, crm.encode(messages[behind]), key=behind, partition=0)
        consumer = start("consume_deal_created")
        wait_until(lambda: broker.lag(DEAL_CREATED) == 0, what="offsets committed")
        assert consumer.terminate() == 0
    statuses = {str(row.deal_id): row.status for row in DealChatProvision.objects.all()}
    assert statuses == {good: "Ready", broken: "Failed", behind: "Ready"}
    assert bytes(DeadLetter.objects.get().value or b"") == b"junk"
