"""The simulated crm of the demonstration, and the ledger that holds messenger to it."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from chats.contracts import read_lead_created, read_lead_participants
from chats.deal_contracts import read_deal_created, read_deal_members
from demo.crm.actions import ACTIONS
from demo.crm.deliveries import Delivery, Outcome
from demo.crm.model import Crm
from demo.crm.simulation import Simulation
from demo.ledger import Ledger
from demo.management.commands.demo import duration
from messenger.envelope import Refused
from messenger.records import Record
from messenger.topics import DEAL_CREATED, LEAD_CREATED, LEAD_PARTICIPANTS_CHANGED, LEAD_TERMINATED, USER_CHANGED

MOMENT = datetime(2026, 3, 1, 10, tzinfo=UTC)


def simulate(seed: int, records: int = 400) -> tuple[Simulation, list[Delivery]]:
    """A whole history: so many records, and what was held back at its end."""
    simulation = Simulation(Crm(seed, clock=lambda: MOMENT))
    sent = []
    while (delivery := simulation.peek()) is not None:
        if delivery.topic is not USER_CHANGED:  # names are told in passing
            sent.append(delivery)
        simulation.take()
        if len(sent) == records:
            simulation.end()
    return simulation, sent


def as_record(delivery: Delivery) -> Record:
    return Record(delivery.topic.name, 0, 0, delivery.key.encode(), delivery.value)


# --- the simulated crm --------------------------------------------------------------------------------


def test_a_seed_repeats_its_history_to_the_byte() -> None:
    assert simulate(7)[1] == simulate(7)[1]
    assert simulate(7)[1] != simulate(8)[1]


@pytest.mark.parametrize("seed", range(20))
def test_the_newest_record_of_each_lead_has_the_roster_that_crm_ends_with(seed: int) -> None:
    """Out-of-order, lost and doubled records and all: what `--for` compares with is what was sent."""
    simulation, sent = simulate(seed)
    newest: dict[UUID, tuple[int, dict[UUID, str]]] = {}
    for delivery in sent:
        if delivery.refusal is not None:
            continue
        if delivery.topic is LEAD_TERMINATED:
            assert simulation.crm.leads[delivery.subject].ended
            continue
        if delivery.topic in (LEAD_CREATED, DEAL_CREATED):
            read_created = read_lead_created if delivery.topic is LEAD_CREATED else read_deal_created
            _, opening = read_created(as_record(delivery))
            found = (0, {user: seat.raw or seat.role.value for user, seat in opening.members.items()})
        else:
            read_roster = read_lead_participants if delivery.subject in simulation.crm.leads else read_deal_members
            snapshot = read_roster(as_record(delivery))
            found = (snapshot.version, {user: seat.raw or seat.role.value for user, seat in snapshot.target.items()})
        newest[delivery.subject] = max(newest.get(delivery.subject, (-1, {})), found, key=lambda each: each[0])
    subjects = {subject.id: subject.roster for subject in simulation.subjects()}
    assert {subject: roster for subject, (_, roster) in newest.items()} == subjects
    assert all(list(roster.values()).count("Executor") == 1 for roster in subjects.values())
    assert {subject: version or None for subject, (version, _) in newest.items()} == {
        subject: simulation.oracle.version(subject) for subject in subjects
    }


def test_nothing_of_a_deal_in_trouble_is_told_twice() -> None:
    """Whether its roster waits or has been applied by then is a matter of time, and of no rule."""
    for seed in range(60):
        simulation, sent = simulate(seed)
        once = [delivery.message_id for delivery in sent if simulation.crm.troubled(delivery.subject)]
        assert len(once) == len(set(once))


@pytest.mark.parametrize("seed", range(5))
def test_every_kind_of_action_happens_soon(seed: int) -> None:
    """A person who watches for 20 s, or CI, misses none."""
    _, sent = simulate(seed, records=80)
    fates = Simulation(Crm(seed, clock=lambda: MOMENT))
    outcomes = {outcome for _ in range(80) if fates.peek() for outcome in fates.take().outcomes}
    assert outcomes == set(Outcome)
    words = (
        "new lead",
        "joins",
        "leaves",
        "becomes",
        "hand-over",
        "dismissed",
        "Notary",
        "second time",
        "too late",
        "is lost",
        "late creation",
        "no value",
        "no JSON",
        "empty roster",
        "version",
        "new deal",
        "fails at first",
        "ends",
    )
    for words_of_kind in words:
        assert any(words_of_kind in delivery.story for delivery in sent), words_of_kind
    assert len(ACTIONS) == len({type(action) for action in ACTIONS}) == 18


def test_broken_records_are_refused_for_the_reason_that_crm_expects() -> None:
    broken = [delivery for delivery in simulate(3)[1] if delivery.refusal is not None]
    assert len({delivery.story for delivery in broken}) > 6
    for delivery in broken:
        with pytest.raises(Refused) as refused:
            read_lead_participants(as_record(delivery))
        assert refused.value.code == delivery.refusal, delivery


# --- what messenger said, against what should be ---------------------------------------------------


def test_the_ledger_tells_what_was_not_to_happen() -> None:
    simulation = Simulation(Crm(1, clock=lambda: MOMENT))
    ledger = Ledger()
    entries = []
    for _ in range(60):
        assert simulation.peek() is not None
        entries.append(ledger.add(simulation.take()))
    applied = next(each for each in entries if each.fate.outcomes == [Outcome.APPLIED])
    counts = {"version": 1, "added": 1, "removed": 0, "role_changed": 0}
    event = {"event": "synced", "message_id": str(applied.fate.delivery.message_id), **counts}
    ledger.hear(event)
    ledger.settle()
    assert applied.settled and applied not in ledger.open and not ledger.unexpected
    ledger.hear(event)
    ledger.settle()
    assert len(ledger.unexpected) == 1 and "'synced'" in ledger.unexpected[0]
    assert ledger.count(Outcome.APPLIED) == 1


def test_a_broken_record_is_known_by_its_place_even_if_that_is_reported_late() -> None:
    simulation = Simulation(Crm(1, clock=lambda: MOMENT))
    ledger = Ledger()
    while not ledger.dead:
        assert simulation.peek() is not None
        broken = ledger.add(simulation.take())
    topic = LEAD_PARTICIPANTS_CHANGED.name
    ledger.hear({"event": "failed", "topic": topic, "partition": 1, "offset": 5, "error_code": "X"})
    ledger.settle()
    assert broken in ledger.open and not ledger.unexpected
    broken.place = (1, 5)
    ledger.settle()
    assert broken.did == "dead letter X"
    assert broken not in ledger.open


@pytest.mark.parametrize(("text", "seconds"), [("20s", 20), ("2m", 120), ("15", 15)])
def test_for_takes_seconds_and_minutes(text: str, seconds: float) -> None:
    assert duration(text) == seconds
