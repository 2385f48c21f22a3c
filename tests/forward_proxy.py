"""What stands between a gateway and servers: a forward proxy, and a TLS front of a plain server.

The proxy is as companies have them: tunnels for https, absolute addresses for http, a login. It
resolves names by a table of its own, so that a test can have names which only the proxy knows.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.raw_server import accepting, pump


@dataclass
class ForwardProxy:
    """Where it listens, whom it lets through and where to, and the heads it was sent."""

    hosts: Mapping[str, int]  # "name:port" to the port on this machine that it stands for
    login: str = ""  # user:password
    port: int = 0
    heads: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        self.heads.append(head)
        method, target, _ = head.decode().split(" ", 2)
        name = target if method == "CONNECT" else target.removeprefix("http://").split("/")[0]
        expected = b"Basic " + b64encode(self.login.encode()) + b"\r\n"
        if self.login and b"Proxy-Authorization: " + expected not in head:
            writer.write(_answer("407 Proxy Authentication Required"))
        elif name not in self.hosts:
            writer.write(_answer("502 Bad Gateway"))
        elif method == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await _joined(reader, writer, self.hosts[name])
        else:
            lines = head.split(b"\r\n")
            kept = [line for line in lines if not line.lower().startswith(b"proxy-")]
            await _joined(reader, writer, self.hosts[name], b"\r\n".join(kept))


async def _joined(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, first: bytes = b""
) -> None:
    far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
    far_writer.write(first)
    try:
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
    finally:
        far_writer.close()


def _answer(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


@asynccontextmanager
async def forward_proxy(hosts: Mapping[str, int], login: str = "") -> AsyncIterator[ForwardProxy]:
    """A proxy that listens on this machine for as long as the block lasts."""
    proxy = ForwardProxy(hosts, login)
    async with accepting(proxy.serve) as proxy.port:
        yield proxy


@asynccontextmanager
async def tls_front(port: int, context: ssl.SSLContext) -> AsyncIterator[int]:
    """The port at which a plain server on this machine speaks TLS."""

    async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _joined(reader, writer, port)

    async with accepting(joined, context) as front:
        yield front
