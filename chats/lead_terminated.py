"""The handler of `lead-terminated`: closes the lead's chat (INV-CHAT-8) and leaves deal chats alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal
from uuid import UUID

from django.db.backends.utils import CursorWrapper

from chats import ended_leads
from chats.contracts import Origin, origin_of
from chats.models import ChatKind
from chats.reconciliation import Marks, write
from chats.reporting import Meters, Reporter
from chats.state import ChatState, claim_subjects, lock_chats, missing
from messenger import metrics
from messenger.envelope import Guid, Instant, Wire, decoder, open_envelope, open_payload
from messenger.logs import get_logger
from messenger.records import Record
from messenger.topics import LEAD_TERMINATED
from outbox import processed
from outbox.handling import Handler, Verdict, read_each

log = get_logger(__name__)

LEAD_TERMINATED_INVALID = "MSG_LEAD_TERMINATED_INVALID"


class LeadTerminated(Wire, frozen=True, rename="pascal"):
    """`pin.crm.lead-terminated.v1`."""

    lead_id: Guid
    status: Literal["Archived", "Expired"]
    occurred_at: Instant


@dataclass(frozen=True, slots=True)
class Ending:
    """A lead that came to its end."""

    origin: Origin
    lead_id: UUID
    occurred_at: Instant


@dataclass(frozen=True, slots=True)
class Settled:
    """An end and what became of it."""

    ending: Ending
    outcome: str
    chat_id: UUID | None = None
    reused_id: bool = False
    """A duplicate by its MessageId whose body is another one."""


_decode = decoder(LeadTerminated)


def read_lead_terminated(record: Record) -> Ending:
    """The end of a lead in a record of `lead-terminated`; raises `Refused`."""
    envelope = open_envelope(record)
    payload = open_payload(envelope, _decode, code=LEAD_TERMINATED_INVALID)
    origin = origin_of(record, envelope, "messenger-lead-terminated")
    return Ending(origin, payload.lead_id, payload.occurred_at)


class LeadTerminatedHandler(Handler):
    """Closes lead chats. A lead without a chat is remembered as ended: its chat is closed when it is opened."""

    group = LEAD_TERMINATED.group or ""

    def handle(self, cursor: CursorWrapper, records: Sequence[Record]) -> Verdict:
        """Close the chats of a batch."""
        endings, refusals = read_each(records, read_lead_terminated, group=self.group)
        leads = {ending.lead_id for ending in endings}
        if absent := missing(cursor, ChatKind.LEAD, leads):
            claim_subjects(cursor, ChatKind.LEAD, absent)
        chats = lock_chats(cursor, ChatKind.LEAD, leads)
        marks = Marks(processed.known(cursor, (ending.origin.key for ending in endings)))
        settled = [_end(ending, chats.get(ending.lead_id), marks) for ending in endings]
        chatless = [ending for ending in reversed(endings) if ending.lead_id not in chats]
        ended_leads.remember(cursor, {ending.lead_id: ending.occurred_at for ending in chatless})
        write(cursor, ChatKind.LEAD, chats.values(), marks)
        return Verdict(refusals, report=partial(self._report, records, settled))

    def _report(self, records: Sequence[Record], settled: Sequence[Settled], started: float) -> None:
        reporter = Reporter(self.group, ChatKind.LEAD, Meters())
        reporter.consumed(records, started)
        for each in settled:
            origin, lead = each.ending.origin, each.ending.lead_id
            metrics.CONSUMED.labels(self.group, each.outcome).inc()
            fields = reporter.fields(origin, lead, each.chat_id)
            reporter.mismatch(origin, fields)
            if each.reused_id:
                reporter.id_reused(fields)
            log.info(each.outcome, **fields)
            reporter.span(origin, each.outcome, lead, started)


def _end(ending: Ending, chat: ChatState | None, marks: Marks) -> Settled:
    origin = ending.origin
    chat_id = chat.id if chat else None
    processed_before, digest = marks.digest(origin.key)
    if processed_before:
        reused = digest is not None and digest != origin.digest
        return Settled(ending, "skipped_duplicate", chat_id, reused_id=reused)
    marks.new[origin.key] = origin.digest
    if chat is None:
        return Settled(ending, "end_remembered")
    return Settled(ending, "chat_closed" if chat.close(ending.occurred_at) else "already_closed", chat_id)
