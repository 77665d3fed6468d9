"""One attempt to provision deal chats: shared by the first attempt and the retry job. Idempotent (INV-CHAT-2)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django.db.backends.utils import CursorWrapper

from chats.models import ChatKind
from chats.opening import open_chats, settle_waiting
from chats.reconciliation import Marks, Settled, write
from chats.roster_consumer import DEALS
from chats.state import ChatState, lock_chats
from messenger.faults import clip, describe, sqlstate
from outbox.dead_letters import Refusal
from provisioning.intents import Intent

LAST_ERROR_WIDTH = 512


@dataclass(slots=True)
class Provisioned:
    """What an attempt did, by deal; nothing of it is told before the commit."""

    chats: dict[UUID, UUID] = field(default_factory=dict)
    waiting: list[Settled] = field(default_factory=list)
    """Rosters that had waited for these chats."""
    refusals: list[Refusal] = field(default_factory=list)


def provision(cursor: CursorWrapper, intents: Sequence[Intent]) -> Provisioned:
    """Find or create the chats of `intents` and bring their people in.

    The caller has claimed the deals (`chats.state.claim_subjects`) and owns the transaction. A chat that exists only
    gets who is missing, and nobody once a roster of `deal-members-changed` was applied: a retry never undoes a
    later change of membership.
    """
    found = lock_chats(cursor, ChatKind.DEAL, (intent.deal_id for intent in intents))
    created = open_chats(cursor, ChatKind.DEAL, [intent.opening for intent in intents if intent.deal_id not in found])
    for intent in intents:
        if (chat := found.get(intent.deal_id)) is not None:
            _add_missing(chat, intent)
    marks = Marks({})
    waiting, refusals = settle_waiting(cursor, ChatKind.DEAL, created, DEALS.read, group=DEALS.group, marks=marks)
    chats = found | created
    write(cursor, ChatKind.DEAL, chats.values(), marks)
    return Provisioned({deal: chat.id for deal, chat in chats.items()}, waiting, refusals)


def _add_missing(chat: ChatState, intent: Intent) -> None:
    if chat.version is None:
        chat.bring_to({**intent.members, **chat.roster}, intent.created_at)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an attempt failed: `code` for logs, `last_error` for the row."""

    code: str
    last_error: str

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Class and code of `error` (source document: «класс + код, без PII»).

        The text of a database error may quote data and is left out; that of our own code is kept, made storable.
        """
        code = describe(error)
        text = code if sqlstate(error) else f"{type(error).__name__}: {error}"
        return cls(clip(code, LAST_ERROR_WIDTH), clip(text, LAST_ERROR_WIDTH))
