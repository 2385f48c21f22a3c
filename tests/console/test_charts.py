"""Charts over a real ledger, in both stores: drawn by the server, chosen from by links."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import asdict
from playwright.async_api import Browser, expect

from gateway.console.charts import draw_bars, draw_lines, percentile, round_up, window_of
from gateway.model import new_id
from gateway.store.database import Database, insert_rows
from gateway.store.tables import executions
from tests.conftest import Running, gateway_on
from tests.console.conftest import DEMO, Visitor, sign_in_at, visitor
from tests.console.conftest import window_of as window_of_browser
from tests.databases import postgres, store_url
from tests.definitions import openapi, operation
from tests.peers import provider
from tests.store.rows import execution

__all__ = ["postgres", "store_url"]
TOOLS = {"demo_list_books": 30, "demo_search_books": 10, "other_gone": 4}


async def fill(db: Database, ago: float, tools: dict[str, int] = TOOLS) -> None:
    """Calls of so long ago; every fifth failed."""
    rows = []
    for tool, count in tools.items():
        for number in range(count):
            at = time.time() - ago - number
            row = execution(
                id=new_id(at),
                tool=tool,
                connection=tool.partition("_")[0],
                status="failed" if number % 5 == 4 else "completed",
                created_at=at,
                finished_at=at + 0.1 + number / 100,
                result={"success": True, "output": None, "duration_ms": 100.0 + number},
            )
            rows.append(asdict(row))
    await db.write(lambda tx: insert_rows(tx, executions, rows))


@pytest.fixture
async def reader(store_url: str, tmp_path: Path) -> AsyncIterator[tuple[Running, Visitor]]:
    config = f'{DEMO}\n[store]\nurl = "{store_url}"\n'
    async with gateway_on(tmp_path / "config.toml", config) as shop, visitor(shop) as someone:
        await fill(shop.app.gateway.db, 3 * 3600)
        await fill(shop.app.gateway.db, 20 * 86_400)
        await someone.sign_in()
        yield shop, someone


async def test_charts_count_by_name_and_time_and_lead_to_the_calls(
    reader: tuple[Running, Visitor],
) -> None:
    _, someone = reader
    month = (await someone.get("/console/charts?range=30d&by=tool&format=json")).json()["charts"]
    assert [(row["name"], row["calls"], row["failed"]) for row in month] == [
        ("demo_list_books", 60, 12),
        ("demo_search_books", 20, 4),
        ("other_gone", 8, 0),
    ]
    assert (round(month[0]["p50"]), round(month[0]["p95"])) == (240, 380)
    day = (await someone.get("/console/charts?format=json&sort=name")).json()["charts"]
    assert [(row["name"], row["calls"]) for row in day] == [("demo", 40), ("other", 4)]
    page = (await someone.get("/console/charts?range=24h")).text
    assert page.count("<details><summary>As a table</summary>") == 3
    assert "?range=24h&amp;by=connection&amp;sort=-calls" in page
    calls = (await someone.get(f"{day[0]['href']}&format=json")).json()["executions"]
    assert {row["connection"] for row in calls} == {"demo"}
    lines = (await someone.get("/console/connections")).text
    assert '<svg class="mini"' in lines
    assert lines.index("40</small>") > 0


async def test_a_bar_of_the_histogram_leads_to_its_own_calls(
    reader: tuple[Running, Visitor],
) -> None:
    _, someone = reader
    page = (await someone.get("/console/executions?since=24h&tool=demo_list_books")).text
    bars = re.findall(r'<a href="(/console/executions\?[^"]+)" tabindex="-1"', page)
    titles = re.findall(r"<title>[^<]+calls: (\d+)\s+failed: (\d+)</title>", page)
    assert len(bars) == len(titles)
    shown = {}
    for href, (calls, failed) in zip(bars, titles, strict=True):
        if int(calls):
            found = await someone.get(href.replace("&amp;", "&") + "&format=json")
            shown[href] = len(found.json()["executions"]), int(calls) + int(failed)
    assert sum(own for own, _ in shown.values()) == 30
    assert all(own == told for own, told in shown.values())
    odd = await someone.get("/console/executions?from=x&to=99999999999999999999")
    assert odd.status_code == 200


async def test_tools_are_sorted_by_link(reader: tuple[Running, Visitor]) -> None:
    _, someone = reader
    for column, ordered in (("tokens", sorted), ("-tokens", lambda v: sorted(v, reverse=True))):
        page = (await someone.get(f"/console/tools?sort={column}")).text
        tokens = [int(text) for text in re.findall(r'data-label="Tokens">≈ (\d+)', page)]
        assert tokens == ordered(tokens)
        assert len(set(tokens)) > 3


@pytest.mark.browser
async def test_dragging_over_bars_chooses_their_time_and_without_script_bars_are_links(
    browser: Browser, module_shop: Running
) -> None:
    await fill(module_shop.app.gateway.db, 3 * 3600)
    async with window_of_browser(browser, module_shop) as window:
        page = window.page
        await sign_in_at(window)
        await window.open("/executions?since=24h")
        rows = page.locator("#results tbody tr[id]")
        await expect(rows).to_have_count(44)
        box = await page.locator("[data-brush]").bounding_box()
        assert box is not None
        middle = box["y"] + box["height"] / 2
        for start, end, count in ((0.5, 1.0, 44), (0.02, 0.3, 0)):
            await page.mouse.move(box["x"] + box["width"] * start, middle)
            await page.mouse.down()
            await page.mouse.move(box["x"] + box["width"] * (end - 0.01), middle, steps=5)
            await page.mouse.up()
            await page.wait_for_url(re.compile("from=[0-9T%A-]+&to=[0-9T%A-]+"))
            await expect(rows).to_have_count(count)
            await expect(page.locator(".chosen")).to_contain_text("UTC")
            await window.open("/executions?since=24h")
    async with window_of_browser(browser, module_shop, java_script_enabled=False) as window:
        page = window.page
        await page.goto(f"{window.base}/console/sign-in")
        await page.click("text=Continue as local")
        await page.goto(f"{window.base}/console/executions?since=24h")
        bars = page.locator("[data-brush] a", has_text=re.compile("calls: [1-9]"))
        await bars.first.click()
        await page.wait_for_url(re.compile("from=[0-9]+&to=[0-9]+"))
        assert await page.locator("#results tbody tr[id]").count() > 0


@pytest.mark.browser
async def test_a_long_form_is_folded_and_its_call_is_copied_as_it_is_filled_in(
    browser: Browser, module_shop: Running
) -> None:
    text = {"type": "string"}
    many = [{"name": f"extra{number}", "in": "query", "schema": text} for number in range(30)]
    first = {"name": "customer", "in": "query", "required": True, "schema": text}
    async with (
        provider() as peer,
        window_of_browser(browser, module_shop) as window,
    ):
        paths = {"/pay": {"get": operation(operationId="pay", parameters=[first, *many])}}
        peer.document = openapi(paths, servers=[{"url": peer.url}])
        catalog = module_shop.app.gateway.catalog
        await catalog.put("till", {"kind": "openapi", "spec": peer.spec}, by="test")
        await window.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = window.page
        await sign_in_at(window)
        await window.open("/tool?name=till_pay")
        extra = page.locator("[name='/extra7']")
        await expect(extra).to_be_hidden()
        await page.click("text=30 optional fields")
        await extra.fill("it's 7")
        await page.fill("[name='/customer']", "ann")
        await page.click("text=Copy as curl, CLI or MCP")
        await expect(page.locator("#copy-curl")).to_contain_text("it")
        for snippet in ("curl", "cli", "mcp"):
            await page.click(f"[data-copy='#copy-{snippet}']")
            await expect(page.locator(f"[data-copy='#copy-{snippet}']")).to_have_class(
                re.compile("done")
            )
            copied = await page.evaluate("navigator.clipboard.readText()")
            wanted = {"customer": "ann", "extra7": "it's 7"}
            if snippet == "mcp":
                message = json.loads(copied)
                assert (message["method"], message["params"]["arguments"]) == ("tools/call", wanted)
                continue
            words = shlex.split(copied)
            given = words[-1] if snippet == "curl" else words[3]
            arguments = json.loads(given)
            assert arguments.get("arguments", arguments) == wanted
            assert module_shop.url in copied
        await page.click("text=Call it")
        await expect(page.locator("#result")).to_contain_text("ok")
        await window.open("/tool?name=till_pay")
        await page.locator("td", has_text="customer").locator("a").click()
        await expect(extra).to_have_value("it's 7")
        await catalog.delete("till", by="test")


def test_steps_are_round_and_few() -> None:
    for span, step in ((3600, 60), (86_400, 1800), (604_800, 10_800), (2_592_000, 43_200), (7, 1)):
        window = window_of(1_700_000_123.0 - span, 1_700_000_123.0)
        assert (window.step, window.since % step) == (step, 0)
        assert window.count <= 61
        assert window.until >= 1_700_000_123.0
    assert window_of(5.0, 5.0).count == 1


def test_bars_stand_on_each_other_and_lines_end_where_nothing_was() -> None:
    window = window_of(0.0, 3.0)
    bars = draw_bars("Calls", window, {"a": [1, 0, 2], "b": [3, 0, 0]}, ("s0", "bad"))
    assert [path.count("M") for _, path in bars.paths] == [2, 1]
    assert bars.paths[1][1].startswith("M20.0 0.0h160.0v90.0")
    assert (bars.top, [column.has_values for column in bars.columns]) == ("4", [True, False, True])
    lines = draw_lines(window, {"p50": [10.0, None, 20.0]}, ("s0",))
    assert lines.paths[0][1].count("M") == 2
    assert draw_bars("Calls", window, {}, ()).is_empty
    assert [round_up(value) for value in (0, 1, 7, 11, 560)] == [1, 1, 8, 20, 600]
    assert (percentile([], 0.5), percentile([0.1, 0.3, 0.2], 0.5)) == (None, 200.0)
