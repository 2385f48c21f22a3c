"""Bodies of answers: unpacked in small steps, and collected up to a bound.

A bomb is cut at the bound of its reader. Only gzip and deflate: they are in the standard library
with a limit on what one step may give, and, unlike a library's own unpacking, notice a packed
answer that stopped midway. Most answers are small; a large one is held only if there is room.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Iterator
from io import BytesIO
from typing import Protocol

import msgspec

from gateway.outbound.failures import BrokenOff

PLAIN = ("", "identity")
STEP_BYTES = 262_144

Following = Callable[[], Awaitable[bytes]]  # the next piece of a body; b"" at its end


class Room(Protocol):
    """Where an answer of more than `bytes` has to ask for room."""

    bytes: int

    async def take(self, until: float | None) -> bool:
        """Whether it may be held; waits for that, at most until then."""


class Bound(msgspec.Struct, frozen=True):
    """How much of an answer is read, by when, and what it has to ask for."""

    bytes: int
    until: float
    room: Room | None = None

    @property
    def at_once(self) -> int:
        """Up to this size nobody has to be asked, and nothing is cut."""
        return self.bytes if self.room is None else min(self.bytes, self.room.bytes)


async def collected(following: Following, bound: Bound, part: bytes = b"") -> tuple[bytes, bool]:
    """The pieces put together up to a bound, and whether there was more; `part` came already."""
    body, size, most, room = BytesIO(), 0, bound.bytes, bound.room
    while part := part or await following():
        size += len(part)
        if room is not None and size > room.bytes:
            most = most if await room.take(bound.until) else room.bytes
            room = None
        body.write(part)  # which grows where it is: parts that are joined would be there twice
        if size > most:
            body.truncate(most)
            break
        part = b""
    return body.getvalue(), size > most


def unpacked(encoding: str, following: Following) -> Following:
    """Gives what comes as it was before `Content-Encoding`, which is in lower case.

    In pieces of at most `STEP_BYTES`; b"" is the end.
    """
    if encoding in PLAIN:
        return following
    unpacker = _Unpacker(_WINDOWS.get(encoding, 0))
    pieces: Iterator[bytes] = iter(())

    async def next_piece() -> bytes:
        nonlocal pieces
        if encoding not in _WINDOWS:
            raise BrokenOff("an encoding that was not asked for")
        while (piece := next(pieces, b"")) == b"":
            chunk = await following()
            if not chunk:
                unpacker.check_complete()
                return b""
            pieces = unpacker.pieces(chunk)
        await asyncio.sleep(0)  # a small chunk may hold a lot: others get their turn
        return piece

    return next_piece


_WINDOWS = {
    "gzip": 16 + zlib.MAX_WBITS,
    "x-gzip": 16 + zlib.MAX_WBITS,
    "deflate": zlib.MAX_WBITS,
}


class _Unpacker:
    """A deflate stream with or without its zlib wrapping, or gzip members in a row."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._stream = zlib.decompressobj(window)
        self._begun = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What this much more of the packed bytes unpacks to."""
        while data:
            if self._stream.eof:
                if self._window <= zlib.MAX_WBITS or not data.startswith(b"\x1f\x8b"):
                    return  # servers are known to pad
                self._stream = zlib.decompressobj(self._window)
            piece = self._unpack(data)
            data = self._stream.unconsumed_tail or self._stream.unused_data
            if piece:
                yield piece

    def check_complete(self) -> None:
        """Complain about a stream that stopped midway."""
        if self._begun and not self._stream.eof:
            raise BrokenOff("the packed answer broke off")

    def _unpack(self, data: bytes) -> bytes:
        begun, self._begun = self._begun, True
        try:
            return self._stream.decompress(data, STEP_BYTES)
        except zlib.error as error:
            if begun or self._window != zlib.MAX_WBITS:
                raise BrokenOff("the packed answer can't be read") from error
        # "deflate" means zlib's format, but many servers send the bare stream.
        self._window = -zlib.MAX_WBITS
        self._stream = zlib.decompressobj(self._window)
        return self._unpack(data)
