"""Payload trials 1 to 10 on the real database: one verdict on first delivery, on the parked retry and on redelivery.

The inputs are in `tests.support.trials`; titles of trial 10 are in `test_lead_created.py`.
"""

import json
from datetime import UTC, datetime
from uuid import UUID

import pytest
from django.db import connection
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from chats.contracts import read_lead_participants
from chats.models import ChatEvent, ParkedRoster, Participant
from chats.roster_consumer import LEADS
from messenger.database import unit_of_work
from messenger.envelope import Refused
from messenger.records import Headers
from outbox.dead_letters import Refusal, bury
from outbox.headers import from_json, to_json
from outbox.models import DeadLetter, OutboxMessage
from tests.integration.conftest import OWN_TABLES, Logs
from tests.support import crm, trials
from tests.support.factories import LeadChatFactory
from tests.support.leads import (
    check_dead_letter,
    deliver,
    everything,
    make_due,
    open_chat,
    park_as_it_is,
    roster_of,
    seats_of,
    tick,
    version_of,
)
from tests.support.trials import ANNA, APPLIED, BORIS, LEAD, MESSAGE, REFUSED, ROSTER, TEXT, VERSION, Applied, cases

pytestmark = [pytest.mark.usefixtures("true_feeds"), OWN_TABLES]
VERA = crm.new_id()
PATHS = ["first delivery", "parked until opened", "parked until due"]
ODD_HEADERS: Headers = (
    ("message-id", b"one"),
    ("message-id", b"again"),
    ("none", None),
    ("empty", b""),
    ("bytes", b"\xff\xfe"),
    ("zero", b"a\x00b"),
    ("traceparent", b"junk"),
)


def check_poison(value: bytes | None) -> None:
    """POISON-OK, with one verdict on each path."""
    with pytest.raises(Refused) as caught:
        read_lead_participants(crm.record(value))
    code, detail = caught.value.code, str(caught.value)
    open_chat(LEAD, {ANNA: "Executor"})
    before = everything()
    bad = crm.record(value, key=b"\x00key", headers=ODD_HEADERS)
    deliver(bad)
    assert everything() == before  # not one row changed
    assert check_dead_letter(bad, code=code).error_detail == detail
    deliver(bad, crm.record(crm.lead_participants(LEAD, VERSION, {VERA: "Executor"})))  # once more, then a good one
    assert (roster_of(LEAD), version_of(LEAD)) == ({VERA: "Executor"}, VERSION)
    assert DeadLetter.objects.count() == OutboxMessage.objects.count() == 1
    if value is not None:  # what has no value names no lead to wait for
        parked = park_as_it_is(value, lead=LEAD)
        tick()
        assert check_dead_letter(parked, code=code).error_detail == detail
        assert not ParkedRoster.objects.exists()


def check_applied(case: Applied, path: str) -> None:
    """Applied exactly, whichever path it takes; a redelivery is a no-op."""
    record = crm.record(case.value, key=None, headers=ODD_HEADERS)
    if path == "first delivery":
        open_chat(LEAD, {VERA: "Guest"})
        deliver(record)
    else:
        deliver(record)
        assert bytes(ParkedRoster.objects.get().value) == case.value
        if path == "parked until opened":
            open_chat(LEAD, {VERA: "Guest"})
        else:
            LeadChatFactory.create(lead_id=LEAD)
            make_due()
            tick()
    assert (seats_of(LEAD), version_of(LEAD)) == (case.roster, case.version)
    assert not ParkedRoster.objects.exists()
    before = everything()
    deliver(record)
    assert everything() == before
    assert not DeadLetter.objects.exists()


@pytest.mark.parametrize("value", cases(REFUSED, 1))
def test_trial_1_nothing_there(value: bytes | None) -> None:
    check_poison(value)


def test_trial_1_the_dead_letter_tells_null_from_empty() -> None:
    null, empty = deliver(crm.record(None), crm.record(b""))
    assert check_dead_letter(null, code="MSG_ENVELOPE_INVALID").value is None
    assert check_dead_letter(empty, code="MSG_ENVELOPE_INVALID").value == b""
    assert check_dead_letter(empty, code="MSG_ENVELOPE_INVALID").key is None


@pytest.mark.parametrize("key", [None, b"", b"\xff", LEAD.encode()])
@pytest.mark.parametrize("headers", [(), ODD_HEADERS], ids=["no headers", "odd headers"])
@pytest.mark.parametrize("path", PATHS)
def test_trial_1_key_and_headers_do_not_matter(key: bytes | None, headers: Headers, path: str) -> None:
    check_applied(Applied(TEXT.encode(), ROSTER), path)
    deliver(crm.record(trials.message({"Version": 8}, MessageId=crm.new_id()), key=key, headers=headers))
    assert version_of(LEAD) == 8


@pytest.mark.parametrize("value", cases(REFUSED, 2))
def test_trial_2_byte_order_marks_and_other_encodings(value: bytes) -> None:
    check_poison(value)


@pytest.mark.parametrize("value", cases(REFUSED, 3))
def test_trial_3_u0000_in_a_role(value: bytes) -> None:
    check_poison(value)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", cases(APPLIED, 2, 3))
def test_trial_3_u0000_in_what_is_ignored(case: Applied, path: str) -> None:
    check_applied(case, path)


