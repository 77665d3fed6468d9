"""Parked outbox rows published again, and dead letters resolved, by hand in the admin."""

import psycopg
import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.test import Client
from django.utils import timezone

from messenger.admin_display import list_url, object_url
from outbox.models import DeadLetter, OutboxMessage
from outbox.outgoing import CHANNEL
from tests.conftest import database_url
from tests.support.message_factories import DeadLetterFactory, OutboxMessageFactory
from tests.support.staff import confirm, confirmed_rows, entries, select, state, superuser, text_of

pytestmark = pytest.mark.usefixtures("tables")

PUBLISH = f"{list_url(OutboxMessage)}publish_again/"
RESOLVE = f"{list_url(DeadLetter)}resolve/"


@pytest.fixture
def boss() -> Client:
    """Somebody who may do everything."""
    return superuser()


def test_a_parked_row_is_given_back_to_the_relay_which_is_woken(boss: Client) -> None:
    """Relay: a row that was parked is published again with all its attempts; published and waiting rows are not."""
    parked, waiting = OutboxMessageFactory.create(parked=True), OutboxMessageFactory.create()
    published = OutboxMessageFactory.create(published=True)
    page = select(boss, "publish_again", parked, waiting, published)
    assert "Left alone: published already." in page
    assert "Left alone: it waits for the relay already." in page
    (row,) = confirmed_rows(page)
    others = [row for row in state(OutboxMessage) if row["id"] != parked.pk]
    with psycopg.connect(database_url(), autocommit=True) as relay:
        relay.execute(f"LISTEN {CHANNEL}".encode())
        assert "1 given back to the relay" in confirm(boss, PUBLISH, [row])
        assert next(relay.notifies(timeout=30)).channel == CHANNEL
    after = OutboxMessage.objects.get(pk=parked.pk)
    assert (after.parked_at, after.attempts, after.last_error) == (None, 0, parked.last_error)
    assert entries(parked) == [(CHANGE, "Given back to the relay: attempts set to 0, not parked any more.", "boss")]
    confirm(boss, PUBLISH, [row, f"{published.pk}=", f"{waiting.pk}="])
    assert [row for row in state(OutboxMessage) if row["id"] != parked.pk] == others
    assert LogEntry.objects.count() == 1


def test_a_row_published_or_parked_anew_meanwhile_is_left_alone(boss: Client) -> None:
    published, again = OutboxMessageFactory.create(parked=True), OutboxMessageFactory.create(parked=True)
    rows = confirmed_rows(select(boss, "publish_again", published, again))
    OutboxMessage.objects.filter(pk=published.pk).update(published_at=timezone.now())
    OutboxMessage.objects.filter(pk=again.pk).update(parked_at=timezone.now())
    before = state(OutboxMessage)
    assert "changed since the confirmation was shown" in confirm(boss, PUBLISH, rows)
    assert state(OutboxMessage) == before


def test_a_dead_letter_is_resolved_in_words(boss: Client) -> None:
    row, done = DeadLetterFactory.create(), DeadLetterFactory.create(resolved=True)
    page = select(boss, "resolve", row, done)
    assert "Left alone: resolved already (not needed)." in page
    rows = confirmed_rows(page)
    for bad in ("", "x" * 65, "a\x00b"):
        page = confirm(boss, RESOLVE, rows, resolution=bad)
        assert "errorlist" in page
        assert confirmed_rows(page) == rows
    assert DeadLetter.objects.get(pk=row.pk).resolved_at is None
    assert "1 resolved." in confirm(boss, RESOLVE, rows, resolution="sent again {by} crm")
    after = DeadLetter.objects.get(pk=row.pk)
    assert after.resolved_at is not None
    assert (after.resolution, after.resolved_by) == ("sent again {by} crm", "boss")
    assert entries(row) == [(CHANGE, "Resolved: sent again {by} crm", "boss")]
    assert DeadLetter.objects.get(pk=done.pk).resolved_by == "anna"
    assert "sent again {by} crm" in text_of(boss, object_url(DeadLetter, row.pk))


def test_another_record_at_the_place_of_a_dead_letter_is_not_resolved_unseen(boss: Client) -> None:
    """A topic made anew: the row now tells of a record that nobody has confirmed."""
    row = DeadLetterFactory.create()
    rows = confirmed_rows(select(boss, "resolve", row))
    DeadLetter.objects.filter(pk=row.pk).update(value=b"other", first_seen_at=timezone.now())
    assert "changed since the confirmation was shown" in confirm(boss, RESOLVE, rows)
    assert DeadLetter.objects.get().resolved_at is None
