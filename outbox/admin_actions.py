"""What a person may do to message rows: publish a parked one again, resolve a dead letter."""

from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.db.backends.utils import CursorWrapper
from django.db.models.functions import Now

from messenger.admin_actions import ConfirmedAction, Done, Step, lock_confirmed
from messenger.admin_display import printable
from outbox.models import DeadLetter, OutboxMessage
from outbox.outgoing import CHANNEL


class PublishAgain(ConfirmedAction[OutboxMessage]):
    """A parked row goes back to the relay with all its attempts; rows of its key that wait for it follow."""

    name = "publish_again"
    permission = "outbox.publish_again_outboxmessage"
    verb = "Publish again"
    explanation = (
        "The relay gave these rows up after its attempts; later rows of their keys wait for them. Published again, "
        "each has all its attempts anew, and goes before what waits for it. Mend the cause first."
    )
    log_message = "Given back to the relay: attempts set to 0, not parked any more."

    def done(self) -> str:
        return "given back to the relay, which publishes at once if it can."

    def step(self, row: OutboxMessage) -> Step:
        if row.published_at is not None:
            return Step("published", "Left alone: published already.", goes=False)
        if row.parked_at is None:
            return Step("waiting", "Left alone: it waits for the relay already.", goes=False)
        state = f"parked after {row.attempts} attempts: {row.last_error or 'no error noted'}"
        return Step(
            printable(state),
            f"Published again: attempts {row.attempts} → 0, not parked any more.",
            goes=True,
            version=_parked_version(row),
        )

    def perform(
        self, cursor: CursorWrapper, versions: Mapping[Any, str], *, username: str, answers: Mapping[str, Any]
    ) -> Sequence[Done]:
        rows, others = lock_confirmed(OutboxMessage.objects.defer("key", "value", "headers"), versions, _parked_version)
        OutboxMessage.objects.filter(pk__in=[row.pk for row in rows]).update(parked_at=None, attempts=0)
        cursor.execute("SELECT pg_notify(%s, '')", [CHANNEL])
        return [*(Done(row.pk, str(row)) for row in rows), *others]


def _parked_version(row: OutboxMessage) -> str:
    return row.parked_at.isoformat() if row.parked_at is not None and row.published_at is None else ""


class Resolution(forms.Form):
    """What became of the record."""

    resolution = forms.CharField(
        max_length=64,
        help_text="In a few words: sent again by crm, applied by hand, not needed. No names of people.",
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
    )


class Resolve(ConfirmedAction[DeadLetter]):
    """A dead letter somebody has dealt with: it stays until retention removes it, and counts as open no more."""

    name = "resolve"
    permission = "outbox.resolve_deadletter"
    verb = "Resolve"
    explanation = (
        "Resolving notes that somebody has dealt with these records. It applies nothing: where a roster is wrong, "
        "a newer snapshot from crm or manage.py resync_lead_rosters brings it right."
    )
    log_message = "Resolved: {resolution}"
    form = Resolution

    def done(self) -> str:
        return "resolved."

    def step(self, row: DeadLetter) -> Step:
        if row.resolved_at is not None:
            return Step(
                "resolved", f"Left alone: resolved already ({row.resolution or 'no reason noted'}).", goes=False
            )
        return Step(
            f"open: {row.error_code}",
            "Resolved, with the words below.",
            goes=True,
            version=_open_version(row),
        )

    def perform(
        self, cursor: CursorWrapper, versions: Mapping[Any, str], *, username: str, answers: Mapping[str, Any]
    ) -> Sequence[Done]:
        rows, others = lock_confirmed(DeadLetter.objects.defer("key", "value", "headers"), versions, _open_version)
        DeadLetter.objects.filter(pk__in=[row.pk for row in rows]).update(
            resolved_at=Now(), resolution=answers["resolution"], resolved_by=username
        )
        return [*(Done(row.pk, str(row)) for row in rows), *others]


def _open_version(row: DeadLetter) -> str:
    # A record at the same place of a topic made anew takes the row over, and is seen for the first time then.
    return row.first_seen_at.isoformat() if row.resolved_at is None else ""
