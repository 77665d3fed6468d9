"""Record headers as JSON, exactly: names repeat, values may be absent or any bytes.

`[{"name": "traceparent", "text": "00-…"}, {"name": "x", "base64": "/w=="}, {"name": "y"}]`: `text` where the
value is UTF-8 that JSON in PostgreSQL can hold, `base64` for other bytes, neither for a null value.
A name with U+0000, which PostgreSQL's JSON cannot hold, stands as `name_base64`.
"""

import base64
import json
from typing import Any

from messenger.records import Headers


def to_json(headers: Headers) -> list[dict[str, str]]:
    """`headers` as a JSON value."""
    return [
        _entry("name", "name_base64", name.encode("utf-8", "surrogatepass")) | _value(value) for name, value in headers
    ]


def from_json(stored: str | list[dict[str, Any]]) -> Headers:
    """The headers that `to_json` was given, from a JSON value or its text (as a plain cursor returns jsonb)."""
    entries = json.loads(stored) if isinstance(stored, str) else stored
    return tuple((_read(entry, "name", "name_base64").decode(), _read_value(entry)) for entry in entries)


def _value(value: bytes | None) -> dict[str, str]:
    return {} if value is None else _entry("text", "base64", value)


def _entry(plain: str, encoded: str, value: bytes) -> dict[str, str]:
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        text = "\x00"
    if "\x00" in text:
        return {encoded: base64.b64encode(value).decode()}
    return {plain: text}


def _read(entry: dict[str, Any], plain: str, encoded: str) -> bytes:
    return base64.b64decode(entry[encoded]) if encoded in entry else str(entry[plain]).encode()


def _read_value(entry: dict[str, Any]) -> bytes | None:
    return _read(entry, "text", "base64") if "text" in entry or "base64" in entry else None
