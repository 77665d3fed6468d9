"""Lanes by exception class and SQLSTATE, and what may be said of a fault."""

import psycopg
import pytest
from django.db import DatabaseError, DataError, InterfaceError, OperationalError
from hypothesis import given
from hypothesis import strategies as st
from psycopg import errors

from messenger.faults import (
    InfrastructureFault,
    Lane,
    LostRace,
    MessengerError,
    clip,
    describe,
    frames,
    lane_of,
    sqlstate,
)

HIDDEN = "Anna Petrova +7 900 000-00-00"
LANES = {
    Lane.CONFLICT: ["40001", "40P01", "23505"],
    Lane.TIMEOUT: ["55P03", "57014"],
    Lane.INFRASTRUCTURE: [
        *("08000", "08003", "08006", "08P01"),  # the connection
        *("28000", "28P01", "3D000", "3F000", "42501"),  # who we are and where
        *("53100", "53200", "53300"),  # disk, memory, connections
        *("57P01", "57P02", "57P03", "57P05"),  # shutting down, crashing, starting, idle
        *("58000", "58030", "F0000", "XX000", "XX001"),  # the system beneath
        *("25006", "25P02", "25P03"),  # a standby after failover; this transaction
        *("42P01", "42703", "42883"),  # migrations behind the code
    ],
    Lane.POISON: ["22001", "22003", "22021", "22P02", "22P05", "23502", "23503", "23514", "21000"],
    Lane.UNEXPECTED: ["P0001", "42601", "42804", "0A000", "40002"],
}


def raised(code: str, *, text: str = HIDDEN) -> psycopg.Error:
    """The error psycopg raises for `code`."""
    return errors.lookup(code)(text)


def wrapped(error: psycopg.Error, kind: type[Exception] = DatabaseError) -> Exception:
    """`error` as Django passes it on."""
    try:
        try:
            raise error
        except psycopg.Error as cause:
            raise kind(*cause.args) from cause
    except kind as outer:
        return outer


@pytest.mark.parametrize(("lane", "code"), [(lane, code) for lane, codes in LANES.items() for code in codes])
def test_a_lane_is_decided_by_sqlstate(lane: Lane, code: str) -> None:
    """The same verdict on psycopg's error and on Django's wrapping of it."""
    assert lane_of(raised(code)) is lane
    assert lane_of(wrapped(raised(code))) is lane
    assert sqlstate(wrapped(raised(code))) == code


@pytest.mark.parametrize("kind", [psycopg.OperationalError, psycopg.InterfaceError])
def test_a_server_that_never_spoke_is_away(kind: type[psycopg.Error]) -> None:
    """A connection refused or lost has no SQLSTATE."""
    assert lane_of(kind(HIDDEN)) is Lane.INFRASTRUCTURE
    assert lane_of(wrapped(kind(HIDDEN), OperationalError)) is Lane.INFRASTRUCTURE


def test_a_connection_that_django_knows_is_closed_is_away() -> None:
    assert lane_of(InterfaceError("connection already closed")) is Lane.INFRASTRUCTURE


def test_data_that_the_client_refuses_to_send_is_poison() -> None:
    """U+0000 in a text, an integer out of range: refused before the server is asked, so without SQLSTATE."""
    assert lane_of(psycopg.DataError(HIDDEN)) is Lane.POISON
    assert lane_of(wrapped(psycopg.DataError(HIDDEN), DataError)) is Lane.POISON


@pytest.mark.parametrize(
    ("error", "lane"),
    [
        (InfrastructureFault("away"), Lane.INFRASTRUCTURE),
        (ConnectionResetError(), Lane.INFRASTRUCTURE),
        (TimeoutError(), Lane.INFRASTRUCTURE),
        (LostRace("again"), Lane.CONFLICT),
        (MessengerError("stop"), Lane.UNEXPECTED),
        (KeyError("x"), Lane.UNEXPECTED),
        (ValueError("deadlock detected"), Lane.UNEXPECTED),
        (psycopg.ProgrammingError("connection lost"), Lane.UNEXPECTED),
    ],
)
def test_a_lane_is_decided_by_class_and_never_by_text(error: Exception, lane: Lane) -> None:
    assert lane_of(error) is lane


def test_the_text_of_an_error_changes_nothing() -> None:
    """The same code with the words of another fault."""
    assert lane_of(raised("23514", text="deadlock detected; server closed the connection")) is Lane.POISON


@pytest.mark.parametrize("code", [code for codes in LANES.values() for code in codes])
def test_a_description_never_quotes_an_error(code: str) -> None:
    """«PII нет»: «Key (name)=(…) already exists» holds data; class and code are enough."""
    for error in (raised(code), wrapped(raised(code))):
        assert describe(error) == f"{errors.lookup(code).__name__} {code}"


@pytest.mark.parametrize("error", [KeyError(HIDDEN), ValueError(HIDDEN), psycopg.OperationalError(HIDDEN)])
def test_a_description_without_a_code_is_the_class(error: Exception) -> None:
    assert describe(error) == type(error).__name__


def fail(text: str) -> None:
    raise ValueError(text)


def test_frames_tell_where_and_nothing_of_what() -> None:
    with pytest.raises(ValueError, match="Anna") as caught:
        fail(HIDDEN)
    where = frames(caught.value)
    assert where[-1].startswith("test_faults.py:")
    assert where[-1].endswith(" fail")
    assert "Anna" not in " ".join(where)


@given(text=st.text(st.characters(exclude_categories=[])), width=st.integers(1, 40))
def test_clip_makes_any_text_fit_a_column(text: str, width: int) -> None:
    """Trials 3 and 10: whatever the text, PostgreSQL takes it: no U+0000, no surrogate, no longer than its column."""
    clipped = clip(text, width)
    assert "\x00" not in clipped
    assert len(clipped) <= width
    clipped.encode()


@given(text=st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=40))
def test_clip_leaves_alone_what_fits(text: str) -> None:
    assert clip(text, 40) == text


def test_trial_3_u0000_is_escaped() -> None:
    assert clip("a\x00b", 512) == "a\\u0000b"


def test_trial_10_ten_kilobytes_of_emoji_fit_last_error() -> None:
    assert clip("🏠" * 2500, 512) == "🏠" * 512
