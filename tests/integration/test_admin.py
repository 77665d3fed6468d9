"""The admin as somebody on call reads it: who may look, that nothing can be edited, what is found and how fast."""

import re
import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from chats.models import Chat, MessengerUser, WaitingRoster
from messenger.admin_display import list_url, object_url
from outbox.models import DeadLetter, OutboxMessage
from provisioning.models import DealChatProvision
from tests.support.factories import ChatEventFactory, DealChatFactory, LeadChatFactory, ParticipantFactory
from tests.support.message_factories import (
    DeadLetterFactory,
    DealChatProvisionFactory,
    MessengerUserFactory,
    OutboxMessageFactory,
    ParkedRosterFactory,
)
from tests.support.staff import key_of, keys, listed, superuser, text_of, user_with

# Nothing is committed on these pages, so a transaction per test is enough.
pytestmark = pytest.mark.django_db

PAGES: dict[type[Model], Any] = {
    Chat: LeadChatFactory,
    MessengerUser: MessengerUserFactory,
    WaitingRoster: ParkedRosterFactory,
    OutboxMessage: OutboxMessageFactory,
    DeadLetter: DeadLetterFactory,
    DealChatProvision: DealChatProvisionFactory,
}
every_page = pytest.mark.parametrize("model", PAGES, ids=lambda model: model.__name__)


@pytest.fixture
def boss() -> Client:
    """Somebody who may do everything."""
    return superuser()


@every_page
def test_a_page_takes_its_view_permission(model: type[Model]) -> None:
    row = PAGES[model].create()
    name = f"{model._meta.app_label}.view_{model._meta.model_name}"
    change = name.replace(".view_", ".change_")
    for client, status in ((user_with(), 403), (user_with(change), 403), (user_with(name), 200)):
        text_of(client, list_url(model), status)
        text_of(client, object_url(model, key_of(row)), status)
    text_of(Client(), list_url(model), 302)


@every_page
def test_nothing_can_be_added_changed_or_deleted(boss: Client, model: type[Model]) -> None:
    row = PAGES[model].create()
    url = object_url(model, key_of(row))
    before = list(model._default_manager.values())
    for answer in (
        boss.get(f"{list_url(model)}add/"),
        boss.post(f"{list_url(model)}add/", {}),
        boss.post(url, {"attempts": 0, "title": "x", "status": "Ready"}),
        boss.get(url.replace("/change/", "/delete/")),
        boss.post(url.replace("/change/", "/delete/"), {"post": "yes"}),
    ):
        assert answer.status_code == 403
    boss.post(list_url(model), {"action": "delete_selected", "_selected_action": key_of(row), "index": 0, "post": 1})
    assert list(model._default_manager.values()) == before
    page = text_of(boss, url)
    assert 'name="_save"' not in page
    assert "<textarea" not in page


@every_page
def test_a_list_takes_as_many_queries_for_many_rows_as_for_few(boss: Client, model: type[Model]) -> None:
    def queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            text_of(boss, list_url(model))
        return len(captured)

    PAGES[model].create_batch(2)
    text_of(boss, list_url(model))
    few = queries()
    PAGES[model].create_batch(30)
    assert queries() == few <= 6


def test_a_list_leaves_wide_values_where_they_are(boss: Client) -> None:
    OutboxMessageFactory.create_batch(3)
    DeadLetterFactory.create_batch(3)
    for model in (OutboxMessage, DeadLetter):
        with CaptureQueriesContext(connection) as captured:
            text_of(boss, list_url(model))
        assert not [query for query in captured.captured_queries if '."value"' in query["sql"]]


