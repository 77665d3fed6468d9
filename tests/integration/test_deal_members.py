"""Rosters of deal chats: the engine of lead chats, guarded by `deal_member_version` (trial 16 for deals, parking)."""

from collections.abc import Callable, Sequence
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from chats.models import Chat, ParkedRoster, Participant
from chats.roster_consumer import DEALS, RosterWork
from messenger.records import Record
from messenger.topics import DEAL_CREATED, DEAL_MEMBERS_CHANGED
from outbox.models import DeadLetter
from tests.support import crm, provisions
from tests.support.background import in_background
from tests.support.broker import Broker
from tests.support.triggers import Gate, own_connection, trigger
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.usefixtures("tables")

ANNA, BORIS, VERA = (crm.new_id() for _ in range(3))
BOTH = {ANNA: "Executor", BORIS: "Lawyer"}


def _changed(deal: str, version: int, roster: dict[str, str], **changes: object) -> Record:
    return crm.record(crm.deal_members(deal, version, roster, **changes), topic=DEAL_MEMBERS_CHANGED)


def _consume(*records: Record) -> None:
    for _ in RosterWork(DEALS).settle(records):
        pass


def _look_again_until(settled: Callable[[], bool]) -> None:
    def look() -> bool:
        for _ in RosterWork(DEALS).tick():
            pass
        return settled()

    wait_until(look, what="the parked roster settled")


def _version() -> int | None:
    return Chat.objects.get().deal_member_version


@pytest.fixture
def deal(tables: None) -> str:
    """A deal whose chat is there, with nobody in it."""
    deal = crm.new_id()
    provisions.add_chat(UUID(deal))
    return deal


class TestVersionGuard:
    """`Version <= deal_member_version` is stale: counted, acknowledged, nothing changed."""

    @pytest.mark.parametrize("at_once", [True, False], ids=["one batch", "one by one"])
    def test_order(self, deal: str, at_once: bool) -> None:
        """Trial 16: v5 {A,B}, v7 {A}, v6 {A,B}, v7 under a new MessageId, v8 {A,B}: v8 revives the same row."""
        boris = {BORIS: "Lawyer"}
        anna = {ANNA: "Executor"}
        records = [
            _changed(deal, 5, BOTH),
            _changed(deal, 7, anna),
            _changed(deal, 6, BOTH),
            _changed(deal, 7, anna | boris),
        ]
        with capture_logs() as logs:
            self._settle(records, at_once)
        assert [line["event"] for line in logs if line["event"] != "consumed"] == [
            "synced",
            "synced",
            "skipped_stale",
            "skipped_stale",
        ]
        assert (provisions.roster_of(deal), _version()) == (anna, 7)
        left = Participant.objects.get(user_id=BORIS)
        assert left.removed_at is not None  # INV-PART-4
        self._settle([_changed(deal, 8, BOTH)], at_once)
        assert (provisions.roster_of(deal), _version()) == (BOTH, 8)
        assert Participant.objects.get(user_id=BORIS).pk == left.pk  # INV-PART-1
        assert provisions.feed_of(deal) == [
            "DealChatProvisioned",
            "ParticipantJoined",
            "ParticipantJoined",
            "ParticipantLeft",
            "ParticipantJoined",
        ]

    @staticmethod
    def _settle(records: Sequence[Record], at_once: bool) -> None:
        for batch in [records] if at_once else [[record] for record in records]:
            _consume(*batch)

    def test_two_at_the_same_moment(self, deal: str) -> None:
        """v6 waits for v7's row lock, reads again after it, and is stale."""
        _consume(_changed(deal, 5, BOTH))
        with Gate() as gate, trigger("chats", "BEFORE UPDATE", gate.halt):
            newer = in_background(lambda: _consume(_changed(deal, 7, {ANNA: "Executor"})))
            gate.wait_for_somebody()
            older = in_background(lambda: _consume(_changed(deal, 6, BOTH)))
            wait_until(_somebody_waits_for_a_row, what="v6 waits for the chat")
            gate.open()
            newer.result(30)
            older.result(30)
        assert (provisions.roster_of(deal), _version()) == ({ANNA: "Executor"}, 7)

    def test_the_same_message_again(self, deal: str) -> None:
        record = _changed(deal, 1, BOTH)
        _consume(record)
        before = provisions.everything()
        with capture_logs() as logs:
            _consume(record, record)
        assert provisions.everything() == before
        assert [line["event"] for line in logs] == ["consumed", "skipped_duplicate", "skipped_duplicate"]

    def test_versions_of_leads_are_another_matter(self, deal: str) -> None:
        """The guard of a deal chat is its own column."""
        _consume(_changed(deal, 3, BOTH))
        chat = Chat.objects.get()
        assert (chat.deal_member_version, chat.lead_member_version) == (3, None)

    def test_roles_follow(self, deal: str) -> None:
        _consume(_changed(deal, 1, BOTH), _changed(deal, 2, {ANNA: "Responsible", VERA: "Overseer"}))
        assert provisions.roster_of(deal) == {ANNA: "Responsible", VERA: "Guest"}
        assert Participant.objects.get(user_id=VERA).role_raw == "Overseer"

    @pytest.mark.parametrize(
        "payload",
        [{"ActiveMembers": []}, {"ActiveMembers": None}, {"Version": 0}, {"Version": "1"}, {"ChangedAt": "2026-03-01"}],
        ids=str,
    )
    def test_a_broken_contract(self, deal: str, payload: dict[str, object]) -> None:
        """An empty roster is refused, never taken for «nobody» (INV-CHAT-7 for deals as they are sent)."""
        _consume(_changed(deal, 1, BOTH))
        message = crm.deal_members(deal, 2, {VERA: "Lawyer"})
        message["Payload"] |= payload
        _consume(crm.record(message, topic=DEAL_MEMBERS_CHANGED), _changed(deal, 3, {ANNA: "Executor"}))
        assert DeadLetter.objects.get().error_code == "MSG_DEAL_MEMBERS_INVALID"
        assert (provisions.roster_of(deal), _version()) == ({ANNA: "Executor"}, 3)


