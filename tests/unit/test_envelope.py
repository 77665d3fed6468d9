"""The one parser of records: payload trials 1 to 10 on their inputs, without a database."""

import json
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chats.contracts import (
    KNOWN_CHANGES,
    LEAD_CREATED_INVALID,
    LEAD_PARTICIPANTS_INVALID,
    TITLE_WIDTH,
    read_lead_created,
    read_lead_participants,
)
from chats.lead_terminated import LEAD_TERMINATED_INVALID, read_lead_terminated
from chats.roster import Role
from messenger.envelope import ENVELOPE_INVALID, MAX_VERSION, Refused, open_envelope, parse_guid, parse_instant
from messenger.topics import LEAD_CREATED, LEAD_TERMINATED
from tests.support import crm, trials
from tests.support.trials import ANNA, APPLIED, BORIS, LEAD, MESSAGE, REFUSED, TEXT, Applied

HIDDEN = "Anna Petrova +7 900 000-00-00"


@pytest.mark.parametrize("value", trials.cases(REFUSED))
def test_trials_1_to_10_refused_with_a_reason(value: bytes | None) -> None:
    """One verdict: `Refused` with a bounded code and a sentence, whatever the bytes; never another exception."""
    with pytest.raises(Refused) as caught:
        read_lead_participants(crm.record(value))
    assert caught.value.code in (ENVELOPE_INVALID, LEAD_PARTICIPANTS_INVALID)
    assert len(str(caught.value)) <= 512
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("value", trials.cases(APPLIED))
def test_trials_1_to_10_read_exactly(value: Applied) -> None:
    snapshot = read_lead_participants(crm.record(value.value))
    expected = {
        UUID(user): (role, None) if isinstance(role, str) else (role[0], role[1]) for user, role in value.roster.items()
    }
    assert {user: (seat.role.value, seat.raw) for user, seat in snapshot.target.items()} == expected
    assert (snapshot.version, snapshot.subject_id) == (value.version, UUID(LEAD))
    assert snapshot.changed_at.tzinfo is UTC


def test_trial_1_null_is_told_from_empty() -> None:
    reasons = []
    for value in (None, b""):
        with pytest.raises(Refused) as caught:
            open_envelope(crm.record(value))
        reasons.append(str(caught.value))
    assert reasons[0] == "The record has no value (null)."
    assert reasons[0] != reasons[1]


@pytest.mark.parametrize("headers", [(), (("message-id", None),), (("x", b"\xff\xfe"),), (("traceparent", b"\x00"),)])
def test_trial_1_key_and_headers_decide_nothing(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    snapshot = read_lead_participants(crm.record(TEXT.encode(), key=None, headers=headers))
    assert snapshot.origin.message_id == UUID(MESSAGE)


def test_trial_4_the_bounds_of_a_version() -> None:
    """«payload.Version >= 1», and the greatest bigint is read exactly."""
    assert read_lead_participants(crm.record(trials.version(str(MAX_VERSION)))).version == 9223372036854775807
    with pytest.raises(Refused, match="Version"):
        read_lead_participants(crm.record(trials.version(str(MAX_VERSION + 1))))


def test_trial_6_an_empty_roster_has_the_code_of_the_source_document() -> None:
    """«Пустой/невалидный ActiveParticipants → MSG_LEAD_PARTICIPANTS_INVALID»."""
    for label, value in REFUSED[6].items():
        with pytest.raises(Refused) as caught:
            read_lead_participants(crm.record(value))
        if label != "no payload":
            assert caught.value.code == "MSG_LEAD_PARTICIPANTS_INVALID", label


def test_trial_8_upper_case_is_the_same_message() -> None:
    """UUIDs may be in either case: one idempotency key."""
    records = [crm.record(trials.message(MessageId=form)) for form in (MESSAGE, MESSAGE.upper())]
    keys = {read_lead_participants(record).origin.key for record in records}
    assert keys == {f"messenger-lead-participants:{MESSAGE}"}


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-03-01T10:00:00.1234567+03:00", datetime(2026, 3, 1, 7, 0, 0, 123456, UTC)),
        ("2026-03-01T10:00:00.9999999Z", datetime(2026, 3, 1, 10, 0, 0, 999999, UTC)),
        ("2026-03-01T10:00:00-11:30", datetime(2026, 3, 1, 21, 30, tzinfo=UTC)),
        ("2026-03-01T00:30:00+03:00", datetime(2026, 2, 28, 21, 30, tzinfo=UTC)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1, tzinfo=UTC)),
        ("2028-02-29T23:59:59.5z", datetime(2028, 2, 29, 23, 59, 59, 500000, UTC)),
    ],
)
def test_trial_9_moments_in_utc(text: str, moment: datetime) -> None:
    """Seven fraction digits and any offset; digits past the microsecond are cut off, not rounded up."""
    assert parse_instant(text) == moment
    assert parse_instant(text).tzinfo is UTC


zones = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(moment=st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=zones))
def test_trial_9_any_moment_with_an_offset_is_kept(moment: datetime) -> None:
    assert parse_instant(moment.isoformat()) == moment


@given(identifier=st.uuids().filter(lambda each: each.int != 0))
def test_trial_8_either_case_names_the_same(identifier: UUID) -> None:
    assert parse_guid(str(identifier).upper()) == parse_guid(str(identifier)) == identifier


@given(text=st.text(max_size=40))
def test_trial_8_anything_else_is_refused_or_a_uuid(text: str) -> None:
    with suppress(ValueError):
        assert str(parse_guid(text)) == text.lower()


