"""The acceptance criteria («Критерии приёмки») of the lead participants consumer, on the real database.

«Конкурентная правка» is in `test_concurrent_rosters.py`, the rest of «Чат не готов» in `test_parking.py`.
"""

import pytest
from django.utils.dateparse import parse_datetime
from pytest_django.fixtures import Settings

from chats.models import Chat, ChatEvent, ParkedRoster, Participant
from outbox.models import DeadLetter
from tests.integration.conftest import OWN_TABLES, Logs
from tests.support import crm
from tests.support.leads import (
    check_dead_letter,
    deliver,
    everything,
    feed_of,
    make_due,
    open_chat,
    roster_of,
    seats_of,
    tick,
    version_of,
)
from tests.support.observing import Ear, Metrics

pytestmark = [pytest.mark.usefixtures("true_feeds"), OWN_TABLES]
LEAD, ANNA, BORIS, VERA = (crm.new_id() for _ in range(4))
CHANGED_AT = parse_datetime("2026-03-01T07:00:00.123456Z")


def synced(logs: Logs) -> list[tuple[int, int, int]]:
    """What each applied record says it did: added, removed, role_changed."""
    return [(line["added"], line["removed"], line["role_changed"]) for line in logs if line["event"] == "synced"]


def test_happy_added(logs: Logs, metrics: Metrics, ear: Ear) -> None:
    """Happy (добавление): участник добавлен (ParticipantJoined), ChatUpdated, LeadMemberVersion = Version, ack."""
    chat = open_chat(LEAD, {ANNA: "Executor"})
    ear.heard()
    before = metrics("messenger_participants_added_total")
    delta = {"UserId": BORIS, "ChangeType": "Added", "Role": "CoAgent"}
    message = crm.lead_participants(LEAD, 1, {ANNA: "Executor", BORIS: "CoAgent"}, deltas=[delta])
    deliver(message)
    assert roster_of(LEAD) == {ANNA: "Executor", BORIS: "CoAgent"}
    assert feed_of(LEAD, after=2) == [("ParticipantJoined", BORIS, "CoAgent", None)]
    assert ChatEvent.objects.get(seq=3).occurred_at == CHANGED_AT
    assert version_of(LEAD) == 1
    assert ear.heard() == [str(chat)]
    assert metrics("messenger_participants_added_total") - before == 1
    (line,) = [line for line in logs if line["event"] == "synced"]
    assert line == {
        "event": "synced",
        "log_level": "info",
        "message_id": message["MessageId"],
        "lead_id": LEAD,
        "chat_id": str(chat),
        "version": 1,
        "added": 1,
        "removed": 0,
        "role_changed": 0,
    }


def test_happy_removed(logs: Logs, metrics: Metrics, ear: Ear) -> None:
    """Happy (снятие): участие помечено удалённым (ParticipantLeft, soft RemovedAt); INV-PART-4."""
    chat = open_chat(LEAD, {ANNA: "Executor", BORIS: "Lawyer"})
    ear.heard()
    deliver(crm.lead_participants(LEAD, 1, {ANNA: "Executor"}))
    assert roster_of(LEAD) == {ANNA: "Executor"}
    row = Participant.objects.get(user_id=BORIS)
    assert (row.removed_at, row.role) == (CHANGED_AT, "Lawyer")
    assert feed_of(LEAD, after=3) == [("ParticipantLeft", BORIS, None, "Lawyer")]
    assert ear.heard() == [str(chat)]
    assert metrics("messenger_participants_removed_total") == 1
    assert synced(logs) == [(0, 1, 0)]


