"""What there is to pay for each client, call, tool and upstream: the figures of docs/sizing.md.

    python -m bench.sizing

Each figure is the growth of a real gateway process by many of one thing, divided by how many.
Memory is what the system says is resident, so a figure of a few KB is good to a few KB.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypeVar

import aiohttp
import uvloop
from aiohttp import web

from bench.load import Connection, Target, connected, http, load
from bench.processes import ROOT, Measured, gateway, running
from bench.rows import Row, table
from bench.streams import allow_many_files, hello, many, open_get, open_listen
from tests.conftest import OPEN
from tests.mcp.speakers import Speaker
from tests.peers import Provider, provider, until

MANY = 500
WARM = 50
IN_FLIGHT = 180
APIS = 8  # a connection takes 32 calls at once
CALLS = 4_000
SETTLE_SECONDS = 1.0
PAGES = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"

T = TypeVar("T")


async def main() -> None:
    allow_many_files()
    with tempfile.TemporaryDirectory() as folder:
        async with running("-m", "bench.peer") as peer:
            for part in (by_client, by_call, by_row, by_tool, by_upstream):
                print(table(await part(peer, Path(folder) / part.__name__)), flush=True)


async def by_client(peer: Measured, folder: Path) -> list[Row]:
    """A connection that is kept open, a session, and a stream of either era."""
    async with _gateway(folder, _apis(peer, 1, 10)) as server:
        port = server.port
        target = Target(port, "tools/list")

        async def idle() -> Connection:
            connection = await connected(port)
            await connection.ask(http("GET", target, "/healthz", {}))
            return connection

        rows = [Row("the gateway alone", _memory(server), "MB", note=f"{_files(server)} files")]
        warm = await many(WARM, idle)
        await many(WARM, lambda: hello(port))
        kept, row = await _growth(server, "an open connection without a request", idle)
        sessions, of_session = await _growth(server, "a session, 2025 era", lambda: hello(port))
        gets, of_get = await _growth(
            server, "its GET stream", lambda: open_get(port, sessions.pop())
        )
        listens, of_listen = await _growth(
            server, "a listen stream, 2026 era", lambda: open_listen(port)
        )
        for _, writer in (*gets, *listens):
            writer.close()
        for connection in (*warm, *kept):
            connection.transport.close()
        return [*rows, row, of_session, of_get, of_listen]


async def by_call(peer: Measured, folder: Path) -> list[Row]:
    """A call that waits for its API, in either era."""
    gate = asyncio.Event()

    async def wait(request: web.Request) -> web.StreamResponse:
        await gate.wait()
        return web.json_response({"done": True})

    async with provider() as slow:
        slow.answer = wait
        apis = {f"slow{n}": f'kind = "openapi"\nspec = "{slow.spec}"' for n in range(APIS)}
        async with _gateway(folder, apis) as server:
            connector = aiohttp.TCPConnector(limit=0)
            async with aiohttp.ClientSession(connector=connector) as client:
                speaker = Speaker(client, f"http://127.0.0.1:{server.port}/mcp", "2026")
                await speaker.meet()
                warm = await _held(speaker, slow, WARM)
                before, files = _memory(server), _files(server)
                calls = await _held(speaker, slow, IN_FLIGHT)
                grown = (_memory(server) - before) * 1024 / IN_FLIGHT
                more = (_files(server) - files) / IN_FLIGHT
                gate.set()
                await asyncio.gather(*warm, *calls)
    return [Row("a call in flight, with both connections", grown, "KB", note=f"{more:.1f} files")]


async def _held(speaker: Speaker, slow: Provider, count: int) -> list[asyncio.Task[object]]:
    """So many calls more that have reached their API."""
    wanted = len(slow.requests) + count
    calls = [asyncio.create_task(speaker.request("tools/call", _slow(n))) for n in range(count)]
    await until(lambda: len(slow.requests) >= wanted, 30)
    return calls


async def by_row(peer: Measured, folder: Path) -> list[Row]:
    """What a call leaves in the ledger, on disk."""
    rows = []
    async with _gateway(folder, _apis(peer, 1, 10)) as server:
        store = folder / "state" / "gateway.db"
        for tool, arguments, words in (
            ("api0_get0", {"id": "42", "q": "blue pots"}, "a read"),
            ("api0_add1", {"name": "teapot"}, "a write"),
        ):
            before = _size(store)
            target = Target(server.port, params={"name": tool, "arguments": arguments})
            done = await load([target], "2026", 20, count=CALLS // 20)
            await asyncio.sleep(SETTLE_SECONDS)
            grown = (_size(store) - before) / done.calls / 1024
            rows.append(Row(f"{words} in the ledger, on disk", grown, "KB"))
    return rows


async def by_tool(peer: Measured, folder: Path) -> list[Row]:
    """Tools, and the APIs they come from."""
    few, _ = await _with(folder / "few", _apis(peer, 1, 10))
    tools, _ = await _with(folder / "tools", _apis(peer, 1, 2010))
    apis, _ = await _with(folder / "apis", _apis(peer, 101, 10))
    return [
        Row("1,000 tools", (tools - few) / 2, "MB"),
        Row("a connected API with 10 tools", (apis - few) * 1024 / 100, "KB"),
    ]


async def by_upstream(peer: Measured, folder: Path) -> list[Row]:
    """Upstream MCP servers over HTTP and over standard streams."""
    none, files = await _with(folder / "none", _apis(peer, 1, 10))
    url = f"http://127.0.0.1:{peer.port}/mcp"
    far = {f"far{n}": f'kind = "mcp"\nurl = "{url}"' for n in range(50)}
    child = f'args = ["{ROOT / "tests" / "stdio_peer.py"}"]\ncommand = "{sys.executable}"'
    near = {f"near{n}": f'kind = "mcp"\ntransport = "stdio"\n{child}' for n in range(40)}
    found = []
    for words, upstreams in (("over HTTP", far), ("over standard streams", near)):
        memory, more = await _with(folder / words, {**_apis(peer, 1, 10), **upstreams})
        each = (memory - none) * 1024 / len(upstreams)
        note = f"{(more - files) / len(upstreams):.1f} files"
        found.append(Row(f"an upstream MCP server {words}", each, "KB", note=note))
    return found


async def _growth(
    server: Measured, words: str, make: Callable[[], Awaitable[T]]
) -> tuple[list[T], Row]:
    """Many of one thing, and what each of them took."""
    before, files = _memory(server), _files(server)
    made = await many(MANY, make)
    await asyncio.sleep(SETTLE_SECONDS)
    grown = (_memory(server) - before) * 1024 / MANY
    more = round((_files(server) - files) / MANY)
    return made, Row(words, grown, "KB", note="a file" if more else "")


async def _with(folder: Path, connections: dict[str, str]) -> tuple[float, int]:
    """The memory, in MB, and the open files of a gateway that has read all of these."""
    async with _gateway(folder, connections) as server:
        return _memory(server), _files(server)


@asynccontextmanager
async def _gateway(folder: Path, connections: dict[str, str]) -> AsyncIterator[Measured]:
    """A gateway that has read its connections; started twice, so that they come from its store."""
    _configure(folder, connections)
    async with gateway(folder) as first:
        await _connected(first, len(connections))
    async with gateway(folder) as server:
        await _connected(server, len(connections))
        yield server


def _configure(folder: Path, connections: dict[str, str]) -> None:
    folder.mkdir(parents=True)
    text = "".join(f"[connections.{name}]\n{lines}\n" for name, lines in connections.items())
    (folder / "config.toml").write_text(OPEN + text, encoding="utf-8")


async def _connected(server: Measured, count: int) -> None:
    """Waits until every connection is read."""
    asker = await connected(server.port)
    async with asyncio.timeout(120):
        while True:
            request = http("GET", Target(server.port), "/metrics", {})
            _, page = await asker.ask(request)
            if b'gateway_connections{status="connected"} %d.0' % count in page:
                break
            await asyncio.sleep(0.2)
    await asyncio.sleep(SETTLE_SECONDS)
    asker.transport.close()


def _apis(peer: Measured, count: int, operations: int) -> dict[str, str]:
    spec = f"http://127.0.0.1:{peer.port}/definition/{operations}"
    return {f"api{n}": f'kind = "openapi"\nspec = "{spec}"' for n in range(count)}


def _slow(number: int) -> dict[str, object]:
    return {"name": f"slow{number % APIS}_get_items", "arguments": {"id": str(number)}}


def _memory(server: Measured) -> float:
    """Of its own process alone, in MB."""
    resident: int = server.process.memory_info().rss
    return resident / 2**20


def _files(server: Measured) -> int:
    return int(server.process.num_fds())


def _size(store: Path) -> int:
    """The pages of the store's file, those still in its journal included."""
    with closing(sqlite3.connect(store)) as connection:
        return int(connection.execute(PAGES).fetchone()[0])


if __name__ == "__main__":
    uvloop.run(main())
