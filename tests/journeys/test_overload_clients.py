"""Clients at their worst: each is cut off in time, takes little memory, and harms nobody else."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import orjson
import pytest

from tests.journeys.crowds import MEBIBYTE, Served, others_unharmed, served
from tests.mcp.speakers import Era, Speaker

__all__ = ["served"]

MAX_GROWTH = 256 * MEBIBYTE  # half of what the crowd sends, in buffers that grow by copying
REQUEST_SECONDS = 4
CROWD = 64
READERS = 16
IDLE = min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
SESSIONS = 400
STREAMS = min(1024, IDLE)  # what a principal may have open
CALL = orjson.dumps({"arguments": {"id": "large"}})
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(served: Served, count: int, sent: bytes) -> AsyncIterator[list[Ends]]:
    """So many connections, on each of which this was sent; they take in as little as can be."""
    ends: list[Ends] = []
    try:
        for _ in range(count):
            mine = socket.socket()
            mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            mine.setblocking(False)
            await asyncio.get_running_loop().sock_connect(mine, ("127.0.0.1", served.port))
            reader, writer = await asyncio.open_connection(sock=mine, limit=4096)
            writer.write(sent)
            ends.append((reader, writer))
        yield ends
    finally:
        for _, writer in ends:
            writer.transport.abort()


def head(path: str, length: int, method: str = "POST") -> bytes:
    """The head of a request with a body; where the port goes is left open."""
    lines = f"{method} {path} HTTP/1.1", "Host: localhost:{port}", "Accept: application/json"
    body = "Content-Type: application/json", f"Content-Length: {length}"
    return "\r\n".join((*lines, *body, "", "")).encode()


def to(served: Served, *parts: bytes) -> bytes:
    return b"".join(parts).replace(b"{port}", b"%d" % served.port)


async def sip(reader: asyncio.StreamReader) -> None:
    """Reads a byte now and then."""
    while await reader.read(1):  # noqa: ASYNC110 - so slow is what it is about
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("reads", [False, pytest.param(True, marks=pytest.mark.slow)])
async def test_a_client_that_hardly_reads_is_cut_off(served: Served, reads: bool) -> None:
    before = served.connections()
    request = to(served, head("/api/v1/tools/shop_get_items/call", len(CALL)), CALL)
    async with others_unharmed(served), connected(served, READERS, request * 40) as ends:
        sips = [asyncio.create_task(sip(reader)) for reader, _ in ends if reads]
        await served.taken(READERS // 2, before)
        await served.let_go(before)
        for task in sips:
            task.cancel()
        await asyncio.gather(*sips, return_exceptions=True)
    assert served.growth() < MAX_GROWTH


LONG, HUGE = 3 * MEBIBYTE, 30 * MEBIBYTE
HALVES = {
    "part of a head": (CROWD, b"POST /mcp HTTP/1.1\r\nHost: local"),
    "a head without its body": (CROWD, head("/mcp", 100)),
    "one byte of what needs none": (CROWD, head("/nowhere", 100) + b"x"),
    "most of a large body": (CROWD, head("/mcp", LONG + 1) + bytes(LONG)),
    "most of a huge body": (
        8,
        head("/api/v1/connections/x", 10 * LONG + 1, "PUT") + bytes(10 * LONG),
    ),
}


async def ended(reader: asyncio.StreamReader) -> None:
    """Returns when the gateway has cut a client off."""
    with suppress(ConnectionError):
        while await reader.read(4096):
            pass


async def test_clients_that_send_half_of_a_request_are_cut_off(served: Served) -> None:
    async with others_unharmed(served), AsyncExitStack() as stack, asyncio.timeout(60):
        crowds = [connected(served, count, to(served, sent)) for count, sent in HALVES.values()]
        ends = [end for crowd in crowds for end in await stack.enter_async_context(crowd)]
        await asyncio.gather(*(ended(reader) for reader, _ in ends))
    assert served.growth() < MAX_GROWTH


async def test_sessions_that_are_opened_and_left_take_no_room(served: Served) -> None:
    gate = asyncio.Semaphore(32)

    async def meet() -> None:
        async with gate:
            await Speaker(served.http, f"{served.url}/mcp", "2025").meet()

    async with others_unharmed(served):
        await asyncio.gather(*(meet() for _ in range(SESSIONS)))
    assert served.growth() < MAX_GROWTH


@pytest.mark.parametrize("era", [pytest.param("2025", marks=pytest.mark.slow), "2026"])
async def test_streams_are_bounded_and_what_is_beyond_is_told_at_once(
    served: Served, era: Era
) -> None:
    before = served.connections()
    async with others_unharmed(served), AsyncExitStack() as stack:
        speaker = await Speaker(served.http, f"{served.url}/mcp", era).meet()
        wanted = {"toolsListChanged": True} if era == "2026" else {}
        for _ in range(STREAMS):
            await stack.enter_async_context(speaker.listening(**wanted))
        statuses = Counter([await refused(speaker, era) for _ in range(10)])
        await served.taken(STREAMS // 2, before)
    assert statuses == ({429: 10} if STREAMS == 1024 else {200: 10})
    await served.let_go(before)
    assert served.growth() < MAX_GROWTH


async def refused(speaker: Speaker, era: Era) -> int:
    """The status of one stream more."""
    message, headers = speaker._message("subscriptions/listen", {"notifications": {}})
    method = "GET" if era == "2025" else "POST"
    body = None if era == "2025" else message
    async with speaker.http.request(method, speaker.url, json=body, headers=headers) as answer:
        return answer.status
