"""Upstreams at their worst, many callers at once: it costs only these, and little memory."""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable

import orjson
import pytest

from tests.journeys.crowds import MEBIBYTE, Served, others_unharmed, served
from tests.peers import items_api
from tests.raw_server import Connection, always, answer, raw_server

__all__ = ["served"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

# An answer of 16 MiB, of which a connection holds one, is there several times on its way to the
# store; the crowd's first 256 KiB each come on top.
MAX_GROWTH = 160 * MEBIBYTE
CROWD = 64
OVERCROWDED = 400  # 32 are served and 256 wait
DEADLINE_SECONDS = 2  # of a call to the bad one
HUGE_BYTES = 100 * MEBIBYTE
PIECE = bytes(65_536)


async def put(served: Served, name: str, url: str) -> str:
    """A connection to this address; the name of its tool."""
    spec = orjson.dumps(items_api(url)).decode()
    values = {"kind": "openapi", "spec": spec, "timeout_seconds": DEADLINE_SECONDS}
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


def bomb(encoding: str) -> Callable[[Connection], Awaitable[None]]:
    """A small answer that unpacks to a hundred megabytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    packed = b"".join(packer.compress(PIECE) for _ in range(HUGE_BYTES // len(PIECE)))
    headers = {"Content-Encoding": encoding, "Content-Type": "text/plain"}
    return always(answer(packed + packer.flush(), headers=headers))


SLOW = {"upstream_timeout", "busy", "circuit_open"}
BROKEN = {"upstream_error", "upstream_unreachable", "circuit_open", "busy"}
BAD: dict[str, tuple[Callable[[Connection], Awaitable[None]], set[str]]] = {
    "silent": (silent, SLOW),
    "dripping": (dripping, SLOW),
    "resetting": (resetting, BROKEN),
    "failing": (always(answer(b"no", "500 Internal Server Error")), BROKEN),
    "endless_head": (endless_head, BROKEN),
    "huge": (huge, {"cut", *SLOW}),
    "gzip": (bomb("gzip"), {"cut", *SLOW}),
    "deflate": (bomb("deflate"), {"cut", *SLOW}),
    "br": (always(answer(PIECE, headers={"Content-Encoding": "br"})), BROKEN),
    "zstd": (always(answer(PIECE, headers={"Content-Encoding": "zstd"})), BROKEN),
}


@pytest.mark.parametrize("kind", BAD)
async def test_a_bad_upstream_costs_only_its_own_callers(served: Served, kind: str) -> None:
    conversation, may_be = BAD[kind]
    async with raw_server(conversation) as bad:
        tool = await put(served, kind, bad.url)
        async with others_unharmed(served):
            ends = Counter(await asyncio.gather(*(served.call(tool) for _ in range(CROWD))))
    assert set(ends) <= may_be
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
