"""A request that is there whole, and an answer that is: taken and sent in one step each.

uvicorn speaks ASGI, which hands both over in messages; for small ones, as nearly all are here, the
messages cost more than what is in them. Its `receive` and `send` belong to an `AtOnce`, and who
holds one of them finds the shorter way there (see `http_guard`). Where a step can't be taken now,
it says so, and the messages are used.
"""

from __future__ import annotations

from collections.abc import Sequence

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

JOINED_BYTES = 65_536


class AtOnce(RequestResponseCycle):
    """One request and its answer, as uvicorn has them."""

    def take_body(self) -> bytes | None:
        """All of the body, as `receive` would give it; None: it is not there yet."""
        if self.more_body or self.disconnected or self.response_complete:
            return None
        self.flow.resume_reading()
        self.message_event.clear()  # the next word, for those who wait, is that the client left
        body, self.body = bytes(self.body), bytearray()
        return body

    def answer(self, status: int, lines: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send all of an answer, of a known length; False: it can't be sent in this way now."""
        if self.response_started or self.disconnected or self.flow.write_paused:
            return False
        if self.scope["method"] == "HEAD" or not self.keep_alive:
            return False
        fields = [b"%b: %b\r\n" % line for line in (*self.default_headers, *lines)]
        head = b"%b%b\r\n" % (STATUS_LINE[status], b"".join(fields))
        if head.count(b"\n") != len(fields) + 2 or b"\0" in head or b"connection: " in head:
            return False  # uvicorn knows what to do about it
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        if len(body) <= JOINED_BYTES:
            self.transport.write(head + body)
        else:  # joining would copy it
            self.transport.write(head)
            self.transport.write(body)
        self.message_event.set()
        self.on_response()
        return True
