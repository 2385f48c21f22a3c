"""One connection to somebody else's server: a request goes out, its answer comes in, then the next.

HTTP/1.1 over a bare protocol, parsed by `httptools`: a general client costs several times as much a
call. Whoever asks waits on one future, which is woken by whatever happens: the head, a piece of the
body, the end, a failure. What was read and not yet taken is bounded, by not reading on. It may be
used again only if its answer came to a proper end, nothing was left over, and the server did not
say otherwise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from gateway.no_answer import BrokenOff, Closed, NotHttp

MAX_HEAD_BYTES = 65_536  # of an answer, with all that may come before it
MAX_HEADERS = 256
BUFFERED_BYTES = 262_144
JOINED_BYTES = 65_536  # a request of up to this size goes out in one write

Header = tuple[bytes, bytes]


class Wire(asyncio.Protocol):
    """A connection with at most one request under way."""

    def __init__(self, lost: Callable[[Wire], None]) -> None:
        self.idle_since = 0.0
        self.status = 0
        self.headers: list[Header] = []
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        # As lenient as browsers are with what real servers send; never about where a message ends.
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._chunks: list[bytes] = []
        self._error: Exception | None = None
        self._asked = self._headed = self._complete = False
        self._keep = self._bodiless = self._paused = False
        self._head_bytes = self._buffered = 0

    # --- for whoever asks ---

    def ask(self, head: bytes, body: bytes | None, *, bodiless: bool = False) -> None:
        """Send a request. `bodiless`: its answer has none, whatever its head says."""
        transport = self._transport
        self.status, self.headers, self._chunks = 0, [], []
        self._headed = self._complete = self._keep = False
        self._head_bytes = self._buffered = 0
        self._asked, self._bodiless = True, bodiless
        if transport is None:
            self._error = Closed()
        elif not body:
            transport.write(head)
        elif len(body) <= JOINED_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)

    async def head(self) -> None:
        """Wait until `status` and `headers` are there."""
        while not self._headed:
            if self._error is not None:
                raise self._error
            await self._changed()

    async def chunk(self) -> bytes:
        """What came of the body meanwhile; b"" at its end."""
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self._complete:
                return b""
            await self._changed()
        chunks, self._chunks, self._buffered = self._chunks, [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    def fail(self, error: Exception) -> None:
        """End what is under way with this error."""
        if self._error is None and not self._complete:
            self._error = error
        self.close()

    def close(self) -> None:
        """Let go of the connection, at once."""
        self._keep = False
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def rest(self) -> bool:
        """Whether the connection can be used again; from now on nothing may come on it."""
        transport = self._transport
        if not (self._keep and self._complete) or self._chunks or transport is None:
            return False
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        self._asked = False
        return True

    @property
    def open(self) -> bool:
        """Whether the other side has not closed the connection, as far as is known."""
        return self._transport is not None and not self._transport.is_closing()

    async def _changed(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # --- for the event loop ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by descent

    def data_received(self, data: bytes) -> None:
        if not self._asked or self._complete:
            self.close()  # nobody asked for this: it can be no answer to what is asked next
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._keep = False
            if not self._complete:
                self.fail(NotHttp())
        if not self._headed:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.fail(NotHttp())
        elif self._buffered > BUFFERED_BYTES and not self._paused and self._transport:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        if self._asked and not self._complete and self._error is None:
            if not self._headed:
                self._error = BrokenOff() if self._head_bytes else Closed()
            elif error is None and self._ends_with_the_connection():
                self._complete = True
            else:
                self._error = BrokenOff()
        self._wake()
        self._lost(self)

    def _ends_with_the_connection(self) -> bool:
        fields = {name.lower(): value for name, value in self.headers}
        coding = fields.get(b"transfer-encoding")
        if coding is not None:
            return not coding.lower().endswith(b"chunked")
        return b"content-length" not in fields

    # --- for the parser ---

    def on_message_begin(self) -> None:
        if self._complete:
            self._keep = False  # a second answer to one request

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._headed:
            return  # a trailer
        if len(self.headers) >= MAX_HEADERS or b"\0" in value:
            raise NotHttp
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self._complete:
            return
        status = self._parser.get_status_code()
        if status < 200:
            return  # word before the answer, or another protocol than was asked for
        self.status = status
        self._headed = True
        if self._bodiless:
            self._complete = True

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._chunks.append(body)
            self._buffered += len(body)

    def on_message_complete(self) -> None:
        if self._complete:
            return
        if not self._headed:
            self.headers = []
            return
        self._complete = True
        self._keep = self._parser.should_keep_alive()
