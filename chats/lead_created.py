"""The handler of `lead-created`: opens lead chats, and gives a roster that waited for one its turn."""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

from django.db.backends.utils import CursorWrapper

from chats import ended_leads
from chats.contracts import Opening, Origin, read_lead_created
from chats.models import ChatKind
from chats.opening import open_chats, settle_waiting
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
        fresh = [(origin, opening) for origin, opening in wanted if origin.key not in marks.known]
        claim_subjects(cursor, ChatKind.LEAD, {opening.subject_id for _, opening in fresh})
        chats = open_chats(cursor, ChatKind.LEAD, [opening for _, opening in fresh])
        marks.new.update((origin.key, origin.digest) for origin, _ in fresh)
        ended_before = ended_leads.among(cursor, chats)
        for ended in ended_before:
            chats[ended].close(next(opening.occurred_at for _, opening in fresh if opening.subject_id == ended))
        ended_leads.forget(cursor, ended_before)
        settled, refused = settle_waiting(cursor, ChatKind.LEAD, chats, LEADS.read, group=LEADS.group, marks=marks)
        write(cursor, ChatKind.LEAD, chats.values(), marks)
        return Verdict(refusals + refused, report=partial(self._report, records, wanted, chats, settled))

    def buried(self, refusals: Sequence[Refusal]) -> None:
        """A waiting roster that turned out unreadable counts as one of the participants' consumer."""
        metrics.LEAD_DLQ.inc(sum(refusal.group == LEADS.group for refusal in refusals))

    def _report(
        self,
        records: Sequence[Record],
        wanted: Sequence[tuple[Origin, Opening]],
        chats: dict[UUID, ChatState],
        settled: Sequence[Settled],
        started: float,
    ) -> None:
        reporter = Reporter(self.group, ChatKind.LEAD, Meters())
        reporter.consumed(records, started)
        unseen = dict(chats)
        for origin, opening in wanted:
            chat = unseen.pop(opening.subject_id, None)
            outcome = "chat_opened" if chat else "skipped_duplicate"
            metrics.CONSUMED.labels(self.group, outcome).inc()
            fields = reporter.fields(origin, opening.subject_id, chat.id if chat else None)
            reporter.mismatch(origin, fields)
            log.info(outcome, **fields)
            reporter.span(origin, outcome, opening.subject_id, started)
        for each in settled:
            LEADS.reporter.settled(each, started)
