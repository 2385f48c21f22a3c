"""Odd answers and what becomes of their connections, on both event loops."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from gateway.limits import STEP_BYTES
from gateway.outbound.client import Egress, NoAnswer, Request
from tests.outbound.exchanges import LOOPBACK, ask
from tests.peers import soon, until
from tests.raw_server import Connection, always, answer, raw_server, silent

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}

pytestmark = pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS.keys())
Loop = Callable[[], asyncio.AbstractEventLoop]


def run(loop: Loop, work: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        return await soon(work)

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(bounded())


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
TWO = b"Content-Length: 2\r\n\r\nhi"
FAILED = "failed"
SWITCHED = b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
ODD = {
    "chunks": (CHUNKED + b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n", b"onetwo"),
    "chunk with extension": (CHUNKED + b"3;a=b\r\none\r\n0\r\n\r\n", b"one"),
    "trailers": (CHUNKED + b"3\r\none\r\n0\r\nX-Late: 1\r\n\r\n", b"one"),
    "broken chunk": (CHUNKED + b"zz\r\none\r\n0\r\n\r\n", FAILED),
    "cut chunk": (CHUNKED + b"5\r\none", FAILED),
    "until close": (HEAD + b"\r\nall there is", b"all there is"),
    "old until close": (b"HTTP/1.0 200 OK\r\n\r\nall there is", b"all there is"),
    "cut": (HEAD + b"Content-Length: 9\r\n\r\nshort", FAILED),
    "continue first": (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + TWO, b"hi"),
    "hints first": (b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + HEAD + TWO, b"hi"),
    "bare line feeds": (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", b"hi"),
    "nul in a value": (HEAD + b"X-A: a\0b\r\n" + TWO, FAILED),
    "two lengths": (HEAD + b"Content-Length: 3\r\n" + TWO, FAILED),
    "length and chunks": (CHUNKED.replace(b"OK\r\n", b"OK\r\nContent-Length: 2\r\n"), FAILED),
    "negative length": (HEAD + b"Content-Length: -2\r\n\r\nhi", FAILED),
    "another protocol": (b"ICY 200 OK\r\n" + TWO, FAILED),
    "nothing": (b"", FAILED),
    "protocol not asked for": (SWITCHED + answer(b"hi"), FAILED),
    "too many headers": (HEAD + b"X-A: 1\r\n" * 1000 + TWO, FAILED),
    "half a head": (b"HTTP/1.1 200 OK\r\nConte", FAILED),
}


@pytest.mark.parametrize(("odd", "outcome"), ODD.values(), ids=ODD.keys())
@pytest.mark.parametrize("pieces", ["whole", "bytes"])
def test_odd_answer_is_read_or_refused_never_misread(
    loop: Loop, odd: bytes, outcome: bytes | str, pieces: str
) -> None:
    async def conversation(connection: Connection) -> None:
        await connection.request()
        step = len(odd) or 1 if pieces == "whole" else 1
        for start in range(0, len(odd), step):
            await connection.write(odd[start : start + step])
            await asyncio.sleep(0)

    async def read() -> bytes | str:
        async with raw_server(conversation) as server, Egress(LOOPBACK) as egress:
            try:
                return (await ask(egress, server.url, "POST", deadline=2)).body
            except NoAnswer:
                return FAILED

    assert run(loop, read()) == outcome


def test_headers_are_read_as_text_without_blanks_around_them(loop: Loop) -> None:
    odd = HEAD + b"X-A: \t a \t\r\nx-a: " + "é".encode("latin-1") + b"\r\n" + TWO

    async def read() -> Any:
        async with raw_server(always(odd)) as server, Egress(LOOPBACK) as egress:
            return (await ask(egress, server.url)).headers

    assert run(loop, read()) == (("x-a", "a"), ("x-a", "�"), ("content-length", "2"))


@pytest.mark.parametrize(
    ("reply", "method", "connections"),
    [
        (answer(b"hi"), "GET", 1),
        (answer(b"hi"), "POST", 1),
        (answer(b"hi", headers={"Connection": "close"}), "GET", 3),
        (answer(b"hi") + answer(b"another"), "GET", 3),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", "GET", 3),
        (CHUNKED + b"2\r\nhi\r\n0\r\n\r\n", "GET", 1),
    ],
)
def test_connection_is_used_again_only_after_a_proper_end(
    loop: Loop, reply: bytes, method: str, connections: int
) -> None:
    async def three() -> int:
        async with raw_server(always(reply)) as server, Egress(LOOPBACK) as egress:
            for _ in range(3):
                assert (await ask(egress, server.url, method)).body == b"hi"
        return server.connections

    assert run(loop, three()) == connections


def test_answer_to_head_has_no_body_whatever_it_says(loop: Loop) -> None:
    async def head() -> tuple[int, bytes]:
        reply = HEAD + b"Content-Length: 5\r\n\r\n"
        async with raw_server(always(reply)) as server, Egress(LOOPBACK) as egress:
            found = await ask(egress, server.url, "HEAD")
        return found.status, found.body

    assert run(loop, head()) == (200, b"")


def test_word_on_an_idle_connection_is_nobodys_answer(loop: Loop) -> None:
    async def conversation(connection: Connection) -> None:
        await connection.request()
        await connection.write(answer(b"hi"))
        if connection.server.connections == 1:
            await go.wait()
            await connection.write(answer(b"evil"))
        await connection.request()

    async def twice() -> tuple[bytes, bytes, int]:
        async with raw_server(conversation) as server, Egress(LOOPBACK) as egress:
            first = await ask(egress, server.url)
            go.set()
            await asyncio.sleep(0.2)  # until the word has come
            second = await ask(egress, server.url)
        return first.body, second.body, server.connections

    go = asyncio.Event()
    assert run(loop, twice()) == (b"hi", b"hi", 2)


def test_what_is_not_read_is_not_fetched_without_end(loop: Loop) -> None:
    piece, pieces = bytes(1_000_000), 64

    async def conversation(connection: Connection) -> None:
        await connection.request()
        await connection.write(HEAD + b"Content-Length: %d\r\n\r\n" % (pieces * len(piece)))
        for _ in range(pieces):
            await connection.write(piece)

    async def read() -> tuple[int, int]:
        sizes = []
        async with (
            raw_server(conversation) as server,
            Egress(LOOPBACK) as egress,
        ):
            with await egress.open(Request("GET", server.url), deadline=5) as stream:
                while chunk := await stream.read():
                    sizes.append(len(chunk))
                    for _ in range(10):  # let as much come as may
                        await asyncio.sleep(0)
        return sum(sizes), max(sizes)

    total, most = run(loop, read())
    assert total == pieces * len(piece)
    assert most <= 4 * STEP_BYTES  # twice that much is kept, and one read of the socket's


def test_caller_that_leaves_takes_its_connection_along(loop: Loop) -> None:
    left = asyncio.Event()

    async def conversation(connection: Connection) -> None:
        await silent(connection)
        left.set()

    async def leave() -> bool:
        async with raw_server(conversation) as server, Egress(LOOPBACK) as egress:
            call = asyncio.create_task(ask(egress, server.url))
            await until(lambda: bool(server.requests))
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            await left.wait()
        return call.cancelled()

    assert run(loop, leave())
