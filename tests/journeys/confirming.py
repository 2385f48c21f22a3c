"""A shop whose orders need a person's word, callers with tokens, and ways to ask and to decide."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
from aiohttp import web
from mcp.client.client import Client
from mcp.client.context import ClientRequestContext
from mcp.client.session import ElicitationFnT
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, ElicitRequestParams, ElicitResult, Implementation

from tests.peers import Provider
from tests.processes import gateway_process

FREELY = 'level = "full_access"'
IDEMPOTENT = 'idempotency_header = "Idempotency-Key"'
ORDER = {"book": "Emma"}
CALL = "/tools/shop_place_order/call"
TOKENS = {name: f"{name}-token-0123456789" for name in ("ann", "bob", "root", "eve")}
Answer = ElicitationFnT


def orders_api(url: str, **operations: dict[str, Any]) -> dict[str, Any]:
    """A definition with a read, a write and a delete; `operations` replaces operations by id."""
    id_ = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    item = {"type": "array", "items": {"type": "string"}}
    body = {
        "type": "object",
        "properties": {"book": {"type": "string"}, "notes": item},
        "required": ["book"],
    }
    done = {"200": {"description": "ok"}}
    known: dict[str, dict[str, Any]] = {
        "getOrder": {"summary": "Get an order", "parameters": [id_], "responses": done},
        "placeOrder": {
            "summary": "Place an order",
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": done,
        },
        "cancelOrder": {"summary": "Cancel an order", "parameters": [id_], "responses": done},
    }
    known |= operations
    for name, operation in known.items():
        operation.setdefault("operationId", name)
    return {
        "openapi": "3.0.3",
        "info": {"title": "Orders", "version": "1"},
        "servers": [{"url": url}],
        "paths": {
            "/orders": {"post": known["placeOrder"]},
            "/orders/{id}": {"get": known["getOrder"], "delete": known["cancelOrder"]},
        },
    }


def config(peer: Provider, permissions: str = "", more: str = "", connection: str = "") -> str:
    """Two callers, two admins, and the shop."""
    principals = "".join(
        f'[principals.{name}]\ntoken = "{token}"\nadmin = {str(name in ("root", "eve")).lower()}\n'
        for name, token in TOKENS.items()
    )
    return f"""
{principals}
[network]
allow = ["127.0.0.1/32"]
[permissions]
timeout_seconds = 20
{permissions}
[connections.shop]
kind = "openapi"
spec = "{peer.spec}"
{connection}
{more}
"""


class Gate:
    """Holds requests to the shop still until the test lets them go."""

    def __init__(self, peer: Provider) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        peer.answer = self.answer

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.entered.set()
        await self.release.wait()
        return web.json_response({"placed": True})


class Api:
    """The REST API as one principal."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self.base = url
        self.url = f"{url}/api/v1"
        self.http = http

    async def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        async with self.http.request(method, self.url + path, json=body) as answer:
            return answer.status, await answer.json(content_type=None)

    async def pending(self, count: int = 1) -> list[dict[str, Any]]:
        """The approvals that wait, once there are so many."""
        async with asyncio.timeout(10):
            while True:
                _, found = await self("GET", "/approvals")
                if len(found["approvals"]) == count:
                    return list(found["approvals"])
                await asyncio.sleep(0.02)

    async def decide(self, decision: str, id: str | None = None) -> tuple[int, Any]:
        """Decides on the approval, or on the only one there is."""
        id = id or (await self.pending())[0]["id"]
        return await self("POST", f"/approvals/{id}", {"decision": decision})

    async def execution(self, id: str, *statuses: str) -> dict[str, Any]:
        """An execution, once it has one of these states."""
        async with asyncio.timeout(10):
            while True:
                _, found = await self("GET", f"/executions/{id}")
                if found.get("status") in (statuses or (found.get("status", ""),)):
                    return dict(found)
                await asyncio.sleep(0.02)


@asynccontextmanager
async def api(url: str, name: str) -> AsyncIterator[Api]:
    headers = {"Authorization": f"Bearer {TOKENS[name]}"}
    async with aiohttp.ClientSession(headers=headers) as http:
        yield Api(url, http)


@asynccontextmanager
async def serving(folder: Path, name: str) -> AsyncIterator[tuple[Any, Api]]:
    """`gateway serve` on the folder's configuration, and the REST API of a principal."""
    async with (
        gateway_process(folder / "config.toml") as (process, url),
        api(url.removesuffix("/mcp"), name) as rest,
    ):
        yield process, rest


@asynccontextmanager
async def client(
    url: str, name: str, mode: str = "legacy", answer: Answer | None = None, called: str = "mcp"
) -> AsyncIterator[Client]:
    """An MCP client of the principal, by its own name; `answer` answers what it is asked."""
    headers = {"Authorization": f"Bearer {TOKENS[name]}"}
    async with httpx2.AsyncClient(headers=headers, timeout=30) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        info = Implementation(name=called, version="1.0")
        async with Client(
            transport, mode=mode, elicitation_callback=answer, client_info=info
        ) as made:
            yield made


def answering(decision: str | None, asked: list[ElicitRequestParams]) -> Answer:
    """Decides so whenever asked; None dismisses the question."""

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params)
        if decision is None:
            return ElicitResult(action="cancel")
        return ElicitResult(action="accept", content={"decision": decision})

    return answer


def error_code(result: CallToolResult) -> str | None:
    """The code of a failed result."""
    found = (result.structured_content or {}).get("error") or {}
    return found.get("code") if result.is_error else None


def sent(peer: Provider, method: str = "POST") -> int:
    """How many requests of this kind reached the shop."""
    return sum(1 for found, _, _ in peer.requests if found == method)


@asynccontextmanager
async def call_to_be_cut_off(
    url: str, name: str, tool: str, arguments: dict[str, Any], mode: str = "legacy"
) -> AsyncIterator[None]:
    """A call that is under way inside the block, and whose connection is closed at its end."""
    headers = {
        "Authorization": f"Bearer {TOKENS[name]}",
        "Accept": "application/json, text/event-stream",
    }
    meta: dict[str, Any] = {}
    async with aiohttp.ClientSession(headers=headers) as http:
        if mode == "legacy":
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": CLIENT}
            async with http.post(f"{url}/mcp", json=_request("initialize", hello)) as answer:
                more = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
        else:
            more = {"MCP-Protocol-Version": mode, "Mcp-Method": "tools/call", "Mcp-Name": tool}
            meta = {
                "io.modelcontextprotocol/protocolVersion": mode,
                "io.modelcontextprotocol/clientInfo": CLIENT,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
        params = {"name": tool, "arguments": arguments, "_meta": meta}
        call = asyncio.create_task(
            http.post(f"{url}/mcp", json=_request("tools/call", params), headers=more)
        )
        try:
            yield
        finally:
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)


CLIENT = {"name": "tests", "version": "1"}


def _request(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
