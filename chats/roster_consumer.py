"""The handler of roster snapshots, and of those that wait for their chat; bound to leads or deals."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from django.conf import settings
from django.db.backends.utils import CursorWrapper

from chats import parking
from chats.contracts import Snapshot, read_lead_participants
from chats.deal_contracts import read_deal_members
from chats.models import ChatKind
from chats.reconciliation import Marks, Outcome, Settled, reconcile, settle, write
from chats.reporting import LEAD_METERS, Meters, Reporter
from chats.state import claim_subjects, lock_chats
from messenger.records import Record
from messenger.topics import DEAL_MEMBERS_CHANGED, LEAD_PARTICIPANTS_CHANGED, Topic
from outbox import processed
from outbox.dead_letters import Refusal
from outbox.handling import Handler, Verdict, read_each
from outbox.settlement import Settlement, read_only


@dataclass(frozen=True, slots=True)
class Binding:
    """What tells the rosters of leads from those of deals."""

    kind: ChatKind
    topic: Topic
    read: Callable[[Record], Snapshot]
    meters: Meters

    @property
    def group(self) -> str:
        """The consumer group."""
        assert self.topic.group is not None
        return self.topic.group

    @property
    def reporter(self) -> Reporter:
        """Who tells of settled records."""
        return Reporter(self.group, self.kind, self.meters)


LEADS = Binding(ChatKind.LEAD, LEAD_PARTICIPANTS_CHANGED, read_lead_participants, LEAD_METERS)
DEALS = Binding(ChatKind.DEAL, DEAL_MEMBERS_CHANGED, read_deal_members, Meters())


class RosterHandler(Handler):
    """Applies snapshots as they come from the topic."""

    def __init__(self, binding: Binding) -> None:
        self.group = binding.group
        self.binding = binding

    def handle(self, cursor: CursorWrapper, records: Sequence[Record]) -> Verdict:
        """Reconcile a batch (source document, «Алгоритм»)."""
        snapshots, refusals = read_each(records, self.binding.read, group=self.group)
        settled = reconcile(cursor, self.binding.kind, snapshots)
        return Verdict(refusals, report=partial(self._report, records, settled))

    def buried(self, refusals: Sequence[Refusal]) -> None:
        """Count dead letters."""
        if self.binding.meters.dlq:
            self.binding.meters.dlq.inc(len(refusals))

    def _report(self, records: Sequence[Record], settled: Sequence[Settled], started: float) -> None:
        reporter = self.binding.reporter
        reporter.consumed(records, started)
        for each in settled:
            reporter.settled(each, started)


class ParkedHandler(RosterHandler):
    """Looks again for the chats of parked snapshots: applies, postpones, or gives up at the limit."""

    def handle(self, cursor: CursorWrapper, records: Sequence[Record]) -> Verdict:
        """Settle the parked records of `records` that are still the waiting ones of their subjects."""
        kind = self.binding.kind
        snapshots, refusals = read_each(records, self.binding.read, group=self.group)
        subjects = sorted({snapshot.subject_id for snapshot in snapshots})
        claim_subjects(cursor, kind, subjects)
        waiting = {parked.subject_id: parked for parked in parking.of_subjects(cursor, kind, subjects)}
        # Another consumer, or the chat's opening, may have had it since it was read as due.
        snapshots = [each for each in snapshots if _still_waits(each, waiting)]
        chats = lock_chats(cursor, kind, (each.subject_id for each in snapshots))
        marks = Marks(processed.known(cursor, (each.origin.key for each in snapshots)))
        settled = [settle(chats.get(each.subject_id), each, marks) for each in snapshots]
        write(cursor, kind, chats.values(), marks)
        refusals += self._end_or_postpone(cursor, settled, waiting)
        for refusal in refusals:
            self.abandon(cursor, refusal.record)
        return Verdict(refusals, report=partial(self._report, (), settled))

    def _end_or_postpone(
        self, cursor: CursorWrapper, settled: Sequence[Settled], waiting: dict[UUID, parking.Parked]
    ) -> list[Refusal]:
        kind = self.binding.kind
        parking.unpark(cursor, kind, (s.snapshot.subject_id for s in settled if s.outcome is not Outcome.PARKED))
        tries = {
            each.snapshot.subject_id: waiting[each.snapshot.subject_id].attempts + 1
            for each in settled
            if each.outcome is Outcome.PARKED
        }
        limit = settings.LEAD_NOT_PROVISIONED_MAX_ATTEMPTS
        spent = {subject for subject, attempts in tries.items() if attempts >= limit}
        parking.postpone(cursor, kind, {subject: n for subject, n in tries.items() if subject not in spent})
        parking.unpark(cursor, kind, spent)
        detail = f"The chat of this {kind.value.lower()} did not exist after {limit} tries."
        return [Refusal(waiting[subject].record, self.group, parking.CHAT_NOT_PROVISIONED, detail) for subject in spent]

    def abandon(self, cursor: CursorWrapper, record: Record) -> None:
        """End the waiting of a record that is dead-lettered."""
        parking.unpark_record(cursor, record)


def _still_waits(snapshot: Snapshot, waiting: dict[UUID, parking.Parked]) -> bool:
    parked = waiting.get(snapshot.subject_id)
    return parked is not None and parked.due and parked.record == snapshot.origin.record


class RosterWork:
    """`Work` of the consumer loop: the topic's records, and between them the parked ones that are due."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._fresh = Settlement(RosterHandler(binding))
        self._parked = Settlement(ParkedHandler(binding))

    def settle(self, records: Sequence[Record]) -> Iterator[Sequence[Record]]:
        """Settle records of the topic."""
        return self._fresh.settle(records)

    def tick(self) -> Iterator[object]:
        """Settle what is due among the parked records."""
        due = read_only(lambda cursor: parking.due(cursor, self._binding.kind, settings.CONSUMER_BATCH_SIZE))
        return self._parked.settle([parked.record for parked in due])
