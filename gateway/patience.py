"""What uvicorn leaves out: patience that ends, and one packet where it would send two.

uvicorn waits for ever for the head of a request, and for a client that does not read. Here a
connection that was opened or has begun a request has so many seconds to complete its head, and one
that stopped reading has so many to go on, also while it is being closed. Bodies have a deadline of
their own where they are read; what is still to come of a request that was answered before it was
complete has one here.

Of requests that were sent one behind the other uvicorn tells only the last that the client left,
and gives up all of them when one can't be read. Here the one that is being answered is told, and
answered. An offer to change to another protocol is not taken up: the request counts as it stands.

It also writes the head of an answer before its body is there. Here a head waits for what follows in
the same turn of the event loop, since every write wakes the client up.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from gateway.at_once import JOINED_BYTES, AtOnce

CLOSING_SECONDS = 2.0  # for who reads slowly while the gateway ends
_UPGRADE = re.compile(rb"\r\nupgrade(?=:)", re.IGNORECASE)


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
            if len(data) <= JOINED_BYTES:
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
    _answering: RequestResponseCycle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(JoiningTransport(transport, self.loop))  # type: ignore[arg-type]
        self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_request_timer()
        self._stop_read_timer()
        super().connection_lost(exc)
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()

    def data_received(self, data: bytes) -> None:
        begins = self.cycle is None or not self.cycle.more_body
        if begins and (b"pgrade:" in data or b"PGRADE:" in data):
            # The parser would stop there. The name is as long as before: nothing moves.
            head, end, rest = data.partition(b"\r\n\r\n")
            data = _UPGRADE.sub(b"\r\nignored", head) + end + rest
        super().data_received(data)

    def _unsupported_upgrade_warning(self) -> None:
        self.send_400_response("Changing to another protocol is not possible here.")

    def send_400_response(self, msg: str) -> None:
        answering = self._answering
        if answering is None or answering.response_complete or answering.more_body:
            super().send_400_response(msg)
            return
        answering.keep_alive = False  # what came behind it ends the connection, but not its answer
        self.pipeline.clear()
        self.flow.pause_reading()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def shutdown(self) -> None:
        super().shutdown()
        if self.transport.is_closing():
            self.loop.call_later(CLOSING_SECONDS, self.transport.abort)

    def on_message_begin(self) -> None:
        self._unset_keepalive_if_required()
        if self._request_timer is None:
            self._start_request_timer()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stop_request_timer()
        super().on_headers_complete()
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
        if self.transport.is_closing() and self._read_timer is None:
            self._read_timer = self.loop.call_later(self.seconds, self._give_up)
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
        self.transport.abort()


def patient_protocol(seconds: float) -> type[PatientProtocol]:
    """The protocol with its patience."""
    return type("Patient", (PatientProtocol,), {"seconds": seconds})
