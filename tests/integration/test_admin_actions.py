"""What a person may do in the admin: seen before it is done, done only to what was seen, and written down."""

import uuid
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.db import connection
from django.db.models import F, Model
from django.test import Client
from django.utils import timezone

from messenger.admin_display import list_url, object_url
from outbox.models import DeadLetter, OutboxMessage
from provisioning.models import DealChatProvision
from tests.support import provisions
from tests.support.message_factories import DeadLetterFactory, DealChatProvisionFactory, OutboxMessageFactory
from tests.support.races import holding
from tests.support.staff import confirm, confirmed_rows, entries, select, state, superuser, text_of, user_with

pytestmark = pytest.mark.usefixtures("tables")

REENQUEUE = f"{list_url(DealChatProvision)}reenqueue/"
PUBLISH = f"{list_url(OutboxMessage)}publish_again/"
RESOLVE = f"{list_url(DeadLetter)}resolve/"
ACTIONS: dict[str, tuple[type[Model], Any, str]] = {
    "reenqueue": (DealChatProvision, lambda: DealChatProvisionFactory.create(poison=True), REENQUEUE),
    "publish_again": (OutboxMessage, lambda: OutboxMessageFactory.create(parked=True), PUBLISH),
    "resolve": (DeadLetter, DeadLetterFactory.create, RESOLVE),
}
every_action = pytest.mark.parametrize("name", ACTIONS)


@pytest.fixture
def boss() -> Client:
    """Somebody who may do everything."""
    return superuser()


@every_action
def test_an_action_takes_its_own_permission(name: str) -> None:
    model, make, url = ACTIONS[name]
    row = make()
    view = f"{model._meta.app_label}.view_{model._meta.model_name}"
    own = f"{model._meta.app_label}.{name}_{model._meta.model_name}"
    (confirmed,) = confirmed_rows(text_of(superuser(), f"{url}?row={row.pk}"))
    before = state(model)
    for client in (user_with(view), user_with(own), user_with(view, own.replace(name, "change"))):
        assert client.post(url, {"row": confirmed, "resolution": "x"}).status_code == 403
        text_of(client, f"{url}?row={row.pk}", 403)
    looking = user_with(view)
    assert f'value="{name}"' not in text_of(looking, list_url(model))
    assert url not in text_of(looking, object_url(model, row.pk))
    assert Client().post(url, {"row": confirmed}).status_code == 302
    assert state(model) == before
    assert not LogEntry.objects.exists()

    acting = user_with(view, own)
    assert f'value="{name}"' in text_of(acting, list_url(model))
    assert f"{url}?row={row.pk}" in text_of(acting, object_url(model, row.pk))
    confirm(acting, url, [confirmed])
    assert state(model) != before


@every_action
def test_to_look_at_a_confirmation_does_nothing(boss: Client, name: str) -> None:
    model, make, url = ACTIONS[name]
    row = make()
    before = state(model)
    page = select(boss, name, row)
    assert confirmed_rows(page) == confirmed_rows(text_of(boss, f"{url}?row={row.pk}")) != []
    assert str(row) in page
    assert state(model) == before
    assert not LogEntry.objects.exists()


@every_action
def test_a_row_that_somebody_holds_is_reported_busy_at_once(boss: Client, name: str) -> None:
    """Poison re-enqueue while the job holds the row: nobody waits, nothing is overwritten."""
    model, make, url = ACTIONS[name]
    held, free = make(), make()
    rows = confirmed_rows(select(boss, name, held, free))
    before = model._default_manager.filter(pk=held.pk).values().get()
    with holding(f"SELECT FROM {model._meta.db_table} WHERE id = %s FOR UPDATE", held.pk):
        page = confirm(boss, url, rows)
    assert f"Left alone, somebody is at work on it at this moment: {held}." in page
    assert model._default_manager.filter(pk=held.pk).values().get() == before
    assert entries(held) == []
    assert len(entries(free)) == 1


@every_action
def test_rows_that_are_gone_or_none_at_all(boss: Client, name: str) -> None:
    _, make, url = ACTIONS[name]
    row = make()
    rows = confirmed_rows(select(boss, name, row))
    row.delete()
    assert "Left alone, not there any more" in confirm(boss, url, rows)
    assert boss.post(url, {"row": "junk=0", "resolution": "x"}).status_code == 400
    assert "Nothing is selected" in text_of(boss, url)
    assert not LogEntry.objects.exists()


def test_a_confirmation_says_what_will_happen_to_each_row(boss: Client) -> None:
    """Poison is tried again, everything else is left alone, and why."""
    poison, waiting, stuck, ready = (
        DealChatProvisionFactory.create(**{each: True} if each else {}) for each in ("poison", "", "stuck", "ready")
    )
    page = select(boss, "reenqueue", poison, waiting, stuck, ready)
    assert confirmed_rows(page) == [f"{poison.pk}={poison.row_version}"]
    for says in (
        "poison after 10 attempts: CheckViolation 23514",
        "Tried again: attempts 10 → 0, next attempt now.",
        "Left alone: waiting, and tried again by itself (in 4 min).",
        "Left alone: stuck, and taken up by itself (in 4 min).",
        "Left alone: its chat is ready.",
        "Yes, re-enqueue 1",
    ):
        assert says in page
    assert "There is nothing to do." in select(boss, "reenqueue", waiting, ready)


