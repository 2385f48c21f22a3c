"""What stands between a gateway and servers: a forward proxy, and a TLS front of a plain server.

The proxy is as companies have them: tunnels for https, absolute addresses for http, a login. It
resolves names by a table of its own, so that a test can have names which only the proxy knows.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class ForwardProxy:
    """Where it listens, whom it lets through and where to, and the heads it was sent."""

    hosts: Mapping[str, int]  # "name:port" to the port on this machine that it stands for
    login: str = ""  # user:password
    port: int = 0
    heads: list[bytes] = field(default_factory=list)
    tunnels: set[asyncio.StreamWriter] = field(default_factory=set)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tunnels.add(writer)
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await self._request(reader, writer)
        writer.close()
        self.tunnels.discard(writer)

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        method, target, _ = head.decode().split(" ", 2)
        name = target if method == "CONNECT" else target.removeprefix("http://").split("/")[0]
        expected = b"Basic " + b64encode(self.login.encode()) + b"\r\n"
        if self.login and b"Proxy-Authorization: " + expected not in head:
            writer.write(_answer("407 Proxy Authentication Required"))
        elif name not in self.hosts:
            writer.write(_answer("502 Bad Gateway"))
        else:
            await self._joined(reader, writer, head, self.hosts[name], tunnel=method == "CONNECT")

    async def _joined(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head: bytes,
        port: int,
        *,
        tunnel: bool,
    ) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        if tunnel:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            lines = head.split(b"\r\n")
            kept = [line for line in lines if not line.lower().startswith(b"proxy-")]
            far_writer.write(b"\r\n".join(kept))
        try:
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
        finally:
            far_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


def _answer(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


@asynccontextmanager
async def forward_proxy(hosts: Mapping[str, int], login: str = "") -> AsyncIterator[ForwardProxy]:
    """A proxy that listens on this machine for as long as the block lasts."""
    proxy = ForwardProxy(hosts, login)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        for writer in list(proxy.tunnels):
            writer.close()


@asynccontextmanager
async def tls_front(port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """The port at which a plain server on this machine speaks TLS."""
    open_ones: set[asyncio.StreamWriter] = set()

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        open_ones.update((writer, far_writer))
        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))

    server = await asyncio.start_server(joined, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for writer in open_ones:
            writer.close()
