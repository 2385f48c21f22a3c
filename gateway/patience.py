"""What uvicorn leaves out: patience that ends, and one packet where it would send two.

uvicorn waits for ever for the head of a request, and for a client that does not read. Here a
connection that was opened or has begun a request has so many seconds to complete its head, and one
that stopped reading has so many to go on. Bodies have a deadline of their own where they are read;
what is still to come of a request that was answered before it was complete has one here.

It also writes the head of an answer before its body is there. Here a head waits for what follows in
the same turn of the event loop, since every write wakes the client up.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gateway.at_once import AtOnce

MAX_JOINED_BYTES = 65_536


class JoiningTransport:
    """A transport that sends the head of an answer together with the beginning of its body."""

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        head = self._head
        if not head and data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n"):
            self._head = data
            self._loop.call_soon(self._flush)
            return
        if head:
            self._head = b""
            if len(data) <= MAX_JOINED_BYTES:
                data = head + data
            else:
                self._transport.write(head)
        self._transport.write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        head, self._head = self._head, b""
        if head:
            self._transport.write(head)


class PatientProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which waits so long for a request's head, and for a slow reader."""

    seconds: float
    _request_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(JoiningTransport(transport, self.loop))  # type: ignore[arg-type]
        self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_request_timer()
        self._stop_read_timer()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        if self._request_timer is None:
            self._start_request_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_request_timer()
        super().on_headers_complete()
        if self.cycle is not None:
            self.cycle.__class__ = AtOnce

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._stop_request_timer()
        if self.cycle.response_complete:
            # What came of the body stopped the timer that ends idle connections.
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.more_body and self._request_timer is None:
            self._start_request_timer()

    def _start_request_timer(self) -> None:
        self._request_timer = self.loop.call_later(self.seconds, self._give_up)

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def pause_writing(self) -> None:
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(self.seconds, self._give_up)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stop_read_timer()
        super().resume_writing()

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _give_up(self) -> None:
        self._request_timer = self._read_timer = None
        if not self.transport.is_closing():
            self.transport.abort()


def patient_protocol(seconds: float) -> type[PatientProtocol]:
    """The protocol with its patience."""
    return type("Patient", (PatientProtocol,), {"seconds": seconds})
