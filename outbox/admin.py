"""Admin pages of messages: what waits to be published, what could not be, what could not be applied."""

from collections.abc import Iterable, Mapping
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.db.models import Count, Min, Q
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.html import format_html

from messenger import topics
from messenger.admin import whole_id
from messenger.admin_actions import ActingAdmin
from messenger.admin_display import (
    NOTHING,
    Link,
    badge,
    clipped,
    headers_table,
    list_url,
    long_bytes,
    mono,
    object_url,
    short_bytes,
)
from messenger.admin_fields import age_field, id_field, moment_field, text_field, whole_text_field
from messenger.admin_figures import Figure, figures
from messenger.admin_filters import choice_filter
from outbox.admin_actions import PublishAgain, Resolve
from outbox.headers import from_json
from outbox.models import DeadLetter, OutboxMessage

LARGEST_ID = 2**63 - 1
RELAY_STATES = {
    "waiting": Q(published_at=None, parked_at=None),
    "parked": Q(published_at=None, parked_at__isnull=False),
    "published": Q(published_at__isnull=False),
}
DEAD_LETTER_STATES = {"open": Q(resolved_at=None), "resolved": Q(resolved_at__isnull=False)}
DEAD_LETTER_AGGREGATE = "DeadLetter"


def _outgoing_topics() -> Mapping[str, Q]:
    names = [topic.name for topic in topics.PUBLISHED] + [topic.dlq for topic in topics.CONSUMED]
    return {name: Q(topic=name) for name in names}


def _groups() -> Mapping[str, Q]:
    return {topic.group: Q(consumer_group=topic.group) for topic in topics.CONSUMED if topic.group}


@admin.register(OutboxMessage)
class OutboxMessageAdmin(ActingAdmin[OutboxMessage]):
    """Outgoing records, newest first."""

    list_display = ("id", "state", "topic", "aggregate", "tries", "waited", "error")
    list_filter = (
        choice_filter("state", lambda: RELAY_STATES),
        choice_filter("topic", _outgoing_topics),
    )
    list_defer = ("key", "value", "headers")
    ordering = ("-id",)
    search_fields = ("message_id",)
    search_help_text = "A row's number, a MessageId, or what the record is of: a deal's id, a dead letter's 0@42."
    binary_fields = ("key", "value")
    confirmed = (PublishAgain(),)
    fieldsets = (
        (None, {"fields": ("state", "topic", "subject", "message")}),
        ("On its way", {"fields": ("tries", "error_in_full", "created", "published", "parked")}),
        ("Record", {"fields": ("record_key", "record_headers", "record_value")}),
    )

    aggregate = id_field("aggregate_id", "of")
    message = id_field("message_id", "message id")
    error = text_field("last_error", "last error")
    error_in_full = whole_text_field("last_error", "last error")
    waited = age_field("created_at")
    created = moment_field("created_at", "created")
    published = moment_field("published_at", "published")
    parked = moment_field("parked_at", "parked")

    def search_condition(self, word: str) -> Q | None:
        found = whole_id(word)
        if found is not None:
            return Q(message_id=found) | Q(aggregate_id=str(found))
        number = word.removeprefix("#")
        if number.isascii() and number.isdigit() and int(number) <= LARGEST_ID:
            return Q(pk=int(number))
        return Q(aggregate_id=word) if "@" in word else None

    @admin.display(description="of", ordering="aggregate_id")
    def subject(self, row: OutboxMessage) -> str:
        return mono(f"{row.aggregate_type} {row.aggregate_id}")

    @admin.display(description="state")
    def state(self, row: OutboxMessage) -> str:
        if row.published_at is not None:
            return badge("published", "good")
        return badge("parked", "act") if row.parked_at is not None else badge("waiting", "calm")

    @admin.display(description="attempts", ordering="attempts")
    def tries(self, row: OutboxMessage) -> str:
        return NOTHING if row.published_at else f"{row.attempts} of {settings.OUTBOX_MAX_ATTEMPTS}"

    @admin.display(description="key")
    def record_key(self, row: OutboxMessage) -> str:
        return short_bytes(row.key, 500)

    @admin.display(description="headers")
    def record_headers(self, row: OutboxMessage) -> str:
        return headers_table(from_json(row.headers))

    @admin.display(description="value")
    def record_value(self, row: OutboxMessage) -> str:
        return long_bytes(row.value, download=self.download_url(row, "value"))


