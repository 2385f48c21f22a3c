"""`gateway stdio`: the gateway for clients that only speak to a process over standard input.

A line in is one JSON-RPC message and one POST; what comes back, as JSON or as events, goes out line
by line. In the era of sessions the bridge keeps the session for its client and holds the stream on
which the gateway says that tools changed. It understands as little of the messages as it can.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Any

import aiohttp
import orjson

from gateway.cli.remote import TokenOption, UrlOption, remote
from gateway.limits import BRIDGE_CALL_SECONDS, BRIDGE_CALLS, BRIDGE_LINE_BYTES

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def stdio(url: UrlOption = None, token: TokenOption = None) -> None:
    """Bridge a client that only speaks stdio to the gateway.

    Example, in a client's configuration: `gateway stdio --url http://127.0.0.1:8080/mcp`
    """
    gateway = remote(url, token)
    asyncio.run(Bridge(f"{gateway.base}/mcp", gateway.headers).run())


class Bridge:
    """One client on standard input and output."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = url
        self._headers = {**headers, "Accept": "application/json, text/event-stream"}
        self._session: dict[str, str] = {}
        self._gate = asyncio.Semaphore(BRIDGE_CALLS)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Carries messages until standard input ends, then lets answers arrive."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(timeout=timeout, read_bufsize=BRIDGE_LINE_BYTES) as http:
            reader = await _stdin()
            while line := await reader.readline():
                if line.strip():
                    await self._take(http, line)
            waiting = [task for task in self._tasks if task.get_name() != "stream"]
            if waiting:
                await asyncio.wait(waiting, timeout=BRIDGE_CALL_SECONDS)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._leave(http)

    async def _take(self, http: aiohttp.ClientSession, line: bytes) -> None:
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            return _write_error(None, -32700, "Parse error")
        await self._gate.acquire()
        task = asyncio.create_task(self._carry(http, message))
        self._tasks.add(task)
        task.add_done_callback(self._carried)
        if message.get("method") == "initialize":
            await asyncio.wait([task])  # what follows needs the session
            self._listen(http)

    def _carried(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._gate.release()

    async def _carry(self, http: aiohttp.ClientSession, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(BRIDGE_CALL_SECONDS):
                await self._post(http, message)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._excuse(message, f"the gateway can't be reached: {type(error).__name__}")

    async def _post(self, http: aiohttp.ClientSession, message: dict[str, Any]) -> None:
        headers = {**self._headers, **self._session, **_routing(message)}
        async with http.post(self._url, json=message, headers=headers) as answer:
            if message.get("method") == "initialize" and answer.ok:
                self._session = {"Mcp-Session-Id": answer.headers.get("Mcp-Session-Id", "")}
            if answer.content_type == "text/event-stream":
                await self._relay(answer)
                return
            body = await answer.read()
        if answer.status == 202 or not body:
            return
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict) or "jsonrpc" not in value:
            self._excuse(message, f"the gateway answered {answer.status}")
            return
        if value.get("id") is None and "id" in message:
            value["id"] = message["id"]
        self._note_version(value)
        _write(value)

    async def _relay(self, answer: aiohttp.ClientResponse) -> None:
        async for line in answer.content:
            if line.startswith(b"data:") and (data := line.removeprefix(b"data:").strip()):
                value = orjson.loads(data)
                self._note_version(value)
                _write(value)

    def _note_version(self, value: dict[str, Any]) -> None:
        version = (value.get("result") or {}).get("protocolVersion")
        if self._session and isinstance(version, str):
            self._session["MCP-Protocol-Version"] = version

    def _listen(self, http: aiohttp.ClientSession) -> None:
        if self._session.get("Mcp-Session-Id"):
            task = asyncio.create_task(self._stream(http), name="stream")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _stream(self, http: aiohttp.ClientSession) -> None:
        """Holds the stream of the session, and takes it up again when it breaks."""
        while True:
            headers = {**self._headers, **self._session}
            with suppress(aiohttp.ClientError, OSError):
                async with http.get(self._url, headers=headers) as answer:
                    if answer.status in (404, 405):
                        return
                    if answer.content_type == "text/event-stream":
                        await self._relay(answer)
            await asyncio.sleep(2)

    async def _leave(self, http: aiohttp.ClientSession) -> None:
        if self._session.get("Mcp-Session-Id"):
            # Where it can't be told, the session ends by itself in time.
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with asyncio.timeout(2):
                    await http.delete(self._url, headers={**self._headers, **self._session})

    def _excuse(self, message: dict[str, Any], why: str) -> None:
        if "id" in message and "method" in message:
            _write_error(message["id"], -32603, why)
        else:
            print(why, file=sys.stderr, flush=True)


def _routing(message: dict[str, Any]) -> dict[str, str]:
    """The headers that say again what a message of the 2026 era says."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
    if not isinstance(version, str) or not isinstance(params, dict):
        return {}
    headers = {"MCP-Protocol-Version": version, "Mcp-Method": str(message.get("method"))}
    name = params.get(NAMED.get(str(message.get("method")), ""))
    return headers | ({"Mcp-Name": name} if isinstance(name, str) else {})


async def _stdin() -> asyncio.StreamReader:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=BRIDGE_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def _write_error(id: Any, code: int, message: str) -> None:
    _write({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})


def _write(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()