def test_a_huge_table_is_counted_no_further_than_anybody_pages(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("messenger.admin.COUNTED_AT_MOST", 60)
    LeadChatFactory.create_batch(70)
    page = text_of(boss, list_url(Chat))
    assert "Counted up to 60 only" in page
    MessengerUserFactory.create_batch(3)
    assert "Counted up to" not in text_of(boss, list_url(MessengerUser))


def test_chats_are_filtered_and_found_by_any_id_of_theirs(boss: Client) -> None:
    lead, deal = LeadChatFactory.create(), DealChatFactory.create()
    closed, other = LeadChatFactory.create(status="Closed", closed_at=timezone.now()), LeadChatFactory.create()
    there = ParticipantFactory.create(chat=lead)
    gone = ParticipantFactory.create(chat=deal, removed_at=timezone.now())
    assert listed(boss, Chat, kind="Deal") == keys(deal)
    assert listed(boss, Chat, status="Closed") == keys(closed)
    assert listed(boss, Chat, kind="nonsense") == keys(lead, deal, closed, other)
    for word, found in (
        (lead.pk, {lead}),
        (str(lead.lead_id).upper(), {lead}),
        (f" {deal.deal_id} ", {deal}),
        (there.user_id, {lead}),
        (gone.user_id, {deal}),
        (f"{lead.pk} {closed.lead_id}", {lead, closed}),
        (uuid.uuid4(), set()),
    ):
        assert listed(boss, Chat, q=word) == keys(*found), word
    assert "“Riverside” finds nothing here." in text_of(boss, list_url(Chat, {"q": "Riverside"}))
    assert listed(boss, Chat, q="Riverside") == set()


def test_a_chat_shows_its_roster_with_history_and_its_feed(boss: Client) -> None:
    """INV-PART-4: history stays. The active by rank, then the former; the feed newest first, with a way to it all."""
    chat = LeadChatFactory.create(last_seq=60)
    anna = MessengerUserFactory.create(display_name="Anna <b>")
    guest = ParticipantFactory.create(chat=chat, role="Guest", role_raw="Overseer")
    first = ParticipantFactory.create(chat=chat, user_id=anna.id)
    former = ParticipantFactory.create(chat=chat, role="Lawyer", removed_at=timezone.now() - timedelta(hours=1))
    for seq in range(1, 61):
        ChatEventFactory.create(chat=chat, seq=seq, user_id=anna.id)
    page = text_of(boss, object_url(Chat, chat.pk))
    roster, feed = page.split("Roster: 2 active, 1 former")[1].split("Feed: the newest 50 of 60 lines")
    assert [roster.index(str(each.user_id)) for each in (first, guest, former)] == sorted(
        roster.index(str(each.user_id)) for each in (first, guest, former)
    )
    assert "Anna &lt;b&gt;" in roster
    assert "came as “Overseer”" in roster
    assert "1 h ago" in roster
    assert re.findall(r"<td>(\d+)</td>", feed) == [str(seq) for seq in range(60, 10, -1)]
    (more,) = re.findall(r'<a href="([^"]+)">All 60 lines</a>', feed)
    assert "60 chat events" in text_of(boss, more)


def test_a_roster_and_a_feed_take_their_own_permissions() -> None:
    person = ParticipantFactory.create()
    page = text_of(user_with("chats.view_chat"), object_url(Chat, person.chat.pk))
    assert str(person.user_id) not in page
    assert "Feed" not in page


def test_a_page_of_a_full_chat_takes_a_handful_of_queries(boss: Client) -> None:
    chat = LeadChatFactory.create(last_seq=40)
    ParticipantFactory.create_batch(40, chat=chat)
    for seq in range(1, 41):
        ChatEventFactory.create(chat=chat, seq=seq)
    with CaptureQueriesContext(connection) as captured:
        text_of(boss, object_url(Chat, chat.pk))
    assert len(captured) <= 7


def test_outbox_rows_are_filtered_and_found(boss: Client) -> None:
    waiting, parked, published = (
        OutboxMessageFactory.create(**state) for state in ({}, {"parked": True}, {"published": True})
    )
    dlq = OutboxMessageFactory.create(topic="pin.crm.lead-created.v1.messenger.dlq", aggregate_id="0@42")
    assert listed(boss, OutboxMessage, state="waiting") == keys(waiting, dlq)
    assert listed(boss, OutboxMessage, state="parked") == keys(parked)
    assert listed(boss, OutboxMessage, state="published") == keys(published)
    assert listed(boss, OutboxMessage, topic=dlq.topic) == keys(dlq)
    for word in (parked.pk, f"#{parked.pk}", parked.message_id, parked.aggregate_id.upper()):
        assert listed(boss, OutboxMessage, q=word) == keys(parked)
    assert listed(boss, OutboxMessage, q="0@42") == keys(dlq)
    for word in ("9" * 30, "²", "x"):
        assert "finds nothing here" in text_of(boss, list_url(OutboxMessage, {"q": word}))
    page = text_of(boss, list_url(OutboxMessage, {"state": "parked"}))
    for part in ("5 of 5", "The record is too large.", "9 min ago"):
        assert part in page


def test_dead_letters_are_filtered_and_found(boss: Client) -> None:
    lead = uuid.uuid4()
    opened = DeadLetterFactory.create(key=str(lead).upper().encode())
    resolved = DeadLetterFactory.create(resolved=True)
    other = DeadLetterFactory.create(
        consumer_group="messenger-lead-created", topic="pin.crm.lead-created.v1", error_code="MSG_LEAD_CREATED_INVALID"
    )
    assert listed(boss, DeadLetter, state="open") == keys(opened, other)
    assert listed(boss, DeadLetter, state="resolved") == keys(resolved)
    assert listed(boss, DeadLetter, group="messenger-lead-created") == keys(other)
    assert listed(boss, DeadLetter, error_code=other.error_code) == keys(other)
    assert listed(boss, DeadLetter, q=lead) == keys(opened)
    assert listed(boss, DeadLetter, q=f"{opened.partition}@{opened.offset}") == keys(opened)
    assert listed(boss, DeadLetter, q=f"lead-created.v1/{other.partition}@{other.offset}") == keys(other)
    for word in ("2@x", "2@" + "9" * 30, "junk"):
        assert "finds nothing here" in text_of(boss, list_url(DeadLetter, {"q": word}))


@pytest.mark.parametrize("value", [b"\xff\x00<", b'{"Version": 5.0}', b"<script>alert(1)</script>", b""])
def test_a_dead_letter_shows_and_gives_the_exact_bytes(boss: Client, value: bytes) -> None:
    row = DeadLetterFactory.create(value=value, headers=[{"name": "x", "base64": "/w=="}, {"name": "y"}])
    page = text_of(boss, object_url(DeadLetter, row.pk))
    assert "<script>alert" not in page
    assert "0xff" in page
    answer = boss.get(f"{list_url(DeadLetter)}{row.pk}/bytes/value/")
    assert answer.content == value
    assert answer["Content-Type"] == "application/octet-stream"
    assert "attachment" in answer["Content-Disposition"]
    for url in (f"{row.pk}/bytes/headers/", f"{row.pk}/bytes/pk/", "999999/bytes/value/"):
        text_of(boss, f"{list_url(DeadLetter)}{url}", 404)
    text_of(user_with(), f"{list_url(DeadLetter)}{row.pk}/bytes/value/", 403)


def test_people_are_found_by_id_or_a_part_of_the_name(boss: Client) -> None:
    anna, boris = (MessengerUserFactory.create(display_name=name) for name in ("Anna of Riverside", "Boris"))
    seat = ParticipantFactory.create(user_id=anna.id)
    assert listed(boss, MessengerUser, q="of river") == keys(anna)
    assert listed(boss, MessengerUser, q=boris.id) == keys(boris)
    assert str(seat.chat_id) in text_of(boss, object_url(MessengerUser, anna.id))


def test_what_belongs_together_is_linked(boss: Client) -> None:
    provision = DealChatProvisionFactory.create(poison=True)
    chat = DealChatFactory.create(deal_id=provision.deal_id)
    roster = ParkedRosterFactory.create(chat_kind="Deal", subject_id=provision.deal_id)
    parked = OutboxMessageFactory.create(parked=True, aggregate_id=str(provision.deal_id))
    behind = OutboxMessageFactory.create(aggregate_id=str(provision.deal_id))
    dead = DeadLetterFactory.create(key=str(provision.deal_id).encode())
    place = f"{dead.partition}@{dead.offset}"
    copy = OutboxMessageFactory.create(
        topic=f"{dead.topic}.messenger.dlq", aggregate_type="DeadLetter", aggregate_id=place, key=dead.key
    )
    waiting = object_url(WaitingRoster, roster.subject_id)
    of_provision, of_chat, of_dead = (object_url(type(each), each.pk) for each in (provision, chat, dead))
    of_parked, of_behind, of_copy = (object_url(OutboxMessage, each.pk) for each in (parked, behind, copy))
    for page, linked in (
        (of_provision, (of_chat, waiting, of_parked, of_behind)),
        (of_chat, (of_provision,)),
        (waiting, (of_provision,)),
        (of_behind, (of_parked, of_provision)),
        (of_dead, (of_copy, of_chat, waiting)),
        (of_copy, (of_dead,)),
    ):
        shown = text_of(boss, page)
        for url in linked:
            assert f'href="{url}"' in shown, (page, url)
    alone = text_of(user_with("provisioning.view_dealchatprovision"), of_provision)
    assert of_chat not in alone
    assert of_parked not in alone


def test_the_start_page_says_what_waits_for_a_person(boss: Client) -> None:
    assert "Nothing waits for a person." in text_of(boss, "/admin/")
    DealChatProvisionFactory.create_batch(2, poison=True)
    DealChatProvisionFactory.create(stuck=True)
    DealChatProvisionFactory.create_batch(3, ready=True)
    OutboxMessageFactory.create_batch(4)
    OutboxMessageFactory.create(parked=True)
    OutboxMessageFactory.create(published=True)
    DeadLetterFactory.create()
    DeadLetterFactory.create(resolved=True)
    ParkedRosterFactory.create()
    with CaptureQueriesContext(connection) as captured:
        page = text_of(boss, "/admin/")
    assert len(captured) <= 8
    figures = re.findall(r'm-label">([^<]+)</span>\s*<span class="m-count">([^<]+)</span>\s*<span [^>]+>([^<]+)<', page)
    assert {label: (count, oldest) for label, count, oldest in figures} == {
        "Poison provisions": ("2", "oldest 20 min"),
        "Stuck provisions": ("1", "oldest 20 min"),
        "Waiting provisions": ("0", "&nbsp;"),
        "Parked outbox rows": ("1", "oldest 7 min"),
        "Waiting outbox rows": ("4", "oldest 9 min"),
        "Open dead letters": ("1", "oldest 2 h"),
        "Rosters without a chat": ("1", "oldest 4 min"),
    }
    assert "Nothing waits for a person." not in page
    assert "m-count" not in text_of(user_with(), "/admin/")
