"""What the schemas of `docs/contracts` accept is read; what they refuse is refused, by the same error code."""

from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chats.roster import Role
from messenger.envelope import MAX_VERSION, parse_instant
from tests.support.contracts import INCOMING, Contract, accepts, nodes, read_verdict, schemas, verdict

incoming = pytest.mark.parametrize("contract", INCOMING.values(), ids=INCOMING)

ids = st.uuids().filter(lambda each: each.int != 0).map(str).flatmap(lambda each: st.sampled_from([each, each.upper()]))
zones = st.integers(-1439, 1439).map(lambda minutes: timezone(timedelta(minutes=minutes)))
moments = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=zones).map(datetime.isoformat)
texts = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=300)
members = st.fixed_dictionaries({"UserId": ids, "Role": st.sampled_from([role.value for role in Role]) | texts})
some_members = st.lists(members, min_size=1, max_size=5)
optional_ids = st.none() | ids
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    # An integral float is an integer to JSON Schema and not to the contract: the one thing a schema cannot say of it.
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda each: not each.is_integer())
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["UserId", "Role", "x"]), inner),
    max_leaves=6,
)
payloads: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "lead-created": st.fixed_dictionaries(
        {"LeadId": ids, "Title": texts, "Members": some_members},
        optional={"ProjectId": optional_ids, "TenantId": optional_ids, "Note": json_values},
    ),
    "lead-participants-changed": st.fixed_dictionaries(
        {
            "LeadId": ids,
            "ActiveParticipants": some_members,
            "Participants": st.lists(json_values | st.fixed_dictionaries({"ChangeType": json_values}), max_size=3),
            "Version": st.integers(1, MAX_VERSION),
            "ChangedAt": moments,
        },
        optional={"TenantId": json_values, "ChangedByUserId": json_values},
    ),
    "lead-terminated": st.fixed_dictionaries(
        {"LeadId": ids, "Status": st.sampled_from(["Archived", "Expired"]), "OccurredAt": moments}
    ),
    "deal-created": st.fixed_dictionaries(
        {"DealId": ids, "Title": texts, "Members": st.lists(members, max_size=5)},
        optional={"ProjectId": optional_ids, "DeveloperCompanyId": optional_ids},
    ),
    "deal-members-changed": st.fixed_dictionaries(
        {
            "DealId": ids,
            "ActiveMembers": some_members,
            "Members": st.lists(json_values | st.fixed_dictionaries({"ChangeType": json_values}), max_size=3),
            "Version": st.integers(1, MAX_VERSION),
            "ChangedAt": moments,
        }
    ),
    "user-changed": st.fixed_dictionaries({"UserId": ids, "DisplayName": texts}),
}


def messages(contract: Contract) -> st.SearchStrategy[dict[str, Any]]:
    """Messages that the contract allows."""
    return st.fixed_dictionaries(
        {
            "MessageId": ids,
            "ContractVersion": st.just(1) | st.integers(-(2**63), 2**63),
            "OccurredAt": moments,
            "AggregateType": texts,
            "AggregateId": ids,
            "Payload": payloads[contract.name],
        },
        optional={"CorrelationId": st.none() | texts, "Note": json_values},
    )


@incoming
@given(data=st.data())
def test_what_the_contract_allows_is_read(contract: Contract, data: st.DataObject) -> None:
    message = data.draw(messages(contract))
    assert verdict(contract, message) is None
    assert read_verdict(contract, message) is None


@incoming
@given(data=st.data())
def test_schema_and_code_agree_on_any_value_anywhere(contract: Contract, data: st.DataObject) -> None:
    """Any JSON in the place of any part of a message, or the part left out: one verdict and one error code."""
    message = data.draw(messages(contract))
    places = [value for _, value in nodes(message) if isinstance(value, dict | list) and value]
    holder = data.draw(st.sampled_from(places))
    name = data.draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
    if data.draw(st.booleans()):
        del holder[name]
    else:
        holder[name] = data.draw(json_values)
    assert read_verdict(contract, message) == verdict(contract, message)


@given(text=st.from_regex(schemas()["types.json"]["$defs"]["Moment"]["pattern"], fullmatch=True))
def test_every_moment_of_the_schema_that_exists_is_read(text: str) -> None:
    """The schema's pattern against the parser; «30 February» is what it cannot say."""
    assume(accepts("types.json#/$defs/Moment", text))
    with suppress(ValueError):
        parse_instant(text)
        return
    seconds = text[:19].replace("t", "T")
    with suppress(ValueError):
        moment = datetime.fromisoformat(seconds)
        assert moment.year in (1, 9999), text
