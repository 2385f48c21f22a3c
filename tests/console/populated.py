"""A gateway with something of everything on its pages: calls that wait, calls that failed, a
connection that can't be read, a change that is held, two connections of one name, and words that
no layout was made for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.callers import Api, client
from tests.configs import LOCAL, principal
from tests.conftest import Running, gateway_on
from tests.definitions import an_object, operation
from tests.journeys.confirming import taking
from tests.oauth.people import Program
from tests.peers import Provider, items_api, provider

LONG = "x" * 400
RIGHT_TO_LEFT = "\u05e9\u05dc\u05d5\u05dd \u0639\u0627\u0644\u0645 " * 12
EMOJI = "\U0001f469\u200d\U0001f469\u200d\U0001f467" * 60
CONFIG = (
    f"""
[auth]
mode = "oauth"
{LOCAL}
[permissions]
level = "execute_with_confirm"
timeout_seconds = 900
tools = {{ demo_add_book = "blocked" }}
[demo]
enabled = true
[bundles.books]
connections = ["demo"]
[roles.reader]
bundles = ["books"]
[routes.shop.reader]
look = ["books"]
[clients.old_agent]
match = "old-agent*"
schema = "plain"
"""
    + principal("root", admin=True)
    + principal("ann", role="reader", organization="acme")
)


@dataclass(frozen=True)
class Populated:
    """The gateway, and addresses of pages that only this one has."""

    gateway: Running
    failed: str  # the id of an execution
    consent: str  # where a client asks to be let in


@asynccontextmanager
async def populated(folder: Path) -> AsyncIterator[Populated]:
    """The gateway, for as long as it is looked at."""
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(gateway_on(folder / "config.toml", CONFIG))
        await _connect(stack, gateway)
        api = Api(gateway.url, "root")
        stack.push_async_callback(api.http.close)
        await api.call("demo_search_books", q="calvino")
        _, failed = await api.call("ledgers_eu_get_items", id=LONG, q=RIGHT_TO_LEFT)
        await _wait_for_a_person(stack, gateway, api)
        program = Program(gateway.url)
        stack.push_async_callback(program.http.aclose)
        await program.register(client_name=f"Agent of {LONG}")
        yield Populated(gateway, failed["execution_id"], program.link())


async def _connect(stack: AsyncExitStack, gateway: Running) -> None:
    catalog = gateway.app.gateway.catalog

    async def put(name: str, **more: Any) -> Provider:
        peer = await stack.enter_async_context(provider())
        peer.document = _api(peer.url)
        await catalog.put(name, {"kind": "openapi", "spec": peer.spec, **more}, by="root")
        return peer

    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response({"why": LONG, "deep": _deep(30)}, status=503)

    (await put("ledgers_eu", display_name="Ledgers")).answer = refuse
    await put("ledgers_us", display_name="Ledgers")
    await put("notes", auth={"type": "bearer", "per": "user"})
    await put("wide", display_name=("W" * 100 + EMOJI)[:128], on_change="hold_all")
    held = await put("held", display_name=RIGHT_TO_LEFT[:128], on_change="hold_all")
    held.document["paths"]["/items/{id}"]["get"]["parameters"][1]["required"] = True
    broken = await put("broken")
    broken.raw = b"{"
    await catalog.refresh(["held", "broken"], by="root")


def _api(url: str) -> dict[str, Any]:
    text = {"type": "string", "description": LONG}
    remove = operation(operationId="remove_" + "very_long_name_" * 3, summary=RIGHT_TO_LEFT)
    put = operation(operationId="change", summary=LONG, **taking(an_object({"note": text})))
    return items_api(url, **{f"/{LONG[:200]}": {"delete": remove, "put": put}})


def _deep(levels: int) -> dict[str, Any]:
    return {"inner": _deep(levels - 1)} if levels else {LONG: EMOJI}


async def _wait_for_a_person(stack: AsyncExitStack, gateway: Running, api: Api) -> None:
    """A standing grant, and two calls that nobody decides on."""

    async def call(tool: str, **arguments: Any) -> None:
        async with client(gateway.url, "root") as mcp:
            await mcp.call_tool(tool, arguments)

    allowed = asyncio.create_task(call("demo_update_book", id=4, stock=1))
    await api.decide("always_allow")
    await allowed
    waiting = [
        asyncio.create_task(call("demo_delete_book", id=3)),
        asyncio.create_task(call("wide_change", note=LONG + RIGHT_TO_LEFT)),
    ]
    stack.push_async_callback(_end, waiting)
    await api.pending(len(waiting))


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
