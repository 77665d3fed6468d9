"""`lead-created` opens one chat per lead, once, with its first people in its feed."""

import pytest

from chats.contracts import LEAD_CREATED_INVALID
from chats.models import Chat
from messenger.topics import LEAD_CREATED
from outbox.models import ProcessedMessage
from tests.integration.conftest import OWN_TABLES, Logs
from tests.support import crm
from tests.support.factories import DealChatFactory
from tests.support.leads import check_dead_letter, deliver, deliver_created, everything, feed_of, roster_of, seats_of
from tests.support.observing import Ear, Metrics

pytestmark = [pytest.mark.usefixtures("true_feeds"), OWN_TABLES]
LEAD, ANNA, BORIS = (crm.new_id() for _ in range(3))


def test_a_lead_gets_its_chat(logs: Logs, ear: Ear) -> None:
    """INV-CE-2: exactly one LeadChatProvisioned, first; then who is in it."""
    ids = {"ProjectId": crm.new_id(), "TenantId": crm.new_id()}
    message = crm.lead_created(LEAD, {ANNA: "Executor", BORIS: "InvestorPrimary"}, title="Two rooms, Lenina 5")
    message["Payload"] |= ids
    deliver_created(message)
    chat = Chat.objects.get()
    assert (chat.kind, chat.status, chat.title, str(chat.lead_id)) == ("Lead", "Active", "Two rooms, Lenina 5", LEAD)
    assert {"ProjectId": str(chat.project_id), "TenantId": str(chat.tenant_id)} == ids
    assert (chat.deal_id, chat.lead_member_version, chat.closed_at) == (None, None, None)
    assert roster_of(LEAD) == {ANNA: "Executor", BORIS: "InvestorPrimary"}
    assert feed_of(LEAD)[0] == ("LeadChatProvisioned", None, None, None)
    assert sorted(line[:3] for line in feed_of(LEAD, after=1)) == sorted(
        [("ParticipantJoined", ANNA, "Executor"), ("ParticipantJoined", BORIS, "InvestorPrimary")]
    )
    assert ear.heard() == [str(chat.id)]
    (line,) = [line for line in logs if line["event"] == "chat_opened"]
    assert (line["lead_id"], line["chat_id"], line["message_id"]) == (LEAD, str(chat.id), message["MessageId"])


@pytest.mark.parametrize("one_batch", [True, False])
@pytest.mark.parametrize("same_message", [True, False])
def test_a_second_lead_created_of_the_lead_changes_nothing(
    one_batch: bool, same_message: bool, metrics: Metrics
) -> None:
    """INV-CHAT-2: one chat per lead; the first one stands."""
    first = crm.lead_created(LEAD, {ANNA: "Executor"})
    second = first if same_message else crm.lead_created(LEAD, {BORIS: "Executor"})
    if one_batch:
        deliver_created(first, second)
    else:
        deliver_created(first)
        before = everything()[:3]
        deliver_created(second)
        assert everything()[:3] == before
    assert roster_of(LEAD) == {ANNA: "Executor"}
    assert [line[0] for line in feed_of(LEAD)] == ["LeadChatProvisioned", "ParticipantJoined"]
    group = "messenger-lead-created"
    assert metrics("messenger_consumer_records_total", group=group, outcome="chat_opened") == 1
    assert metrics("messenger_consumer_records_total", group=group, outcome="skipped_duplicate") == 1


def test_a_late_lead_created_does_not_undo_what_came_after() -> None:
    """A redelivery after roster changes, its processed key pruned: the roster stays."""
    (created,) = deliver_created(crm.lead_created(LEAD, {ANNA: "Executor"}))
    deliver(crm.lead_participants(LEAD, 1, {BORIS: "Executor"}))
    ProcessedMessage.objects.all().delete()
    deliver_created(created)
    assert roster_of(LEAD) == {BORIS: "Executor"}


def test_many_leads_in_one_batch_have_a_chat_each() -> None:
    leads = [crm.new_id() for _ in range(50)]
    deliver_created(*(crm.lead_created(lead, {ANNA: "Executor"}) for lead in leads))
    assert {str(lead) for lead in Chat.objects.values_list("lead_id", flat=True)} == set(leads)


def test_a_lead_and_a_deal_of_one_id_have_chats_of_their_own() -> None:
    """Ids of leads and of deals are two sets."""
    DealChatFactory.create(deal_id=LEAD)
    deliver_created(crm.lead_created(LEAD, {ANNA: "Executor"}))
    assert Chat.objects.count() == 2
    assert roster_of(LEAD) == {ANNA: "Executor"}


def test_a_lead_without_people_is_refused() -> None:
    """Members >= 1 (INV-CHAT-7): a dead letter; the good lead beside it gets its chat."""
    other = crm.new_id()
    bad, _ = deliver_created(crm.lead_created(LEAD, {}), crm.lead_created(other, {ANNA: "Executor"}))
    check_dead_letter(bad, code=LEAD_CREATED_INVALID, group="messenger-lead-created", topic=LEAD_CREATED)
    assert [str(chat.lead_id) for chat in Chat.objects.all()] == [other]


@pytest.mark.parametrize(("emoji", "kept"), [(256, 256), (257, 256), (2500, 256)])
def test_trial_10_a_title_of_256_emoji_fits(emoji: int, kept: int) -> None:
    """257 are cut on a code point."""
    deliver_created(crm.lead_created(LEAD, {ANNA: "Executor"}, title="🏠" * emoji))
    assert Chat.objects.get().title == "🏠" * kept


def test_trial_3_a_title_with_u0000_is_a_dead_letter() -> None:
    (record,) = deliver_created(crm.lead_created(LEAD, {ANNA: "Executor"}, title="a\x00b"))
    check_dead_letter(record, code=LEAD_CREATED_INVALID, group="messenger-lead-created", topic=LEAD_CREATED)
    assert not Chat.objects.exists()


def test_unknown_roles_and_users_named_twice_are_warned_of(logs: Logs) -> None:
    """The same rules of a roster as for its changes."""
    message = crm.lead_created(LEAD, {ANNA: "Overseer"})
    message["Payload"]["Members"] += crm.members([(BORIS, "Lawyer"), (BORIS, "Executor")])
    deliver_created(message)
    assert seats_of(LEAD) == {ANNA: ("Guest", "Overseer"), BORIS: "Executor"}
    assert {line["event"] for line in logs if line["log_level"] == "warning"} == {"unknown_role", "user_named_twice"}
