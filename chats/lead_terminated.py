"""The handler of `lead-terminated`: closes the lead's chat (INV-CHAT-8) and leaves deal chats alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal
from uuid import UUID

from django.db.backends.utils import CursorWrapper

from chats.contracts import Origin, origin_of
from chats.ended_leads import remember
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
        outcomes = [self._end(ending, chats.get(ending.lead_id), marks) for ending in endings]
        remember(cursor, leads - chats.keys())
        write(cursor, ChatKind.LEAD, chats.values(), marks)
        return Verdict(refusals, report=partial(self._report, records, endings, outcomes, chats))

    @staticmethod
    def _end(ending: Ending, chat: ChatState | None, marks: Marks) -> str:
        origin = ending.origin
        if marks.digest(origin.key)[0]:
            return "skipped_duplicate"
        marks.new[origin.key] = origin.digest
        if chat is None:
            return "end_remembered"
        return "chat_closed" if chat.close(ending.occurred_at) else "already_closed"

    def _report(
        self,
        records: Sequence[Record],
        endings: Sequence[Ending],
        outcomes: Sequence[str],
        chats: dict[UUID, ChatState],
        started: float,
    ) -> None:
        reporter = Reporter(self.group, ChatKind.LEAD, Meters())
        reporter.consumed(records, started)
        for ending, outcome in zip(endings, outcomes, strict=True):
            chat = chats.get(ending.lead_id)
            metrics.CONSUMED.labels(self.group, outcome).inc()
            fields = reporter.fields(ending.origin, ending.lead_id, chat.id if chat else None)
            reporter.mismatch(ending.origin, fields)
            log.info(outcome, **fields)
            reporter.span(ending.origin, outcome, ending.lead_id, started)
