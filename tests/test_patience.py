from __future__ import annotations

import asyncio
from typing import cast

import pytest

from gateway.patience import MAX_JOINED_BYTES, JoiningTransport

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


LARGE = bytes(MAX_JOINED_BYTES + 1)


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