def test_a_poison_row_gets_its_attempts_back_and_is_taken_by_the_job(boss: Client) -> None:
    """Runbook «Poison-строка»: Attempts = 0, NextAttemptAt = now; the status stays Failed until the job has it."""
    row = provisions.add(attempts=10, due_in=600, roster=provisions.people("Executor"))
    other = provisions.add(attempts=10, due_in=600)
    assert provisions.run() is not None
    rows = confirmed_rows(select(boss, "reenqueue", row, query="?standing=poison"))
    back = f"{list_url(DealChatProvision)}?standing=poison"
    response = boss.post(REENQUEUE, {"row": rows, "next": back})
    assert response["Location"] == back
    assert "1 re-enqueued. The retry job takes them up at its next tick, every 60 s." in text_of(boss, back)

    after = DealChatProvision.objects.get(pk=row.pk)
    assert (after.status, after.attempts, after.row_version) == ("Failed", 0, row.row_version + 1)
    assert after.next_attempt_at <= timezone.now()
    assert entries(row) == [(CHANGE, "Re-enqueued: attempts set to 0, next attempt now.", "boss")]
    assert DealChatProvision.objects.get(pk=other.pk) == other
    assert entries(other) == []
    assert "Re-enqueued" in text_of(boss, object_url(DealChatProvision, row.pk).replace("change", "history"))

    assert provisions.run() is not None
    assert provisions.statuses_of(row.deal_id) == ["Ready"]
    assert DealChatProvision.objects.get(pk=other.pk).attempts == 10


@pytest.mark.parametrize("standing", ["", "stuck", "at_work", "ready"])
def test_no_other_row_is_re_enqueued_whatever_is_posted(boss: Client, standing: str) -> None:
    row = DealChatProvisionFactory.create(**{standing: True} if standing else {})
    before = state(DealChatProvision)
    page = confirm(boss, REENQUEUE, [f"{row.pk}={row.row_version}"])
    assert "Left alone, " in page
    assert state(DealChatProvision) == before
    assert REENQUEUE not in text_of(boss, object_url(DealChatProvision, row.pk))
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("version", ["", "x", "-1", "9" * 30])
def test_a_row_without_its_version_is_not_touched(boss: Client, version: str) -> None:
    row = DealChatProvisionFactory.create(poison=True)
    assert "changed since the confirmation was shown" in confirm(boss, REENQUEUE, [f"{row.pk}={version}"])
    assert DealChatProvision.objects.get().attempts == 10


def test_a_provision_that_changed_meanwhile_is_reported_and_not_overwritten(boss: Client) -> None:
    """Optimistic locking on row_version: still poison, but not the row that was confirmed."""
    changed, same = DealChatProvisionFactory.create(poison=True), DealChatProvisionFactory.create(poison=True)
    rows = confirmed_rows(select(boss, "reenqueue", changed, same))
    DealChatProvision.objects.filter(pk=changed.pk).update(row_version=F("row_version") + 1, last_error="other")
    page = confirm(boss, REENQUEUE, rows)
    assert f"Left alone, changed since the confirmation was shown: deal {changed.deal_id}." in page
    assert "1 re-enqueued." in page
    attempts = dict(DealChatProvision.objects.values_list("pk", "attempts"))
    assert attempts == {changed.pk: 10, same.pk: 0}
    assert entries(changed) == []
    # The same confirmation sent twice (a double click, the back button) does nothing the second time.
    assert "re-enqueued." not in confirm(boss, REENQUEUE, rows)
    assert len(entries(same)) == 1


def test_what_is_done_and_what_is_written_down_are_one_transaction(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = DealChatProvisionFactory.create(poison=True)
    rows = confirmed_rows(select(boss, "reenqueue", row))
    boss.raise_request_exception = False
    constraint = "ALTER TABLE django_admin_log {} CONSTRAINT full_log {}"
    with connection.cursor() as cursor:
        cursor.execute(constraint.format("ADD", "CHECK (false)"))
    try:
        assert boss.post(REENQUEUE, {"row": rows}).status_code == 500
    finally:
        with connection.cursor() as cursor:
            cursor.execute(constraint.format("DROP", ""))
    assert DealChatProvision.objects.get().attempts == 10


def test_no_more_are_taken_at_once_than_a_page_can_show(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("messenger.admin_actions.ROWS_AT_MOST", 2)
    made = DealChatProvisionFactory.create_batch(3, poison=True)
    form = {"action": "reenqueue", "_selected_action": made[0].pk, "index": 0, "select_across": 1}
    response = boss.post(list_url(DealChatProvision), form, follow=True)
    assert "Select 2 at the most" in response.content.decode()
    assert len(confirmed_rows(select(boss, "reenqueue", *made[:2]))) == 2


@pytest.mark.parametrize("target", ["https://elsewhere.example/", "//elsewhere.example/", "javascript:alert(1)"])
def test_nobody_is_sent_to_another_site(boss: Client, target: str) -> None:
    row = DealChatProvisionFactory.create(poison=True)
    assert target not in text_of(boss, f"{REENQUEUE}?row={row.pk}&next={target}")
    response = boss.post(REENQUEUE, {"row": f"{row.pk}=0", "next": target})
    assert response["Location"] == list_url(DealChatProvision)


def test_an_unknown_row_is_not_there(boss: Client) -> None:
    assert "Left alone, not there any more" in confirm(boss, REENQUEUE, [f"{uuid.uuid4()}=0"])
