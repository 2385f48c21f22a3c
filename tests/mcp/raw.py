"""Raw requests: messages and headers as a test wants them, right or wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from gateway import __version__
from tests.mcp.conftest import Edge

ACCEPT = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}

SERVER = {"name": "dynamic-mcp-gateway", "title": "Dynamic MCP gateway", "version": __version__}


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    body: Any
    headers: Mapping[str, str]

    @property
    def code(self) -> int | None:
        """The JSON-RPC error code, if it is one."""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        return error.get("code") if isinstance(error, dict) else None


def request(method: str, params: object = None, request_id: object = 1) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": request_id, "method": method}
    return message if params is None else {**message, "params": params}


def call(tool: str, request_id: object = 1, **arguments: Any) -> dict[str, Any]:
    return request("tools/call", {"name": tool, "arguments": arguments}, request_id)


async def post(
    edge: Edge,
    message: object,
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
    path: str = "",
) -> Answer:
    """Send a body (bytes as they are, anything else as JSON) and read the whole answer."""
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    sent = {**ACCEPT, **(headers or {})}
    async with asyncio.timeout(60):
        async with edge.http.request(method, edge.url + path, data=data, headers=sent) as answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return Answer(answer.status, _read(await answer.read()), headers)


def _read(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return body.decode()


def hello(version: str, capabilities: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a client of 2025 begins with."""
    client = {"name": "raw", "version": "1"}
    return {
        "protocolVersion": version,
        "capabilities": capabilities or {},
        "clientInfo": client,
    }


async def session(
    edge: Edge,
    version: str = "2025-11-25",
    headers: Mapping[str, str] | None = None,
    capabilities: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Say hello; the headers of the session."""
    answer = await post(edge, request("initialize", hello(version, capabilities)), headers)
    assert answer.status == 200, answer
    agreed = answer.body["result"]["protocolVersion"]
    own = {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": agreed}
    return {**(headers or {}), **own}


def modern(message: dict[str, Any], **meta: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """A message of 2026 with its envelope, and the headers that go with it."""
    params = {**message.get("params", {}), "_meta": {**META, **meta}}
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": message["method"]}
    if "name" in params:
        headers["mcp-name"] = str(params["name"])
    return {**message, "params": params}, headers


class Events:
    """The events of an open stream, one at a time."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self, seconds: float = 60.0) -> dict[str, str]:
        """The fields of the next event; comments are passed over."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(seconds):
            async for raw in self.response.content:
                line = raw.decode().rstrip("\r\n")
                if line.startswith(":"):
                    continue
                if not line and fields:
                    return fields
                name, _, value = line.partition(":")
                if name:
                    fields[name] = value.removeprefix(" ")
        raise EOFError

    async def message(self, seconds: float = 60.0) -> Any:
        """The next event's JSON-RPC message."""
        while True:
            fields = await self.next(seconds)
            if fields.get("data"):
                return orjson.loads(fields["data"])

    async def silent(self, seconds: float) -> bool:
        """Whether nothing is said for a while."""
        try:
            await self.message(seconds)
        except TimeoutError:
            return True
        return False

    async def ended(self, seconds: float = 60.0) -> bool:
        """Whether the stream ends without another word within this time."""
        try:
            await self.message(seconds)
        except EOFError:
            return True
        return False


@asynccontextmanager
async def opened(
    edge: Edge, headers: Mapping[str, str], message: object = None, path: str = ""
) -> AsyncIterator[Events]:
    """An open stream: GET, or the answer to a POST when there is a message."""
    method = "GET" if message is None else "POST"
    data = None if message is None else orjson.dumps(message)
    sent = {**ACCEPT, **headers}
    async with edge.http.request(method, edge.url + path, data=data, headers=sent) as response:
        assert response.status == 200, (response.status, await response.text())
        assert response.headers["content-type"] == "text/event-stream"
        yield Events(response)


@asynccontextmanager
async def listening(
    edge: Edge, headers: Mapping[str, str] | None = None, request_id: object = "sub"
) -> AsyncIterator[Events]:
    """A stream of 2026 that asked for changes of tools, past its acknowledgement."""
    wanted = {"notifications": {"toolsListChanged": True}}
    message, own = modern(request("subscriptions/listen", wanted, request_id))
    async with opened(edge, {**own, **(headers or {})}, message) as events:
        acknowledged = await events.message()
        assert acknowledged == {
            "jsonrpc": "2.0",
            "method": "notifications/subscriptions/acknowledged",
            "params": {
                "notifications": {"toolsListChanged": True},
                "_meta": {"io.modelcontextprotocol/subscriptionId": request_id},
            },
        }
        yield events