@admin.register(DeadLetter)
class DeadLetterAdmin(ActingAdmin[DeadLetter]):
    """Records that can never be applied, newest first."""

    list_display = ("place", "state", "error", "short_key", "seen")
    list_filter = (
        choice_filter("state", lambda: DEAD_LETTER_STATES),
        choice_filter("group", _groups, title="consumer group"),
        "error_code",
    )
    list_defer = ("value", "headers")
    ordering = ("-id",)
    search_fields = ("key",)
    search_help_text = "The id that is the record's key (a lead's, a deal's, a user's), or its place: 0@42, topic/0@42."
    binary_fields = ("key", "value")
    confirmed = (Resolve(),)
    fieldsets = (
        (None, {"fields": ("state", "consumer_group", "error_code", "detail_in_full", "first_seen")}),
        ("Resolved", {"fields": ("resolved", "resolution", "resolved_by")}),
        ("Record, as it came", {"fields": ("place_in_full", "record_key", "record_headers", "record_value")}),
    )

    detail_in_full = whole_text_field("error_detail", "error")
    seen = age_field("first_seen_at")
    first_seen = moment_field("first_seen_at", "first seen")
    resolved = moment_field("resolved_at", "when")

    def get_fieldsets(self, request: HttpRequest, obj: DeadLetter | None = None) -> Any:
        what, resolved, record = self.fieldsets
        return (what, record) if obj is None or obj.resolved_at is None else (what, resolved, record)

    def search_condition(self, word: str) -> Q | None:
        found = whole_id(word)
        if found is not None:
            # The key came as it came: in either case of letters.
            return Q(key=str(found).encode()) | Q(key=str(found).upper().encode())
        topic, _, place = word.rpartition("/")
        partition, _, offset = place.partition("@")
        if not (partition.isdecimal() and offset.isdecimal() and len(partition) < 10 and int(offset) <= LARGEST_ID):
            return None
        where = Q(partition=int(partition), offset=int(offset))
        return where & Q(topic__endswith=topic) if topic else where

    @admin.display(description="record", ordering="id")
    def place(self, row: DeadLetter) -> str:
        return format_html("{}<br>{}", row.topic, mono(f"{row.partition}@{row.offset}"))

    @admin.display(description="error", ordering="error_code")
    def error(self, row: DeadLetter) -> str:
        return format_html('{}<br><span class="m-quiet">{}</span>', row.error_code, clipped(row.error_detail))

    @admin.display(description="place")
    def place_in_full(self, row: DeadLetter) -> str:
        return f"{row.topic}, partition {row.partition}, offset {row.offset}"

    @admin.display(description="key")
    def short_key(self, row: DeadLetter) -> str:
        return short_bytes(row.key, 40)

    @admin.display(description="key")
    def record_key(self, row: DeadLetter) -> str:
        return short_bytes(row.key, 500)

    @admin.display(description="state")
    def state(self, row: DeadLetter) -> str:
        return badge("open", "act") if row.resolved_at is None else badge("resolved", "good")

    @admin.display(description="headers")
    def record_headers(self, row: DeadLetter) -> str:
        return headers_table(from_json(row.headers))

    @admin.display(description="value")
    def record_value(self, row: DeadLetter) -> str:
        return long_bytes(row.value, download=self.download_url(row, "value"))


def _published_as(row: DeadLetter) -> Iterable[Link]:
    copies = OutboxMessage.objects.filter(
        topic=topics.dead_letter_topic(row.topic), aggregate_id=f"{row.partition}@{row.offset}"
    )
    for copy in copies.only("id", "published_at", "parked_at").order_by("-id")[:3]:
        state = "published" if copy.published_at else "parked" if copy.parked_at else "waiting"
        yield Link(object_url(OutboxMessage, copy.pk), f"Outbox row #{copy.pk} for its DLQ topic ({state})")


def _dead_letter_of(row: OutboxMessage) -> Iterable[Link]:
    partition, _, offset = row.aggregate_id.partition("@")
    if row.aggregate_type == DEAD_LETTER_AGGREGATE and offset.isdecimal():
        source = row.topic.removesuffix(topics.DLQ_SUFFIX)
        places = DeadLetter.objects.filter(topic=source, partition=int(partition), offset=int(offset))
        for place in places.only("consumer_group")[:3]:
            yield Link(object_url(DeadLetter, place.pk), f"Dead letter of {place.consumer_group}")


def _held_by(row: OutboxMessage) -> Iterable[Link]:
    if row.published_at is None and row.parked_at is None and row.key is not None:
        before = OutboxMessage.objects.filter(RELAY_STATES["parked"], topic=row.topic, key=row.key, pk__lt=row.pk)
        for parked in before.only("id").order_by("id")[:1]:
            yield Link(object_url(OutboxMessage, parked.pk), f"Waits for row #{parked.pk} of its key, which is parked")


DeadLetterAdmin.related = (("outbox.view_outboxmessage", _published_as),)
OutboxMessageAdmin.related = (("outbox.view_deadletter", _dead_letter_of), ("outbox.view_outboxmessage", _held_by))


@figures(permission="outbox.view_outboxmessage")
def outbox_figures() -> Iterable[Figure]:
    """What the relay has given up, and what waits for it."""
    found = OutboxMessage.objects.filter(published_at=None).aggregate(
        parked=Count("pk", filter=RELAY_STATES["parked"]),
        parked_for=Now() - Min("parked_at"),
        waiting=Count("pk", filter=RELAY_STATES["waiting"]),
        waiting_for=Now() - Min("created_at", filter=RELAY_STATES["waiting"]),
    )
    parked, waiting = (list_url(OutboxMessage, {"state": state}) for state in ("parked", "waiting"))
    yield Figure("Parked outbox rows", found["parked"], parked, "act", found["parked_for"])
    yield Figure("Waiting outbox rows", found["waiting"], waiting, "calm", found["waiting_for"])


@figures(permission="outbox.view_deadletter")
def dead_letter_figures() -> Iterable[Figure]:
    """What nobody has dealt with."""
    found = DeadLetter.objects.filter(resolved_at=None).aggregate(
        count=Count("pk"), oldest=Now() - Min("first_seen_at")
    )
    yield Figure("Open dead letters", found["count"], list_url(DeadLetter, {"state": "open"}), "act", found["oldest"])
