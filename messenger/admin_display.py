"""How the admin shows things: ids, moments, raw bytes, headers, links. Everything is escaped here or by Django."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from django.contrib.admin.utils import quote
from django.db.models import Model
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from messenger.ages import in_words
from messenger.records import Headers

NOTHING = "–"
SHOWN_CHARACTERS = 16_384
SHOWN_BYTES_OF_HEX = 1_024

Raw = bytes | memoryview | None
"""A bytea column as psycopg gives it."""


@dataclass(frozen=True, slots=True)
class Link:
    """Where something belongs together with something else."""

    url: str
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table; `quiet` for what is over."""

    cells: Sequence[object]
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of another table, shown on an object's page."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Row]
    empty: str = "None."
    more: Link | None = None


def object_url(model: type[Model], pk: object) -> str:
    """The page of one object."""
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_change", args=[quote(str(pk))])


def list_url(model: type[Model], query: Mapping[str, object] | None = None) -> str:
    """The list of `model`, filtered by `query`."""
    url = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
    return f"{url}?{urlencode(query)}" if query else url


def links(found: Iterable[Link]) -> str:
    """`found`, one a line."""
    return format_html_join(SafeString("<br>"), '<a href="{}">{}</a>', ((each.url, each.text) for each in found))


def mono(value: object, url: str | None = None) -> str:
    """An id, in a face that tells 0 from O."""
    if value is None:
        return NOTHING
    code = format_html('<code class="m-id">{}</code>', value)
    return format_html('<a href="{}">{}</a>', url, code) if url else code


def badge(text: str, tone: str) -> str:
    """A state; `tone` is `good`, `calm`, `watch` or `act`."""
    return format_html('<span class="m-badge m-{}">{}</span>', tone, text)


def clipped(text: str | None, most: int = 80) -> str:
    """`text` on one line in the width of a column; all of it under the pointer."""
    if not text:
        return NOTHING
    shown = printable(text)
    cut = shown if len(shown) <= most else f"{shown[:most]}…"
    return format_html('<span class="m-clip" title="{}">{}</span>', shown, cut)


def age(then: datetime | None, now: datetime) -> str:
    """How long ago, or in how long, `then` is; the moment itself under the pointer."""
    if then is None:
        return NOTHING
    return format_html('<time datetime="{}" title="{}">{}</time>', then.isoformat(), _stamp(then), _distance(then, now))


def moment(then: datetime | None, now: datetime) -> str:
    """The moment, and how long ago that is."""
    if then is None:
        return NOTHING
    return format_html(
        '<span class="m-moment"><time datetime="{}">{}</time> <span class="m-quiet">({})</span></span>',
        then.isoformat(),
        _stamp(then),
        _distance(then, now),
    )


def _stamp(then: datetime) -> str:
    return then.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _distance(then: datetime, now: datetime) -> str:
    return f"{in_words(now - then)} ago" if then <= now else f"in {in_words(then - now)}"


def printable(text: str) -> str:
    """`text` with every character that cannot be seen (controls, marks of direction, U+FEFF) written as its code."""
    return "".join(each if each.isprintable() or each in "\n\t" else _code(each) for each in text)


def _code(character: str) -> str:
    point = ord(character)
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def short_bytes(value: Raw, most: int = 60) -> str:
    """A record key or a header value in a line: text where it is text, hex where not, null told from empty."""
    if value is None:
        return format_html('<span class="m-quiet">{}</span>', "null")
    content = bytes(value)
    if not content:
        return format_html('<span class="m-quiet">{}</span>', "empty")
    text = _text(content)
    return mono(_cut(printable(text) if text is not None else f"0x{content.hex()}", most))


def long_bytes(value: Raw, *, download: str | None = None) -> str:
    """A record value: JSON laid out, text as it is, anything else as hex; clipped, and said so."""
    if value is None:
        return format_html('<p class="m-quiet">{}</p>', "null: the record has no value")
    content = bytes(value)
    if not content:
        return format_html('<p class="m-quiet">{}</p>', "empty: 0 bytes")
    text = _text(content)
    laid_out = layout(text) if text is not None else None
    kind = "not text" if text is None else "text" if laid_out is None else "JSON, laid out"
    shown = _hex(content) if text is None else _cut(printable(laid_out or text), SHOWN_CHARACTERS)
    size = f"{len(content):,} byte{'s' if len(content) != 1 else ''}, {kind}"
    parts = [format_html('<p class="m-quiet">{}{}</p><pre class="m-bytes">{}</pre>', size, _download(download), shown)]
    if text is not None:
        # What the eye cannot tell apart (spaces, letters of two alphabets) is told apart by its bytes.
        parts.append(
            format_html('<details><summary>as hex</summary><pre class="m-bytes">{}</pre></details>', _hex(content))
        )
    return SafeString("".join(parts))


def headers_table(headers: Headers) -> str:
    """Record headers in their order; names may repeat."""
    if not headers:
        return format_html('<p class="m-quiet">{}</p>', "no headers")
    rows = format_html_join(
        "",
        '<tr><th scope="row">{}</th><td>{}</td></tr>',
        ((_cut(printable(name), 200), short_bytes(value, 1_000)) for name, value in headers),
    )
    return format_html('<table class="m-headers"><tbody>{}</tbody></table>', rows)


def _download(url: str | None) -> str:
    return format_html(' · <a href="{}">download the exact bytes</a>', url) if url else ""


def _text(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]}… (clipped)"


def _hex(content: bytes) -> str:
    lines = []
    for start in range(0, min(len(content), SHOWN_BYTES_OF_HEX), 16):
        part = content[start : start + 16]
        letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "·" for byte in part)
        lines.append(f"{start:06x}  {part.hex(' '):<47}  {letters}")
    if len(content) > SHOWN_BYTES_OF_HEX:
        lines.append("… (clipped)")
    return "\n".join(lines)


_SPACED = {":": ": "}
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def layout(text: str, most: int = SHOWN_CHARACTERS) -> str | None:
    """JSON on lines of its own, every token as it came (repeated keys, long numbers); None if it is not JSON.

    Stops soon after `most` characters: deep nesting would make much of little.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    out: list[str] = []
    depth = length = 0
    previous = ""
    for token in _TOKEN.findall(text):
        if token in ("}", "]"):
            depth -= 1
            before = "" if previous in ("{", "[") else _new_line(depth)
        else:
            before = _new_line(depth) if previous in ("{", "[", ",") else ""
        out.append(before + (_SPACED.get(token, token)))
        depth += token in ("{", "[")
        previous = token
        length += len(out[-1])
        if length > most:
            break
    return "".join(out)


def _new_line(depth: int) -> str:
    return "\n" + "  " * depth
