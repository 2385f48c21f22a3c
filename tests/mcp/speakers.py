"""Clients of both eras, as plain as they can be: a request, a result, and what came before it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import aiohttp
import orjson

from tests.mcp.raw import ACCEPT, META, Events, hello

Era = Literal["2025", "2026"]
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


class Refusal(Exception):
    """The answer was a JSON-RPC error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass
class Speaker:
    """One client of one era at one address."""

    http: aiohttp.ClientSession
    url: str
    era: Era
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    answer: Callable[[dict[str, Any]], dict[str, Any]] | None = None  # to questions of the server
    answers_to: str = ""  # where answers go, if not to the same address
    hello: dict[str, Any] = field(default_factory=dict)
    heard: list[dict[str, Any]] = field(default_factory=list)  # said before an answer
    meta: dict[str, Any] = field(default_factory=dict)
    seconds: float = 60.0  # that an answer may take
    _headers: dict[str, str] = field(default_factory=dict)
    _ids: int = 0

    async def meet(self) -> Speaker:
        """Say hello, as the era has it."""
        if self.era == "2026":
            self.hello = await self.request("server/discover")
            return self
        self.hello = await self.request("initialize", hello("2025-11-25", self.capabilities))
        return self

    async def call(self, tool: str, /, **arguments: Any) -> Any:
        """The result of a call."""
        return await self.request("tools/call", {"name": tool, "arguments": arguments})

    async def own(self, tool: str, /, **arguments: Any) -> Any:
        """The structured answer of a call."""
        return (await self.call(tool, **arguments))["structuredContent"]

    async def tools(self) -> dict[str, dict[str, Any]]:
        """What is listed, by name."""
        return {each["name"]: each for each in (await self.request("tools/list"))["tools"]}

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """The result. Raises Refusal."""
        message, headers = self._message(method, dict(params or {}))
        async with asyncio.timeout(self.seconds):
            async with self.http.post(self.url, json=message, headers=headers) as response:
                if session := response.headers.get("mcp-session-id"):
                    self._headers["mcp-session-id"] = session
                    self._headers["mcp-protocol-version"] = "2025-11-25"
                if response.content_type == "text/event-stream":
                    body = await self._answer_in(Events(response), message["id"])
                else:
                    body = orjson.loads(await response.read())
        if "error" in body:
            raise Refusal(body["error"])
        return body["result"]

    async def _answer_in(self, events: Events, request_id: int) -> dict[str, Any]:
        while True:
            said: dict[str, Any] = await events.message()
            if said.get("id") == request_id and "method" not in said:
                return said
            if "id" not in said:
                self.heard.append(said)
                continue
            assert self.answer is not None
            result = {"jsonrpc": "2.0", "id": said["id"], "result": self.answer(said["params"])}
            await self.notify(result)

    async def notify(self, message: dict[str, Any]) -> None:
        """Send what has no answer."""
        headers = {**ACCEPT, **self._headers}
        url = self.answers_to or self.url
        async with self.http.post(url, json=message, headers=headers) as response:
            assert response.status == 202

    @asynccontextmanager
    async def listening(self, **wanted: Any) -> AsyncIterator[Events]:
        """The stream of changes, past its first frame; `wanted` goes into a filter of 2026."""
        if self.era == "2025":
            headers = {**ACCEPT, **self._headers}
            async with self.http.get(self.url, headers=headers) as response:
                events = Events(response)
                await events.next()
                yield events
            return
        message, headers = self._message("subscriptions/listen", {"notifications": wanted})
        async with self.http.post(self.url, json=message, headers=headers) as response:
            events = Events(response)
            acknowledged = await events.message()
            assert acknowledged["params"]["notifications"] == wanted, acknowledged
            yield events

    def _message(
        self, method: str, params: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        self._ids += 1
        message = {"jsonrpc": "2.0", "id": self._ids, "method": method, "params": params}
        if self.era == "2025":
            return message, {**ACCEPT, **self._headers}
        own = {"io.modelcontextprotocol/clientCapabilities": dict(self.capabilities)}
        params["_meta"] = {**META, **own, **self.meta}
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": method}
        if method in NAMED:
            headers["mcp-name"] = str(params[NAMED[method]])
        return message, {**ACCEPT, **headers}


def plain(result: dict[str, Any]) -> dict[str, Any]:
    """A result without what belongs to its hop or to the gateway."""
    kept = {k: v for k, v in result.items() if k not in ("resultType", "ttlMs", "cacheScope")}
    meta = {
        key: value
        for key, value in kept.pop("_meta", {}).items()
        if not key.startswith(("gateway/", "io.modelcontextprotocol/"))
    }
    return {**kept, "_meta": meta} if meta else kept
