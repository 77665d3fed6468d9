"""Admin pages of chats: roster with its history, feed, rosters that wait for their chat, names."""

from collections.abc import Iterable

from django.conf import settings
from django.contrib import admin
from django.db.models import Count, IntegerField, Min, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce, Now
from django.http import HttpRequest

from chats.admin_tables import chats_of_user, feed, person, roles, roster, with_name
from chats.models import Chat, ChatEvent, ChatKind, ChatStatus, MessengerUser, ParkedRoster, Participant, WaitingRoster
from messenger.admin import ReadOnlyAdmin, now_of, whole_id
from messenger.admin_display import (
    NOTHING,
    Link,
    badge,
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
from messenger.ages import in_words
from outbox.admin import DeadLetterAdmin
from outbox.headers import from_json
from outbox.models import DeadLetter

KINDS = {kind.value: Q(kind=kind) for kind in ChatKind}
STATUSES = {status.value: Q(status=status) for status in ChatStatus}


@admin.register(Chat)
class ChatAdmin(ReadOnlyAdmin[Chat]):
    """Chats, newest first."""

    list_display = ("name", "kind", "state", "subject", "people", "version", "opened")
    list_filter = (choice_filter("kind", lambda: KINDS), choice_filter("status", lambda: STATUSES))
    ordering = ("-created_at",)
    search_fields = ("pk", "lead_id", "deal_id")
    search_help_text = "The id of a chat, a lead, a deal, or of somebody who is or was in the chat."
    sections = (("chats.view_participant", roster), ("chats.view_chatevent", feed))
    fieldsets = (
        (None, {"fields": ("state", "kind", "whole_name", "chat", "subject", "project", "tenant")}),
        ("Versions and times", {"fields": ("version", "last_seq", "created", "updated", "closed")}),
    )

    name = text_field("title", "title")
    whole_name = whole_text_field("title", "title")
    chat = id_field("id", "chat id")
    project = id_field("project_id", "project id")
    tenant = id_field("tenant_id", "tenant id")
    opened = age_field("created_at")
    created = moment_field("created_at", "created")
    updated = moment_field("updated_at", "updated")
    closed = moment_field("closed_at", "closed")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Chat]:
        active = Participant.objects.filter(chat=OuterRef("pk"), removed_at=None).order_by().values("chat")
        count = Subquery(active.annotate(count=Count("pk")).values("count"), output_field=IntegerField())
        return super().get_queryset(request).annotate(people=Coalesce(count, 0))

    def search_condition(self, word: str) -> Q | None:
        found = whole_id(word)
        if found is None:
            return None
        in_it = Participant.objects.filter(user_id=found).values("chat_id")
        return Q(pk=found) | Q(lead_id=found) | Q(deal_id=found) | Q(pk__in=in_it)

    @admin.display(description="status")
    def state(self, chat: Chat) -> str:
        return badge(chat.status, "good" if chat.status == ChatStatus.ACTIVE else "calm")

    @admin.display(description="lead or deal")
    def subject(self, chat: Chat) -> str:
        return mono(chat.lead_id or chat.deal_id)

    @admin.display(description="people", ordering="people")
    def people(self, chat: Chat) -> int:
        count: int = vars(chat)["people"]
        return count

    @admin.display(description="roster version")
    def version(self, chat: Chat) -> str:
        version = chat.lead_member_version if chat.kind == ChatKind.LEAD else chat.deal_member_version
        return NOTHING if version is None else str(version)


@admin.register(ChatEvent)
class ChatEventAdmin(ReadOnlyAdmin[ChatEvent]):
    """The whole feed of a chat, reached from its page."""

    list_display = ("seq", "type", "who", "as_what", "occurred", "written")
    list_display_links = None
    ordering = ("-id",)

    occurred = age_field("occurred_at", "happened")
    written = age_field("created_at", "written")

    def has_module_permission(self, request: HttpRequest) -> bool:
        # The feeds of all chats in one list tell nobody anything.
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[ChatEvent]:
        return with_name(super().get_queryset(request))

    @admin.display(description="who")
    def who(self, event: ChatEvent) -> str:
        return person(event)

    @admin.display(description="role")
    def as_what(self, event: ChatEvent) -> str:
        return roles(event)


