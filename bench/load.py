"""A client that costs little: keep-alive connections, each sending one request after the other.

Request bytes are made once and only the id is put in; answers are looked at for their status, their
id and a result, not parsed. Both eras of MCP, and plain GET.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httptools
import orjson

Era = Literal["2025", "2026"]

SETUP_SECONDS = 30.0
MAX_ERRORS = 20
PAUSE_SECONDS = 60.0  # for the slowest answer; a run that hangs is an error
ID = b"700000000"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "bench", "version": "1"},
}


@dataclass(frozen=True, slots=True)
class Target:
    """What is asked, and of whom."""

    port: int
    method: str = "tools/call"
    params: Mapping[str, Any] = field(default_factory=dict)
    token: str = ""


@dataclass(slots=True)
class Load:
    """What came of it."""

    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    cpu: float = 0.0  # seconds of the server's, while requests were sent
    errors: list[str] = field(default_factory=list)

    @property
    def calls(self) -> int:
        return len(self.latencies)

    @property
    def cpu_ms(self) -> float:
        """The server's CPU for one call, in ms."""
        return 1000 * self.cpu / self.calls

    @property
    def rate(self) -> float:
        return self.calls / self.seconds

    def quantile(self, part: float) -> float:
        """A quantile of the latencies, in ms."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request under way."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._parser = httptools.HttpResponseParser(self)
        self.on_message_begin()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._answer.done():
            self._answer.set_exception(error or ConnectionError("closed"))

    def on_message_begin(self) -> None:
        self.session = b""
        self._parts: list[bytes] = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if name == b"mcp-session-id":
            self.session = value

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def on_message_complete(self) -> None:
        if not self._answer.done():
            self._answer.set_result((self._parser.get_status_code(), b"".join(self._parts)))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self._answer: asyncio.Future[tuple[int, bytes]]
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer


async def connected(port: int) -> Connection:
    """A new connection."""
    _, connection = await asyncio.get_running_loop().create_connection(
        Connection, "127.0.0.1", port
    )
    return connection


async def load(
    targets: Sequence[Target],
    era: Era,
    connections: int,
    *,
    seconds: float = 0.0,
    count: int = 0,
    cpu: Callable[[], float] = float,
) -> Load:
    """Keep so many connections busy for so long, or so many requests each; targets by turns.

    `cpu` says what the server has used; connecting and greeting are not counted.
    """
    chosen = [targets[n % len(targets)] for n in range(connections)]
    async with asyncio.timeout(SETUP_SECONDS):
        opened = [await _opened(target, era) for target in chosen]
    result, used, started = Load(), cpu(), time.perf_counter()
    async with asyncio.timeout(seconds + PAUSE_SECONDS):
        await asyncio.gather(
            *(_ask(each, n, result, seconds, count) for n, each in enumerate(opened))
        )
    result.seconds, result.cpu = time.perf_counter() - started, cpu() - used
    for connection, _ in opened:
        connection.transport.close()
    return result


async def _opened(target: Target, era: Era) -> tuple[Connection, bytes]:
    """A connection, and the request that is sent on it."""
    connection = await connected(target.port)
    headers = await _greeted(connection, target) if era == "2025" else {}
    return connection, request_bytes(target, era, headers)


async def _ask(
    opened: tuple[Connection, bytes], number: int, result: Load, seconds: float, count: int
) -> None:
    connection, request = opened
    before, _, after = request.partition(ID)
    end, done, latencies = time.perf_counter() + seconds, 0, result.latencies
    while done < count if count else time.perf_counter() < end:
        done += 1
        id = b"%d" % (int(ID) + number * 100_000 + done)
        started = time.perf_counter()
        status, body = await connection.ask(before + id + after)
        latencies.append(time.perf_counter() - started)
        if status != 200 or b'"result"' not in body or b'"isError":true' in body or id not in body:
            result.errors.append(f"{status} {body[:200].decode()}")
            if len(result.errors) >= MAX_ERRORS:
                return


async def _greeted(connection: Connection, target: Target) -> dict[str, str]:
    """The headers of a session that was just begun."""
    hello = Target(target.port, "initialize", HELLO, target.token)
    status, body = await connection.ask(request_bytes(hello, "2025", {}))
    if status != 200:
        raise RuntimeError(f"initialize: {status} {body[:200].decode()}")
    headers = {
        "mcp-session-id": connection.session.decode(),
        "mcp-protocol-version": HELLO["protocolVersion"],
    }
    ready = orjson.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"})
    await connection.ask(http("POST", target, "/mcp", headers, ready))
    return {name: str(value) for name, value in headers.items()}


def request_bytes(target: Target, era: Era, headers: Mapping[str, str]) -> bytes:
    """One JSON-RPC request over HTTP; its id is `ID`."""
    params = dict(target.params)
    if era == "2026":
        params["_meta"] = META
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": target.method}
        if "name" in params:
            headers["mcp-name"] = params["name"]
    asked = {"jsonrpc": "2.0", "id": int(ID), "method": target.method, "params": params}
    return http("POST", target, "/mcp", headers, orjson.dumps(asked))


def http(
    method: str, target: Target, path: str, headers: Mapping[str, Any], body: bytes = b""
) -> bytes:
    """One HTTP request as bytes."""
    lines = {
        "host": f"127.0.0.1:{target.port}",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        **({"authorization": f"Bearer {target.token}"} if target.token else {}),
        **headers,
        "content-length": str(len(body)),
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body
