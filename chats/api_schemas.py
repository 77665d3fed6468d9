"""What the API takes and gives, as its OpenAPI document says it. Names are PascalCase, as on every other contract."""

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from ninja import Schema
from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_pascal

from chats.models import ChatKind, ChatStatus
from chats.roster import FactType, Role
from messenger.envelope import parse_guid

MAX_SEQ = 2**63 - 1
PAGE = 100
_INTEGER = re.compile(r"-?[0-9]{1,19}")


def _strict_guid(value: Any) -> Any:
    # pydantic also takes braces, no dashes and urn:uuid:, none of which is the documented format.
    return parse_guid(value) if isinstance(value, str) else value


def _strict_integer(value: Any) -> Any:
    # In a query int() would also take « 5 », «+5» and «1_000».
    if isinstance(value, str) and not _INTEGER.fullmatch(value):
        raise ValueError("Expected an integer")
    return value


Guid = Annotated[
    UUID,
    BeforeValidator(_strict_guid),
    Field(
        json_schema_extra={
            "pattern": "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
            "not": {"const": "00000000-0000-0000-0000-000000000000"},
        }
    ),
]
# The bounds stand first: behind a validator of its own pydantic would not know how to put them in the document.
Seq = Annotated[int, Field(ge=0, le=MAX_SEQ), BeforeValidator(_strict_integer)]
Limit = Annotated[int, Field(ge=1, le=500), BeforeValidator(_strict_integer)]


class Wire(Schema):
    """Base of every answer."""

    model_config = ConfigDict(alias_generator=to_pascal, populate_by_name=True)


class ErrorCode(StrEnum):
    """What went wrong, for programs."""

    UNAUTHORIZED = "Unauthorized"
    NOT_FOUND = "NotFound"
    INVALID = "Invalid"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    UNAVAILABLE = "Unavailable"


class Problem(Wire):
    """One value of the request that breaks the documented form."""

    place: list[str] = Field(description="Where it stands: `query` or `path`, and its name.")
    message: str


class Error(Wire):
    """Every answer but a good one."""

    code: ErrorCode
    message: str = Field(description="One sentence for a person.")
    problems: list[Problem] = Field(default=[], description="For `Invalid`: each value at fault.")


class ChatSummary(Wire):
    """A chat of mine in a list."""

    chat_id: UUID
    kind: ChatKind
    status: ChatStatus
    title: str
    lead_id: UUID | None
    deal_id: UUID | None
    role: Role = Field(description="My role in it.")
    last_seq: int = Field(description="Number of the newest event of its feed.")
    created_at: datetime
    updated_at: datetime


class ChatPage(Wire):
    """Some of my chats, newest first."""

    items: list[ChatSummary]
    next: UUID | None = Field(description="Give it as `after` for the next page; null on the last one.")


class RosterEntry(Wire):
    """An active participant."""

    user_id: UUID
    display_name: str | None = Field(description="Null as long as crm has not told the name.")
    role: Role
    role_raw: str | None = Field(description="The role as it came, where it is not a known one and counts as Guest.")
    joined_at: datetime


class ChatDetail(Wire):
    """A chat and who is in it."""

    chat_id: UUID
    kind: ChatKind
    status: ChatStatus
    title: str
    lead_id: UUID | None
    deal_id: UUID | None
    project_id: UUID | None
    last_seq: int = Field(description="Number of the newest event of its feed: the roster is as of this one.")
    created_at: datetime
    updated_at: datetime
    closed_at: datetime | None
    participants: list[RosterEntry] = Field(description="Active ones, strongest role first.")


class FeedEvent(Wire):
    """A fact of a chat's feed."""

    seq: int = Field(description="Counts from 1 within the chat, without gaps.")
    type: FactType
    user_id: UUID | None
    display_name: str | None
    role: Role | None
    previous_role: Role | None
    occurred_at: datetime


class FeedPage(Wire):
    """Events after a given number, oldest first."""

    items: list[FeedEvent]
    last_seq: int = Field(description="Number of the newest event of the feed.")
    next: int | None = Field(description="Give it as `after` for the next page; null when there is no more.")
