"""One record's whole way, as processes: from the topic to the roster, and a broken one to its dead letter topic."""

from collections.abc import Callable

from chats.models import Chat, Participant
from messenger.topics import LEAD_CREATED, LEAD_PARTICIPANTS_CHANGED
from tests.support import crm
from tests.support.broker import Broker
from tests.support.waiting import wait_until
from tests.support.workers import Worker


def test_a_roster_follows_its_lead(start: Callable[..., Worker], broker: Broker) -> None:
    lead, anna, boris = crm.new_id(), crm.new_id(), crm.new_id()
    workers = [start(name) for name in ("consume_lead_created", "consume_lead_participants", "run_outbox_relay")]
    for worker in workers:
        worker.wait_for("started")
    broker.produce(LEAD_CREATED, crm.encode(crm.lead_created(lead, {anna: "Executor"})), key=lead)
    broker.produce(LEAD_PARTICIPANTS_CHANGED, b"junk", key=lead)
    message = crm.lead_participants(lead, 1, {boris: "Executor"})
    broker.produce(LEAD_PARTICIPANTS_CHANGED, crm.encode(message), key=lead)

    wait_until(lambda: Chat.objects.filter(lead_id=lead, lead_member_version=1).exists(), what="version 1 applied")
    active = Participant.objects.filter(removed_at=None).values_list("user_id", "role")
    assert [(str(user), role) for user, role in active] == [(boris, "Executor")]
    (dead,) = wait_until(lambda: broker.read(LEAD_PARTICIPANTS_CHANGED.contract + ".messenger.dlq"))
    assert dead.value == b"junk"
    wait_until(lambda: broker.lag(LEAD_PARTICIPANTS_CHANGED) == 0, what="offsets committed")
    assert [worker.terminate() for worker in workers] == [0, 0, 0]
