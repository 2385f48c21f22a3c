"""What stands around the gateway in a soak: APIs and servers with their faults, and its config.

`shop` behaves. `shaky` answers 500, resets, says nothing or sends garbage. `far` is an MCP server
that is restarted now and then, `child` one over standard streams that is killed. What is kept is
kept for a minute only and swept every few seconds, many times within a run.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.processes import ROOT, Measured, digest, running, token_of
from tests.peers import Provider, items_api, provider
from tests.peers_mcp import McpPeer, mcp_peer

KEEP_SECONDS = 60.0
ASK_SECONDS = 3.0
SHAKY_SECONDS = 1.0
SLOW_SECONDS = 0.5
BIG_BYTES = 40_000
MAX_OUTPUT_BYTES = 16_384
CALLERS = tuple(f"caller{n}" for n in range(8))
# By itself it sweeps every five minutes.
GATEWAY = """
from gateway.cli import main
from gateway.store import housekeeping
housekeeping.LONGEST_PAUSE_SECONDS = 6.0
main()
"""
MEMORY = 200  # what peers remember of requests is theirs to forget


@dataclass(slots=True)
class World:
    """A gateway and everything it talks to."""

    folder: Path
    store: str
    gateway: Measured
    shop: Provider
    far: Far
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.port}"

    def edit(self, note: str, *, good: bool = True) -> None:
        """Save config.toml with another name for the shop; or with a mistake in it."""
        text = config(self.store, self.shop, self.far.url, note)
        path = self.folder / "config.toml"
        draft = path.with_suffix(".draft")
        draft.write_text(text if good else text + "\n[nonsense]\n", encoding="utf-8")
        draft.replace(path)


@dataclass(slots=True)
class Far:
    """An MCP server that can be ended and started again on its port."""

    peer: McpPeer = field(default_factory=McpPeer)
    _up: AsyncExitStack = field(default_factory=AsyncExitStack)

    @property
    def url(self) -> str:
        return self.peer.url

    async def start(self) -> None:
        port = int(self.url.split(":")[2].split("/")[0]) if self.url else 0
        await self._up.enter_async_context(mcp_peer(port=port, peer=self.peer))

    async def stop(self) -> None:
        await self._up.aclose()
        for seen in (self.peer.calls, self.peer.headers, self.peer.methods):
            seen.clear()
        self.peer.sessions.clear()


@asynccontextmanager
async def world(folder: Path, store: str) -> AsyncIterator[World]:
    """All of it, started; ended in the reverse order."""
    far = Far()
    await far.start()
    try:
        async with provider() as shop:
            shop.document = _definition(shop)
            shop.answer = _Answers(shop).answer
            text = config(store, shop, far.url, "first")
            config_file, log = folder / "config.toml", folder / "gateway.log"
            await asyncio.to_thread(config_file.write_text, text, encoding="utf-8")
            command = ("-c", GATEWAY, "serve", "--config", str(config_file), "--port", "0")
            with log.open("w+b") as file:
                async with running(*command, log=file) as gateway:
                    yield World(folder, store, gateway, shop, far, log)
    finally:
        await far.stop()


def config(store: str, shop: Provider, far: str, note: str) -> str:
    """The whole of config.toml."""
    return f"""
[server]
workers = 1
[store]
url = "{store}"
[auth]
mode = "tokens"
[network]
allow = ["127.0.0.1/32"]
[limits]
max_output_bytes = {MAX_OUTPUT_BYTES}
[ledger]
keep_days = {KEEP_SECONDS / 86_400:.6f}
[permissions]
level = "full_access"
tools = {{ shop_add_parcel = "confirm" }}
timeout_seconds = {ASK_SECONDS:g}
[connections.shop]
kind = "openapi"
spec = "{shop.spec}"
display_name = "Shop, {note}"
exclude = ["*failing", "*reset", "*silent", "*garbage"]
[connections.shaky]
kind = "openapi"
spec = "{shop.spec}"
include = ["*failing", "*reset", "*silent", "*garbage"]
timeout_seconds = {SHAKY_SECONDS:g}
[connections.far]
kind = "mcp"
url = "{far}"
timeout_seconds = 3
wrap = [{{ tool = "region", as = "far_book", idempotency_field = "region" }}]
[connections.child]
kind = "mcp"
transport = "stdio"
command = "{sys.executable}"
args = ["{ROOT / "tests" / "stdio_peer.py"}"]
timeout_seconds = 3
[bundles.found]
mode = "meta"
connections = ["shop", "far"]
[roles.seeker]
bundles = ["found"]
{_principal("ann", "admin = true")}
{_principal("seeker", 'role = "seeker"')}
{"".join(_principal(name) for name in CALLERS)}"""


def _principal(name: str, more: str = "") -> str:
    return f'[principals.{name}]\ntoken_sha256 = "{digest(token_of(name))}"\n{more}\n'


def _definition(shop: Provider) -> dict[str, Any]:
    orders = {f"/{name}s": {"post": _adding(name)} for name in ("order", "parcel")}
    names = ("items", "big", "slow", "failing", "reset", "silent", "garbage")
    return items_api(shop.url, *names, **orders)


def _adding(name: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"number": {"type": "integer"}}}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    answers = {"200": {"description": "ok"}}
    return {"operationId": f"add_{name}", "requestBody": body, "responses": answers}


@dataclass(slots=True)
class _Answers:
    """What the API answers, by the first word of the path."""

    shop: Provider

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if len(self.shop.requests) > MEMORY:
            for seen in (self.shop.requests, self.shop.headers, self.shop.definition_status):
                seen.clear()
        word = request.path.split("/")[1]
        match word:
            case "big":
                rows = [{"number": n, "text": "x" * 90} for n in range(BIG_BYTES // 100)]
                return web.json_response(rows)
            case "failing":
                return web.json_response({"message": "not today"}, status=500)
            case "slow":
                await asyncio.sleep(SLOW_SECONDS)
            case "silent":
                await asyncio.sleep(2 * SHAKY_SECONDS)
            case "reset" | "garbage":
                assert request.transport is not None
                if word == "garbage":
                    request.transport.write(b"\x00\xffnot HTTP at all\r\n\r\n")
                request.transport.abort()
        return web.json_response({"path": request.path, "number": 42})