class TestParking:
    """`MSG_CHAT_NOT_PROVISIONED` for deals: parked by deal, the newest stays, a dead letter at the limit."""

    def test_the_newest_waits(self) -> None:
        deal = crm.new_id()
        _consume(_changed(deal, 2, BOTH), _changed(deal, 4, {VERA: "Lawyer"}), _changed(deal, 3, BOTH))
        parked = ParkedRoster.objects.get()
        assert (parked.chat_kind, str(parked.subject_id), parked.version) == ("Deal", deal, 4)

    def test_applied_once_the_chat_is_there(self) -> None:
        """A chat the retry job opened gives the waiting roster its turn in the same transaction."""
        row = provisions.add(roster={ANNA: "Executor"})
        _consume(_changed(str(row.deal_id), 2, BOTH))
        provisions.run()
        assert (provisions.roster_of(row.deal_id), _version()) == (BOTH, 2)
        assert not ParkedRoster.objects.exists()
        assert provisions.statuses_of(row.deal_id) == ["Ready"]

    def test_found_by_the_clock(self, settings: pytest.FixtureRequest) -> None:
        settings.LEAD_NOT_PROVISIONED_BACKOFF_BASE = 0.001  # type: ignore[attr-defined]
        deal = crm.new_id()
        _consume(_changed(deal, 2, BOTH))
        provisions.add_chat(UUID(deal))
        _look_again_until(lambda: not ParkedRoster.objects.exists())
        assert (provisions.roster_of(deal), _version()) == (BOTH, 2)

    def test_the_limit(self, settings: pytest.FixtureRequest) -> None:
        settings.LEAD_NOT_PROVISIONED_BACKOFF_BASE = 0.001  # type: ignore[attr-defined]
        settings.LEAD_NOT_PROVISIONED_BACKOFF_CAP = 0.002  # type: ignore[attr-defined]
        settings.LEAD_NOT_PROVISIONED_MAX_ATTEMPTS = 3  # type: ignore[attr-defined]
        record = _changed(crm.new_id(), 2, BOTH)
        _consume(record)
        _look_again_until(DeadLetter.objects.exists)
        dead = DeadLetter.objects.get()
        assert (dead.error_code, bytes(dead.value or b"")) == ("MSG_CHAT_NOT_PROVISIONED", record.value)
        assert not ParkedRoster.objects.exists()


def test_from_the_topics(start: Callable[..., Worker], broker: Broker) -> None:
    """A deal's people before the deal itself, then its deal-created, then their next change: true in the end."""
    deal = crm.new_id()
    workers = [start("consume_deal_members"), start("consume_deal_created")]
    broker.produce(DEAL_MEMBERS_CHANGED, crm.encode(crm.deal_members(deal, 1, {BORIS: "Lawyer"})), key=deal)
    workers[0].wait_for("retry_not_provisioned", deal_id=deal)
    broker.produce(DEAL_CREATED, crm.encode(crm.deal_created(deal, {ANNA: "Executor"})), key=deal)
    wait_until(lambda: provisions.roster_of(deal) == {BORIS: "Lawyer"}, what="the waiting roster applied")
    broker.produce(DEAL_MEMBERS_CHANGED, crm.encode(crm.deal_members(deal, 2, BOTH)), key=deal)
    wait_until(lambda: provisions.roster_of(deal) == BOTH, what="version 2 applied")
    wait_until(lambda: broker.lag(DEAL_MEMBERS_CHANGED) == broker.lag(DEAL_CREATED) == 0, what="offsets committed")
    assert [worker.terminate() for worker in workers] == [0, 0]


def _somebody_waits_for_a_row() -> bool:
    with own_connection() as session:
        found = session.execute(
            "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' "
            "AND query LIKE '%FROM messenger.chats%'"
        )
        return found.rowcount > 0
