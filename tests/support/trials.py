"""Payload trials 1 to 10: for each, record values that are refused, and values that are applied with their rosters.

Every value is a lead-participants record of `LEAD` at `VERSION` unless the trial is about just that.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support import crm

LEAD, ANNA, BORIS = (f"a0b1c2d3-0000-4000-8000-00000000000{digit}" for digit in "abc")
MESSAGE = "a0b1c2d3-0000-4000-8000-0000000000ff"
VERSION = 7
ROSTER = {ANNA: "Executor", BORIS: "Lawyer"}
TEXT = crm.encode(crm.lead_participants(LEAD, VERSION, ROSTER, MessageId=MESSAGE)).decode()


@dataclass(frozen=True, slots=True)
class Applied:
    """A value that is applied: the roster it makes (user: role, or role and the role as it came) and its version."""

    value: bytes
    roster: Mapping[str, str | tuple[str, str]]
    version: int = VERSION


def message(payload: Mapping[str, Any] | None = None, **changes: Any) -> bytes:
    """A valid value with fields of the payload and of the envelope replaced."""
    return crm.encode(
        crm.lead_participants(LEAD, VERSION, ROSTER, payload=payload, **({"MessageId": MESSAGE} | changes))
    )


def active(*entries: Any) -> bytes:
    """A value with these entries of ActiveParticipants."""
    return message({"ActiveParticipants": list(entries)})


def edited(old: str, new: str) -> bytes:
    """A valid value with a piece of its text replaced once."""
    assert old in TEXT
    return TEXT.replace(old, new, 1).encode()


def member(user: Any, role: Any = "Lawyer") -> dict[str, Any]:
    """One entry of a roster."""
    return {"UserId": user, "Role": role}


def without(*path: str) -> bytes:
    """A valid value without the field at `path`."""
    value: dict[str, Any] = json.loads(TEXT)
    holder = value
    for name in path[:-1]:
        holder = holder[name]
    del holder[path[-1]]
    return crm.encode(value)


def camel(value: Any) -> Any:
    """`value` with every name in camelCase."""
    if isinstance(value, dict):
        return {name[0].lower() + name[1:]: camel(inner) for name, inner in value.items()}
    return [camel(inner) for inner in value] if isinstance(value, list) else value


def version(written: str) -> bytes:
    """A value with this text in the place of its Version."""
    return edited(f'"Version": {VERSION}', f'"Version": {written}')


GOOD_ENTRY = member(ANNA, "Executor")
NAME = '"Version": 7'


def cases(table: Mapping[int, Mapping[str, Any]], *numbers: int) -> list[Any]:
    """The values of these trials (all where none is named) as parameters of a test."""
    return [
        pytest.param(value, id=f"{number}: {label}"[:60])
        for number, values in table.items()
        if not numbers or number in numbers
        for label, value in values.items()
    ]


BAD_VERSIONS = (
    "9223372036854775808",
    *("-1", "0", "5.0", "7e0", '"5"', "true", "1e400", "NaN", "Infinity", "null", "[7]", "07"),
)
BAD_IDS: dict[str, Any] = {
    "braces": f"{{{BORIS}}}",
    "no dashes": BORIS.replace("-", ""),
    "urn": f"urn:uuid:{BORIS}",
    "misplaced hyphens": "a0b1c2d30-000-4000-8000-00000000000c",
    "nil": "00000000-0000-0000-0000-000000000000",
    "blank before": f" {BORIS}",
    "line end after": f"{BORIS}\n",
    "not hexadecimal": BORIS.replace("a", "g"),
    "full width digits": BORIS.replace("0", "０"),
    "a number": 5,
    "null": None,
    "empty": "",
}
BAD_MOMENTS = (
    # Without an offset, or not RFC 3339.
    *("2026-03-01T10:00:00", "2026-03-01", "2026-03-01 10:00:00Z", "2026-03-01T10:00:00+0300", "", None),
    # Beyond what UTC can name.
    *("0001-01-01T00:00:00+03:00", "9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00Z"),
    # No such moment.
    *("2026-03-01T24:00:00Z", "2026-02-30T10:00:00Z", "2026-03-01T10:00:60Z", "2026-03-01T10:00:00+24:00"),
    # Not written in the digits of a timestamp.
    *(1772348400, "1772348400", "٢٠٢٦-03-01T10:00:00Z"),
)

REFUSED: dict[int, dict[str, bytes | None]] = {
    1: {"null value": None, "no bytes": b"", "the word null": b"null", "an array": b"[]", "a blank": b" "},
    2: {
        "byte order mark": b"\xef\xbb\xbf" + TEXT.encode(),
        "byte order mark within": TEXT.replace(" ", "\ufeff", 1).encode(),
        "UTF-16 with its mark": TEXT.encode("utf-16"),
        "UTF-16 little endian": TEXT.encode("utf-16-le"),
        "UTF-16 big endian": TEXT.encode("utf-16-be"),
        "UTF-32": TEXT.encode("utf-32"),
        "UTF-8 before UTF-16": b" " + TEXT.encode("utf-16"),
        "Windows-1251": TEXT.replace("Executor", "Исполнитель").encode("cp1251"),
    },
    3: {
        "role": active(GOOD_ENTRY, member(BORIS, "Law\x00yer")),
        "role of nothing else": active(member(BORIS, "\x00")),
        "a raw zero byte": edited(NAME, NAME + ', "Note": "\x00"'),
        "a zero byte after the end": TEXT.encode() + b"\x00",
    },
    4: {
        **{written: version(written) for written in BAD_VERSIONS},
        "5000 digits": version("7" * 5000),
        "absent": without("Payload", "Version"),
    },
    5: {
        "a key twice": edited(NAME, f"{NAME}, {NAME}"),
        "a key twice, once escaped": edited(NAME, NAME + ', "\\u0056ersion": 8'),
        "the roster twice": edited('"ActiveParticipants"', '"ActiveParticipants": [], "ActiveParticipants"'),
        "a key twice in an ignored field": edited(NAME, NAME + ', "Note": {"a": 1, "a": 1}'),
        "all in camelCase": crm.encode(camel(json.loads(TEXT))),
        "payload in camelCase": message(Payload=camel(json.loads(TEXT)["Payload"])),
        "activeParticipants": edited('"ActiveParticipants"', '"activeParticipants"'),
        "userId": edited('"UserId"', '"userId"'),
    },
    6: {
        "[]": active(),
        "null": message({"ActiveParticipants": None}),
        "missing": without("Payload", "ActiveParticipants"),
        "[null]": active(None),
        "{}": message({"ActiveParticipants": {}}),
        "[{}]": active({}),
        "[[]]": active([]),
        "a string": message({"ActiveParticipants": ANNA}),
        "one without UserId": active(GOOD_ENTRY, {"Role": "Lawyer"}),
        "one without Role": active(GOOD_ENTRY, {"UserId": BORIS}),
        "one null": active(GOOD_ENTRY, None),
        "no payload": without("Payload"),
        "payload null": message(Payload=None),
        "no delta": without("Payload", "Participants"),
        "no lead": without("Payload", "LeadId"),
    },
    7: {
        "0": active(GOOD_ENTRY, member(BORIS, 0)),
        "null": active(GOOD_ENTRY, member(BORIS, None)),
        "true": active(GOOD_ENTRY, member(BORIS, True)),
        "a list": active(GOOD_ENTRY, member(BORIS, ["Lawyer"])),
    },
    8: {
        f"{place}: {label}": value
        for label, bad in BAD_IDS.items()
        for place, value in {
            "MessageId": message(MessageId=bad),
            "UserId": active(GOOD_ENTRY, member(bad)),
            "LeadId": message({"LeadId": bad}),
        }.items()
    },
    9: {
        f"{place}: {moment}": value
        for moment in BAD_MOMENTS
        for place, value in {
            "ChangedAt": message({"ChangedAt": moment}),
            "OccurredAt": message(OccurredAt=moment),
        }.items()
    },
}

APPLIED: dict[int, dict[str, Applied]] = {
    2: {"UTF-8 beyond ASCII": Applied(active(member(BORIS, "Юрист")), {BORIS: ("Guest", "Юрист")})},
    3: {
        "an ignored field": Applied(edited(NAME, NAME + ', "Note": "a\\u0000b"'), ROSTER),
        "an ignored name": Applied(edited(NAME, NAME + ', "No\\u0000te": 1'), ROSTER),
        "the delta": Applied(message({"Participants": [{"UserId": "\x00", "ChangeType": "\x00"}]}), ROSTER),
        "CorrelationId": Applied(message(CorrelationId="a\x00b"), ROSTER),
    },
    4: {
        "9223372036854775807": Applied(version("9223372036854775807"), ROSTER, 2**63 - 1),
        "1": Applied(version("1"), ROSTER, 1),
        "an ignored field beyond all bounds": Applied(edited(NAME, f'{NAME}, "Note": [1e400, {"9" * 5000}]'), ROSTER),
    },
    5: {
        "two spellings": Applied(
            edited('"ActiveParticipants"', '"activeParticipants": [], "ActiveParticipants"'), ROSTER
        ),
        "unknown names": Applied(edited(NAME, NAME + ', "version": 9, "VERSION": 9, "Note": {"Deep": [null]}'), ROSTER),
    },
    7: {
        "executor": Applied(active(member(BORIS, "executor")), {BORIS: ("Guest", "executor")}),
        "the string 0": Applied(active(member(BORIS, "0")), {BORIS: ("Guest", "0")}),
        "Overseer": Applied(active(member(BORIS, "Overseer")), {BORIS: ("Guest", "Overseer")}),
        "empty": Applied(active(member(BORIS, "")), {BORIS: ("Guest", "")}),
        "one good and one unknown": Applied(
            active(GOOD_ENTRY, member(BORIS, "Overseer")), {ANNA: "Executor", BORIS: ("Guest", "Overseer")}
        ),
    },
    8: {
        "upper case": Applied(TEXT.replace("a0b1c2d3", "A0B1C2D3").replace("000c", "000C").encode(), ROSTER),
        "one user in both cases": Applied(active(member(BORIS), member(BORIS.upper())), {BORIS: "Lawyer"}),
    },
    9: {
        moment: Applied(message({"ChangedAt": moment}, OccurredAt=moment), ROSTER)
        for moment in ("2026-03-01T10:00:00.1234567+03:00", "2026-03-01T07:00:00.9999999Z", "2026-03-01t07:00:00z")
    },
    10: {
        "a role of 64 emoji": Applied(active(member(BORIS, "🏠" * 64)), {BORIS: ("Guest", "🏠" * 64)}),
        "a role of 10 kB of emoji": Applied(active(member(BORIS, "🏠" * 2500)), {BORIS: ("Guest", "🏠" * 64)}),
    },
}
