"""Bounds of a connection: for a request's head, for its rest, and for who does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send
from yarl import URL

from gateway.server import patient_protocol
from gateway.web.guard import fold, read_body, respond
from tests.peers import soon
from tests.peers_mcp import serving

PAUSE_SECONDS = 0.1  # enough for a piece to be read by itself


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Says what it got."""
    try:
        body = await read_body(fold(scope["headers"]), receive, 1000, 5.0)
    except HTTPException as refusal:
        await respond(send, refusal.status_code, refusal.detail.encode())
        return
    await respond(send, 200, b"%b %d %b" % (scope["method"].encode(), len(body), body))


def request(method: str = "POST", path: str = "/", body: bytes = b"hi", **fields: str) -> bytes:
    lines = {"host": "h", "content-length": str(len(body)), **fields}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def offering(body: bytes = b"hi") -> bytes:
    return request("POST", "/echo", body, connection="Upgrade, HTTP2-Settings", upgrade="h2c")


CALL = offering()


@pytest.mark.parametrize(
    "pieces",
    [[CALL], [CALL[:-2], b"hi"], [CALL.replace(b"upgrade:", b"UPGRADE:")]],
    ids=["at once", "body later", "loud"],
)
async def test_an_offer_of_another_protocol_is_not_taken_up(pieces: list[bytes]) -> None:
    async with served(5.0) as port:
        said = await told(port, [*pieces, request(body=b"bye", connection="close")])
    assert [line for line in said.split(b"\r\n") if b"POST" in line][-1] == b"POST 3 bye"
    assert b"POST 2 hi" in said


async def test_a_body_is_never_taken_for_a_request() -> None:
    """Not even where the offer came in pieces, and the parser stops at it."""
    inner = request(path="/echo", body=b"inner")
    outer = offering(inner)
    cut = outer.index(b"upgrade:") + 3
    async with served(5.0) as port:
        said = await told(port, [outer[:cut], outer[cut : -len(inner)], inner])

    assert said.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in said
    assert b"inner" not in said


@pytest.mark.parametrize("closing", [True, False], ids=["to be closed", "to be kept"])
async def test_a_client_that_does_not_read_is_let_go(closing: bool) -> None:
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, b"x" * 20_000_000)
        answered.set()

    answered = asyncio.Event()
    async with served(0.2, large) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(request(connection="close" if closing else "keep-alive"))
        async with asyncio.timeout(60):
            await answered.wait()
            await asyncio.sleep(0.4)  # the server's time passes on the same loop, and before
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await soon(reader.readexactly(20_000_000))
        writer.close()


async def test_a_head_that_is_not_complete_in_time_ends_the_connection() -> None:
    async with served(0.3) as port:
        assert await told(port, [b""]) == b""  # nothing at all
        assert await told(port, [b"POST / HTTP/1.1\r\nhost: h\r\n"]) == b""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request())
        assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
        writer.write(b"POST / HT")
        assert await soon(reader.read()) == b""
        writer.close()


async def test_the_rest_of_a_request_that_was_refused_has_its_time_too() -> None:
    async with served(0.3) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(body=b"x" * 2000)[:-10])
        assert (await soon(reader.read())).startswith(b"HTTP/1.1 413")
        writer.close()


LINES = b"a: b\r\n" * 7_000


@pytest.mark.parametrize("more", [LINES, b"x" * 40_000], ids=["lines", "one line"])
async def test_a_head_without_end_is_refused_and_what_follows_a_body_too(more: bytes) -> None:
    head = request(body=b"", connection="close")[:-2]
    chunked = request(body=b"").replace(b"content-length: 0", b"transfer-encoding: chunked")
    async with served(5.0) as port:
        said = await told(port, [head, b"long: ", more, more])
        assert said.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
        assert await told(port, [chunked, b"2\r\nhi\r\n0\r\nlong: ", more, more]) == b""
        fits = await told(port, [head, b"long: ", more, b"\r\n\r\n"])
        assert fits.endswith(b"POST 0 ")


async def told(port: int, pieces: list[bytes]) -> bytes:
    """What a server says to these pieces, with a pause between them, until it hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(PAUSE_SECONDS)
    said = await soon(reader.read())
    writer.close()
    return said


@asynccontextmanager
async def served(seconds: float, app: ASGIApp = echo) -> AsyncIterator[int]:
    async with serving(app, http=patient_protocol(seconds)) as url:
        yield URL(url).port or 0
