"""The handler of `lead-created`: opens lead chats, and gives a roster that waited for one its turn."""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from django.db.backends.utils import CursorWrapper

from chats import ended_leads
from chats.contracts import read_lead_created
from chats.models import ChatKind
from chats.opening import OpeningBatch, open_chats, settle_waiting
from chats.reconciliation import Marks, Settled, write
from chats.reporting import Meters, Reporter
from chats.roster_consumer import LEADS
from chats.state import ChatState, claim_subjects
from messenger import metrics
from messenger.logs import get_logger
from messenger.records import Record
from messenger.topics import LEAD_CREATED
from outbox import processed
from outbox.dead_letters import Refusal
from outbox.handling import Handler, Verdict, read_each

log = get_logger(__name__)


class LeadCreatedHandler(Handler):
    """Opens one chat per lead (INV-CHAT-2); a second lead-created of a lead changes nothing."""

    group = LEAD_CREATED.group or ""

    def handle(self, cursor: CursorWrapper, records: Sequence[Record]) -> Verdict:
        """Open the chats of a batch in one transaction with the rosters that waited for them."""
        wanted, refusals = read_each(records, read_lead_created, group=self.group)
        marks = Marks(processed.known(cursor, (origin.key for origin, _ in wanted)))
        batch = OpeningBatch(wanted, marks)
        openings = batch.take()
        claim_subjects(cursor, ChatKind.LEAD, batch.first)
        chats = open_chats(cursor, ChatKind.LEAD, openings)
        ended_before = ended_leads.among(cursor, chats)
        for lead, ended_at in ended_before.items():
            chats[lead].close(ended_at)
        ended_leads.forget(cursor, ended_before)
        settled, refused = settle_waiting(cursor, ChatKind.LEAD, chats, LEADS.read, group=LEADS.group, marks=marks)
        write(cursor, ChatKind.LEAD, chats.values(), marks)
        return Verdict(refusals + refused, report=partial(self._report, records, batch, chats, settled))

    def buried(self, refusals: Sequence[Refusal]) -> None:
        """A waiting roster that turned out unreadable counts as one of the participants' consumer."""
        metrics.LEAD_DLQ.inc(sum(refusal.group == LEADS.group for refusal in refusals))

    def _report(
        self,
        records: Sequence[Record],
        batch: OpeningBatch,
        chats: dict[UUID, ChatState],
        settled: Sequence[Settled],
        started: float,
    ) -> None:
        reporter = Reporter(self.group, ChatKind.LEAD, Meters())
        reporter.consumed(records, started)
        for origin, opening in batch.wanted:
            subject = opening.subject_id
            chat = chats.get(subject) if batch.first.get(subject) is origin else None
            outcome = "chat_opened" if chat else "skipped_duplicate"
            metrics.CONSUMED.labels(self.group, outcome).inc()
            fields = reporter.fields(origin, subject, chat.id if chat else None)
            reporter.mismatch(origin, fields)
            if batch.reused(origin):
                reporter.id_reused(fields)
            if chat:
                reporter.roster_warnings(opening, fields)
            log.info(outcome, **fields)
            reporter.span(origin, outcome, subject, started)
        for each in settled:
            LEADS.reporter.settled(each, started)
