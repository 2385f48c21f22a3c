"""What columns hold, and how a value from outside becomes one that every store can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from sqlalchemy import BigInteger, Dialect, Double, Integer, LargeBinary, Text
from sqlalchemy.types import TypeDecorator

from gateway.model import Tool, decode_tool, encode_tool, json_bytes, json_value


def storable(value: Any) -> Any:
    """A value as the store holds it: objects and lists as JSON, which may come as bytes already.

    In text, U+FFFD stands for what PostgreSQL and UTF-8 can't hold: NUL and lone surrogates. They
    are replaced, not removed, so that no such name turns into one we trust.
    """
    if isinstance(value, str):
        if value.isascii() and "\0" not in value:
            return value
        readable = value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        return readable.replace("\0", "\ufffd")
    return value if value is None or isinstance(value, (bytes, int, float)) else json_bytes(value)


class Plain(TypeDecorator[str]):
    """Text from outside."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return storable(value)


class Json(TypeDecorator[Any]):
    """A JSON object, or a list, which comes back as a tuple; None as NULL."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return storable(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        found = None if value is None else json_value(value)
        return tuple(found) if isinstance(found, list) else found


class EncodedTool(TypeDecorator[Tool]):
    """A tool; one that another version of the gateway wrote so that it can't be read is None."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else encode_tool(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        try:
            return None if value is None else decode_tool(value)
        except msgspec.MsgspecError:
            return None


Time: Double[float] = Double()

# SQLite counts up by itself only in a column that is spelled INTEGER.
Counter = BigInteger().with_variant(Integer, "sqlite")

COLUMN_TYPES: Mapping[Any, Any] = {
    str: Plain,
    Literal: Plain,
    int: Counter,
    float: Time,
    bytes: LargeBinary,
    Mapping: Json,
    tuple: Json,
    Tool: EncodedTool,
}
