"""The replica of user names: the newest wins whatever the order, and a name stands in the table and nowhere else."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import permutations
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from chats.models import MessengerUser
from chats.user_changed import NAME_WIDTH, USER_CHANGED_INVALID, UserChangedHandler
from messenger.envelope import ENVELOPE_INVALID
from messenger.records import Record
from messenger.topics import USER_CHANGED
from outbox.models import DeadLetter, OutboxMessage, ProcessedMessage
from outbox.settlement import HandlerWork
from tests.integration.conftest import Logs
from tests.support import crm
from tests.support.broker import Broker
from tests.support.leads import check_dead_letter
from tests.support.observing import Metrics
from tests.support.races import racing, wait_for_blocked
from tests.support.triggers import Gate, trigger
from tests.support.waiting import wait_until
from tests.support.workers import Worker

pytestmark = pytest.mark.usefixtures("tables")

ANNA, BORIS = crm.new_id(), crm.new_id()
GROUP = "messenger-user-changed"
FIRST, SECOND, THIRD = "2026-03-01T12:00:00+03:00", "2026-03-01T09:00:00.5Z", "2026-03-01T04:00:01-05:00"
"""In the order of time, though not in that of their letters."""


def consume(*messages: Mapping[str, Any] | Record) -> list[Record]:
    """Settle these as one batch of `user-changed`; all of them must be settled (ack)."""
    records = [crm.record(each, topic=USER_CHANGED) if isinstance(each, Mapping) else each for each in messages]
    settled = [record for part in HandlerWork(UserChangedHandler()).settle(records) for record in part]
    assert settled == records
    return records


def names() -> dict[str, str]:
    """What is shown for whom."""
    return {str(user): name for user, name in MessengerUser.objects.values_list("id", "display_name")}


def outcomes(logs: Logs) -> list[str]:
    """What became of each record."""
    return [line["event"] for line in logs if line["event"] in ("user_saved", "skipped_stale")]


def test_a_name_is_kept_and_replaced(metrics: Metrics) -> None:
    consume(crm.user_changed(ANNA, "Anna", at=FIRST), crm.user_changed(BORIS, "Boris", at=FIRST))
    consume(crm.user_changed(ANNA.upper(), "Anna Maria", at=SECOND))
    assert names() == {ANNA: "Anna Maria", BORIS: "Boris"}
    assert MessengerUser.objects.get(id=ANNA).updated_at == datetime(2026, 3, 1, 9, 0, 0, 500000, UTC)
    assert metrics("messenger_consumer_records_total", group=GROUP, outcome="user_saved") == 3


@pytest.mark.parametrize("order", [*permutations([(FIRST, "A"), (SECOND, "B"), (THIRD, "C")])])
@pytest.mark.parametrize("at_once", [True, False], ids=["one batch", "one by one"])
def test_the_newest_wins_whatever_the_order(order: Sequence[tuple[str, str]], at_once: bool) -> None:
    """By the moment, not by its letters, not by the order of delivery."""
    messages = [crm.user_changed(ANNA, name, at=moment) for moment, name in order]
    for batch in [messages] if at_once else [[message] for message in messages]:
        consume(*batch)
    assert names() == {ANNA: "C"}


def test_what_comes_late_is_told_to_be_stale(logs: Logs) -> None:
    consume(crm.user_changed(ANNA, "Anna Maria", at=SECOND))
    consume(crm.user_changed(ANNA, "Anna", at=FIRST), crm.user_changed(BORIS, "Boris", at=FIRST))
    assert names() == {ANNA: "Anna Maria", BORIS: "Boris"}
    assert outcomes(logs) == ["user_saved", "skipped_stale", "user_saved"]


@pytest.mark.parametrize("at_once", [True, False], ids=["one batch", "one by one"])
def test_of_equal_moments_the_later_in_the_topic_wins(at_once: bool) -> None:
    """A producer whose clock has whole seconds renames somebody twice in one."""
    messages = [crm.user_changed(ANNA, name, at=FIRST) for name in ("Ana", "Anna")]
    for batch in [messages] if at_once else [[message] for message in messages]:
        consume(*batch)
    assert names() == {ANNA: "Anna"}


def test_a_redelivery_changes_nothing() -> None:
    """Also a whole replay of the topic; and no processed key is spent on it."""
    history = [crm.user_changed(ANNA, name, at=moment) for moment, name in ((FIRST, "A"), (SECOND, "B"), (SECOND, "C"))]
    records = consume(*history)
    before = list(MessengerUser.objects.values())
    for record in records:
        consume(record)
    consume(*records, *records)
    assert list(MessengerUser.objects.values()) == before
    assert not ProcessedMessage.objects.exists()


def test_trial_10_a_name_is_cut_on_a_code_point() -> None:
    """256 emoji fit; more are cut."""
    consume(crm.user_changed(ANNA, "🏠" * NAME_WIDTH), crm.user_changed(BORIS, "🏠" * 5000))
    assert names() == {ANNA: "🏠" * 256, BORIS: "🏠" * 256}


@pytest.mark.parametrize("name", ["An\x00na", None, 5, ["Anna"], {"First": "Anna"}])
def test_a_name_that_is_none_is_dead_lettered_alone(name: Any) -> None:
    """Poison: that record alone; trial 3 for U+0000."""
    bad, _ = consume(crm.user_changed(ANNA, name), crm.user_changed(BORIS, "Boris"))
    check_dead_letter(bad, code=USER_CHANGED_INVALID, group=GROUP, topic=USER_CHANGED)
    assert names() == {BORIS: "Boris"}


def test_bytes_that_are_no_message_are_dead_lettered() -> None:
    (bad,) = consume(crm.record(None, topic=USER_CHANGED))
    check_dead_letter(bad, code=ENVELOPE_INVALID, group=GROUP, topic=USER_CHANGED)


def test_another_contract_version_is_applied_and_counted(metrics: Metrics) -> None:
    consume(crm.user_changed(ANNA, "Anna", ContractVersion=3))
    assert names() == {ANNA: "Anna"}
    assert metrics("messenger_consumer_contract_mismatch_total", group=GROUP) == 1


def test_two_consumers_with_the_same_users_in_opposite_order(metrics: Metrics, settings: Settings) -> None:
    """One waits for the other and nobody has to begin again: rows are saved in the order of their ids."""
    settings.CONSUMER_LOCK_TIMEOUT = settings.CONSUMER_STATEMENT_TIMEOUT = 60
    users = sorted(crm.new_id() for _ in range(20))
    old = [crm.user_changed(user, "old", at=FIRST) for user in users]
    new = [crm.user_changed(user, "new", at=SECOND) for user in reversed(users)]
    # Nobody gets past the gate of one row in the middle: without an order each would hold rows the other wants.
    body = f"IF NEW.id = '{users[10]}' THEN {{halt}} END IF;"
    with Gate() as gate, trigger("messenger_users", "BEFORE INSERT", body.format(halt=gate.halt)), racing() as start:
        running = [start(lambda: consume(*old))]
        gate.wait_for_somebody()
        running.append(start(lambda: consume(*new)))
        wait_for_blocked(2)
        gate.open()
        for each in running:
            each.result(30)
    assert names() == dict.fromkeys(users, "new")
    assert metrics("messenger_consumer_conflict_retries_total", group=GROUP) == 0


def test_no_name_in_any_log_line_metric_or_header(start: Callable[..., Worker], broker: Broker) -> None:
    """«PII нет»: the real command, with names that are saved, stale, sent twice, cut, and refused in every way."""
    secret = "Nemova"
    worker = start("consume_user_changed", LOG_LEVEL="DEBUG")
    user = crm.new_id()
    good = crm.user_changed(user, f"Anna {secret}", at=SECOND)
    messages: list[bytes] = [
        crm.encode(good),
        crm.encode(good),
        crm.encode(crm.user_changed(user, f"A. {secret}", at=FIRST, ContractVersion=2)),
        crm.encode(crm.user_changed(crm.new_id(), secret * 100)),
        crm.encode(crm.user_changed(crm.new_id(), [secret])),
        crm.encode(crm.user_changed(crm.new_id(), f"{secret}\x00")),
        crm.encode(crm.user_changed(secret, secret)),
        crm.encode(crm.user_changed(user, secret, at=secret)),
        crm.encode(good).replace(b'"DisplayName"', f'"{secret}": 1, "{secret}": 2, "DisplayName"'.encode()),
        crm.encode(good)[:-3],
        secret.encode(),
    ]
    for message in messages:
        broker.produce(USER_CHANGED, message, key=user)
    wait_until(lambda: broker.lag(USER_CHANGED) == 0, what="everything settled")
    assert DeadLetter.objects.count() == 7
    assert names()[user] == f"Anna {secret}"
    metrics = worker.get("/metrics")[1]
    assert worker.terminate() == 0
    told = [len(worker.find(event)) for event in ("user_saved", "skipped_stale", "failed")]
    assert (told[0] + told[1], told[2]) == (4, 7)
    said = [worker.output, metrics]
    for letter in DeadLetter.objects.all():
        said += [letter.error_detail, str(letter.headers)]
    said += [str(row.headers) for row in OutboxMessage.objects.all()]
    assert not [text for text in said if secret.lower() in text.lower()]
