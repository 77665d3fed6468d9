"""The one parser of incoming records: first delivery, parked and redriven records all pass through here.

UTF-8 JSON with names spelled exactly as in the contract. A byte order mark, UTF-16, a name that stands
twice in one object, an integer written any other way, a UUID in any other form than 8-4-4-4-12, a
timestamp without an offset: refused. Unknown names are ignored, whatever they hold.
"""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Annotated, Any, TypeVar
from uuid import UUID

import msgspec

from messenger.faults import MessengerError, clip
from messenger.records import Record

MAX_VERSION = 2**63 - 1
ENVELOPE_INVALID = "MSG_ENVELOPE_INVALID"
EXPECTED_CONTRACT_VERSION = 1

Version = Annotated[int, msgspec.Meta(ge=1, le=MAX_VERSION)]
P = TypeVar("P")

_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_RFC3339 = re.compile(
    r"(\d{4})-(\d{2})-(\d{2})[Tt](\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,9}))?(?:([Zz])|([+-])(\d{2}):(\d{2}))", re.ASCII
)
_ENUM_VALUE = re.compile(r"\A(Invalid enum value) .* - at ", re.DOTALL)


class Refused(MessengerError):
    """This record can never be applied. `code` is the error code of its dead letter; the text has no payload."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(clip(detail, 512))
        self.code = code


class Guid(UUID):
    """An identifier on the wire: 8-4-4-4-12 hexadecimal digits of either case, never all zero."""


class Instant(datetime):
    """A moment on the wire: RFC 3339 with an offset; kept in UTC, digits past the microsecond cut off."""


class Wire(msgspec.Struct, frozen=True, rename="pascal"):
    """Base of everything that comes off the wire."""


class Envelope(Wire, frozen=True, rename="pascal"):
    """What every record of crm is wrapped in (design, section 4)."""

    message_id: Guid
    contract_version: int
    occurred_at: Instant
    aggregate_type: str
    aggregate_id: Guid
    payload: msgspec.Raw
    correlation_id: str | None = None


def parse_guid(text: str) -> Guid:
    """`text` as an identifier, or ValueError."""
    if not _UUID.fullmatch(text):
        raise ValueError("Expected a UUID of the form 8-4-4-4-12")
    guid = Guid(text)
    if guid.int == 0:
        raise ValueError("Expected an identifier, got the nil UUID")
    return guid


def parse_instant(text: str) -> Instant:
    """`text` as a moment in UTC, or ValueError."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError("Expected an RFC 3339 timestamp with an offset")
    year, month, day, hour, minute, second, fraction, zulu, sign, off_hours, off_minutes = match.groups()
    if zulu:
        zone = UTC
    else:
        if int(off_hours) > 23 or int(off_minutes) > 59:
            raise ValueError("Expected an offset of at most 23:59")
        offset = timedelta(hours=int(off_hours), minutes=int(off_minutes))
        zone = timezone(-offset if sign == "-" else offset)
    microsecond = int((fraction or "").ljust(6, "0")[:6])
    try:
        moment = Instant(int(year), int(month), int(day), int(hour), int(minute), int(second), microsecond, tzinfo=zone)
        return moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError("Expected a moment between the years 1 and 9999 UTC") from error


def _custom(kind: type, value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
    if kind is Guid:
        return parse_guid(value)
    if kind is Instant:
        return parse_instant(value)
    raise NotImplementedError(kind)


def _once(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("A name stands twice in one object")


def decoder(kind: type[P]) -> Callable[[bytes | msgspec.Raw], P]:
    """A strict decoder of `kind`; it raises `msgspec.MsgspecError`."""
    return msgspec.json.Decoder(kind, dec_hook=_custom).decode


_decode_envelope = decoder(Envelope)
# Numbers are the strict decoder's to judge: this one would refuse those of very many digits, also where ignored.
_refuse_twice = json.JSONDecoder(object_pairs_hook=_once, parse_int=str, parse_float=str)


def open_envelope(record: Record) -> Envelope:
    """The envelope of `record`; `Refused` if the value is not one."""
    if record.value is None:
        raise Refused(ENVELOPE_INVALID, "The record has no value (null).")
    try:
        _refuse_twice.decode(record.value.decode("utf-8"))
        return _decode_envelope(record.value)
    except UnicodeDecodeError as error:
        raise Refused(ENVELOPE_INVALID, f"The value is not UTF-8 (byte {error.start}).") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Refused(ENVELOPE_INVALID, f"The value is not an envelope: {_reason(error)}.") from error


def open_payload(envelope: Envelope, decode: Callable[[bytes | msgspec.Raw], P], *, code: str) -> P:
    """The payload of `envelope`; `Refused` with `code` if it breaks its contract."""
    try:
        return decode(envelope.payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Refused(code, f"The payload breaks its contract: {_reason(error)}.") from error


def _reason(error: Exception) -> str:
    # Both decoders name places and types, never the values found there, but for an enumeration's.
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return _ENUM_VALUE.sub(r"\1 - at ", str(error)).rstrip(".")
