from __future__ import annotations

import asyncio
from typing import cast

import pytest
from starlette.types import Receive, Scope, Send

from gateway.server import JOINED_BYTES, JoiningTransport, patient_protocol
from gateway.web.guard import fold, read_body, respond
from tests.test_at_once import request, served, told

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Written:
    """The other end of a transport: what was written to it, and whether it was closed."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def close(self) -> None:
        self.closed = True


def joining() -> tuple[JoiningTransport, Written]:
    written = Written()
    loop = asyncio.get_running_loop()
    return JoiningTransport(cast(asyncio.Transport, written), loop), written


LARGE = bytes(JOINED_BYTES + 1)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ([HEAD, b"hi"], [HEAD + b"hi"]),
        ([HEAD, b""], [HEAD]),
        ([HEAD, LARGE], [HEAD, LARGE]),
        ([HEAD, b"hi", HEAD, b"ho"], [HEAD + b"hi", HEAD + b"ho"]),
        ([b"2\r\nhi\r\n", b"0\r\n\r\n"], [b"2\r\nhi\r\n", b"0\r\n\r\n"]),
    ],
)
async def test_a_head_goes_out_with_what_follows_it(given: list[bytes], sent: list[bytes]) -> None:
    transport, written = joining()
    for data in given:
        transport.write(data)
    await asyncio.sleep(0)
    assert written.writes == sent


async def test_a_head_that_nothing_follows_goes_out_in_the_same_turn() -> None:
    transport, written = joining()
    transport.write(HEAD)
    assert written.writes == []
    await asyncio.sleep(0)
    assert written.writes == [HEAD]


async def test_closing_sends_a_head_that_still_waits() -> None:
    transport, written = joining()
    transport.write(HEAD)
    transport.close()
    await asyncio.sleep(0)
    assert (written.writes, written.closed) == ([HEAD], True)


def offering(body: bytes = b"hi") -> bytes:
    return request("POST", "/echo", body, connection="Upgrade, HTTP2-Settings", upgrade="h2c")


CALL = offering()


@pytest.mark.parametrize(
    "pieces",
    [[CALL], [CALL[:-2], b"hi"], [CALL.replace(b"upgrade:", b"UPGRADE:")]],
    ids=["at once", "body later", "loud"],
)
async def test_an_offer_of_another_protocol_is_not_taken_up(pieces: list[bytes]) -> None:
    async with served(patient_protocol(5.0)) as port:
        assert (await told(port, pieces)).endswith(b"POST 2 hi")


async def test_a_body_is_never_taken_for_a_request() -> None:
    """Not even where the offer came in pieces, and the parser stops at it."""
    inner = request(path="/echo", body=b"inner")
    outer = offering(inner)
    cut = outer.index(b"upgrade:") + 3
    async with served(patient_protocol(5.0)) as port:
        said = await told(port, [outer[:cut], outer[cut : -len(inner)], inner])

    assert said.count(b"HTTP/1.1 ") == 1
    assert b"connection: close" in said
    assert b"inner" not in said


async def test_a_whole_request_is_answered_whatever_comes_behind_it() -> None:
    async with served(patient_protocol(5.0)) as port:
        said = await told(port, [request(path="/echo") + b"garbage\r\n\r\n"])

    assert said.startswith(b"HTTP/1.1 200 ")
    assert b"connection: close" in said
    assert said.endswith(b"POST 2 hi")


async def test_who_is_answered_hears_that_the_client_left_with_others_behind_it() -> None:
    heard = asyncio.Event()

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(fold(scope["headers"]), receive)
        assert (await receive())["type"] == "http.disconnect"
        heard.set()

    async with served(patient_protocol(5.0), waiting) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request() + request())
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.close()
        async with asyncio.timeout(5.0):
            await heard.wait()


@pytest.mark.parametrize("closing", [True, False], ids=["to be closed", "to be kept"])
async def test_a_client_that_does_not_read_is_let_go(closing: bool) -> None:
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, 200, b"x" * 20_000_000)

    async with served(patient_protocol(0.5), large) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(request(connection="close" if closing else "keep-alive"))
        await asyncio.sleep(2.0)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            async with asyncio.timeout(5.0):
                await reader.readexactly(20_000_000)
        writer.close()
