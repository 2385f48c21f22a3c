"""Cuts off clients that take too long to say what they want, or to take what they asked for.

uvicorn waits for ever for the head of a request, and for a client that does not read. Here a
connection that was opened or has begun a request has so many seconds to complete its head, and one
that stopped reading has so many to go on. Bodies have a deadline of their own where they are read.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def patient_protocol(seconds: float) -> type[HttpToolsProtocol]:
    """A protocol for uvicorn that waits so long for a request's head, and for a slow reader."""

    class PatientProtocol(HttpToolsProtocol):
        _head_timer: asyncio.TimerHandle | None = None
        _read_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start_head_timer()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_head_timer()
            self._stop_read_timer()
            super().connection_lost(exc)

        def on_message_begin(self) -> None:
            if self._head_timer is None:
                self._start_head_timer()
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._stop_head_timer()
            super().on_headers_complete()

        def _start_head_timer(self) -> None:
            self._head_timer = self.loop.call_later(seconds, self._give_up)

        def _stop_head_timer(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def pause_writing(self) -> None:
            if self._read_timer is None:
                self._read_timer = self.loop.call_later(seconds, self._give_up)
            super().pause_writing()

        def resume_writing(self) -> None:
            self._stop_read_timer()
            super().resume_writing()

        def _stop_read_timer(self) -> None:
            if self._read_timer is not None:
                self._read_timer.cancel()
                self._read_timer = None

        def _give_up(self) -> None:
            self._head_timer = self._read_timer = None
            if not self.transport.is_closing():
                self.transport.abort()

    return PatientProtocol
