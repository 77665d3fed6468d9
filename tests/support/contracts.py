"""The contracts in `docs/contracts` as tests use them: the document, its schemas, its examples."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from chats.contracts import read_lead_created, read_lead_participants
from chats.deal_contracts import read_deal_created, read_deal_members
from chats.lead_terminated import read_lead_terminated
from chats.user_changed import read_user_changed
from messenger import topics
from messenger.envelope import Refused
from messenger.records import Record
from messenger.topics import Topic
from tests.support import crm

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "contracts"
ENVELOPE = "envelope.json"
CODE = "x-error-code"
"""Where a schema names the error code of what it refuses."""


@dataclass(frozen=True, slots=True)
class Contract:
    """An incoming topic: its name in the files, and the code that reads it."""

    name: str
    topic: Topic
    read: Callable[[Record], Any]

    @property
    def schema(self) -> str:
        """The file of its schema."""
        return f"{self.name}.json"


INCOMING = {
    contract.name: contract
    for contract in (
        Contract("lead-created", topics.LEAD_CREATED, read_lead_created),
        Contract("lead-participants-changed", topics.LEAD_PARTICIPANTS_CHANGED, read_lead_participants),
        Contract("lead-terminated", topics.LEAD_TERMINATED, read_lead_terminated),
        Contract("deal-created", topics.DEAL_CREATED, read_deal_created),
        Contract("deal-members-changed", topics.DEAL_MEMBERS_CHANGED, read_deal_members),
        Contract("user-changed", topics.USER_CHANGED, read_user_changed),
    )
}
OUTGOING = "deal-chat-status-changed"


@dataclass(frozen=True, slots=True)
class Example:
    """One file of examples; `code` is the expected error code, None for a message that is read."""

    file: str
    contract: str
    message: dict[str, Any]
    code: str | None


@cache
def document() -> dict[str, Any]:
    """The AsyncAPI document as it is written."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / "asyncapi.yaml").read_text(encoding="utf-8"))
    return found


@cache
def load(path: Path) -> Any:
    """A JSON file below the folder."""
    return json.loads(path.read_text(encoding="utf-8"))


def schemas() -> dict[str, Any]:
    """Every schema by its file name."""
    return {path.name: load(path) for path in sorted((FOLDER / "schemas").iterdir())}


def examples() -> Iterator[Example]:
    """Every example: `<contract>[.<case>].json` and `<contract>.<case>.invalid.json`."""
    for path in sorted((FOLDER / "examples").iterdir()):
        content = load(path)
        contract = path.name.split(".")[0]
        if path.name.endswith(".invalid.json"):
            yield Example(path.name, contract, content["Message"], content["ErrorCode"])
        else:
            yield Example(path.name, contract, content, None)


@cache
def validator(reference: str) -> Draft202012Validator:
    """The validator of the schema at `reference`: a file name, with a JSON pointer behind # or without."""
    registry: Registry[Any] = Registry().with_resources(
        [(name, DRAFT202012.create_resource(content)) for name, content in schemas().items()]
    )
    return Draft202012Validator({"$ref": reference}, registry=registry)


def accepts(reference: str, value: Any) -> bool:
    """Whether the schema at `reference` accepts `value`."""
    return validator(reference).is_valid(value)


def verdict(contract: Contract, message: Any) -> str | None:
    """The error code by which the schemas refuse `message`; None if they accept it."""
    if not accepts(ENVELOPE, message):
        return str(schemas()[ENVELOPE][CODE])
    if not accepts(contract.schema, message):
        return str(schemas()[contract.schema]["$defs"]["Payload"][CODE])
    return None


def read_verdict(contract: Contract, message: Any) -> str | None:
    """The error code by which the code refuses `message`; None if it reads it."""
    value = json.dumps(message, ensure_ascii=False).encode()
    try:
        contract.read(crm.record(value, topic=contract.topic))
    except Refused as reason:
        return reason.code
    return None


def nodes(value: Any, path: str = "#") -> Iterator[tuple[str, Any]]:
    """Every value below `value` with its place."""
    yield path, value
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from nodes(each, f"{path}/{name}")
