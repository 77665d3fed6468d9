"""The handler of `deal-created`: writes the intent, and makes the first attempt in the same transaction."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.backends.utils import CursorWrapper

from chats.contracts import Origin
from chats.deal_contracts import read_deal_created
from chats.models import ChatKind
from chats.opening import OpeningBatch
from chats.reconciliation import Marks
from chats.reporting import Meters, Reporter
from chats.roster_consumer import DEALS
from chats.state import claim_subjects
from messenger import metrics, tracing
from messenger.faults import Lane, lane_of
from messenger.logs import get_logger
from messenger.records import Record
from messenger.topics import DEAL_CREATED
from outbox import processed
from outbox.handling import Handler, Verdict, read_each
from provisioning import events, intents
from provisioning.attempt import Failure, Provisioned, provision
from provisioning.intents import Intent
from provisioning.models import ProvisionStatus
from provisioning.options import RetryOptions

log = get_logger(__name__)


class DealCreatedHandler(Handler):
    """One intent per deal; success gives Ready and the event, a refusal leaves the row Failed for the retry job."""

    group = DEAL_CREATED.group or ""

    def __init__(self) -> None:
        self._options = RetryOptions.from_settings()

    def handle(self, cursor: CursorWrapper, records: Sequence[Record]) -> Verdict:
        """Write the intents of a batch and make their first attempt."""
        wanted, refusals = read_each(records, read_deal_created, group=self.group)
        batch = OpeningBatch(wanted, Marks(processed.known(cursor, (origin.key for origin, _ in wanted))))
        openings = batch.take()
        claim_subjects(cursor, ChatKind.DEAL, batch.first)
        new = [_with_origin(intent, batch.first[intent.deal_id]) for intent in intents.write(cursor, openings)]
        done, failed = self._attempt(cursor, new)
        processed.mark(cursor, batch.marks.new)
        report = partial(self._report, records, batch, {intent.deal_id for intent in new}, done, failed)
        return Verdict(refusals + done.refusals, report=report)

    def _attempt(self, cursor: CursorWrapper, new: Sequence[Intent]) -> tuple[Provisioned, dict[UUID, Failure]]:
        """Attempt all of `new` at once; if that is refused, each by itself, so that one fails alone."""
        outcome = self._try(cursor, new)
        if isinstance(outcome, Provisioned):
            return outcome, {}
        if len(new) == 1:
            self._fail(cursor, new[0], outcome)
            return Provisioned(), {new[0].deal_id: outcome}
        done = Provisioned()
        failed: dict[UUID, Failure] = {}
        for intent in new:
            part, part_failed = self._attempt(cursor, [intent])
            done.chats |= part.chats
            done.waiting += part.waiting
            done.refusals += part.refusals
            failed |= part_failed
        return done, failed

    def _try(self, cursor: CursorWrapper, new: Sequence[Intent]) -> Provisioned | Failure:
        """An attempt in a savepoint: a fault that leaves the connection alive takes back the attempt alone."""
        try:
            with transaction.atomic():
                done = provision(cursor, new)
                for intent in new:
                    chat_id = done.chats[intent.deal_id]
                    intents.settle(
                        cursor, intent, ProvisionStatus.READY, chat_id=chat_id, attempts=intent.attempts, next_in=0
                    )
                events.publish(cursor, [_ready(intent, done.chats[intent.deal_id]) for intent in new])
                return done
        except Exception as error:
            if lane_of(error) is Lane.INFRASTRUCTURE:
                raise  # nothing is left behind; Kafka delivers again
            return Failure.of(error)

    def _fail(self, cursor: CursorWrapper, intent: Intent, failure: Failure) -> None:
        first_retry = self._options.backoff.delay(0)
        intents.settle(
            cursor,
            intent,
            ProvisionStatus.FAILED,
            attempts=intent.attempts,
            next_in=first_retry,
            error=failure.last_error,
        )

    def _report(
        self,
        records: Sequence[Record],
        batch: OpeningBatch,
        new: set[UUID],
        done: Provisioned,
        failed: dict[UUID, Failure],
        started: float,
    ) -> None:
        reporter = Reporter(self.group, ChatKind.DEAL, Meters())
        reporter.consumed(records, started)
        for origin, opening in batch.wanted:
            deal = opening.subject_id
            is_new = deal in new and batch.first[deal] is origin
            failure = failed.get(deal) if is_new else None
            outcome = "skipped_duplicate" if not is_new else "provision_retry" if failure else "chat_provisioned"
            metrics.CONSUMED.labels(self.group, outcome).inc()
            fields = reporter.fields(origin, deal, done.chats.get(deal))
            reporter.mismatch(origin, fields)
            if batch.reused(origin):
                reporter.id_reused(fields)
            if is_new:
                reporter.roster_warnings(opening, fields)
                fields |= {"attempts": 0}
            if failure is None:
                log.info(outcome, **fields)
            else:
                log.warning(outcome, **fields, error_code=failure.code)
            reporter.span(origin, outcome, deal, started)
        for each in done.waiting:
            DEALS.reporter.settled(each, started)


def _with_origin(intent: Intent, origin: Origin) -> Intent:
    return replace(intent, correlation_id=origin.correlation_id, traceparent=tracing.traceparent_of(origin.record))


def _ready(intent: Intent, chat_id: UUID) -> events.DealChatStatusChanged:
    return events.DealChatStatusChanged(
        intent.deal_id, chat_id, ProvisionStatus.READY, intent.correlation_id, intent.traceparent
    )
