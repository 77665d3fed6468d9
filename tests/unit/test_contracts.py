"""The AsyncAPI document, the schemas, the examples and the code say the same (`docs/contracts`)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from jsonschema import Draft202012Validator

from chats.contracts import KNOWN_CHANGES
from chats.roster import Role
from messenger import topics
from messenger.envelope import MAX_VERSION, Refused
from provisioning.models import ProvisionStatus
from tests.support import crm
from tests.support.contracts import (
    CODE,
    ENVELOPE,
    FOLDER,
    INCOMING,
    OUTGOING,
    Contract,
    Example,
    accepts,
    document,
    examples,
    load,
    nodes,
    read_verdict,
    schemas,
    validator,
    verdict,
)

GOOD = [example for example in examples() if example.code is None]
BAD = [example for example in examples() if example.code is not None]
incoming = pytest.mark.parametrize("contract", INCOMING.values(), ids=INCOMING)


# --- the document -----------------------------------------------------------------------------------


def resolve(reference: str, *, at: Path) -> Any:
    """What a `$ref` in the file `at` points to."""
    name, _, pointer = reference.partition("#")
    target = (at.parent / name).resolve() if name else at
    assert target.is_relative_to(FOLDER), f"{reference} leaves the folder"
    found = document() if target.suffix == ".yaml" else load(target)
    for part in pointer.split("/")[1:]:
        found = found[unquote(part).replace("~1", "/").replace("~0", "~")]
    return found


def references(path: Path) -> Iterator[tuple[str, str]]:
    """Every `$ref` of a file with its place."""
    content = document() if path.suffix == ".yaml" else load(path)
    for place, value in nodes(content):
        if isinstance(value, dict) and isinstance(value.get("$ref"), str):
            yield place, value["$ref"]


def test_every_reference_leads_somewhere() -> None:
    files = [FOLDER / "asyncapi.yaml", *(FOLDER / "schemas").iterdir()]
    found = [(path, place, reference) for path in files for place, reference in references(path)]
    assert len(found) > 50
    for path, place, reference in found:
        try:
            resolve(reference, at=path)
        except (KeyError, OSError, AssertionError) as error:
            pytest.fail(f"{path.name} {place}: {reference} leads nowhere ({error!r})")


def test_the_document_has_what_asyncapi_3_demands() -> None:
    """The required fields of the specification's root, info, server, channel, operation and message objects."""
    whole = document()
    assert whole["asyncapi"] == "3.0.0"
    assert {"title", "version", "description"} <= whole["info"].keys()
    assert whole.keys() <= {"asyncapi", "info", "defaultContentType", "servers", "channels", "operations", "components"}
    for server in whole["servers"].values():
        assert {"host", "protocol"} <= server.keys()
    for channel in whole["channels"].values():
        assert {"address", "messages", "bindings"} <= channel.keys()
    for operation in whole["operations"].values():
        assert operation["action"] in ("send", "receive")
        assert {"channel", "messages", "summary"} <= operation.keys()
    for message in whole["components"]["messages"].values():
        assert {"name", "title", "summary", "contentType", "headers", "payload", "bindings"} <= message.keys()


def test_operations_channels_and_messages_are_linked() -> None:
    """An operation's messages are its channel's, a channel's are components; none is left without a use."""
    whole = document()
    here = FOLDER / "asyncapi.yaml"
    used_channels, used_messages = set(), set()
    for operation in whole["operations"].values():
        channel = operation["channel"]["$ref"]
        used_channels.add(channel.removeprefix("#/channels/"))
        for message in operation["messages"]:
            assert message["$ref"].startswith(f"{channel}/messages/")
            used_messages.add(resolve(message["$ref"], at=here)["$ref"].removeprefix("#/components/messages/"))
    assert used_channels == whole["channels"].keys()
    assert used_messages == whole["components"]["messages"].keys()


def test_schemas_are_named_with_their_dialect() -> None:
    """AsyncAPI's own dialect is draft 07; another one has to be named where it is used."""
    for message in document()["components"]["messages"].values():
        for part in (message["headers"], message["payload"]):
            if "schema" in part:
                assert part["schemaFormat"] == "application/schema+json;version=draft-2020-12"
                assert part["schema"]["$ref"].startswith("./schemas/")


def channels(action: str) -> dict[str, dict[str, Any]]:
    """Channels by address, of the operations that send or receive."""
    whole = document()
    found = {}
    for operation in whole["operations"].values():
        channel = resolve(operation["channel"]["$ref"], at=FOLDER / "asyncapi.yaml")
        if operation["action"] == action:
            group = operation.get("bindings", {}).get("kafka", {}).get("groupId", {}).get("enum", [None])
            found[channel["address"]] = {"group": group, **channel["bindings"]["kafka"]}
    return found


def test_topics_partitions_and_groups_are_those_of_the_code() -> None:
    """Design, section 4: every topic in and out, and the consumer groups."""
    received, sent = channels("receive"), channels("send")
    assert received == {
        topic.contract: {
            "group": [topic.group],
            "topic": topic.contract,
            "partitions": topic.partitions,
            "bindingVersion": "0.5.0",
        }
        for topic in topics.CONSUMED
    }
    dead_letters = {topics.dead_letter_topic(topic.contract): 1 for topic in topics.CONSUMED}
    published = {topic.contract: topic.partitions for topic in topics.PUBLISHED}
    assert {address: channel["partitions"] for address, channel in sent.items()} == dead_letters | published
    assert all(address == channel["topic"] for address, channel in sent.items())


