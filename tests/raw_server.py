"""A server that answers with whatever bytes a test wants, and keeps the bytes it was sent.

It speaks no HTTP of its own beyond finding the end of a request, so that a test sees the wire.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.peers import stop_accepting

Conversation = Callable[["Connection"], Awaitable[None]]
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Connection:
    """One client's connection: read its requests, write what you like."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    server: RawServer

    async def request(self) -> bytes:
        """The next request, head and body, as it came; b"" when the client has gone."""
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
        body = await self.reader.readexactly(int(length[1])) if length else b""
        self.server.requests.append(head + body)
        return head + body

    async def write(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()


@dataclass
class RawServer:
    """Where it listens, what it was sent, and how many connections were made."""

    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@asynccontextmanager
async def raw_server(
    conversation: Conversation, tls: ssl.SSLContext | None = None
) -> AsyncIterator[RawServer]:
    """A server that has this conversation with every client."""
    raw = RawServer()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raw.connections += 1
        await conversation(Connection(reader, writer, raw))

    async with accepting(talk, tls) as raw.port:
        yield raw


@asynccontextmanager
async def accepting(talk: Talk, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """The port at which every client is talked to so; who still talks at the end is cut off."""
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        tasks.add(task)
        try:
            await talk(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await stop_accepting(server)
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes on what comes until no more does."""
    try:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


def answer(
    body: bytes = b"", status: str = "200 OK", headers: dict[str, str] | None = None
) -> bytes:
    """A whole HTTP answer as bytes."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def always(data: bytes) -> Conversation:
    """The conversation in which every request is answered with these bytes."""

    async def conversation(connection: Connection) -> None:
        while await connection.request():
            await connection.write(data)

    return conversation


def once(data: bytes) -> Conversation:
    """The conversation that ends after these bytes, which answer the first request."""

    async def conversation(connection: Connection) -> None:
        await connection.request()
        await connection.write(data)

    return conversation


async def silent(connection: Connection) -> None:
    """The conversation in which nothing is ever answered."""
    while await connection.request():
        pass
