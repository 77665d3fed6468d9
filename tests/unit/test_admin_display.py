"""How the admin shows bytes: nothing hidden, nothing made up, nothing that runs."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messenger.admin_display import SHOWN_CHARACTERS, headers_table, layout, long_bytes, printable, short_bytes

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(values)
def test_laid_out_json_says_the_same(value: Any) -> None:
    shown = layout(json.dumps(value), most=10**9)
    assert shown is not None
    assert json.loads(shown) == value


def test_tokens_are_shown_as_they_came() -> None:
    """A repeated key, a number too large for a float and 5.0 are what a dead letter may be about."""
    text = '{"Version":5.0,"Version":1e400,"n":9223372036854775808,"s":"\\u0000{,:\\"","e":[],"o":{}}'
    assert layout(text) == (
        '{\n  "Version": 5.0,\n  "Version": 1e400,\n  "n": 9223372036854775808,\n  "s": "\\u0000{,:\\"",\n'
        '  "e": [],\n  "o": {}\n}'
    )


@pytest.mark.parametrize("text", ["", "{", "junk", '{"a": 1} x', "[" * 100_000])
def test_what_is_not_json_is_not_laid_out(text: str) -> None:
    assert layout(text) is None


def test_deep_nesting_does_not_make_much_of_little() -> None:
    shown = layout("[" * 500 + "1," * 50_000 + "1" + "]" * 500)
    assert shown is not None
    assert len(shown) < 2 * SHOWN_CHARACTERS


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\tПривет", "plain\n\tПривет"),
        ("a\x00b\x1b[31m\r", "a\\u0000b\\u001b[31m\\u000d"),
        ("\ufeff{}", "\\ufeff{}"),
        ("a\u202eb", "a\\u202eb"),
        ("\U000e0001", "\\U000e0001"),
    ],
)
def test_what_cannot_be_seen_is_written_as_its_code(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        (None, ["null: the record has no value"]),
        (b"", ["empty: 0 bytes"]),
        (b"\x7b", ["1 byte, text", "{</pre>"]),
        (b'{"a":1}', ["7 bytes, JSON, laid out", "{\n  &quot;a&quot;: 1\n}", "7b 22 61 22 3a 31 7d"]),
        (b"\xff\xfe{\x00", ["4 bytes, not text", "000000  ff fe 7b 00", "··{·"]),
        (b"<script>alert(1)</script>", ["&lt;script&gt;alert(1)&lt;/script&gt;"]),
        (memoryview("é".encode()), ["2 bytes, text", "é"]),
        (b"x" * 100_000, ["100,000 bytes, text", "… (clipped)"]),
    ],
)
def test_a_value_is_shown_for_what_it_is(value: bytes | memoryview | None, parts: list[str]) -> None:
    """Null, empty and not UTF-8 are told apart (trial 1); what is long is clipped, and said to be."""
    shown = long_bytes(value)
    for part in parts:
        assert part in shown
    assert "<script>" not in shown
    assert len(shown) < 30_000


def test_headers_repeat_and_may_be_null_or_any_bytes() -> None:
    shown = headers_table((("x", b"\xff"), ("x", None), ("<b>", b"<i>"), ("e", b"")))
    for part in ("0xff", "null", "&lt;b&gt;", "&lt;i&gt;", "empty"):
        assert part in shown
    assert shown.count(">x</th>") == 2
    assert "no headers" in headers_table(())


def test_a_long_key_is_clipped() -> None:
    assert "… (clipped)" in short_bytes(b"k" * 61)
    assert "clipped" not in short_bytes(b"k" * 60)
