"""Admin pages of provisions: where each stands, why, and what happens next."""

import json
from collections.abc import Iterable, Mapping
from uuid import UUID

from django.contrib import admin
from django.db.models import Count, Min, Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest

from chats.admin import ChatAdmin, WaitingRosterAdmin
from chats.admin_tables import person, role_of, with_name
from chats.models import Chat, ChatKind, WaitingRoster
from messenger.admin import now_of
from messenger.admin_actions import ActingAdmin
from messenger.admin_display import Link, Row, Table, badge, list_url, moment, mono, object_url
from messenger.admin_fields import age_field, id_field, moment_field, text_field, whole_text_field
from messenger.admin_figures import Figure, figures
from messenger.admin_filters import choice_filter
from outbox.admin import OutboxMessageAdmin
from outbox.models import OutboxMessage
from provisioning.admin_actions import Reenqueue, next_attempt
from provisioning.events import AGGREGATE_TYPE
from provisioning.models import DealChatProvision
from provisioning.options import RetryOptions
from provisioning.standing import Standing, condition, standing_of, with_standing

TONES = {Standing.READY: "good", Standing.WAITING: "calm", Standing.STUCK: "watch", Standing.POISON: "act"}
EVENTS_AT_MOST = 20


def _standings() -> Mapping[str, Q]:
    options = RetryOptions.from_settings()
    return {standing.value: condition(standing, options) for standing in Standing}


def _members(provision: DealChatProvision) -> Table:
    found = with_name(provision.members.order_by("role", "user_id"))
    return Table(
        title="Members, as deal-created named them",
        columns=("who", "role"),
        rows=[Row((person(each), role_of(each))) for each in found],
        empty="Nobody.",
    )


def _events(provision: DealChatProvision) -> Table:
    found = OutboxMessage.objects.filter(aggregate_id=str(provision.deal_id), aggregate_type=AGGREGATE_TYPE)
    rows = found.defer("key", "headers").annotate(database_now=Now()).order_by("-id")[:EVENTS_AT_MOST]
    return Table(
        title="Readiness events, newest first",
        columns=("outbox row", "status", "written", "published"),
        rows=[
            Row(
                (
                    mono(f"#{row.pk}", object_url(OutboxMessage, row.pk)),
                    _status(row),
                    moment(row.created_at, now_of(row)),
                    moment(row.published_at, now_of(row)) if row.published_at else "not yet",
                )
            )
            for row in rows
        ],
        empty="crm has been told nothing yet.",
    )


def _status(row: OutboxMessage) -> str:
    try:
        return str(json.loads(bytes(row.value or b""))["Payload"]["Status"])
    except (ValueError, LookupError, TypeError):
        return "not readable"


def _chat_of(provision: DealChatProvision) -> Iterable[Link]:
    for chat in Chat.objects.filter(deal_id=provision.deal_id).only("id"):
        yield Link(object_url(Chat, chat.pk), "Chat of the deal")


def _roster_of(provision: DealChatProvision) -> Iterable[Link]:
    if WaitingRoster.objects.filter(chat_kind=ChatKind.DEAL, subject_id=provision.deal_id).exists():
        yield Link(object_url(WaitingRoster, provision.deal_id), "Roster that waits for the chat")


@admin.register(DealChatProvision)
class DealChatProvisionAdmin(ActingAdmin[DealChatProvision]):
    """Provisions, the last to have moved first."""

    list_display = ("deal", "stands", "tries", "next", "age", "error")
    list_filter = (choice_filter("standing", _standings),)
    show_facets = admin.ShowFacets.ALLOW
    ordering = ("-updated_at",)
    search_fields = ("deal_id", "chat_id")
    search_help_text = "The id of a deal or of its chat."
    confirmed = (Reenqueue(),)
    sections = (
        ("provisioning.view_dealchatprovisionmember", _members),
        ("outbox.view_outboxmessage", _events),
    )
    related = (("chats.view_chat", _chat_of), ("chats.view_waitingroster", _roster_of))
    fieldsets = (
        (None, {"fields": ("stands", "status", "tries", "next", "whole_error")}),
        ("Deal", {"fields": ("deal", "whole_name", "chat", "project", "tenant")}),
        ("Times", {"fields": ("created", "updated", "row_version")}),
    )

    deal = id_field("deal_id", "deal id")
    whole_name = whole_text_field("title", "title")
    error = text_field("last_error", "last error")
    whole_error = whole_text_field("last_error", "last error")
    chat = id_field("chat_id", "chat id")
    project = id_field("project_id", "project id")
    tenant = id_field("deal_tenant_id", "tenant id")
    age = age_field("created_at")
    created = moment_field("created_at", "created")
    updated = moment_field("updated_at", "updated")

    def get_queryset(self, request: HttpRequest) -> QuerySet[DealChatProvision]:
        return with_standing(super().get_queryset(request), RetryOptions.from_settings())

    @admin.display(description="standing")
    def stands(self, row: DealChatProvision) -> str:
        standing = standing_of(row)
        return badge(standing.label, TONES[standing])

    @admin.display(description="attempts", ordering="attempts")
    def tries(self, row: DealChatProvision) -> str:
        return f"{row.attempts} of {RetryOptions.from_settings().max_attempts}"

    @admin.display(description="next attempt", ordering="taken_up_at")
    def next(self, row: DealChatProvision) -> str:
        return next_attempt(row)


def _provision_of_chat(chat: Chat) -> Iterable[Link]:
    yield from _provision_of(chat.deal_id)


def _provision_of_roster(row: WaitingRoster) -> Iterable[Link]:
    yield from _provision_of(row.subject_id if row.chat_kind == ChatKind.DEAL else None)


def _provision_of_event(row: OutboxMessage) -> Iterable[Link]:
    yield from _provision_of(row.aggregate_id if row.aggregate_type == AGGREGATE_TYPE else None)


def _provision_of(deal: UUID | str | None) -> Iterable[Link]:
    if deal is not None:
        found = DealChatProvision.objects.filter(deal_id=deal)
        for row in with_standing(found, RetryOptions.from_settings()):
            yield Link(object_url(DealChatProvision, row.pk), f"Provision of the deal ({standing_of(row)})")


_MAY = "provisioning.view_dealchatprovision"
ChatAdmin.related = (*ChatAdmin.related, (_MAY, _provision_of_chat))
WaitingRosterAdmin.related = (*WaitingRosterAdmin.related, (_MAY, _provision_of_roster))
OutboxMessageAdmin.related = (*OutboxMessageAdmin.related, (_MAY, _provision_of_event))


@figures(permission=_MAY)
def provision_figures() -> Iterable[Figure]:
    """All that is not ready, by where it stands."""
    options = RetryOptions.from_settings()
    conditions = {each: condition(each, options) for each in (Standing.POISON, Standing.STUCK, Standing.WAITING)}
    found = DealChatProvision.objects.exclude(condition(Standing.READY, options)).aggregate(
        **{each.value: Count("pk", filter=where) for each, where in conditions.items()},
        **{f"{each.value}_for": Now() - Min("created_at", filter=where) for each, where in conditions.items()},
    )
    for each in conditions:
        url = list_url(DealChatProvision, {"standing": each.value})
        yield Figure(
            f"{each.label.capitalize()} provisions", found[each.value], url, TONES[each], found[f"{each.value}_for"]
        )