def test_happy_role_changed(logs: Logs, ear: Ear) -> None:
    """Happy (смена роли): роль обновлена (ParticipantRoleChanged), состав неизменен по членству."""
    chat = open_chat(LEAD, {ANNA: "Executor", BORIS: "Assistant"})
    ear.heard()
    rows = set(Participant.objects.values_list("id", "joined_at"))
    deliver(crm.lead_participants(LEAD, 1, {ANNA: "Executor", BORIS: "Lawyer"}))
    assert roster_of(LEAD) == {ANNA: "Executor", BORIS: "Lawyer"}
    assert set(Participant.objects.values_list("id", "joined_at")) == rows
    assert feed_of(LEAD, after=3) == [("ParticipantRoleChanged", BORIS, "Lawyer", "Assistant")]
    assert ear.heard() == [str(chat)]
    assert synced(logs) == [(0, 0, 1)]


@pytest.mark.parametrize("before", [{}, {BORIS: "CoAgent"}], ids=["newcomer", "already there"])
def test_handover(before: dict[str, str]) -> None:
    """Передача ведения: прежний исполнитель удалён, новый добавлен/переролен, ровно один Executor."""
    open_chat(LEAD, {ANNA: "Executor", **before})
    deltas = [
        {"UserId": ANNA, "ChangeType": "Removed", "PreviousRole": "Executor"},
        {"UserId": BORIS, "ChangeType": "ExecutorChanged", "Role": "Executor"},
    ]
    deliver(crm.lead_participants(LEAD, 1, {BORIS: "Executor"}, deltas=deltas))
    assert roster_of(LEAD) == {BORIS: "Executor"}
    arrived = ("ParticipantRoleChanged", BORIS, "Executor", "CoAgent")
    assert feed_of(LEAD, after=2 + len(before)) == [
        ("ParticipantLeft", ANNA, None, "Executor"),
        arrived if before else ("ParticipantJoined", BORIS, "Executor", None),
    ]


def test_several_agents_and_investors() -> None:
    """Несколько агентов/инвесторов: все активны в ростере (INV-CHAT-7 не требует единственности)."""
    open_chat(LEAD, {ANNA: "Executor"})
    roles = ["Executor", "CoAgent", "CoAgent", "InvestorPrimary", "InvestorPrimary", "InvestorSecondary"]
    roster = {crm.new_id(): role for role in roles} | {ANNA: "Executor"}
    deliver(crm.lead_participants(LEAD, 1, roster))
    assert roster_of(LEAD) == roster


def test_dismissal_cascade(ear: Ear) -> None:
    """Каскад увольнения: доступ и подписка сняты во всех чатах, ParticipantLeft в ленте, история сохранена."""
    leads = [crm.new_id() for _ in range(3)]
    chats = {str(open_chat(lead, {ANNA: "Executor", BORIS: "CoAgent"})) for lead in leads}
    ear.heard()
    delta = {"UserId": BORIS, "ChangeType": "Removed", "PreviousRole": "CoAgent"}
    deliver(*(crm.lead_participants(lead, 1, {ANNA: "Executor"}, deltas=[delta]) for lead in leads))
    assert not Participant.objects.filter(user_id=BORIS, removed_at=None).exists()
    for lead in leads:
        assert feed_of(lead)[0][0] == "LeadChatProvisioned"
        assert {line[0] for line in feed_of(lead) if line[1] == BORIS} == {"ParticipantJoined", "ParticipantLeft"}
    assert set(ear.heard()) == chats


@pytest.mark.parametrize("version", [4, 5], ids=["older", "equal"])
def test_stale_delivery(version: int, logs: Logs, metrics: Metrics, ear: Ear) -> None:
    """Устаревшая доставка (version-guard): изменений нет, skipped-stale, метрика stale_total, ack."""
    chat = open_chat(LEAD, {ANNA: "Executor"})
    deliver(crm.lead_participants(LEAD, 5, {ANNA: "Executor", BORIS: "Lawyer"}))
    ear.heard()
    before = everything()
    stale = crm.lead_participants(LEAD, version, {VERA: "Executor"})
    deliver(stale)
    assert everything() == before
    assert ear.heard() == []
    assert metrics("messenger_lead_participants_stale_total") == 1
    (line,) = [line for line in logs if line["event"] == "skipped_stale"]
    assert (line["message_id"], line["lead_id"], line["chat_id"], line["version"]) == (
        stale["MessageId"],
        LEAD,
        str(chat),
        version,
    )