@pytest.mark.parametrize("detail", ["a\x00b", "🏠" * 2500, "\ud800", ""], ids=["U+0000", "10 kB", "surrogate", "empty"])
def test_trials_3_and_10_the_failure_path_does_not_fail_on_its_text(detail: str) -> None:
    """Whatever a reason says, it fits `error_detail` (512) and the header of the DLQ."""
    record = crm.record(b"junk", headers=ODD_HEADERS)
    with unit_of_work(lock_timeout=10, statement_timeout=10) as cursor:
        bury(cursor, [Refusal(record, LEADS.group, "MSG_TEST", detail)])
    dead = check_dead_letter(record, code="MSG_TEST")
    assert dead.error_detail == {"a\x00b": "a\\u0000b", "🏠" * 2500: "🏠" * 512, "\ud800": "\\ud800"}.get(detail, "")


@pytest.mark.parametrize("value", cases(REFUSED, 4))
def test_trial_4_numbers_that_are_not_versions(value: bytes) -> None:
    check_poison(value)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", cases(APPLIED, 4))
def test_trial_4_numbers_that_are(case: Applied, path: str) -> None:
    check_applied(case, path)


def test_trial_4_the_greatest_version_makes_5_stale(logs: Logs) -> None:
    """9223372036854775807 is applied exactly."""
    open_chat(LEAD, {ANNA: "Executor"})
    deliver(crm.record(trials.version("9223372036854775807")))
    deliver(crm.lead_participants(LEAD, 5, {VERA: "Executor"}))
    assert (roster_of(LEAD), version_of(LEAD)) == (ROSTER, 9223372036854775807)
    assert [line["version"] for line in logs if line["event"] == "skipped_stale"] == [5]


@pytest.mark.parametrize("value", cases(REFUSED, 5))
def test_trial_5_names_that_are_not_the_contracts(value: bytes) -> None:
    """One documented rule: names are spelled as in the contract; a name twice in one object is refused."""
    check_poison(value)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", cases(APPLIED, 5))
def test_trial_5_another_spelling_is_an_unknown_name(case: Applied, path: str) -> None:
    """Ignored like any other: never half-read, never taken for an empty roster."""
    check_applied(case, path)


@pytest.mark.parametrize("value", cases(REFUSED, 6))
def test_trial_6_empty_is_not_absent(value: bytes) -> None:
    """Not one row changed."""
    check_poison(value)


@pytest.mark.parametrize("value", cases(REFUSED, 7))
def test_trial_7_roles_that_are_no_strings(value: bytes) -> None:
    """All or nothing: the good entry beside it is not applied either."""
    check_poison(value)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", cases(APPLIED, 7))
def test_trial_7_unknown_roles_are_guests(case: Applied, path: str) -> None:
    """Nobody is silently dropped."""
    check_applied(case, path)


@pytest.mark.parametrize("value", cases(REFUSED, 8))
def test_trial_8_uuids_of_another_form(value: bytes) -> None:
    check_poison(value)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", cases(APPLIED, 8))
def test_trial_8_upper_case(case: Applied, path: str) -> None:
    check_applied(case, path)


def test_trial_8_upper_case_names_the_same_person_and_the_same_message(logs: Logs) -> None:
    open_chat(LEAD, {ANNA: "Executor", BORIS: "Lawyer"})
    rows = set(Participant.objects.values_list("id", flat=True))
    deliver(crm.record(trials.message()))
    upper = trials.message({"Version": 99}, MessageId=MESSAGE.upper())
    deliver(crm.record(upper))
    assert version_of(LEAD) == VERSION
    outcomes = [line["event"] for line in logs if line.get("message_id") == MESSAGE and line["log_level"] == "info"]
    assert outcomes == ["synced", "skipped_duplicate"]
    deliver(crm.lead_participants(LEAD.upper(), 8, {ANNA.upper(): "Executor", BORIS: "Lawyer"}))
    assert set(Participant.objects.values_list("id", flat=True)) == rows
    assert version_of(LEAD) == 8


@pytest.mark.parametrize("value", cases(REFUSED, 9))
def test_trial_9_no_moment_in_time(value: bytes) -> None:
    check_poison(value)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", cases(APPLIED, 9))
def test_trial_9_moments(case: Applied, path: str) -> None:
    check_applied(case, path)


def test_trial_9_moments_are_stored_in_utc() -> None:
    open_chat(LEAD, {ANNA: "Executor"})
    deliver(
        crm.lead_participants(LEAD, 1, {BORIS: "Executor"}, payload={"ChangedAt": "2026-03-01T10:00:00.1234567+03:00"}),
        crm.lead_participants(LEAD, 2, {ANNA: "Executor"}, payload={"ChangedAt": "2026-03-01T23:59:59.9999999Z"}),
    )
    earlier = datetime(2026, 3, 1, 7, 0, 0, 123456, UTC)
    later = datetime(2026, 3, 1, 23, 59, 59, 999999, UTC)
    moments = list(ChatEvent.objects.filter(seq__gt=2).order_by("seq").values_list("occurred_at", flat=True))
    assert moments == [earlier, earlier, later, later]
    boris = Participant.objects.get(user_id=UUID(BORIS))
    assert (boris.joined_at, boris.removed_at) == (earlier, later)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", cases(APPLIED, 10))
def test_trial_10_roles_of_any_width(case: Applied, path: str) -> None:
    check_applied(case, path)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.one_of(st.none(), st.binary(max_size=12), st.text(max_size=12).map(str.encode))


@hypothesis_settings(
    max_examples=60,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(headers=st.lists(st.tuples(names, values), max_size=5).map(tuple))
def test_any_headers_come_back_from_the_database(headers: Headers) -> None:
    """As PostgreSQL's JSON holds them, which takes neither U+0000 nor lone surrogates."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::jsonb::text", [json.dumps(to_json(headers))])
        assert from_json(cursor.fetchone()[0]) == headers
