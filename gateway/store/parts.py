"""A long text in rows: parts of equal length in characters, in the order in which they are read.

Where a text is laid out, nothing else of the store is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

PART_CHARS = 16_384

Span = Sequence[int]  # where something begins and ends in the text, in characters
Place = Sequence[int]  # the span of a value, and that of its index if it has one


class Tape:
    """A text that is cut while it grows, so that it is never there in one piece."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._last = ""
        self._length = 0

    def add(self, *pieces: str) -> Span:
        """Puts these at the end; where they are then."""
        return self.add_all(pieces)

    def add_all(self, pieces: Iterable[str]) -> Span:
        """As `add`, one piece after the other."""
        start = self._length
        for piece in pieces:
            self._length += len(piece)
            at = PART_CHARS - len(self._last)
            self._last += piece[:at]
            while len(self._last) == PART_CHARS:
                self._parts.append(self._last.encode())
                self._last = piece[at : at + PART_CHARS]
                at += PART_CHARS
        return start, self._length

    def parts(self) -> list[bytes]:
        """The text as it is stored, in one part at least."""
        last = [self._last.encode()] if self._last or not self._parts else []
        return self._parts + last