@pytest.mark.parametrize("one_batch", [True, False])
def test_out_of_order_and_lost_delta(one_batch: bool) -> None:
    """Out-of-order + пропуск дельты: состав сходится к ActiveParticipants последнего (реконсиляция самодостаточна)."""
    open_chat(LEAD, {ANNA: "Executor"})
    history = {
        1: {ANNA: "Executor", BORIS: "Lawyer"},
        2: {ANNA: "Executor", BORIS: "Lawyer", VERA: "CoAgent"},  # lost on its way
        3: {ANNA: "Executor", VERA: "CoAgent"},
        4: {VERA: "Executor"},
    }
    arriving = [crm.lead_participants(LEAD, version, history[version]) for version in (3, 1, 4)]
    for batch in [arriving] if one_batch else [[each] for each in arriving]:
        deliver(*batch)
    assert roster_of(LEAD) == history[4]
    assert version_of(LEAD) == 4


@pytest.mark.parametrize("one_batch", [True, False])
def test_duplicate(one_batch: bool, logs: Logs, metrics: Metrics, ear: Ear) -> None:
    """Дубль: Given уже обработанный MessageId; When повтор; Then skipped-duplicate, ack."""
    open_chat(LEAD, {ANNA: "Executor"})
    message = crm.lead_participants(LEAD, 1, {ANNA: "Executor", BORIS: "Lawyer"})
    if one_batch:
        deliver(message, message)
    else:
        deliver(message)
        before = everything()
        deliver(message)
        assert everything() == before
    assert feed_of(LEAD, after=2) == [("ParticipantJoined", BORIS, "Lawyer", None)]
    outcomes = [line["event"] for line in logs if line.get("message_id") == message["MessageId"]]
    assert outcomes == ["synced", "skipped_duplicate"]
    group = "messenger-lead-participants-changed"
    assert metrics("messenger_consumer_records_total", group=group, outcome="skipped_duplicate") == 1
    assert metrics("messenger_consumer_message_id_reused_total", group=group) == 0
    assert len(ear.heard()) == 2  # the opening and one change


def test_duplicate_with_another_body_is_flagged(logs: Logs, metrics: Metrics) -> None:
    """Trial 15: the same MessageId with a different body is a duplicate, and reuse of an id is flagged."""
    open_chat(LEAD, {ANNA: "Executor"})
    message = crm.lead_participants(LEAD, 1, {ANNA: "Lawyer"})
    deliver(message, crm.lead_participants(LEAD, 2, {BORIS: "Executor"}, MessageId=message["MessageId"]))
    assert (roster_of(LEAD), version_of(LEAD)) == ({ANNA: "Lawyer"}, 1)
    assert [line["version"] for line in logs if line["event"] == "message_id_reused"] == [2]
    assert metrics("messenger_consumer_message_id_reused_total", group="messenger-lead-participants-changed") == 1


def test_chat_not_ready(settings: Settings, logs: Logs, metrics: Metrics) -> None:
    """Чат не готов: MSG_CHAT_NOT_PROVISIONED, ретрай backoff; после провизии применяется."""
    settings.LEAD_NOT_PROVISIONED_BACKOFF_BASE = 60
    message = crm.lead_participants(LEAD, 1, {ANNA: "Executor"})
    (record,) = deliver(message)
    parked = ParkedRoster.objects.get(chat_kind="Lead", subject_id=LEAD)
    assert (bytes(parked.value), parked.version, parked.attempts) == (record.value, 1, 0)
    assert parked.next_attempt_at > parked.first_seen_at
    assert not Chat.objects.exists()
    assert metrics("messenger_lead_participants_not_provisioned_total") == 1
    assert [line["event"] for line in logs if line.get("lead_id") == LEAD] == ["retry_not_provisioned"]
    tick()  # not due yet
    assert ParkedRoster.objects.get().attempts == 0
    make_due()
    tick()
    assert ParkedRoster.objects.get().attempts == 1
    assert not DeadLetter.objects.exists()
    open_chat(LEAD, {BORIS: "Executor"})
    assert (roster_of(LEAD), version_of(LEAD)) == ({ANNA: "Executor"}, 1)


