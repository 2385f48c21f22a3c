"""A document in JSON, read part by part: of most, only a little is needed at a time.

Read as a whole, a document takes ten times its size. So only its outline is read at first, down to
path items and named schemas; what these hold is bytes until somebody reaches it. A named part that
was reached is kept: the same reference always leads to the same object. Path items are passed
through one after the other, and only those that a reference leads into are kept.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any

import msgspec

Decode = Callable[[msgspec.Raw], Any]

_OUTLINE = msgspec.json.Decoder(dict[str, msgspec.Raw])
# What is read in parts, and how many levels of it: a path item's operations, a kind's schemas.
_LEVELS = {"paths": 2, "components": 2, "definitions": 1, "parameters": 1, "responses": 1}


class PartUnreadable(Exception):
    """A part can't be decoded, though the outline around it could: only reading all of it tells."""


class Parts(dict[str, Any]):
    """An object whose members are bytes until they are reached."""

    __slots__ = ("_decode", "_levels", "_passing")

    def __init__(self, raw: Any, decode: Decode, levels: int) -> None:
        super().__init__(_OUTLINE.decode(raw))
        self._decode = decode
        self._levels = levels
        self._passing: tuple[str, Any] | None = None

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, msgspec.Raw):
            value = self[key] = self._passing_or_read(key, value)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            return default
        return self[key]

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]  # a view as well
        return ItemsView(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # a view as well
        return ValuesView(self)

    def passing(self, key: str) -> Any:
        """The member, which is not kept unless it is asked for before the next one passes."""
        value = super().__getitem__(key)
        if isinstance(value, msgspec.Raw):
            value = self._read(value, self._levels)
            self._passing = (key, value)
        return value

    def keeps(self, key: str) -> bool:
        """Whether the member is the same object whenever it is asked for."""
        return not isinstance(super().__getitem__(key), msgspec.Raw)

    def read_so_far(self) -> list[Any]:
        """The members that were reached."""
        return [value for value in super().values() if not isinstance(value, msgspec.Raw)]

    def divide(self, key: str, levels: int) -> None:
        """Read this member in parts as well, if it is an object."""
        if key in self and not self.keeps(key):
            self[key] = self._read(super().__getitem__(key), levels + 1)

    def _passing_or_read(self, key: str, raw: msgspec.Raw) -> Any:
        if self._passing is not None and self._passing[0] == key:
            return self._passing[1]
        return self._read(raw, self._levels)

    def _read(self, raw: msgspec.Raw, levels: int) -> Any:
        try:
            if levels > 1 and bytes(memoryview(raw)[:1]) == b"{":
                return Parts(raw, self._decode, levels - 1)
            return self._decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise PartUnreadable(str(error)) from error


def divided(data: bytes | memoryview, decode: Decode) -> Parts:
    """The document in parts. Raises what the decoder does if it is not an object in JSON."""
    root = Parts(data, decode, 1)
    for key, levels in _LEVELS.items():
        root.divide(key, levels)
    return root


def whole(value: Any) -> Any:
    """The value with nothing left to be read: for where anything may be done with it."""
    if not isinstance(value, Parts):
        return value
    return {key: whole(part) for key, part in value.items()}


def objects_in(root: Any) -> Iterator[dict[str, Any]]:
    """Every object once, though YAML's aliases share them; parts go when they have been seen."""
    waiting, seen = [root], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Parts):
            yield value
            for key in reversed(value):
                # With ids of its own to remember: those of a part that went are given out again.
                yield from objects_in(value.passing(key))
        elif isinstance(value, dict) and id(value) not in seen:
            seen.add(id(value))
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
