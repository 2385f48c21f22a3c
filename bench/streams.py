"""What a session and an open stream cost, and whether the memory comes back.

A server in a process of its own; this process opens sessions, then streams of both eras, changes
the list once and waits until every stream has heard, and lets go of everything. Prints KB per
session and per stream (resident memory of the server), the time until the last one heard, and what
is left afterwards. `python -m bench.streams [COUNT]`
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import orjson
import psutil
import uvloop
from cryptography.fernet import Fernet

from bench.processes import Measured
from bench.rows import Row
from gateway.store.secrets import Seal
from gateway.web.identity import Identity
from tests.mcp.conftest import OPEN
from tests.mcp.toolbox import Toolbox, endpoint_over
from tests.peers_mcp import serving

COUNT = 1000
ROWS_COUNT = 500
WARM_UP = 200
AT_ONCE = 50
DEADLINE_SECONDS = 120.0
MAX_FILES = 8192
FRAME_END = b"\n\n"
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "bench", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
LISTEN = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "subscriptions/listen",
    "params": {"notifications": {"toolsListChanged": True}, "_meta": META},
}
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}, "roots": {"listChanged": True}},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}

T = TypeVar("T")
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def rows(peer: Measured, folder: Path) -> list[Row]:
    """What a session and a stream of either era take, for the table."""
    report = await course_of_a_server(ROWS_COUNT)
    first = report["first"]
    return [
        Row("memory of a session", first["kb_per_session"], "KB", 25.0),
        Row("memory of a GET stream, 2025 era", first["kb_per_get_stream"], "KB", 40.0),
        Row("memory of a listen stream, 2026 era", first["kb_per_listen_stream"], "KB", 40.0),
        Row(
            f"until {2 * ROWS_COUNT:,} streams have heard of a change",
            first["seconds_until_all_heard"],
            "s",
            1.0,
        ),
    ]


async def main(count: int) -> None:
    print(json.dumps(await course_of_a_server(count), indent=2))


async def course_of_a_server(count: int) -> dict[str, dict[str, float | int]]:
    """Start a server, measure it, end it."""
    allow_many_files()
    command = (sys.executable, "-m", "bench.streams", "serve")
    server = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    try:
        port = int(await server.stdout.readline())
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await measure(port, server.pid, count)
    finally:
        server.terminate()
        await server.wait()


async def measure(port: int, pid: int, count: int) -> dict[str, dict[str, float | int]]:
    """The course after a small one that fills caches and pools, and the same again.

    What the first takes beyond what it gives back is the allocator's, for use again: the second
    shows that by not growing.
    """
    await course(port, pid, WARM_UP)
    return {"first": await course(port, pid, count), "again": await course(port, pid, count)}


async def course(port: int, pid: int, count: int) -> dict[str, float | int]:
    process = psutil.Process(pid)
    before = process.memory_info().rss
    sessions = await many(count, lambda: hello(port))
    with_sessions = process.memory_info().rss
    by_get = await many(count, lambda: open_get(port, sessions.pop()))
    with_get = process.memory_info().rss
    by_listen = await many(count, lambda: open_listen(port))
    with_listen = process.memory_info().rss
    started = time.perf_counter()
    os.kill(pid, signal.SIGUSR1)
    await asyncio.gather(*(heard(stream) for stream in (*by_get, *by_listen)))
    seconds = time.perf_counter() - started
    for _, writer in (*by_get, *by_listen):
        writer.close()
    await asyncio.sleep(1)
    os.kill(pid, signal.SIGUSR2)
    await asyncio.sleep(1)
    return {
        "count": count,
        "kb_per_session": round((with_sessions - before) / 1024 / count, 1),
        "kb_per_get_stream": round((with_get - with_sessions) / 1024 / count, 1),
        "kb_per_listen_stream": round((with_listen - with_get) / 1024 / count, 1),
        "seconds_until_all_heard": round(seconds, 3),
        "mb_before": round(before / 2**20, 1),
        "mb_at_the_most": round(with_listen / 2**20, 1),
        "mb_afterwards": round(process.memory_info().rss / 2**20, 1),
    }


async def many(count: int, make: Callable[[], Awaitable[T]]) -> list[T]:
    """So many of them, some at a time."""
    made: list[T] = []
    while len(made) < count:
        step = min(AT_ONCE, count - len(made))
        made += await asyncio.gather(*(make() for _ in range(step)))
    return made


async def send(port: int, method: str, headers: dict[str, str], body: bytes = b"") -> Stream:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4096)
    lines = {
        "host": f"127.0.0.1:{port}",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "content-length": str(len(body)),
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"{method} /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
    return reader, writer


async def hello(port: int) -> str:
    """A new session's id; its connection is closed again."""
    reader, writer = await send(port, "POST", {"connection": "close"}, orjson.dumps(HELLO))
    answer = (await reader.read()).decode()
    writer.close()
    [session] = [
        line.partition(": ")[2]
        for line in answer.split("\r\n")
        if line.startswith("mcp-session-id: ")
    ]
    return session


async def open_get(port: int, session: str) -> Stream:
    headers = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
    return await opened(await send(port, "GET", headers))


async def open_listen(port: int) -> Stream:
    headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "subscriptions/listen"}
    return await opened(await send(port, "POST", headers, orjson.dumps(LISTEN)))


async def opened(stream: Stream) -> Stream:
    """A stream past its first frame."""
    head = await stream[0].readuntil(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(head.decode())
    await stream[0].readuntil(FRAME_END)
    return stream


async def heard(stream: Stream) -> None:
    while b"list_changed" not in await stream[0].readuntil(FRAME_END):
        pass


async def serve() -> None:
    """The server: prints its port; SIGUSR1 changes the list, SIGUSR2 tidies, SIGTERM ends it."""
    allow_many_files()
    toolbox, over = Toolbox(), asyncio.Event()
    changes = iter(range(1_000_000))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: toolbox.put(f"tool_{next(changes)}"))
    loop.add_signal_handler(signal.SIGUSR2, give_back)
    loop.add_signal_handler(signal.SIGTERM, over.set)
    identity, seal = Identity(OPEN), Seal([Fernet.generate_key().decode()])
    served = endpoint_over(toolbox, identity, seal, max_streams=100_000)
    async with served as endpoint, serving(endpoint) as base:
        print(base.rpartition(":")[2], flush=True)
        await over.wait()


def give_back() -> None:
    """Hand free memory back to the system, so that what is left is what is held."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def allow_many_files() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_FILES if hard == resource.RLIM_INFINITY else min(MAX_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        uvloop.run(serve())
    else:
        uvloop.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else COUNT))
