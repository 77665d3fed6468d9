"""«Идемпотентность и replay» of the lead participants consumer, and trial 16."""

import random

import pytest
from django.db import connection

from chats.models import ChatEvent
from outbox.models import ProcessedMessage
from tests.integration.conftest import OWN_TABLES
from tests.support import crm
from tests.support.leads import deliver, everything, feed_of, open_chat, roster_of, version_of
from tests.support.observing import Metrics

pytestmark = [pytest.mark.usefixtures("true_feeds"), OWN_TABLES]
LEAD, ANNA, BORIS, VERA = (crm.new_id() for _ in range(4))


def test_by_message() -> None:
    """«По сообщению: ключ messenger-lead-participants:{MessageId}», written with the effect."""
    open_chat(LEAD, {ANNA: "Executor"})
    message = crm.lead_participants(LEAD, 1, {BORIS: "Executor"})
    deliver(message)
    assert ProcessedMessage.objects.filter(key=f"messenger-lead-participants:{message['MessageId']}").exists()


def test_by_message_in_one_transaction_with_the_effect() -> None:
    """«Фиксируются в одном согласованном изменении»: roster, version, feed and mark were written by one transaction."""
    open_chat(LEAD, {ANNA: "Executor"})
    deliver(crm.lead_participants(LEAD, 1, {BORIS: "Executor"}))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT xmin::text FROM messenger.chats UNION SELECT xmin::text FROM messenger.participants"
            " UNION SELECT xmin::text FROM messenger.chat_events WHERE seq > 2"
            " UNION SELECT xmin::text FROM messenger.processed_messages WHERE key LIKE 'messenger-lead-participants:%%'"
        )
        assert len(cursor.fetchall()) == 1


def test_by_version(metrics: Metrics) -> None:
    """«По версии: монотонный Version-guard (out-of-order, replay)»: under new MessageIds as well."""
    open_chat(LEAD, {ANNA: "Executor"})
    for version in (3, 1, 3, 2):
        deliver(
            crm.lead_participants(
                LEAD, version, {ANNA: "Executor", BORIS: "Lawyer"} if version == 3 else {VERA: "Executor"}
            )
        )
    assert (roster_of(LEAD), version_of(LEAD)) == ({ANNA: "Executor", BORIS: "Lawyer"}, 3)
    assert metrics("messenger_lead_participants_stale_total") == 3


def test_trial_16_order() -> None:
    """v5 {A,B}, v7 {A}, v6 {A,B}, v7 under a new MessageId, v8 {A,B}: B is out after v6, v8 revives the row."""
    open_chat(LEAD, {ANNA: "Executor"})
    both, alone = {ANNA: "Executor", BORIS: "Lawyer"}, {ANNA: "Executor"}
    for version, roster in ((5, both), (7, alone), (6, both), (7, both)):
        deliver(crm.lead_participants(LEAD, version, roster))
    assert (roster_of(LEAD), version_of(LEAD)) == (alone, 7)
    deliver(crm.lead_participants(LEAD, 8, both))
    assert roster_of(LEAD) == both
    assert [line[:2] for line in feed_of(LEAD, after=2)] == [
        ("ParticipantJoined", BORIS),
        ("ParticipantLeft", BORIS),
        ("ParticipantJoined", BORIS),
    ]


@pytest.mark.parametrize("pruned", [False, True], ids=["keys kept", "keys pruned"])
def test_replay(pruned: bool) -> None:
    """«Replay: да. Повторный re-read сходится к последнему составу»: the whole topic again changes nothing."""
    dice = random.Random(1)
    leads = [crm.new_id() for _ in range(3)]
    people = [crm.new_id() for _ in range(4)]
    for lead in leads:
        open_chat(lead, {people[0]: "Executor"})
    topic = [
        crm.record(crm.lead_participants(lead, version, dict.fromkeys(dice.sample(people, version % 4 + 1), "Lawyer")))
        for version in range(1, 9)
        for lead in leads
    ]
    deliver(*topic)
    before = everything()[:3]
    if pruned:
        ProcessedMessage.objects.all().delete()
    deliver(*topic)
    assert everything()[:3] == before
    assert ChatEvent.objects.count() > len(topic)
