"""Who calls a gateway: over REST and over MCP, as somebody or as nobody in particular."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import httpx2
from mcp.client.client import Client
from mcp.client.session import ElicitationFnT
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, Implementation

from tests.configs import bearer
from tests.mcp.speakers import Speaker
from tests.peers import look_until


class Api:
    """The REST API, as a principal or as nobody."""

    def __init__(self, url: str, name: str = "") -> None:
        self.base = url.removesuffix("/mcp")
        self.http = aiohttp.ClientSession(headers=bearer(name) if name else {})

    async def __call__(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and body of an answer; a path that begins with `//` is none of the API's."""
        url = self.base + (path[1:] if path.startswith("//") else f"/api/v1{path}")
        async with self.http.request(method, url, json=body) as answer:
            text = await answer.text()
            json = answer.content_type == "application/json"
            return answer.status, (await answer.json() if json else text)

    async def call(self, tool: str, /, **arguments: Any) -> tuple[int, Any]:
        return await self("POST", f"/tools/{tool}/call", {"arguments": arguments})

    async def pending(self, count: int = 1) -> list[dict[str, Any]]:
        """The approvals that wait, once there are so many."""
        _, found = await look_until(
            lambda: self("GET", "/approvals"), lambda found: len(found[1]["approvals"]) == count
        )
        return list(found["approvals"])

    async def decide(self, decision: str, id: str | None = None) -> tuple[int, Any]:
        """Decides on the approval, or on the only one there is."""
        id = id or (await self.pending())[0]["id"]
        return await self("POST", f"/approvals/{id}", {"decision": decision})

    async def execution(self, id: str, *statuses: str) -> dict[str, Any]:
        """An execution, once it has one of these states."""

        def reached(found: tuple[int, Any]) -> bool:
            return not statuses and "status" in found[1] or found[1].get("status") in statuses

        return dict((await look_until(lambda: self("GET", f"/executions/{id}"), reached))[1])


@asynccontextmanager
async def api(url: str, name: str = "") -> AsyncIterator[Api]:
    made = Api(url, name)
    async with made.http:
        yield made


@asynccontextmanager
async def client(
    url: str,
    name: str,
    mode: str = "legacy",
    answer: ElicitationFnT | None = None,
    called: str = "mcp",
) -> AsyncIterator[Client]:
    """An MCP client of the principal, by its own name; `answer` answers what it is asked."""
    async with httpx2.AsyncClient(headers=bearer(name), timeout=60) as http:
        transport = streamable_http_client(f"{url}/mcp", http_client=http)
        info = Implementation(name=called, version="1.0")
        async with Client(
            transport, mode=mode, elicitation_callback=answer, client_info=info
        ) as made:
            yield made


async def own_call(client: Client, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """The structured answer of a call."""
    content: dict[str, Any] | None = (await client.call_tool(tool, arguments)).structured_content
    assert content is not None
    return content


async def names(client: Client) -> set[str]:
    """The tools that a client is listed."""
    return {tool.name for tool in (await client.list_tools()).tools}


class Operator(Speaker):
    """Who looks after a gateway's connections, over MCP."""

    async def put(self, name: str, spec: str, **more: Any) -> Any:
        return await self.own("put_connection", name=name, kind="openapi", spec=spec, **more)

    async def refresh(self, name: str = "shop") -> Any:
        """What a refresh of the connection reports."""
        (report,) = (await self.own("refresh_tools", connection=name))["connections"]
        return report


def error_code(result: CallToolResult) -> str | None:
    """The code of a failed result."""
    found = (result.structured_content or {}).get("error") or {}
    return found.get("code") if result.is_error else None


@asynccontextmanager
async def call_to_be_cut_off(
    caller: Api, tool: str, arguments: dict[str, Any], mode: str = "legacy"
) -> AsyncIterator[None]:
    """A call that is under way inside the block, and whose connection is closed at its end."""
    era = "2025" if mode == "legacy" else "2026"
    speaker = await Speaker(caller.http, f"{caller.base}/mcp", era).meet()  # type: ignore[arg-type]
    params = {"name": tool, "arguments": arguments}
    call = asyncio.create_task(speaker.request("tools/call", params))
    try:
        yield
    finally:
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
