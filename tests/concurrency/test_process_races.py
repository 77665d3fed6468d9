"""Races of whole processes: for a partition, for a chat that is only just opened, for the lease."""

import random

from chats.models import Chat, ParkedRoster
from messenger.topics import LEAD_CREATED
from messenger.topics import LEAD_PARTICIPANTS_CHANGED as TOPIC
from outbox.models import DeadLetter
from tests.support import crm
from tests.support.broker import Broker
from tests.support.consumers import LOCK_CHAT, Start, send, wait_applied, wait_no_lag
from tests.support.groups import wait_for_members
from tests.support.leads import check_feeds, open_chat, roster_of
from tests.support.outgoing import COMMAND as RELAY
from tests.support.outgoing import add, published, wait_all_published
from tests.support.races import holding
from tests.support.waiting import wait_until

ANNA, BORIS, VERA = (crm.new_id() for _ in range(3))


def test_a_partition_goes_while_its_records_wait(consume: Start, broker: Broker) -> None:
    """One record of a batch cannot go on; a second member takes a partition of it over: each is applied once."""
    leads = [crm.new_id() for _ in range(3)]
    for partition, lead in enumerate(leads):
        open_chat(lead, {ANNA: "Executor"})
        send(broker, lead, 1, {BORIS: "Executor"}, partition=partition)
    with holding(LOCK_CHAT, leads[1]):
        workers = [consume(CONSUMER_LOCK_TIMEOUT="0.3")]
        workers[0].wait_for("infrastructure_away")
        workers.append(consume(CONSUMER_LOCK_TIMEOUT="0.3"))
        wait_for_members(broker, TOPIC, 2)
    for lead in leads:
        wait_applied(lead, 1)
    wait_no_lag(broker)
    outcomes = [line["event"] for worker in workers for line in worker.events if line.get("lead_id") in leads]
    # A commit that fails while the partition goes means that the new owner reads the record again, to no effect.
    assert outcomes.count("synced") == 3
    assert set(outcomes) <= {"synced", "skipped_duplicate"}
    assert not DeadLetter.objects.exists()
    check_feeds()


def test_rosters_race_with_their_leads(consume: Start, start: Start, broker: Broker) -> None:
    """Some come before the chat, some after, some at the same moment; none is lost and none is left waiting."""
    dice = random.Random(7)
    leads = [crm.new_id() for _ in range(60)]
    worker = consume(LEAD_NOT_PROVISIONED_BACKOFF_BASE="0.2", LEAD_NOT_PROVISIONED_MAX_ATTEMPTS="1000")
    creator = start("consume_lead_created")
    creator.wait_for("partitions_assigned")
    wait_for_members(broker, TOPIC, 1)
    steps = [(lead, version) for lead in leads for version in range(3)]
    dice.shuffle(steps)

    def say(lead: str, version: int) -> None:
        if version == 0:
            broker.produce(LEAD_CREATED, crm.encode(crm.lead_created(lead, {ANNA: "Executor"})), key=lead)
        else:
            send(broker, lead, version, {BORIS: "Executor", (ANNA, VERA)[version - 1]: "Lawyer"})

    early = next(step for step in steps if step[1])
    say(*early)
    worker.wait_for("retry_not_provisioned", lead_id=early[0])
    for step in steps:
        if step != early:
            say(*step)
    wait_until(lambda: Chat.objects.filter(lead_member_version=2).count() == 60, what="all are at version 2")
    wait_no_lag(broker)
    assert not ParkedRoster.objects.exists()
    assert not DeadLetter.objects.exists()
    assert all(roster_of(lead) == {BORIS: "Executor", VERA: "Lawyer"} for lead in leads)
    check_feeds()
    assert creator.terminate() == 0


def test_relays_race_for_the_lease(start: Start, broker: Broker) -> None:
    """Started at the same moment, one works and the others stand by; nothing is published twice."""
    relays = [start(RELAY) for _ in range(3)]
    for relay in relays:
        relay.wait_for("started")
    texts = [f"{number:03}" for number in range(100)]
    for text in texts:
        add(broker, (text[-1], text))
    wait_all_published()
    assert sorted(published(broker)) == texts
    assert sum(len(relay.find("relay_active")) for relay in relays) == 1
    assert [relay.terminate() for relay in relays] == [0, 0, 0]