@pytest.mark.parametrize(
    "participants",
    [[], None, {}, "", [None], [{"UserId": ANNA}], [{"Role": "Executor"}], [{"UserId": "?", "Role": "Executor"}]],
)
def test_empty_or_broken_roster(participants: object, logs: Logs, metrics: Metrics) -> None:
    """Пустой/битый состав: MSG_LEAD_PARTICIPANTS_INVALID, DLQ + алерт; INV-CHAT-7; the rest of the batch is applied."""
    open_chat(LEAD, {ANNA: "Executor"})
    bad = crm.lead_participants(LEAD, 1, {}, payload={"ActiveParticipants": participants})
    before = everything()
    (record,) = deliver(bad)
    assert everything() == before
    check_dead_letter(record, code="MSG_LEAD_PARTICIPANTS_INVALID")
    assert metrics("messenger_lead_participants_dlq_total") == 1
    (line,) = [line for line in logs if line["event"] == "failed"]
    assert (line["error_code"], line["log_level"]) == ("MSG_LEAD_PARTICIPANTS_INVALID", "error")
    deliver(crm.lead_participants(LEAD, 1, {BORIS: "Executor"}))
    assert roster_of(LEAD) == {BORIS: "Executor"}


@pytest.mark.parametrize("change", ["Promoted", "added", 0, None, [], {}])
def test_unknown_change_type(change: object, logs: Logs) -> None:
    """Неизвестный ChangeType: no-op дельты + warning, состав всё равно сходится по ActiveParticipants."""
    open_chat(LEAD, {ANNA: "Executor"})
    deltas: list[dict[str, object]] = [
        {"UserId": BORIS, "ChangeType": "Added", "Role": "Lawyer"},
        {"UserId": VERA, "ChangeType": change},
    ]
    deliver(crm.lead_participants(LEAD, 1, {ANNA: "Executor", BORIS: "Lawyer"}, deltas=deltas))
    assert roster_of(LEAD) == {ANNA: "Executor", BORIS: "Lawyer"}
    (line,) = [line for line in logs if line["event"] == "unknown_change_type"]
    assert (line["log_level"], line["entries"], line["lead_id"]) == ("warning", 1, LEAD)


def test_unknown_role(logs: Logs) -> None:
    """Неизвестный Role: сохранить строку как есть + warning (роль — bucket Guest)."""
    open_chat(LEAD, {ANNA: "Executor"})
    deliver(crm.lead_participants(LEAD, 1, {ANNA: "Executor", BORIS: "Overseer"}))
    assert seats_of(LEAD) == {ANNA: "Executor", BORIS: ("Guest", "Overseer")}
    assert feed_of(LEAD, after=2) == [("ParticipantJoined", BORIS, "Guest", None)]
    (line,) = [line for line in logs if line["event"] == "unknown_role"]
    assert (line["log_level"], line["roles"], line["lead_id"]) == ("warning", ["Overseer"], LEAD)


def test_unknown_role_becomes_known() -> None:
    """Once crm names a role this service knows, neither the string nor Guest stays."""
    open_chat(LEAD, {ANNA: "Overseer"})
    deliver(crm.lead_participants(LEAD, 1, {ANNA: "Watcher"}))
    assert (seats_of(LEAD), feed_of(LEAD, after=2)) == ({ANNA: ("Guest", "Watcher")}, [])
    deliver(crm.lead_participants(LEAD, 2, {ANNA: "Lawyer"}))
    assert seats_of(LEAD) == {ANNA: "Lawyer"}
    assert feed_of(LEAD, after=2) == [("ParticipantRoleChanged", ANNA, "Lawyer", "Guest")]
