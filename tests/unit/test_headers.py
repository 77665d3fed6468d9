"""Headers kept as JSON come back exactly."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messenger.records import Headers, Record
from outbox.headers import from_json, to_json

values = st.one_of(st.none(), st.binary(max_size=20), st.text(max_size=20).map(str.encode))
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
headers = st.lists(st.tuples(names, values), max_size=6).map(tuple)


@given(original=headers)
def test_headers_come_back_exactly(original: Headers) -> None:
    """Names repeat, values are absent, empty or any bytes; as a JSON value and as its text."""
    assert from_json(to_json(original)) == original
    assert from_json(json.dumps(to_json(original))) == original


@given(original=headers)
def test_what_is_kept_is_json_that_postgresql_can_hold(original: Headers) -> None:
    """Neither U+0000 nor a lone surrogate, which jsonb refuses (trial 3)."""
    for entry in to_json(original):
        for text in (*entry.keys(), *entry.values()):
            assert "\x00" not in text
            text.encode()


@pytest.mark.parametrize(
    ("value", "entry"),
    [
        (None, {"name": "x"}),
        (b"", {"name": "x", "text": ""}),
        (b"text", {"name": "x", "text": "text"}),
        ("Анна".encode(), {"name": "x", "text": "Анна"}),
        (b"\xff", {"name": "x", "base64": "/w=="}),
        (b"a\x00b", {"name": "x", "base64": "YQBi"}),
    ],
)
def test_text_where_it_is_text_and_base64_where_it_is_not(value: bytes | None, entry: dict[str, str]) -> None:
    """Trial 1: a null value is told from an empty one."""
    assert to_json((("x", value),)) == [entry]


def test_a_header_is_read_as_text_or_not_at_all() -> None:
    """Trial 1: header values None or not UTF-8 never fail; the first value that is there counts."""
    record = Record("t", 0, 0, None, None, (("a", None), ("a", b"1"), ("a", b"2"), ("b", b"\xff"), ("c", None)))
    assert [record.header(name) for name in ("a", "b", "c", "d")] == ["1", None, None, None]
