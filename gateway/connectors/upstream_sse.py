"""Server-sent events out of a byte stream, as the protocol's answers use them.

Fed with chunks as they come; gives whole events. An event that outgrows the bound is an error:
whoever sends it may not make us hold it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


class EventTooLarge(Exception):
    """One event holds more than the reader may keep."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its data, and what the stream said of itself up to here."""

    data: bytes
    id: str = ""
    retry_ms: int | None = None


class EventReader:
    """Turns chunks into events; keeps what is not complete yet."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._id = ""
        self._retry_ms: int | None = None
        self._after_cr = False

    @property
    def held(self) -> int:
        """How much of an event that is not complete is kept."""
        return len(self._rest) + self._size

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that this chunk completes."""
        if not chunk:
            return
        if self._after_cr and chunk[:1] == b"\n":
            chunk = chunk[1:]
        self._after_cr = chunk[-1:] == b"\r"
        self._rest += chunk
        if self.held > self._max_bytes + len(chunk):
            raise EventTooLarge
        if b"\n" not in chunk and b"\r" not in chunk:
            return
        text = bytes(self._rest).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, rest = text.split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            if line:
                self._take(line)
            elif self._data or self._id or self._retry_ms is not None:
                yield self._finished()

    def _take(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value)
            if self._size > self._max_bytes:
                raise EventTooLarge
        elif name == b"id" and b"\0" not in value:
            self._id = value.decode("utf-8", "replace")
        elif name == b"retry" and value.isdigit() and len(value) < 10:
            self._retry_ms = int(value)

    def _finished(self) -> Event:
        event = Event(b"\n".join(self._data), self._id, self._retry_ms)
        self._data, self._size, self._id, self._retry_ms = [], 0, "", None
        return event
