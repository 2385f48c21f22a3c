"""Column types that take what callers have and both databases keep.

JSON is bytes: `orjson` where it can, the standard library for what it refuses (huge integers, lone
surrogates), marked by a blank in front so that it is read back the same way. Text never fails on
the two things PostgreSQL and UTF-8 can't hold: they are replaced, not removed, so that no such name
turns into one we trust.
"""

from __future__ import annotations

import json
from typing import Any

import orjson
from sqlalchemy import BigInteger, Dialect, Double, Integer, LargeBinary, Text
from sqlalchemy.types import TypeDecorator


def json_bytes(value: object) -> bytes:
    """A value as JSON, whatever a client may have put into it."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return b" " + json.dumps(value, separators=(",", ":")).encode("ascii")


def json_value(data: bytes) -> Any:
    """The value `json_bytes` wrote."""
    return json.loads(data) if data.startswith(b" ") else orjson.loads(data)


class Json(TypeDecorator[Any]):
    """Any JSON value, None as NULL; bytes are taken as JSON already written."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        return json_bytes(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        return None if value is None else json_value(value)


class Names(TypeDecorator[tuple[str, ...]]):
    """A few names, as a tuple."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: tuple[str, ...] | None, dialect: Dialect) -> bytes | None:
        return None if value is None else json_bytes(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> tuple[str, ...] | None:
        return None if value is None else tuple(json_value(value))


class Plain(TypeDecorator[str]):
    """Text from outside: NUL and lone surrogates become U+FFFD."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value if value is None or value.isascii() and "\0" not in value else _storable(value)


# Seconds since 1970, UTC, as Python's clock gives them.
Time: Double[float] = Double()

# SQLite counts up by itself only in a column that is spelled INTEGER.
Counter = BigInteger().with_variant(Integer, "sqlite")


def _storable(value: str) -> str:
    readable = value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return readable.replace("\0", "\ufffd")
