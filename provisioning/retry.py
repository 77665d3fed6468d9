"""One row of the retry job: claim, attempt and bookkeeping in one short transaction (source document, «Алгоритм»).

The row's lock lives until the commit, and there is no network call inside: the event is an outbox row. Ways out:

* success: chat, people, feed line, Ready and the event, committed as one;
* refusal (a rule, or the database refusing the data): the attempt rolls back to a savepoint, the bookkeeping is
  committed; at the attempt limit that is terminal Failed with its event;
* infrastructure: everything rolls back, the row is as it was before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.backends.utils import CursorWrapper

from chats.models import ChatKind
from chats.reconciliation import Settled
from chats.state import claim_subjects
from messenger.database import rows, unit_of_work
from messenger.faults import Lane, lane_of
from outbox.dead_letters import Refusal, bury
from provisioning import events, intents
from provisioning.attempt import Failure, Provisioned, provision
from provisioning.intents import Intent, intent_of, members_of
from provisioning.models import ProvisionStatus
from provisioning.options import RetryOptions

MAX_TRIES = 3
"""How often a conflict is tried at once before it counts as a failed attempt."""

# What may be taken up: waiting rows with attempts left, and rows stuck in Provisioning whatever their attempts, so
# that an exhausted one is terminalised rather than forgotten. AsOf stands still for a whole run: a row that was
# attempted in it is scheduled after it, and so waits for the next run however short the backoff.
_DUE = """
SELECT id FROM messenger.deal_chat_provisions
 WHERE next_attempt_at <= %s AND id <> ALL(%s::uuid[])
   AND (status = 'Failed' AND attempts < %s
        OR status = 'Provisioning' AND updated_at <= %s - make_interval(secs => %s))
 ORDER BY next_attempt_at LIMIT %s
"""
# SKIP LOCKED passes over a row that a second runner or the deal-created consumer has at this moment; the predicate
# stands again since the row may have changed after it was listed.
_CLAIM = """
SELECT id, deal_id, title, project_id, deal_tenant_id, status, attempts, row_version, created_at
  FROM messenger.deal_chat_provisions
 WHERE id = %s AND next_attempt_at <= %s
   AND (status = 'Failed' AND attempts < %s
        OR status = 'Provisioning' AND updated_at <= %s - make_interval(secs => %s))
   FOR UPDATE SKIP LOCKED
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the job: its id (jobRunId), and AsOf, the time of the database when it began."""

    id: str
    as_of: datetime


class Result(StrEnum):
    """How an attempt on a row ended."""

    PROVISIONED = "chat_provisioned"
    RETRY = "provision_retry"
    POISON = "provision_failed"
    PASSED = "passed"
    """Locked by somebody else, or no longer due."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What became of one row; told after the commit."""

    result: Result
    deal_id: UUID | None = None
    chat_id: UUID | None = None
    tenant_id: UUID | None = None
    attempts: int = 0
    failure: Failure | None = None
    waiting: Sequence[Settled] = ()
    buried: Sequence[Refusal] = ()


def due(cursor: CursorWrapper, options: RetryOptions, run: Run, passed: Sequence[UUID]) -> list[UUID]:
    """The next rows to take up, most overdue first, without those already `passed` over in this run."""
    parameters = [run.as_of, list(passed), options.max_attempts, run.as_of, options.stuck_after, options.batch_size]
    return [row[0] for row in rows(cursor, _DUE, parameters)]


def attempt(row_id: UUID, options: RetryOptions, run: Run, *, proceed: Callable[[], bool] = lambda: True) -> Attempt:
    """Attempt one row in a transaction of its own.

    A conflict is tried again at once, unless `proceed()` says that the job is to stop; at last it counts as a
    failed attempt. Infrastructure faults pass up, with the row untouched, and so does a lock or statement timeout
    after the last try.
    """
    for tries in range(1, MAX_TRIES + 1):
        try:
            with unit_of_work(
                lock_timeout=settings.CONSUMER_LOCK_TIMEOUT, statement_timeout=settings.CONSUMER_STATEMENT_TIMEOUT
            ) as cursor:
                return _attempt(cursor, row_id, options, run, last=tries == MAX_TRIES)
        except Exception as error:
            if tries == MAX_TRIES or lane_of(error) not in (Lane.CONFLICT, Lane.TIMEOUT) or not proceed():
                raise
    raise AssertionError("unreachable: the last try returns or raises")


def _attempt(cursor: CursorWrapper, row_id: UUID, options: RetryOptions, run: Run, *, last: bool) -> Attempt:
    intent = _claim(cursor, row_id, options, run)
    if intent is None:
        return Attempt(Result.PASSED)
    if intent.attempts >= options.max_attempts:
        exhausted = Failure("AttemptsExhausted", "Stuck in Provisioning with no attempts left.")
        return _refused(cursor, intent, intent.attempts, options, exhausted)
    attempts = intent.attempts + 1
    # The schedule is written before the work is known to succeed; it is part of the same commit either way.
    try:
        with transaction.atomic():
            return _provisioned(cursor, intent, attempts, options)
    except Exception as error:
        lane = lane_of(error)
        if lane in (Lane.INFRASTRUCTURE, Lane.TIMEOUT) or (lane is Lane.CONFLICT and not last):
            raise
        return _refused(cursor, intent, attempts, options, Failure.of(error))


def _claim(cursor: CursorWrapper, row_id: UUID, options: RetryOptions, run: Run) -> Intent | None:
    found = rows(cursor, _CLAIM, [row_id, run.as_of, options.max_attempts, run.as_of, options.stuck_after])
    if not found:
        return None
    intent = intent_of(found[0], members_of(cursor, row_id), correlation_id=run.id)
    claim_subjects(cursor, ChatKind.DEAL, [intent.deal_id])
    return intent


def _provisioned(cursor: CursorWrapper, intent: Intent, attempts: int, options: RetryOptions) -> Attempt:
    done: Provisioned = provision(cursor, [intent])
    chat_id = done.chats[intent.deal_id]
    _settle(cursor, intent, ProvisionStatus.READY, attempts, options, chat_id=chat_id)
    _publish(cursor, intent, chat_id, ProvisionStatus.READY)
    buried = bury(cursor, done.refusals)
    return Attempt(
        Result.PROVISIONED, intent.deal_id, chat_id, intent.tenant_id, attempts, waiting=done.waiting, buried=buried
    )


def _refused(cursor: CursorWrapper, intent: Intent, attempts: int, options: RetryOptions, failure: Failure) -> Attempt:
    terminal = attempts >= options.max_attempts
    _settle(cursor, intent, ProvisionStatus.FAILED, attempts, options, failure=failure)
    if terminal:
        _publish(cursor, intent, None, ProvisionStatus.FAILED)
    result = Result.POISON if terminal else Result.RETRY
    return Attempt(result, intent.deal_id, None, intent.tenant_id, attempts, failure)


def _settle(
    cursor: CursorWrapper,
    intent: Intent,
    status: ProvisionStatus,
    attempts: int,
    options: RetryOptions,
    *,
    chat_id: UUID | None = None,
    failure: Failure | None = None,
) -> None:
    intents.settle(
        cursor,
        intent,
        status,
        chat_id=chat_id,
        attempts=attempts,
        next_in=options.backoff.delay(attempts),
        error=failure.last_error if failure else None,
    )


def _publish(cursor: CursorWrapper, intent: Intent, chat_id: UUID | None, status: ProvisionStatus) -> None:
    event = events.DealChatStatusChanged(intent.deal_id, chat_id, status, intent.correlation_id)
    events.publish(cursor, [event])
