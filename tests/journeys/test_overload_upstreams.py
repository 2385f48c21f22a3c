"""Upstreams at their worst, many callers at once: it costs only these, and little memory."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable

import orjson
import pytest
from aiohttp import web

from tests.journeys.crowds import MEBIBYTE, Served, others_unharmed, served
from tests.peers import items_api, provider
from tests.raw_server import Connection, Conversation, always, answer, raw_server

__all__ = ["served"]

# An answer of 16 MiB, of which a connection holds one, is there several times on its way to the
# store; the crowd's first 256 KiB each come on top.
MAX_GROWTH = 256 * MEBIBYTE
CROWD = 64
OVERCROWDED = 400  # 32 are served and 256 wait
DEADLINE_SECONDS = 2  # of a call to the bad one
PATIENT_SECONDS = 30
HUGE_BYTES = 100 * MEBIBYTE
PIECE = bytes(65_536)


async def put(served: Served, name: str, url: str, seconds: float = DEADLINE_SECONDS) -> str:
    """A connection to this address; the name of its tool."""
    spec = orjson.dumps(items_api(url)).decode()
    values = {"kind": "openapi", "spec": spec, "timeout_seconds": seconds}
    status, found = await served.ask("PUT", f"/api/v1/connections/{name}", values)
    assert status == 200, found
    return f"{name}_get_items"


async def silent(connection: Connection) -> None:
    await connection.request()
    await asyncio.Event().wait()


async def dripping(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while True:
        await connection.write(b"x")
        await asyncio.sleep(1)


async def resetting(connection: Connection) -> None:
    await connection.request()
    connection.writer.transport.abort()


async def endless_head(connection: Connection) -> None:
    await connection.request()
    await connection.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        await connection.write(b"X-More: " + b"x" * 1000 + b"\r\n")


async def huge(connection: Connection) -> None:
    while await connection.request():
        head = (
            f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {HUGE_BYTES}\r\n\r\n"
        )
        await connection.write(head.encode())
        for _ in range(HUGE_BYTES // len(PIECE)):
            await connection.write(PIECE)


def packed(encoding: str) -> Conversation:
    """A small answer that unpacks to a hundred megabytes."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    parts = [packer.compress(PIECE) for _ in range(HUGE_BYTES // len(PIECE))]
    headers = {"Content-Encoding": encoding, "Content-Type": "text/plain"}
    return always(answer(b"".join((*parts, packer.flush())), headers=headers))


def in_encoding(name: str) -> Conversation:
    """An answer in an encoding that was not asked for."""
    return always(answer(PIECE, headers={"Content-Encoding": name}))


SLOW = {"upstream_timeout", "busy", "circuit_open"}
LARGE = {"cut", "store_unavailable", *SLOW}  # what a busy disk does not take in time is told
BROKEN = {"upstream_error", "upstream_unreachable", "circuit_open", "busy"}
BAD: dict[str, tuple[Conversation, set[str]]] = {
    "silent": (silent, SLOW),
    "dripping": (dripping, SLOW),
    "resetting": (resetting, BROKEN),
    "failing": (always(answer(b"no", "500 Internal Server Error")), BROKEN),
    "endless_head": (endless_head, BROKEN),
    "br": (in_encoding("br"), BROKEN),
    "zstd": (in_encoding("zstd"), BROKEN),
}


async def test_upstreams_that_fail_in_every_way_cost_only_their_own_callers(
    served: Served,
) -> None:
    async def crowd(kind: str) -> set[str]:
        talks, ends = BAD[kind]
        async with raw_server(talks) as bad:
            # Who answers at once may take its time on a machine that is busy.
            seconds = DEADLINE_SECONDS if ends is SLOW else PATIENT_SECONDS
            tool = await put(served, kind, bad.url, seconds)
            return set(await asyncio.gather(*(served.call(tool) for _ in range(CROWD))))

    async with others_unharmed(served):
        ends = dict(zip(BAD, await asyncio.gather(*map(crowd, BAD)), strict=True))
    assert {kind: codes - BAD[kind][1] for kind, codes in ends.items()} == dict.fromkeys(BAD, set())
    assert served.growth() < MAX_GROWTH


PACKED = (pytest.param(kind, marks=pytest.mark.slow) for kind in ("gzip", "deflate"))


@pytest.mark.parametrize("kind", ["huge", *PACKED])
async def test_an_upstream_without_measure_costs_only_its_own_callers(
    served: Served, kind: str
) -> None:
    async with raw_server(huge if kind == "huge" else packed(kind)) as bad:
        tool = await put(served, kind, bad.url)
        async with others_unharmed(served):
            ends = Counter(await asyncio.gather(*(served.call(tool) for _ in range(CROWD))))
    assert set(ends) <= LARGE
    assert served.growth() < MAX_GROWTH


def mcp_server(kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    """An MCP server with one tool, whose answers are nearly as large as is taken at all."""
    results = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "large", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "get_items", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": "x" * 7 * MEBIBYTE}]},
    }

    async def serve(request: web.Request) -> web.Response:
        message = orjson.loads(await request.read() or b"{}")
        method = message.get("method")
        if method not in results:
            return web.Response(status=202 if method else 405)
        raw = orjson.dumps({"jsonrpc": "2.0", "id": message["id"], "result": results[method]})
        if kind == "application/json":
            return web.Response(body=raw, content_type=kind)
        return web.Response(body=b"data: " + raw + b"\n\n", content_type=kind)

    return serve


@pytest.mark.parametrize(
    "kind",
    ["application/json", pytest.param("text/event-stream", marks=pytest.mark.slow)],
)
async def test_large_answers_of_mcp_servers_cost_only_their_own_callers(
    served: Served, kind: str
) -> None:
    async with provider() as bad:
        bad.answer = mcp_server(kind)
        name = f"mcp_{kind[:4]}"
        values = {"kind": "mcp", "url": f"{bad.url}/mcp", "timeout_seconds": DEADLINE_SECONDS}
        status, found = await served.ask("PUT", f"/api/v1/connections/{name}", values)
        assert status == 200, found
        async with others_unharmed(served):
            calls = (served.call(f"{name}_get_items") for _ in range(CROWD // 4))
            ends = Counter(await asyncio.gather(*calls))
    assert set(ends) <= LARGE
    assert served.growth() < MAX_GROWTH


async def test_beyond_the_queue_busy_comes_at_once(served: Served) -> None:
    async with raw_server(silent) as bad:
        tool = await put(served, "crowded", bad.url)
        async with others_unharmed(served):
            calls = [asyncio.create_task(served.call(tool)) for _ in range(OVERCROWDED)]
            ends = [await end for end in asyncio.as_completed(calls)]
    beyond = OVERCROWDED - 32 - 256
    assert ends[:beyond] == ["busy"] * beyond, "before any of the others ended"
    assert set(ends) <= SLOW
