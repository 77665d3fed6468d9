"""Rules beside the acceptance criteria: INV-PART-1, users named twice, what is told of a record and what is not."""

import pytest

from chats.models import Chat, Participant
from outbox.models import OutboxMessage
from tests.integration.conftest import OWN_TABLES, Logs
from tests.support import crm
from tests.support.factories import DealChatFactory
from tests.support.leads import (
    deliver,
    deliver_created,
    feed_of,
    open_chat,
    roster_of,
    version_of,
)
from tests.support.observing import Ear, Metrics

pytestmark = [pytest.mark.usefixtures("true_feeds"), OWN_TABLES]
LEAD, ANNA, BORIS = (crm.new_id() for _ in range(3))


@pytest.mark.parametrize("reverse", [False, True])
def test_one_user_named_twice(reverse: bool, logs: Logs) -> None:
    """Design, section 2: different roles resolve to the first in the order, with a warning, whatever the order."""
    open_chat(LEAD, {ANNA: "Executor"})
    entries = [(BORIS, "Lawyer"), (ANNA, "Executor"), (BORIS, "Responsible"), (ANNA, "Executor")]
    deliver(crm.lead_participants(LEAD, 1, entries[::-1] if reverse else entries))
    assert roster_of(LEAD) == {ANNA: "Executor", BORIS: "Responsible"}
    (line,) = [line for line in logs if line["event"] == "user_named_twice"]
    assert (line["log_level"], line["users"]) == ("warning", 1)


def test_a_return_revives_the_same_row() -> None:
    """INV-PART-1: добавление бывшего участника реактивирует ту же запись."""
    open_chat(LEAD, {ANNA: "Executor", BORIS: "Lawyer"})
    row = Participant.objects.get(user_id=BORIS)
    deliver(
        crm.lead_participants(LEAD, 1, {ANNA: "Executor"}),
        crm.lead_participants(LEAD, 2, {ANNA: "Executor", BORIS: "CoAgent"}),
    )
    revived = Participant.objects.get(user_id=BORIS)
    assert (revived.id, revived.role, revived.removed_at) == (row.id, "CoAgent", None)
    assert feed_of(LEAD, after=3) == [
        ("ParticipantLeft", BORIS, None, "Lawyer"),
        ("ParticipantJoined", BORIS, "CoAgent", None),
    ]


def test_nothing_goes_out_to_kafka() -> None:
    """«Наружу Kafka-событий нет»."""
    open_chat(LEAD, {ANNA: "Executor"})
    deliver(crm.lead_participants(LEAD, 1, {BORIS: "Executor"}))
    assert not OutboxMessage.objects.exists()


def test_a_snapshot_equal_to_the_roster_advances_the_version_alone(ear: Ear) -> None:
    """Nothing changed for people: no fact and no ChatUpdated, yet older snapshots are stale from now on."""
    open_chat(LEAD, {ANNA: "Executor"})
    ear.heard()
    deliver(crm.lead_participants(LEAD, 3, {ANNA: "Executor"}))
    assert (version_of(LEAD), feed_of(LEAD, after=2), ear.heard()) == (3, [], [])


def test_consumed_is_told_once_a_batch_with_its_duration(logs: Logs, metrics: Metrics) -> None:
    """Logs «consumed», metric messenger_lead_participants_consume_duration_ms, per record."""
    open_chat(LEAD, {ANNA: "Executor"})
    logs.clear()
    deliver(*(crm.lead_participants(LEAD, version, {ANNA: "Executor"}) for version in (1, 2, 3)))
    (line,) = [line for line in logs if line["event"] == "consumed"]
    assert (line["records"], line["group"]) == (3, "messenger-lead-participants-changed")
    assert line["duration_ms"] > 0
    assert metrics("messenger_lead_participants_consume_duration_ms_count") == 3


def test_no_personal_data_in_logs(logs: Logs) -> None:
    """«PII нет (id/роли)»: neither titles nor payloads are logged, also of records that are refused."""
    deliver_created(crm.lead_created(LEAD, {ANNA: "Executor"}, title="Anna Petrova, +7 900 000-00-00"))
    deliver(
        crm.lead_participants(LEAD, 1, {ANNA: "Executor"}, payload={"Comment": "Anna Petrova"}),
        crm.lead_participants(LEAD, 2, {ANNA: "Executor"}, payload={"ChangedAt": "Anna Petrova"}),
        crm.record(b"Anna Petrova"),
    )
    assert [line["event"] for line in logs].count("failed") == 2
    assert "Petrova" not in str(logs)


def test_the_roster_is_the_authority_whatever_the_delta_says() -> None:
    """«Авторитет состава всегда ActiveParticipants»: a delta that says the opposite changes nothing."""
    open_chat(LEAD, {ANNA: "Executor"})
    deltas = [
        {"UserId": ANNA, "ChangeType": "Added", "Role": "Executor"},
        {"UserId": BORIS, "ChangeType": "Removed", "PreviousRole": "Lawyer"},
        {"UserId": crm.new_id(), "ChangeType": "ResponsibleChanged", "Role": "Responsible"},
    ]
    deliver(crm.lead_participants(LEAD, 1, {BORIS: "Lawyer"}, deltas=deltas))
    assert roster_of(LEAD) == {BORIS: "Lawyer"}
    assert feed_of(LEAD, after=2) == [
        ("ParticipantLeft", ANNA, None, "Executor"),
        ("ParticipantJoined", BORIS, "Lawyer", None),
    ]


@pytest.mark.parametrize("value", ["0d7c2b9e-5a41-4f63-9c1e-7b0f2f6a1d11", "?", 5, None, {}])
def test_tenant_and_author_have_no_influence(value: object) -> None:
    """«TenantId/ChangedByUserId на синк не влияют», whatever they hold."""
    open_chat(LEAD, {ANNA: "Executor"})
    deliver(crm.lead_participants(LEAD, 1, {BORIS: "Lawyer"}, payload={"TenantId": value, "ChangedByUserId": value}))
    assert roster_of(LEAD) == {BORIS: "Lawyer"}
    assert Chat.objects.get().tenant_id is None


def test_a_deal_of_the_same_id_is_left_alone() -> None:
    """A lead's rosters concern Lead chats (ChatKind.Lead) alone."""
    deal = DealChatFactory.create(deal_id=LEAD)
    deliver(crm.lead_participants(LEAD, 1, {ANNA: "Executor"}))
    assert not Participant.objects.exists()
    open_chat(LEAD, {BORIS: "Executor"})
    assert roster_of(LEAD) == {ANNA: "Executor"}
    deal.refresh_from_db()
    assert (deal.deal_member_version, deal.lead_member_version, deal.last_seq) == (None, None, 0)