def test_messages_have_the_schemas_of_their_topics() -> None:
    messages = document()["components"]["messages"]
    by_title = {message["title"]: message for message in messages.values()}
    for name in (*INCOMING, OUTGOING):
        message = by_title[name]
        assert message["payload"]["schema"]["$ref"] == f"./schemas/{name}.json"
        assert schemas()[f"{name}.json"]["title"] == message["name"]


def test_the_examples_in_the_document_are_valid() -> None:
    """Each message has some; their payloads and headers pass the message's own schemas."""
    here = FOLDER / "asyncapi.yaml"
    for name, message in document()["components"]["messages"].items():
        assert message["examples"], name
        for example in message["examples"]:
            for part in ("payload", "headers"):
                if part in example and "schema" in message[part]:
                    value = example[part]
                    value = resolve(value["$ref"], at=here) if "$ref" in value else value
                    schema = message[part]["schema"]["$ref"].removeprefix("./schemas/")
                    assert list(validator(schema).iter_errors(value)) == [], (name, example["name"], part)


def test_every_valid_example_is_shown_in_the_document() -> None:
    shown = {reference.removeprefix("./examples/") for _, reference in references(FOLDER / "asyncapi.yaml")}
    assert {example.file for example in GOOD} <= shown


# --- schemas and code -------------------------------------------------------------------------------


def test_schemas_are_schemas() -> None:
    for content in schemas().values():
        assert content["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        Draft202012Validator.check_schema(content)


def test_enumerations_are_those_of_the_code() -> None:
    types = schemas()["types.json"]["$defs"]
    assert types["Role"]["anyOf"][0]["enum"] == [role.value for role in Role]
    assert set(types["Change"]["properties"]["ChangeType"]["enum"]) == KNOWN_CHANGES
    assert types["Version"]["maximum"] == MAX_VERSION
    status = schemas()["deal-chat-status-changed.json"]["properties"]["Payload"]["properties"]["Status"]
    assert status["enum"] == [status.value for status in ProvisionStatus]
    ends = schemas()["lead-terminated.json"]["$defs"]["Payload"]["properties"]["Status"]["enum"]
    message = next(example.message for example in GOOD if example.contract == "lead-terminated")
    for end in [*ends, "Won", "archived", ""]:
        changed = message | {"Payload": message["Payload"] | {"Status": end}}
        assert (read_verdict(INCOMING["lead-terminated"], changed) is None) == (end in ends)


@pytest.mark.parametrize("example", GOOD, ids=lambda example: example.file)
def test_valid_examples_pass_their_schema(example: Example) -> None:
    assert list(validator(f"{example.contract}.json").iter_errors(example.message)) == []


@pytest.mark.parametrize("example", [each for each in GOOD if each.contract in INCOMING], ids=lambda each: each.file)
def test_valid_examples_are_read(example: Example) -> None:
    assert read_verdict(INCOMING[example.contract], example.message) is None


@pytest.mark.parametrize("example", BAD, ids=lambda example: example.file)
def test_invalid_examples_are_refused_by_schema_and_code_alike(example: Example) -> None:
    contract = INCOMING[example.contract]
    assert verdict(contract, example.message) == example.code
    assert read_verdict(contract, example.message) == example.code


@incoming
def test_every_topic_has_examples_of_each_kind(contract: Contract) -> None:
    """At least one record that is read, and one that each part of the parser refuses somewhere."""
    assert contract.name in {example.contract for example in GOOD}
    payload_code = schemas()[contract.schema]["$defs"]["Payload"][CODE]
    assert payload_code in {example.code for example in BAD if example.contract == contract.name}


def test_readiness_is_strict_going_out() -> None:
    """«Typed events, strict going out»: Ready names its chat, and nothing else may stand in it."""
    ready = next(example.message for example in GOOD if example.file == f"{OUTGOING}.json")

    def with_payload(**changes: Any) -> dict[str, Any]:
        return ready | {"Payload": ready["Payload"] | changes}

    assert accepts(f"{OUTGOING}.json", ready)
    assert accepts(f"{OUTGOING}.json", with_payload(Status="Failed", ChatId=None))
    for broken in (
        with_payload(ChatId=None),
        with_payload(Status="Done"),
        with_payload(Title="Quiet Harbour"),
        ready | {"ContractVersion": 2},
        ready | {"AggregateType": "Deal"},
        {name: value for name, value in ready.items() if name != "MessageId"},
    ):
        assert not accepts(f"{OUTGOING}.json", broken)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"Version": 2', '"Version": 2.0'),
        ('"Version": 2', '"Version": 2e0'),
        ('"Version": 2', '"Version": 2, "Version": 2'),
        ('"ContractVersion": 1', '"ContractVersion": 1.0'),
        ("2026-03-02", "2026-02-30"),
        ('{"MessageId"', '\ufeff{"MessageId"'),
    ],
)
def test_what_the_document_says_beyond_the_schemas(old: str, new: str) -> None:
    """The list in the document's description, «What JSON Schema cannot say of it»."""
    contract = INCOMING["lead-participants-changed"]
    text = json.dumps(next(each.message for each in GOOD if each.file == contract.schema))
    assert text.count(old) == 1
    with pytest.raises(Refused):
        contract.read(crm.record(text.replace(old, new).encode(), topic=contract.topic))


def test_the_codes_are_those_of_the_code() -> None:
    """`x-error-code` of the envelope and of each payload; a payload of the wrong kind has the payload's."""
    for contract in INCOMING.values():
        message = next(example.message for example in GOOD if example.contract == contract.name)
        assert read_verdict(contract, message | {"Payload": []}) == verdict(contract, message | {"Payload": []})
        assert read_verdict(contract, []) == schemas()[ENVELOPE][CODE]
