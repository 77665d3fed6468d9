"""The page of a user's chats in headless Chromium, on a real web process: what changes is seen without a reload."""

import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from chats.models import MessengerUser
from demo.servers.ports import free_port
from tests.support import crm
from tests.support.chromium import chromium, needs_chromium
from tests.support.web import Web, change_roster, open_lead_chat, token

ANNA, BORIS, VERA = crm.new_id(), crm.new_id(), crm.new_id()

pytestmark = [pytest.mark.browser, needs_chromium]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Headless Chromium."""
    with chromium() as launched:
        yield launched


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page; an error of its scripts, or a breach of its security policy, fails the test."""
    context = browser.new_context(viewport={"width": 1180, "height": 760})
    opened = context.new_page()
    errors: list[str] = []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda line: errors.append(line.text) if "Content Security Policy" in line.text else None)
    yield opened
    context.close()
    assert errors == []


def _names() -> None:
    for user, name in ((ANNA, "Anna"), (BORIS, "Boris <b>"), (VERA, "Vera")):
        MessengerUser.objects.create(id=user, display_name=name, updated_at="2026-01-01T00:00:00Z")


def test_a_roster_change_is_seen_within_a_second_and_a_removal_takes_the_chat_away(page: Page, web: Web) -> None:
    """List, roster and feed follow; who is removed no longer sees the chat."""
    _names()
    lead, chat = open_lead_chat({ANNA: "Executor", BORIS: "CoAgent"}, title="Flat 12, Garden Quarter")
    open_lead_chat({ANNA: "Executor"}, title="House by the lake")
    page.goto(f"{web.url}/chats/#token={token(ANNA)}")
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator("#chats li")).to_have_count(2)
    page.get_by_role("button", name="Flat 12").click()
    # Names are text, whatever they look like.
    expect(page.locator("#roster li")).to_have_text(["AnnaExecutor", "Boris <b>CoAgent"])

    # Within a second; a busy machine gets many goes at it.
    vera, version, fastest = page.locator(f"#roster li[data-user='{VERA}'] .role"), 1, float("inf")
    deadline = time.monotonic() + 90
    while fastest >= 1 and time.monotonic() < deadline:
        for role in ("InvestorPrimary", "Assistant"):
            started = time.monotonic()
            change_roster(lead, version, {ANNA: "Executor", BORIS: "CoAgent", VERA: role})
            expect(vera).to_have_text(role)
            fastest, version = min(fastest, time.monotonic() - started), version + 1
    assert fastest < 1, f"seen after {fastest:.1f} s"
    change_roster(lead, version, {ANNA: "Executor", BORIS: "Lawyer", VERA: "Assistant"})
    expect(page.locator("#feed li").first).to_contain_text("Boris <b>: CoAgent → Lawyer")

    change_roster(lead, version + 1, {BORIS: "Executor"})
    expect(page.locator(f"#chats li[data-chat='{chat}']")).to_have_count(0)
    expect(page.locator("#chat")).to_be_hidden()
    expect(page.get_by_text("Garden Quarter")).to_have_count(0)
    expect(page.locator("#chats li")).to_have_count(1)

    change_roster(lead, version + 2, {BORIS: "Executor", ANNA: "Guest"})
    expect(page.locator(f"#chats li[data-chat='{chat}']")).to_have_count(1)


def test_a_chat_that_could_not_be_read_is_read_again(page: Page, web: Web) -> None:
    """The API is away at the moment of a click: the chat appears as soon as it can be read."""
    _, chat = open_lead_chat({ANNA: "Executor"}, title="Flat 12, Garden Quarter")
    open_lead_chat({ANNA: "Executor", BORIS: "CoAgent"}, title="House by the lake")
    page.goto(f"{web.url}/chats/#token={token(ANNA)}")
    expect(page.locator("#chats li")).to_have_count(2)
    page.get_by_role("button", name="House by the lake").click()
    expect(page.locator("#title")).to_have_text("House by the lake")
    page.route(f"**/api/v1/chats/{chat}", lambda route: route.fulfill(status=503), times=1)
    with page.expect_response(lambda answer: answer.status == 503):
        page.get_by_role("button", name="Flat 12").click()
    expect(page.locator("#title")).to_have_text("Flat 12, Garden Quarter")


def test_a_page_with_a_bad_token_says_so(page: Page, web: Web) -> None:
    """No token, an expired one: a sentence rather than an empty page."""
    page.goto(f"{web.url}/chats/")
    expect(page.locator("#connection")).to_contain_text("No token")
    page.goto(f"{web.url}/chats/#token={token(ANNA, ttl=-5)}")
    expect(page.locator("#connection")).to_contain_text("has expired")


def test_the_page_finds_its_way_back(page: Page, own_web: Callable[..., Web]) -> None:
    """The web process is replaced: the browser comes back by itself and sees what changed meanwhile."""
    lead, _ = open_lead_chat({ANNA: "Executor"}, title="House by the lake")
    port = str(free_port())
    own = own_web("--port", port)
    page.goto(f"{own.url}/chats/#token={token(ANNA)}")
    expect(page.locator("#roster li")).to_have_count(1)
    assert own.worker.terminate() == 0
    expect(page.locator("#connection")).not_to_have_text("Live")
    change_roster(lead, 1, {ANNA: "Executor", BORIS: "CoAgent"})
    own_web("--port", port)
    expect(page.locator("#connection")).to_have_text("Live")
    expect(page.locator("#roster li")).to_have_count(2)
