"""The handler of `deal-created`: writes the intent, and makes the first attempt in the same transaction."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from uuid import UUID

from django.db import transaction
from django.db.backends.utils import CursorWrapper

from chats.contracts import Opening, Origin
from chats.deal_contracts import read_deal_created
from chats.models import ChatKind
from chats.reporting import Meters, Reporter
from chats.roster_consumer import DEALS
from chats.state import claim_subjects
from messenger import metrics
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
        known = processed.known(cursor, (origin.key for origin, _ in wanted))
        fresh = [(origin, opening) for origin, opening in wanted if origin.key not in known]
        claim_subjects(cursor, ChatKind.DEAL, {opening.subject_id for _, opening in fresh})
        new = self._write(cursor, fresh)
        done, failed = self._attempt(cursor, new)
        processed.mark(cursor, {origin.key: origin.digest for origin, _ in fresh})
        report = partial(self._report, records, wanted, new, done, failed)
        return Verdict(refusals + done.refusals, report=report)

    @staticmethod
    def _write(cursor: CursorWrapper, fresh: Sequence[tuple[Origin, Opening]]) -> list[Intent]:
        correlation = {opening.subject_id: origin.correlation_id for origin, opening in reversed(fresh)}
        written = intents.write(cursor, [opening for _, opening in fresh])
        return [replace(intent, correlation_id=correlation[intent.deal_id]) for intent in written]

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
        wanted: Sequence[tuple[Origin, Opening]],
        new: Sequence[Intent],
        done: Provisioned,
        failed: dict[UUID, Failure],
        started: float,
    ) -> None:
        reporter = Reporter(self.group, ChatKind.DEAL, Meters())
        reporter.consumed(records, started)
        unseen = {intent.deal_id for intent in new}
        for origin, opening in wanted:
            deal = opening.subject_id
            failure = failed.get(deal)
            outcome = (
                "skipped_duplicate" if deal not in unseen else "provision_retry" if failure else "chat_provisioned"
            )
            unseen.discard(deal)
            metrics.CONSUMED.labels(self.group, outcome).inc()
            fields = reporter.fields(origin, deal, done.chats.get(deal))
            reporter.mismatch(origin, fields)
            if failure is not None:
                fields |= {"attempts": 0, "error_code": failure.code}
            log.info(outcome, **fields)
            reporter.span(origin, outcome, deal, started)
        for each in done.waiting:
            DEALS.reporter.settled(each, started)


def _ready(intent: Intent, chat_id: UUID) -> events.DealChatStatusChanged:
    return events.DealChatStatusChanged(intent.deal_id, chat_id, ProvisionStatus.READY, intent.correlation_id)