@given(value=st.binary(max_size=200))
def test_any_bytes_are_refused_and_nothing_else_happens(value: bytes) -> None:
    with pytest.raises(Refused):
        open_envelope(crm.record(value))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


@given(where=st.sampled_from(["Payload", *json.loads(TEXT)["Payload"]]), value=json_values)
def test_any_json_in_the_place_of_a_field_is_read_or_refused(where: str, value: object) -> None:
    """Whatever stands in a field: a snapshot with people in it, or `Refused`; no third outcome."""
    record = crm.record(trials.message(Payload=value) if where == "Payload" else trials.message({where: value}))
    try:
        assert read_lead_participants(record).target
    except Refused as reason:
        assert reason.code in (ENVELOPE_INVALID, LEAD_PARTICIPANTS_INVALID)


def test_nesting_without_end_is_refused() -> None:
    for value in (b"[" * 100_000, trials.edited(trials.NAME, f'{trials.NAME}, "Note": {"[" * 100_000}')):
        with pytest.raises(Refused):
            open_envelope(crm.record(value))


def test_one_user_named_twice_is_told_of() -> None:
    value = trials.active(trials.member(ANNA, "Lawyer"), trials.member(ANNA, "Executor"), trials.member(BORIS))
    snapshot = read_lead_participants(crm.record(value))
    assert snapshot.ambiguous == 1
    assert snapshot.target[UUID(ANNA)].role is Role.EXECUTOR


@pytest.mark.parametrize("version", [0, 2, -1, 2**70])
def test_another_contract_version_is_told_of_and_read(version: int) -> None:
    """«ContractVersion: ожидается 1; при несовпадении версии — warn-and-proceed»."""
    origin = read_lead_participants(crm.record(trials.message(ContractVersion=version))).origin
    assert origin.contract_mismatch


@pytest.mark.parametrize("version", ["1", 1.0, True, None])
def test_a_contract_version_is_an_integer(version: object) -> None:
    with pytest.raises(Refused):
        read_lead_participants(crm.record(trials.message(ContractVersion=version)))


KNOWN: list[object] = [{"UserId": ANNA, "ChangeType": kind} for kind in sorted(KNOWN_CHANGES)]
NO_CHANGES: list[object] = ["Promoted", "added", "", 0, None, [], {}]
UNKNOWN: list[object] = [{"ChangeType": kind} for kind in NO_CHANGES]


@pytest.mark.parametrize(
    ("entry", "unknown"),
    [*((entry, 0) for entry in KNOWN), *((entry, 1) for entry in (*UNKNOWN, {}, None, 5, "Added", []))],
)
def test_a_delta_decides_nothing(entry: object, unknown: int) -> None:
    """«Неизвестный ChangeType трактовать как no-op дельты и опираться на ActiveParticipants»."""
    snapshot = read_lead_participants(crm.record(trials.message({"Participants": [entry]})))
    assert snapshot.unknown_changes == unknown
    assert {str(user) for user in snapshot.target} == {ANNA, BORIS}


@pytest.mark.parametrize("title", ["🏠" * 256, "🏠" * 257, "🏠" * 5000])
def test_trial_10_a_title_is_cut_on_a_code_point(title: str) -> None:
    """256 emoji fit; more are cut."""
    record = crm.record(crm.lead_created(LEAD, {ANNA: "Executor"}, title=title), topic=LEAD_CREATED)
    assert read_lead_created(record)[1].title == "🏠" * TITLE_WIDTH


def test_trial_3_a_title_with_u0000_is_refused() -> None:
    record = crm.record(crm.lead_created(LEAD, {ANNA: "Executor"}, title="a\x00b"), topic=LEAD_CREATED)
    with pytest.raises(Refused) as caught:
        read_lead_created(record)
    assert caught.value.code == LEAD_CREATED_INVALID


def test_a_lead_is_created_with_somebody() -> None:
    with pytest.raises(Refused, match="Members"):
        read_lead_created(crm.record(crm.lead_created(LEAD, {}), topic=LEAD_CREATED))


@pytest.mark.parametrize(
    "value",
    [
        trials.active(trials.GOOD_ENTRY, trials.member(HIDDEN)),
        trials.message({"ChangedAt": HIDDEN}),
        trials.message({"Version": HIDDEN}),
        trials.message(OccurredAt=HIDDEN),
        trials.message(CorrelationId=[HIDDEN]),
        trials.message({HIDDEN: 1, "LeadId": None}),
        trials.edited(trials.NAME, f'{trials.NAME}, "{HIDDEN}": 1, "{HIDDEN}": 2'),
        trials.message(Payload=HIDDEN),
        HIDDEN.encode(),
    ],
)
def test_no_reason_quotes_the_record(value: bytes) -> None:
    """«PII нет»: a reason ends up in logs, headers and tables; it names places and types alone."""
    with pytest.raises(Refused) as caught:
        read_lead_participants(crm.record(value))
    assert "Anna" not in str(caught.value)


def test_no_reason_quotes_a_value_that_is_not_of_its_enumeration() -> None:
    payload = {"LeadId": LEAD, "Status": HIDDEN, "OccurredAt": crm.MOMENT}
    with pytest.raises(Refused) as caught:
        read_lead_terminated(crm.record(crm.envelope(payload, aggregate=("Lead", LEAD)), topic=LEAD_TERMINATED))
    assert caught.value.code == LEAD_TERMINATED_INVALID
    assert str(caught.value) == "The payload breaks its contract: Invalid enum value - at `$.Status`."
