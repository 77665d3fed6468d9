"""Tables on the admin's pages of chats and people: who is and was in a chat, what happened, which chats one has."""

from typing import Any, TypeVar, cast

from django.db.models import Case, F, IntegerField, Model, OuterRef, QuerySet, Subquery, Value, When
from django.db.models.functions import Now
from django.utils.html import format_html

from chats.models import Chat, ChatEvent, MessengerUser, Participant
from chats.roster import Role
from messenger.admin import now_of
from messenger.admin_display import NOTHING, Link, Row, Table, clipped, list_url, moment, mono, object_url, printable

ROSTER_AT_MOST = 1_000
FEED_AT_MOST = 50
CHATS_AT_MOST = 200

M = TypeVar("M", bound=Model)


def with_name(found: QuerySet[M]) -> QuerySet[M]:
    """`found` with the display name of its `user_id`, where it is known."""
    names = MessengerUser.objects.filter(pk=OuterRef("user_id")).values("display_name")
    return cast("QuerySet[M]", found.annotate(display_name=Subquery(names)))


def person(row: Any) -> str:
    """The user of a row of `with_name`: name, if known, and id."""
    if row.user_id is None:
        return NOTHING
    name = vars(row)["display_name"]
    if name is None:
        return mono(row.user_id)
    return format_html(
        '<a href="{}">{}</a> {}', object_url(MessengerUser, row.user_id), clipped(name), mono(row.user_id)
    )


def roster(chat: Chat) -> Table:
    """Everybody who is or was in `chat`: the active by rank, then the former, the last to leave first."""
    rank = Case(*(When(role=role, then=Value(place)) for place, role in enumerate(Role)), output_field=IntegerField())
    found = with_name(Participant.objects.filter(chat=chat)).annotate(database_now=Now(), rank=rank)
    ordered = found.order_by(F("removed_at").desc(nulls_first=True), "rank", "joined_at", "user_id")
    people = list(ordered[: ROSTER_AT_MOST + 1])
    active = sum(each.removed_at is None for each in people)
    return Table(
        title=f"Roster: {active} active, {len(people) - active} former"
        if len(people) <= ROSTER_AT_MOST
        else f"Roster: the first {ROSTER_AT_MOST:,}",
        columns=("who", "role", "joined", "removed"),
        rows=[
            Row(
                (person(each), role_of(each), moment(each.joined_at, now_of(each)), _removed(each)),
                quiet=each.removed_at is not None,
            )
            for each in people[:ROSTER_AT_MOST]
        ],
        empty="Nobody has ever been in this chat.",
    )


def role_of(row: Any) -> str:
    """The role of a row that has `role` and `role_raw`, with the word it came as where that is not a role."""
    if row.role_raw is None:
        return str(row.role)
    return format_html('{} <span class="m-quiet">(came as “{}”)</span>', row.role, printable(row.role_raw))


def _removed(participant: Participant) -> str:
    return "active" if participant.removed_at is None else moment(participant.removed_at, now_of(participant))


def feed(chat: Chat) -> Table:
    """The newest lines of the feed. `seq` has no gaps, so that the newest are found without counting."""
    newest = ChatEvent.objects.filter(chat=chat, seq__gt=chat.last_seq - FEED_AT_MOST).order_by("-seq")
    events = with_name(newest).annotate(database_now=Now())
    more = chat.last_seq > FEED_AT_MOST
    return Table(
        title=f"Feed: the newest {FEED_AT_MOST} of {chat.last_seq:,} lines" if more else "Feed, newest first",
        columns=("seq", "what", "who", "role", "happened"),
        rows=[
            Row((event.seq, event.type, person(event), roles(event), moment(event.occurred_at, now_of(event))))
            for event in events
        ],
        empty="Nothing has happened yet.",
        more=Link(list_url(ChatEvent, {"chat__id__exact": chat.pk}), f"All {chat.last_seq:,} lines") if more else None,
    )


def roles(event: ChatEvent) -> str:
    """The role a line of the feed speaks of, and the one before where it changed."""
    if event.previous_role and event.role:
        return f"{event.previous_role} → {event.role}"
    return event.role or event.previous_role or NOTHING


def chats_of_user(user: MessengerUser) -> Table:
    """Where `user` is, then where `user` was."""
    found = Participant.objects.filter(user_id=user.pk).select_related("chat").annotate(database_now=Now())
    seats = list(found.order_by(F("removed_at").desc(nulls_first=True), "-joined_at")[: CHATS_AT_MOST + 1])
    more = len(seats) > CHATS_AT_MOST
    return Table(
        title=f"Chats: the first {CHATS_AT_MOST}" if more else "Chats",
        columns=("chat", "kind", "status", "role", "joined", "removed"),
        rows=[
            Row(
                (
                    _chat_link(seat.chat),
                    seat.chat.kind,
                    seat.chat.status,
                    role_of(seat),
                    moment(seat.joined_at, now_of(seat)),
                    _removed(seat),
                ),
                quiet=seat.removed_at is not None,
            )
            for seat in seats[:CHATS_AT_MOST]
        ],
        empty="Has never been in a chat.",
        more=Link(list_url(Chat, {"q": user.pk}), "All of them") if more else None,
    )


def _chat_link(chat: Chat) -> str:
    return format_html('<a href="{}">{}</a>', object_url(Chat, chat.pk), clipped(chat.title or str(chat.pk)))
