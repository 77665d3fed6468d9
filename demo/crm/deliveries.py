"""What the simulated crm sends: a record and the story of it."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from messenger.topics import Topic


class Trouble(StrEnum):
    """What goes wrong with the chat of a deal."""

    PASSING = "passing"
    """The first attempt fails; later it works."""
    LASTING = "lasting"
    """It fails until no attempts are left: poison, for a person to re-enqueue."""


class Outcome(StrEnum):
    """What a worker makes of a record, by the name of its log event (design, section 8)."""

    OPENED = "chat_opened"
    PROVISIONED = "chat_provisioned"
    FAILED_FIRST = "provision_retry"
    CLOSED = "chat_closed"
    NAMED = "user_saved"
    APPLIED = "synced"
    DUPLICATE = "skipped_duplicate"
    STALE = "skipped_stale"
    PARKED = "retry_not_provisioned"
    DEAD = "failed"


REPEATED = frozenset({Outcome.PARKED})
"""Told once per try of the worker, however often it tries."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """One record as it goes to Kafka. A broken one has no `message_id` and a `refusal`."""

    topic: Topic
    key: str
    value: bytes | None
    subject: UUID
    """What it speaks of (its AggregateId); records of one subject on one topic keep their order."""
    title: str
    """The subject's title, for a person."""
    story: str
    """What crm did, in a few words."""
    message_id: UUID | None = None
    version: int | None = None
    refusal: str | None = None
    """The error code under which a broken record is dead-lettered."""
    trouble: Trouble | None = None
    """Of a deal's creation: what is to go wrong when its chat is made."""
