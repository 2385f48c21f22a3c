"""Every page, as people meet it who see little, use no mouse or hold a phone: axe-core (from npm)
finds nothing to object to, in light and dark, on a desk and on a phone, and nothing is cut off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page

from tests.configs import token_of
from tests.console.conftest import Window, window_of
from tests.console.populated import Populated, populated

AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not AXE.exists(), reason="needs npm and `make tests/console/node_modules/ready`"
    ),
]

SIZES = ((1440, 900), (390, 844))
TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
PAGES = (
    *("", "/connections", "/connections?status=disabled", "/connections/held"),
    *("/connections/broken", "/connections/new", "/connections/held/edit"),
    *("/tools", "/tool?name=demo_update_book", "/tool?name=wide_change", "/approvals"),
    *("/charts", "/executions", "/executions?tool=nothing", "/executions/{failed}"),
    *("/access", "/access/view?principal=ann", "/nowhere", "/access/rights/principals"),
    *("/access/rights/bundles", "/access/rights/routes"),
)
LOOK = """async only => {
  const less = { resultTypes: ['violations'], preload: false, iframes: false };
  const found = await axe.run({ runOnly: only, ...less });
  return found.violations.flatMap(rule => rule.nodes.map(node =>
    `${rule.id}: ${node.target.join(' ')} ${node.html.slice(0, 160)} ${node.failureSummary}`));
}"""
# What sticks out to the right, and can't be scrolled to where it is.
CUT_OFF = """() => {
  const scrolls = node => node && node !== document.body && node !== document.documentElement
    && (getComputedStyle(node).overflowX !== 'visible' || scrolls(node.parentElement));
  return [...document.querySelectorAll('body *')]
    .filter(node => node.checkVisibility() && !node.closest('.sr, .skip'))
    .filter(node => node.getBoundingClientRect().right > innerWidth + 1 && !scrolls(node))
    .map(node => 'sticks out: ' + node.outerHTML.slice(0, 160));
}"""


async def objections(page: Page) -> list[str]:
    """What is wrong with the page as it is now, at both sizes and in both themes."""
    await page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[str] = []
    for width, height in SIZES:
        await page.set_viewport_size({"width": width, "height": height})
        for theme, rules in (("light", TAGS), ("dark", ("color-contrast",))):
            await page.emulate_media(color_scheme="light" if theme == "light" else "dark")
            kind = "tag" if theme == "light" else "rule"
            said = await page.evaluate(LOOK, {"type": kind, "values": list(rules)})
            found += [f"{page.url} {width} {theme}: {each}" for each in said]
        found += [f"{page.url} {width}: {each}" for each in await page.evaluate(CUT_OFF)]
    return found


@pytest.fixture(scope="module")
async def data(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Populated]:
    async with populated(tmp_path_factory.mktemp("populated")) as made:
        yield made


@pytest.fixture(scope="module")
async def window(browser: Browser, data: Populated) -> AsyncIterator[Window]:
    async with window_of(browser, data.gateway) as window:
        yield window
        window.wrong.clear()  # the browser itself reports a page that is not there


async def test_nothing_stands_in_anybodys_way_on_any_page(window: Window, data: Populated) -> None:
    page, base, found = window.page, window.base, list[str]()
    for path in ("/console/sign-in", "/console/sign-in?link=old", "/oauth/sign-in"):
        await page.goto(base + path)
        found += await objections(page)
    await page.fill("[name=token]", token_of("root"))
    await page.keyboard.press("Enter")
    await page.wait_for_url(f"{base}/console")
    for path in PAGES:
        await page.goto(f"{base}/console{path.format(failed=data.failed)}")
        found += await objections(page)
    await page.goto(base + data.consent)
    found += await objections(page)
    assert not found, "\n".join(found)


async def test_nothing_stands_in_the_way_of_what_opens_on_a_page(
    window: Window, data: Populated
) -> None:
    page, found = window.page, list[str]()
    await page.goto(f"{window.base}/console/connections/held")
    for open_it in ("text=Connect a client", "text=Keys", "a:has-text('Delete')"):
        await page.set_viewport_size({"width": 1440, "height": 900})
        await page.click(open_it)
        found += await objections(page)
        await page.keyboard.press("Escape")
    await page.goto(f"{window.base}/console/connections/new")
    await page.fill("#source", data.gateway.url)
    await page.fill("[name=name]", "demo")
    await page.click("button:has-text('Add')")
    await page.wait_for_selector("#said .notice")
    found += await objections(page)
    await page.goto(f"{window.base}/console/tool?name=demo_search_books")
    await page.click("text=Call it")
    await page.wait_for_selector("#result .result")
    found += await objections(page)
    assert not found, "\n".join(found)
