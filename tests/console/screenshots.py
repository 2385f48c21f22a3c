"""The pictures of the README, taken from a gateway at work: `make screenshots`.

A few small APIs, an hour of calls in the ledger, and two calls that wait for a person.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from mcp.client.client import Client
from mcp_types import Implementation
from playwright.async_api import Browser, async_playwright

from gateway.model import new_id
from gateway.store.ledger import record_finished
from gateway.store.tables import Execution
from tests.conftest import Running, gateway_on
from tests.console.conftest import CHROMIUM, DEMO, FLAGS, Window, sign_in_at, window_of
from tests.definitions import an_object, openapi, operation
from tests.journeys.confirming import taking
from tests.peers import provider

DOCS = Path(__file__).parents[2] / "docs"
DESK = {"width": 1440, "height": 900}
PHONE = {"width": 400, "height": 820}
CLIENTS = ("Claude Code", "Cursor", "Claude Desktop")
APIS = {  # by connection: its title, and the method, path and words of its operations
    "billing": """Billing
get_invoice get /invoices/{id} Get an invoice
list_charges get /charges List charges
refund_charge delete /charges/{id} Refund a charge in full""",
    "crm": """Customers
search_contacts get /contacts Search contacts
update_contact patch /contacts/{id} Change a contact""",
    "tickets": """Tickets
search_tickets get /tickets Search tickets
get_ticket get /tickets/{id} Read a ticket
add_comment post /tickets/{id}/comments Answer on a ticket""",
}
READS = ("billing_get_invoice", "crm_search_contacts", "tickets_search_tickets", "demo_list_books")


def definition(title: str, url: str, operations: list[str]) -> dict[str, Any]:
    """A small API with these operations."""
    paths: dict[str, Any] = {}
    text = {"type": "string"}
    for line in operations:
        name, method, path, summary = line.split(" ", 3)
        more: dict[str, Any] = {}
        if "{id}" in path:
            more["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": text}]
        elif method != "delete":
            more["parameters"] = [{"name": "q", "in": "query", "schema": text}]
        if method in ("patch", "post"):
            more |= taking(an_object({"email": text, "text": text}))
        made = operation(operationId=name, summary=summary, **more)
        paths.setdefault(path, {})[method] = made
    info = {"title": title, "version": "1"}
    return openapi(paths, "3.1.0", info=info, servers=[{"url": url}])


def remember_an_hour(gateway: Running) -> None:
    """Puts an hour of calls into the ledger."""
    chance, now = random.Random(7), time.time()
    for _ in range(620):
        at = now - chance.random() ** 1.3 * 3590 - 12
        tool = chance.choice(READS)
        failed = chance.random() < 0.015
        took = chance.lognormvariate(-2.2, 0.5)
        record_finished(
            gateway.app.gateway.db,
            Execution(
                id=new_id(at),
                tool=tool,
                connection=tool.split("_")[0],
                principal="local",
                status="failed" if failed else "completed",
                access="read",
                risk="none",
                arguments={"q": "maya"} if "search" in tool else {},
                args_digest="",
                created_at=at,
                finished_at=at + took,
                revision=1,
                result={"success": not failed, "output": None, "duration_ms": took * 1000},
                error_code="upstream_error" if failed else None,
                upstream_status=503 if failed else 200,
                client=f"{chance.choices(CLIENTS, (6, 3, 2))[0]}/1.0",
            ),
        )


async def ask(gateway: Running, client: str, tool: str, arguments: dict[str, Any]) -> None:
    """A call that waits for a person, for as long as it is let."""
    me = Implementation(name=client, version="2.1")
    async with Client(gateway.mcp, mode="legacy", client_info=me) as mcp:
        await mcp.call_tool(tool, arguments)


async def take(window: Window, name: str) -> None:
    """One picture."""
    await window.page.wait_for_timeout(700)  # fonts and the first live parts
    await window.page.screenshot(path=DOCS / f"{name}.png")


async def take_all(browser: Browser, gateway: Running) -> None:
    async with window_of(browser, gateway, viewport=DESK, color_scheme="light") as window:
        await sign_in_at(window)
        await window.open("")
        await take(window, "console-light")
        await window.open("/approvals")
        await take(window, "console-approvals")
        await window.open("/charts?range=1h")
        await take(window, "console-charts")
        await window.open("/connections/new")
        url = f"{gateway.url}/demo"
        operations = APIS["tickets"].splitlines()[1:]
        source = json.dumps(definition("Parcels", url, operations), indent=2)
        await window.page.fill("#source", source)
        await window.page.wait_for_selector("#preview .sum")
        await take(window, "console-preview")
    async with window_of(browser, gateway, viewport=DESK, color_scheme="dark") as window:
        await sign_in_at(window)
        await window.open("")
        await take(window, "console-dark")
    async with window_of(browser, gateway, viewport=PHONE, color_scheme="light") as window:
        await sign_in_at(window)
        await window.open("/approvals")
        await take(window, "console-phone")


async def main() -> None:
    DOCS.mkdir(exist_ok=True)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        gateway = await stack.enter_async_context(
            gateway_on(folder / "config.toml", DEMO.replace("= 30", "= 120"))
        )
        for name, words in APIS.items():
            title, *operations = words.splitlines()
            peer = await stack.enter_async_context(provider())
            peer.document = definition(title, peer.url, operations)
            values = {"kind": "openapi", "spec": peer.spec, "display_name": title}
            await gateway.app.gateway.catalog.put(name, values, by="local")
        remember_an_hour(gateway)
        contact = {"id": "8841", "email": "new.owner@example.com", "text": "Moved to Lisbon"}
        waiting = [
            asyncio.create_task(ask(gateway, *call))
            for call in (
                ("Claude Code", "billing_refund_charge", {"id": "ch_3Qx9"}),
                ("Cursor", "crm_update_contact", contact),
            )
        ]
        playwright = await stack.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        await take_all(browser, gateway)
        await browser.close()
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    for path in sorted(DOCS.glob("console-*.png")):
        print(f"{path.name}: {path.stat().st_size // 1024} KB")


if __name__ == "__main__":
    asyncio.run(main())
