"""The short way is told from the long one by nobody: the same bytes come back on the wire."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, cast

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.server import patient_protocol
from gateway.web.guard import Refusal, fold, read_body, respond

LIMIT = 300_000
QUIET_SECONDS = 0.3
LARGE = b"x" * 200_000


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Says what it got, under headers that the request asks for."""
    fields = fold(scope["headers"])
    try:
        body = await read_body(fields, receive, LIMIT, 5.0)
    except Refusal as refusal:
        await respond(send, refusal.status, refusal.message.encode(), refusal.headers)
        return
    status = int(fields.get(b"x-status", b"200"))
    more = [(b"x-more", fields[b"x-more"])] if b"x-more" in fields else []
    more += [(b"connection", b"close")] if scope["path"] == "/close" else []
    if scope["path"] == "/more":  # nothing is to come but the client's leaving
        with suppress(TimeoutError):
            async with asyncio.timeout(0.05):
                body += b"more: %r" % await receive()
    told = b"" if status == 204 else b"%b %d " % (scope["method"].encode(), len(body))
    await respond(send, status, told + (body if scope["path"] == "/echo" else b""), more)


def request(method: str = "POST", path: str = "/", body: bytes = b"hi", **fields: str) -> bytes:
    lines = {"host": "h", "content-length": str(len(body)), **fields}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


SENT: dict[str, list[bytes]] = {
    "plain": [request()],
    "no body": [request("GET", body=b"")],
    "head": [request("HEAD", body=b"")],
    "echo": [request(path="/echo")],
    "large": [request(path="/echo", body=LARGE)],
    "too large": [request(body=LARGE + LARGE)],
    "in pieces": [request()[:-1], b"i"],
    "chunked": [
        b"POST /echo HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n",
        b"0\r\n\r\n",
    ],
    "one after the other": [request(), request(path="/echo", body=b"ho")],
    "pipelined": [request() + request(path="/echo", body=b"ho") + request("GET", body=b"")],
    "client closes": [request(connection="close")],
    "server closes": [request(path="/close"), request()],
    "HTTP/1.0": [request().replace(b"HTTP/1.1", b"HTTP/1.0")],
    "continue": [request(expect="100-continue")[:-2], b"hi"],
    "no content": [request(x_status="204")],
    "not found": [request(x_status="404")],
    "a header more": [request(x_more="a b")],
    "a header that can't be": [request(x_more="a\x01b")],
    "waits for more": [request(path="/more"), request()],
    "garbage": [b"garbage\r\n\r\n"],
}


@pytest.mark.parametrize("name", SENT)
async def test_the_same_comes_back_whichever_way_it_took(name: str) -> None:
    async with served(HttpToolsProtocol) as plain, served(patient_protocol(5.0)) as ours:
        wanted = await told(plain, SENT[name])

        assert wanted
        assert await told(ours, SENT[name]) == wanted


async def told(port: int, pieces: list[bytes]) -> bytes:
    """What a server says to these pieces, with a pause between them, but for the time of day."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    said = b""
    for piece in pieces:
        writer.write(piece)
        said += await _until_quiet(reader)
    writer.close()
    return re.sub(rb"date: [^\r]*\r\n", b"", said)


async def _until_quiet(reader: asyncio.StreamReader) -> bytes:
    said = b""
    try:
        async with asyncio.timeout(5.0):
            while chunk := await asyncio.wait_for(reader.read(1_000_000), QUIET_SECONDS):
                said += chunk
    except TimeoutError:
        pass
    except ConnectionError:
        said += b"[reset]"
    return said


@asynccontextmanager
async def served(protocol: type[asyncio.Protocol], app: ASGIApp = app) -> AsyncIterator[int]:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        quiet: dict[str, Any] = {"lifespan": "off", "log_config": None, "access_log": False}
        server = _Server(
            uvicorn.Config(cast(Any, app), http=protocol, server_header=False, **quiet)
        )
        task = asyncio.create_task(server.serve(sockets=[bound]))
        async with asyncio.timeout(10.0):
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.01)
        try:
            yield bound.getsockname()[1]
        finally:
            server.should_exit = server.force_exit = True
            await task


class _Server(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They are the tests' own."""
        yield
