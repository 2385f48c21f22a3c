"""The console in a real browser. Any error in the page, any refused load, any request to another
place fails the test it happens in."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from mcp.client.client import Client
from mcp_types import Implementation
from playwright.async_api import Browser, Page, expect

from gateway.model import Principal
from gateway.store.approvals import list_open
from tests.callers import Api
from tests.callers import client as client_of
from tests.conftest import Running, gateway_on
from tests.console.conftest import (
    DEMO,
    PATIENCE_MS,
    TOKENS,
    Window,
    sign_in_at,
    window_of,
)
from tests.console.hostile import ALL, hostile_api
from tests.peers import items_api, provider, soon

pytestmark = pytest.mark.browser
WAITING = ".card:not(.ended)"  # what ended in the test before may still say so
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
async def module_window(browser: Browser, module_shop: Running) -> AsyncIterator[Window]:
    """A tab that came in by the printed link, for all tests of this module."""
    async with window_of(browser, module_shop) as window:
        await window.page.goto(module_shop.app.console.link(window.base))
        await window.live()
        await expect(window.page).to_have_url(f"{window.base}/console")
        yield window


@pytest.fixture
async def window(module_window: Window) -> AsyncIterator[Window]:
    """The tab, in which nothing went wrong; what a test left open or added is taken back."""
    yield module_window
    assert module_window.wrong == []
    gateway = module_window.gateway.app.gateway
    for waiting in await list_open(gateway.db, time.time()):
        await gateway.approvals.decide(waiting, "deny", Principal("local", admin=True), "rest")
    for name in set(gateway.snapshot.connections) - {"demo"}:
        await gateway.catalog.delete(name, by="test")


@asynccontextmanager
async def tab_behind(window: Window, path: str) -> AsyncIterator[Page]:
    """Another tab, live, behind the first: only the one in front is drawn at once, and clicked."""
    tab = await window.context.new_page()
    await tab.goto(f"{window.base}/console{path}")
    await tab.wait_for_selector("#live[data-state=on]")
    await window.page.bring_to_front()
    yield tab
    await tab.close()


@asynccontextmanager
async def calling(
    url: str, tool: str, arguments: dict[str, object], name: str = "robot"
) -> AsyncIterator[asyncio.Task[str]]:
    """A call under way, by a real client that can't be asked; its outcome as text."""

    async def run() -> str:
        me = Implementation(name=name, version="1")
        async with Client(url, mode="legacy", client_info=me) as mcp:
            result = await mcp.call_tool(tool, arguments)
            return " ".join(getattr(part, "text", "") for part in result.content)

    task = asyncio.create_task(run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_first_page_leads_to_a_called_tool(window: Window) -> None:
    page = window.page
    await window.open("")
    await expect(page.locator("#tasks")).to_contain_text("All is well")
    await expect(page.locator("#picture")).to_contain_text("Book shop")
    await page.click("text=Choose one")
    await page.wait_for_url("**/tools")  # its script has come too, which looks at what is typed
    await page.fill("#search", "find a book by its author")
    await page.wait_for_url("**/tools?q=find*")
    await page.click("text=demo_search_books")
    await page.fill("[name='/q']", "calvino")
    await page.click("text=Call it")
    await expect(page.locator("#result")).to_contain_text("Invisible Cities")
    await page.click("#result >> text=Its record")
    await expect(page.locator("#execution")).to_contain_text("demo_search_books")


async def test_a_connection_is_previewed_and_its_tools_arrive_live(window: Window) -> None:
    page = window.page
    async with provider() as peer, tab_behind(window, "/tools") as other:
        await page.click("nav >> text=Connections")
        await page.click("text=Add a connection")
        await page.fill("#source", peer.spec)
        await expect(page.locator("#preview")).to_contain_text("1 tool")
        await page.fill("[name=name]", "items")
        await page.click("button:has-text('Add')")
        await page.wait_for_url("**/connections/items")
        await window.live()
        await expect(page.locator("#connection-tools")).to_contain_text("items_get_items")
        # Another tab, that shows a list, hears of it too; so does this one of what comes later.
        await expect(other.locator("#results")).to_contain_text("items_get_items")
        peer.document = items_api(peer.url, "items", "parts")
        await page.click("text=Refresh")
        await expect(page.locator("#toasts")).to_contain_text("1 tool added")
        await expect(page.locator("#connection-tools")).to_contain_text("items_get_parts")
        await expect(page.locator("#nav-tools")).to_contain_text("9")
        await page.click("a:has-text('Delete')")
        await page.click("#delete >> button.danger")
        await page.wait_for_url("**/console/connections")
        await expect(page.locator("#results")).not_to_contain_text("items")


async def test_a_call_of_a_real_client_is_approved_or_denied_on_its_card(window: Window) -> None:
    page = window.page
    await window.open("/approvals")
    await expect(page.locator("#cards")).to_contain_text("Nothing is waiting for you")
    async with calling(window.gateway.mcp, "demo_delete_book", {"id": 3}) as deleting:
        card = page.locator(WAITING, has_text="demo_delete_book")
        await expect(card).to_contain_text("high risk")
        await expect(card).to_contain_text("robot/1")
        await expect(card).to_contain_text(re.compile(r"\d+ s left"))
        await expect(card.locator("[name=always]")).to_be_disabled()
        await expect(page.locator("#nav-approvals .hot")).to_have_text("1")
        async with calling(
            window.gateway.mcp, "demo_update_book", {"id": 4, "stock": 1}
        ) as updating:
            other = page.locator(WAITING, has_text="demo_update_book")
            await other.locator("text=Deny").click()
            assert "A person did not approve" in await soon(updating)
            await card.locator("text=Approve once").click()
            await soon(deleting)
    await expect(page.locator("#toasts")).to_contain_text("Approved demo_delete_book")
    await page.mouse.move(5, 5)
    await expect(page.locator("#cards")).to_contain_text("Nothing is waiting for you")
    await expect(page.locator("#feed")).to_contain_text("denied")


async def test_always_allow_lets_the_next_call_through(window: Window) -> None:
    async with Client(window.gateway.mcp, mode="legacy") as mcp:
        page = window.page
        await window.open("/approvals")
        asking = asyncio.create_task(mcp.call_tool("demo_update_book", {"id": 4, "stock": 1}))
        card = page.locator(WAITING)
        await card.locator("[name=always]").check()
        await card.locator("text=Approve once").click()
        assert not (await soon(asking)).is_error
        again = mcp.call_tool("demo_update_book", {"id": 4, "stock": 2})
        assert not (await soon(again)).is_error
        grants = page.locator("#grants")
        await expect(grants).to_contain_text("For local in one session of mcp, by local; ends in")
        await grants.locator("text=Revoke").click()
        await expect(grants).to_contain_text("Nothing: each call that needs a decision")
        third = asyncio.create_task(mcp.call_tool("demo_update_book", {"id": 4, "stock": 3}))
        await card.locator("text=Deny").click()
        assert (await soon(third)).is_error


async def test_no_card_moves_under_the_pointer(window: Window) -> None:
    page = window.page
    await window.open("/approvals")
    async with calling(window.gateway.mcp, "demo_delete_book", {"id": 1}) as first:
        await expect(page.locator(WAITING)).to_have_count(1)
        async with calling(window.gateway.mcp, "demo_delete_book", {"id": 2}):
            await expect(page.locator(WAITING)).to_have_count(2)
            gateway = window.gateway.app.gateway
            [waiting, after] = await list_open(gateway.db, time.time())
            second, ended = (page.locator(f"#card-{id}") for id in (after.id, waiting.id))
            await second.locator("text=Deny").hover()
            before = await second.bounding_box()
            await gateway.approvals.decide(waiting, "deny", Principal("local", admin=True), "rest")
            await soon(first)
            await expect(ended).to_contain_text("Denied by local over REST")
            assert await second.bounding_box() == before
            await page.mouse.move(5, 5)
            await expect(ended).to_have_count(0)


async def test_a_decided_card_says_by_whom_to_everybody_and_the_focus_stays(window: Window) -> None:
    page = window.page
    updated: dict[str, object] = {"id": 5, "stock": 2}
    await window.open("/approvals")
    async with (
        tab_behind(window, "/approvals") as other,
        calling(window.gateway.mcp, "demo_update_book", updated) as updating,
    ):
        await expect(page.locator("#voice")).to_contain_text("demo_update_book")
        ended = f"#{await page.get_attribute(WAITING, 'id')}.ended"
        await page.locator(f"{WAITING} >> text=Approve once").focus()
        await page.keyboard.press("Enter")
        await soon(updating)
        for each in (page, other):
            await expect(each.locator(ended)).to_contain_text("Approved by local here")
        await expect(page.locator(ended)).to_be_focused()
        await expect(other.locator(".card")).to_have_count(0)
        await expect(page.locator(ended)).to_be_focused()
        await page.keyboard.press("Tab")
        await expect(page.locator("#cards a:focus")).to_have_text("demo")
        await page.keyboard.press("g")
        await page.keyboard.press("a")
        await expect(page.locator("#no-cards")).to_be_visible()


async def test_a_change_is_compared_and_accepted(window: Window) -> None:
    async with provider() as peer:
        page, catalog = window.page, window.gateway.app.gateway.catalog
        values = {"kind": "openapi", "spec": peer.spec, "on_change": "hold_all"}
        await catalog.put("goods", values, by="test")
        await window.open("/connections/goods")
        document = items_api(peer.url, "items")
        operation = document["paths"]["/items/{id}"]["get"]
        operation["summary"] = "Get one item of many"
        operation["parameters"][1]["required"] = True
        peer.document = document
        await catalog.refresh(["goods"], by="test")
        change = page.locator(".change")
        await expect(change).to_contain_text("Get one item of many")
        await expect(change.locator(".add")).to_contain_text(['"q"'])
        await change.locator("text=Accept the change").click()
        await expect(page.locator("#toasts")).to_contain_text("Accepted")
        await expect(change).to_contain_text("accepted")
        assert b"one item of many" in catalog.current.tools["goods_get_items"].entry


HOSTILE_PAGES = (
    *("", "/connections", "/connections/evil", "/tools", "/tools?connection=evil"),
    *("/executions", "/approvals", "/access"),
)


async def test_hostile_words_run_nothing_and_break_nothing(window: Window) -> None:
    async with provider() as peer:
        peer.document = hostile_api(peer.url)

        async def answer(request: web.Request) -> web.StreamResponse:
            return web.json_response({ALL: ALL, "big": "y" * 100_000}, status=500)

        peer.answer = answer
        page = window.page
        await window.open("/connections/new")
        await page.fill("#source", peer.spec)
        await expect(page.locator("#preview")).to_contain_text("tools")
        await check_unharmed(window)
        await page.fill("[name=name]", "evil")
        await page.fill("[name=display_name]", ALL[:128])
        await page.click("button:has-text('Add')")
        await page.wait_for_url("**/connections/evil")
        me = Implementation(name=ALL[:100], version=ALL[:20])
        async with Client(window.gateway.mcp, mode="legacy", client_info=me) as mcp:
            await mcp.call_tool("evil_steady", {"q": ALL})
        async with calling(window.gateway.mcp, "evil_drop", {"q": ALL}, name=ALL[:100]):
            await window.open("/approvals")
            await expect(page.locator(WAITING)).to_contain_text("evil_drop")
            for path in HOSTILE_PAGES:
                await window.open(path)
                await check_unharmed(window)
            for name in ("evil_everything", "evil_steady"):
                await page.goto(f"{window.base}/console/tool?name={name}")
                await check_unharmed(window)
            await page.fill("[name='/q']", ALL)
            await page.click("text=Call it")
            await expect(page.locator("#result")).to_contain_text("failed")
            await check_unharmed(window)
            await page.click("#result >> text=Its record")
            await check_unharmed(window)


SIZES = ((1280, 900), (390, 800))


async def check_unharmed(window: Window) -> None:
    """Nothing of the definition has run, and the page is no wider than a desk's or a phone's."""
    page = window.page
    for width, height in SIZES:
        await page.set_viewport_size({"width": width, "height": height})
        assert await page.evaluate("window.pwned") is None
        await expect(page.locator("main")).to_be_visible()
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert (page.url, wide) <= (page.url, width)


async def test_filters_stay_in_the_address_and_files_follow_them(window: Window) -> None:
    page = window.page
    await window.open("/tools")
    await page.select_option("#f-access", "delete")
    await page.wait_for_url("**/tools?access=delete")
    await expect(page.locator("tbody tr")).to_have_count(1)
    href = await page.get_attribute("text=CSV", "href")
    assert href == "/console/tools?access=delete&format=csv"
    await page.reload()
    await expect(page.locator("tbody tr")).to_have_count(1)


async def test_keys_lead_to_pages_search_and_the_other_theme(window: Window) -> None:
    page = window.page
    await window.open("")
    await page.keyboard.press("Tab")
    await expect(page.locator(".skip")).to_be_focused()
    await page.keyboard.press("g")
    await page.keyboard.press("e")
    await page.wait_for_url("**/executions")
    await page.keyboard.press("/")
    await expect(page.locator("#search")).to_be_focused()
    await page.keyboard.press("Escape")
    await page.keyboard.press("t")
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await page.reload()
    await expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    await page.keyboard.press("k")
    await expect(page.locator("#connect")).to_be_visible()
    await page.keyboard.press("Escape")
    await expect(page.locator("#connect")).to_be_hidden()


async def test_a_token_signs_in_connects_a_client_and_signs_out(
    browser: Browser, guarded: Running
) -> None:
    async with window_of(browser, guarded) as window:
        page = window.page
        await page.goto(f"{guarded.url}/console")
        await page.fill("[name=token]", TOKENS["ann"])
        await page.keyboard.press("Enter")
        await window.live()
        await expect(page.locator(".who")).to_contain_text("ann")
        await page.click("text=Connect a client")
        await page.click("role=tab[name='VS Code']")
        await expect(page.locator("#snip-vs")).to_contain_text(guarded.mcp)
        waits = page.locator("#contact .waits")
        await expect(waits).to_contain_text("Waiting for a request")
        async with client_of(guarded.url, "ann"):
            await expect(page.locator("#contact .came")).to_contain_text("heard from python-httpx")
        await page.keyboard.press("Escape")
        # What was heard before it was opened is no sign, also not while the page goes on.
        await page.keyboard.press("k")
        await expect(waits).to_contain_text("Heard before: python-httpx")
        guarded.app.gateway.feed.wake()
        await page.keyboard.press("Escape")
        await page.click("[aria-label='Sign out']")
        await expect(page).to_have_url(f"{guarded.url}/console/sign-in")


async def test_a_page_outlives_its_gateway_and_shows_what_is_true_then(
    browser: Browser, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    async with AsyncExitStack() as stack:
        async with gateway_on(config, DEMO) as first:
            windows = []
            for _ in range(2):
                windows.append(await stack.enter_async_context(window_of(browser, first)))
                await sign_in_at(windows[-1])
                await windows[-1].open("/connections")
        stays, ends = windows
        await expect(stays.page.locator("#live")).to_contain_text("not live since")
        await ends.context.clear_cookies()
        peer = await stack.enter_async_context(provider())
        async with gateway_on(config, DEMO + peer.table("items"), first.port):
            await stays.live()
            await expect(stays.page.locator("#row-items")).to_be_visible()
            await expect(ends.page).to_have_url(f"{first.url}/console/sign-in")
        for window in windows:
            window.wrong.clear()  # the browser itself reports that nobody answered


async def test_everything_works_without_scripts(browser: Browser, module_shop: Running) -> None:
    async with window_of(browser, module_shop, java_script_enabled=False) as window:
        page, base = window.page, f"{window.base}/console"
        await page.goto(f"{base}/sign-in")
        await page.click("text=Continue as local")
        await expect(page.locator(".top")).not_to_contain_text("connecting")
        await expect(page.locator("#live")).to_be_hidden()
        await page.click(".top >> text=Connect a client")
        await expect(page.locator("#panel-vs")).to_be_visible()
        await page.click("#connect [data-close]")
        await expect(page.locator("#connect")).to_be_hidden()
        async with calling(module_shop.mcp, "demo_delete_book", {"id": 6}) as deleting:
            api = Api(module_shop.url)
            await api.pending()
            await api.http.close()
            await page.goto(f"{base}/approvals")
            await page.click(f"{WAITING} >> text=Approve once")
            await soon(deleting)
            await expect(page.locator(".card.ended").last).to_contain_text("Approved by local here")
        await page.goto(f"{base}/tools")
        await page.select_option("#f-access", "delete")
        await page.click("text=Filter")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await page.goto(f"{base}/tool?name=demo_search_books")
        await page.fill("[name='/q']", "calvino")
        await page.click("text=Call it")
        await expect(page.locator("body")).to_contain_text("Invisible Cities")
