"""The admin in headless Chromium, on a real web process: what somebody on call does, and that long values fit."""

import re
from collections.abc import Iterator

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db.models import F
from playwright.sync_api import Browser, Page, expect

from chats.models import Chat, MessengerUser, WaitingRoster
from messenger.admin_display import list_url, object_url
from outbox.models import DeadLetter, OutboxMessage
from provisioning.models import DealChatProvision
from tests.support import provisions
from tests.support.chromium import PATIENCE, chromium, needs_chromium
from tests.support.factories import DealChatFactory, ParticipantFactory
from tests.support.message_factories import (
    DeadLetterFactory,
    DealChatProvisionFactory,
    MessengerUserFactory,
    OutboxMessageFactory,
    ParkedRosterFactory,
)
from tests.support.web import Web

pytestmark = [pytest.mark.browser, needs_chromium]

PASSWORD = "of-the-person-on-call"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium."""
    with chromium() as launched:
        yield launched


@pytest.fixture
def page(browser: Browser, web: Web) -> Iterator[Page]:
    """The start page of the admin, after logging in; a script's error or a failed request fails the test."""
    User.objects.create_superuser("oncall", password=PASSWORD)
    context = browser.new_context(viewport={"width": 1280, "height": 800}, base_url=web.url)
    context.set_default_timeout(PATIENCE)
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("response", lambda answer: errors.extend([answer.url] if answer.status >= 400 else []))
    opened.goto("/admin/")
    opened.get_by_label("Username").fill("oncall")
    opened.get_by_label("Password").fill(PASSWORD)
    opened.get_by_role("button", name="Log in").click()
    expect(opened.locator("#user-tools")).to_be_visible()
    yield opened
    context.close()
    assert errors == []


def row_of(page: Page, provision: DealChatProvision) -> str:
    return f"#result_list tr:has-text('{provision.deal_id}')"


def test_a_poison_provision_is_found_and_re_enqueued(page: Page) -> None:
    """In a real browser, from the start page to Ready."""
    poison = provisions.add(attempts=10, roster=provisions.people("Executor"))
    other, waiting = DealChatProvisionFactory.create(poison=True), DealChatProvisionFactory.create()
    page.reload()
    figure = page.get_by_role("link", name=re.compile("Poison provisions"))
    expect(figure).to_contain_text("2")
    figure.click()
    expect(page.locator("#result_list tbody tr")).to_have_count(2)
    expect(page.locator(row_of(page, poison))).to_contain_text("never: re-enqueue")
    expect(page.get_by_text(str(waiting.deal_id))).to_have_count(0)

    page.locator(f"{row_of(page, poison)} input.action-select").check()
    page.get_by_label("Action:").select_option(label="Re-enqueue…")
    page.get_by_role("button", name="Go").click()
    expect(page.get_by_text("Tried again: attempts 10 → 0, next attempt now.")).to_be_visible()
    page.get_by_role("link", name="No, take me back").click()
    expect(page).to_have_url(re.compile("standing=poison"))
    assert DealChatProvision.objects.get(pk=poison.pk).attempts == 10

    page.locator(f"{row_of(page, poison)} input.action-select").check()
    page.get_by_label("Action:").select_option(label="Re-enqueue…")
    page.get_by_role("button", name="Go").click()
    page.get_by_role("button", name="Yes, re-enqueue 1").click()
    expect(page.locator(".messagelist .success")).to_contain_text("1 re-enqueued.")
    expect(page).to_have_url(re.compile("standing=poison"))
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    assert LogEntry.objects.get().object_id == str(poison.pk)

    assert provisions.run() is not None
    page.goto(object_url(DealChatProvision, poison.pk))
    expect(page.locator(".field-stands .m-badge")).to_have_text("ready")
    expect(page.get_by_role("link", name="Re-enqueue…")).to_have_count(0)
    page.get_by_role("link", name="Chat of the deal").click()
    expect(page.get_by_role("heading", name="Roster: 1 active, 0 former")).to_be_visible()
    assert DealChatProvision.objects.get(pk=other.pk).attempts == 10


def test_a_row_that_changed_behind_an_open_confirmation_is_left_alone(page: Page) -> None:
    poison = DealChatProvisionFactory.create(poison=True)
    page.goto(object_url(DealChatProvision, poison.pk))
    page.get_by_role("link", name="Re-enqueue…").click()
    DealChatProvision.objects.update(row_version=F("row_version") + 1)
    page.get_by_role("button", name="Yes, re-enqueue 1").click()
    expect(page.locator(".messagelist .warning")).to_contain_text("changed since the confirmation was shown")
    expect(page).to_have_url(re.compile(f"{poison.pk}/change/"))
    assert DealChatProvision.objects.get().attempts == 10


def test_a_dead_letter_is_resolved_from_its_page(page: Page) -> None:
    letter = DeadLetterFactory.create()
    page.goto(object_url(DeadLetter, letter.pk))
    page.get_by_text("as hex").click()
    expect(page.get_by_text("7b 22 56 65")).to_be_visible()
    page.get_by_role("link", name="Resolve…").click()
    page.get_by_label("Resolution:").fill("sent again by crm")
    page.get_by_role("button", name="Yes, resolve 1").click()
    expect(page.locator(".messagelist .success")).to_have_text("1 resolved.")
    expect(page.locator(".field-resolution")).to_contain_text("sent again by crm")


@pytest.mark.parametrize("width", [1280, 800])
def test_long_values_do_not_break_a_page(page: Page, width: int) -> None:
    """512 characters without a space, a title of 256, a record of 100 kB: the page itself never scrolls sideways."""
    page.set_viewport_size({"width": width, "height": 800})
    long = "x" * 512
    person = MessengerUserFactory.create(display_name="N" * 256)
    provision = DealChatProvisionFactory.create(poison=True, last_error=long, title="T" * 256)
    chat = DealChatFactory.create(deal_id=provision.deal_id, title="T" * 256)
    ParticipantFactory.create(chat=chat, user_id=person.pk, role="Guest", role_raw="R" * 64)
    parked = OutboxMessageFactory.create(parked=True, last_error=long, value=b"y" * 100_000, key=b"k" * 2_000)
    letter = DeadLetterFactory.create(
        error_detail=long, key=b"\xff" * 2_000, headers=[{"name": "h" * 300, "text": "v" * 3_000}], value=b"[" * 5_000
    )
    roster = ParkedRosterFactory.create(value=b'{"a":"' + b"z" * 20_000 + b'"}')
    rows = (
        (MessengerUser, person.pk),
        (DealChatProvision, provision.pk),
        (Chat, chat.pk),
        (OutboxMessage, parked.pk),
        (DeadLetter, letter.pk),
        (WaitingRoster, roster.subject_id),
    )
    pages = [url for model, key in rows for url in (list_url(model), object_url(model, key))]
    confirmations = [
        f"{list_url(model)}{name}/?row={key}"
        for model, name, key in (
            (DealChatProvision, "reenqueue", provision.pk),
            (OutboxMessage, "publish_again", parked.pk),
            (DeadLetter, "resolve", letter.pk),
        )
    ]
    spills = {}
    for url in ("/admin/", *pages, *confirmations):
        page.goto(url)
        spills[url] = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert {url: pixels for url, pixels in spills.items() if pixels > 0} == {}
