"""Why something is not moving, in sentences: a provision, an outbox row, a dead letter, a lead (or a deal)."""

from collections.abc import Iterator
from uuid import UUID

from django.conf import settings
from django.db.models import Q
from django.db.models.functions import Now

from chats.models import Chat, WaitingRoster
from messenger.ages import in_words
from outbox.models import DeadLetter, OutboxMessage
from provisioning.models import DealChatProvision
from provisioning.options import RetryOptions
from provisioning.standing import Standing, standing_of, with_standing


def explain(identifier: UUID | int) -> Iterator[str]:
    """Sentences about everything that `identifier` names; none if it names nothing.

    A UUID is a deal, a lead, a chat, a provision or a message; a number is an outbox row or a dead letter.
    """
    if isinstance(identifier, int):
        yield from _outbox(Q(id=identifier))
        yield from _dead_letters(Q(id=identifier))
        return
    yield from _provisions(identifier)
    yield from _chats(identifier)
    yield from _parked(identifier)
    yield from _outbox(Q(message_id=identifier) | Q(aggregate_id=str(identifier), published_at=None))
    # Not every producer writes its keys in lower case.
    keys = [str(identifier).encode(), str(identifier).upper().encode()]
    yield from _dead_letters(Q(key__in=keys, resolved_at=None))


def _provisions(identifier: UUID) -> Iterator[str]:
    options = RetryOptions.from_settings()
    mine = Q(id=identifier) | Q(deal_id=identifier) | Q(chat_id=identifier)
    for row in with_standing(DealChatProvision.objects.filter(mine), options):
        standing = standing_of(row)
        said = f"Provision of deal {row.deal_id}: {row.status}, {row.attempts} of {options.max_attempts} attempts."
        if row.last_error:
            said += f" Last error: {row.last_error}."
        yield f"{said} {_next_step(row, standing)}"


def _next_step(row: DealChatProvision, standing: Standing) -> str:
    if standing is Standing.READY:
        return f"Its chat is {row.chat_id}; nothing is left to do."
    if standing is Standing.POISON:
        return f"It is passed over until a person re-enqueues it: manage.py reenqueue_provisions --deal {row.deal_id}"
    found = vars(row)
    wait = found["taken_up_at"] - found["database_now"]
    due = (
        f"in {in_words(wait)}"
        if wait.total_seconds() > 0
        else "now; it is due, so look whether run_provision_retry runs"
    )
    return f"The retry job takes it up {due}."


def _chats(identifier: UUID) -> Iterator[str]:
    for chat in Chat.objects.filter(Q(id=identifier) | Q(lead_id=identifier) | Q(deal_id=identifier)):
        version = chat.lead_member_version if chat.lead_id else chat.deal_member_version
        people = chat.participants.filter(removed_at=None).count()
        applied = f"roster version {version}" if version is not None else "no roster applied since it was opened"
        yield (
            f"{chat.kind} chat {chat.id} of {chat.lead_id or chat.deal_id}: {chat.status}, {people} people, {applied}, "
            f"feed at {chat.last_seq}. A roster of that version or an older one is stale and changes nothing."
        )


def _parked(identifier: UUID) -> Iterator[str]:
    for row in WaitingRoster.objects.filter(subject_id=identifier).annotate(database_now=Now()):
        wait = row.next_attempt_at - vars(row)["database_now"]
        creator = "lead-created" if row.chat_kind == "Lead" else "deal-created"
        yield (
            f"Roster version {row.version} of {row.chat_kind.lower()} {row.subject_id} waits for its chat: looked for "
            f"{row.attempts} of {settings.LEAD_NOT_PROVISIONED_MAX_ATTEMPTS} times, next in {in_words(wait)}, and at "
            f"once when {creator} opens it. Look at the lag of messenger-{creator}."
        )


def _outbox(mine: Q) -> Iterator[str]:
    for row in OutboxMessage.objects.filter(mine).order_by("id")[:20]:
        if row.published_at is not None:
            yield f"Outbox row {row.id} to {row.topic} was published at {row.published_at:%Y-%m-%d %H:%M:%S} UTC."
        elif row.parked_at is not None:
            yield (
                f"Outbox row {row.id} to {row.topic} is parked after {row.attempts} tries ({row.last_error}); later "
                "rows of its key wait for it. Mend the cause, then «Publish again» in the admin."
            )
        else:
            yield f"Outbox row {row.id} to {row.topic} waits to be published. {_held_up(row)}"


def _held_up(row: OutboxMessage) -> str:
    ahead = OutboxMessage.objects.filter(topic=row.topic, key=row.key, published_at=None, id__lt=row.id)
    parked = ahead.exclude(parked_at=None).order_by("id").first() if row.key is not None else None
    if parked is not None:
        return f"It waits for row {parked.id} of its key, which is parked: {parked.last_error}."
    if row.attempts:
        return f"It was refused {row.attempts} times ({row.last_error}) and is tried again with backoff."
    return "Nothing is ahead of it: look whether run_outbox_relay runs and what it logs."


def _dead_letters(mine: Q) -> Iterator[str]:
    for row in DeadLetter.objects.filter(mine).order_by("id")[:20]:
        state = f"resolved by {row.resolved_by} ({row.resolution})" if row.resolved_at else "not resolved"
        yield (
            f"Dead letter {row.id}, {row.topic}/{row.partition}@{row.offset}: {row.error_code}. {row.error_detail} "
            f"It is {state}; a later snapshot of the same subject makes up for it."
        )