@admin.register(WaitingRoster)
class WaitingRosterAdmin(ReadOnlyAdmin[WaitingRoster]):
    """Rosters whose chat does not exist yet, the longest waiting first."""

    list_display = ("subject", "chat_kind", "version", "tries", "next_look", "waits")
    list_filter = (choice_filter("kind", lambda: {kind.value: Q(chat_kind=kind) for kind in ChatKind}),)
    ordering = ("first_seen_at",)
    search_fields = ("subject_id",)
    search_help_text = "The id of a lead or a deal."
    fieldsets = (
        (None, {"fields": ("subject", "chat_kind", "version", "tries", "next_look", "first_seen")}),
        ("Record, as it came", {"fields": ("place", "record_key", "record_headers", "record_value")}),
    )

    subject = id_field("subject_id", "lead or deal")
    waits = age_field("first_seen_at", "waits since")
    first_seen = moment_field("first_seen_at", "first seen")

    @admin.display(description="looked for", ordering="attempts")
    def tries(self, row: WaitingRoster) -> str:
        return f"{row.attempts} of {settings.LEAD_NOT_PROVISIONED_MAX_ATTEMPTS} times"

    @admin.display(description="next look", ordering="next_attempt_at")
    def next_look(self, row: WaitingRoster) -> str:
        left = row.next_attempt_at - now_of(row)
        return f"in {in_words(left)}" if left.total_seconds() > 0 else "due"

    @admin.display(description="place")
    def place(self, row: WaitingRoster) -> str:
        return f"{row.topic}, partition {row.partition}, offset {row.offset}"

    @admin.display(description="key")
    def record_key(self, row: WaitingRoster) -> str:
        record = _record(row)
        return NOTHING if record is None else short_bytes(record.key)

    @admin.display(description="headers")
    def record_headers(self, row: WaitingRoster) -> str:
        record = _record(row)
        return NOTHING if record is None else headers_table(from_json(record.headers))

    @admin.display(description="value")
    def record_value(self, row: WaitingRoster) -> str:
        record = _record(row)
        return NOTHING if record is None else long_bytes(record.value)


def _record(row: WaitingRoster) -> ParkedRoster | None:
    """The record behind `row`; None if it has had its turn in the meantime."""
    return ParkedRoster.objects.filter(chat_kind=row.chat_kind, subject_id=row.subject_id).first()


@admin.register(MessengerUser)
class MessengerUserAdmin(ReadOnlyAdmin[MessengerUser]):
    """The replica of ids and names."""

    list_display = ("name", "user", "renamed")
    ordering = ("display_name", "pk")
    search_fields = ("pk",)
    search_help_text = "An id, or a part of a name."
    sections = (("chats.view_participant", chats_of_user),)
    fieldsets = ((None, {"fields": ("user", "whole_name", "updated")}),)

    name = text_field("display_name", "name")
    whole_name = whole_text_field("display_name", "name")
    user = id_field("id", "user id")
    renamed = age_field("updated_at", "as of")
    updated = moment_field("updated_at", "as of")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[MessengerUser], search_term: str
    ) -> tuple[QuerySet[MessengerUser], bool]:
        if search_term.split() and whole_id(search_term.split()[0]) is None:
            return queryset.filter(display_name__icontains=search_term.strip()), False
        return super().get_search_results(request, queryset, search_term)


def _chat_of_key(row: DeadLetter) -> Iterable[Link]:
    """The chat of the lead or deal that a dead letter's key names."""
    found = whole_id(bytes(row.key).decode("ascii", "replace")) if row.key is not None else None
    if found is not None:
        for chat in Chat.objects.filter(Q(lead_id=found) | Q(deal_id=found)):
            yield Link(object_url(Chat, chat.pk), f"{chat.kind} chat of its key")
        if WaitingRoster.objects.filter(subject_id=found).exists():
            yield Link(object_url(WaitingRoster, found), "Roster of its key that waits for a chat")


DeadLetterAdmin.related = (*DeadLetterAdmin.related, ("chats.view_chat", _chat_of_key))


@figures(permission="chats.view_waitingroster")
def roster_figures() -> Iterable[Figure]:
    """Rosters that came before their chat."""
    found = WaitingRoster.objects.aggregate(count=Count("pk"), oldest=Now() - Min("first_seen_at"))
    yield Figure("Rosters without a chat", found["count"], list_url(WaitingRoster), "calm", found["oldest"])
