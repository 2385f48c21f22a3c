"""What reading in parts must come to: the plain way, with the whole answer in memory."""

from __future__ import annotations

import base64
from typing import Any

import orjson

from gateway.calls.answer import NOT_JSON, as_json, as_text
from gateway.calls.arguments import problem
from gateway.errors import Fixable

DEFAULT_ITEMS = 100
DEFAULT_CHARS = 20_000
MAX_NAMED_KEYS = 20


def read_slice(
    body: bytes,
    media_type: str,
    *,
    pointer: str = "",
    offset: int = 0,
    limit: int | None = None,
    max_bytes: int = 65_536,
) -> dict[str, Any]:
    """`{bytes, total, offset, value, next_offset?}` of the part that the pointer leads to."""
    if offset < 0:
        raise problem("offset", "can't be negative")
    if limit is not None and limit < 1:
        raise problem("limit", "must be at least 1")
    value = as_json(body, media_type)
    if value is NOT_JSON:
        if pointer:
            raise problem("pointer", "leads nowhere: this result is not JSON")
        text = as_text(body, media_type)
        part = _characters(_base64(body) if text is None else text, offset, limit, max_bytes)
    elif isinstance(target := _found(value, pointer), list):
        part = _items(target, pointer, offset, limit, max_bytes)
    else:
        part = _characters(_text(target, body, media_type, pointer), offset, limit, max_bytes)
    return {"bytes": len(body), **part}


def _base64(body: bytes) -> str:
    return base64.b64encode(body).decode()


def _text(target: Any, body: bytes, media_type: str, pointer: str) -> str:
    if isinstance(target, str):
        return target
    whole = as_text(body, media_type) if not pointer else None
    return whole if whole is not None else orjson.dumps(target).decode()


def _characters(text: str, offset: int, limit: int | None, max_bytes: int) -> dict[str, Any]:
    end = offset + (DEFAULT_CHARS if limit is None else limit)
    value = text[offset : min(end, offset + max_bytes)]
    if len(value.encode("utf-8", "replace")) > max_bytes:
        value = value.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")
    return _part(len(text), offset, value, len(value))


def _items(
    items: list[Any], pointer: str, offset: int, limit: int | None, max_bytes: int
) -> dict[str, Any]:
    value: list[Any] = []
    size = 0
    for item in items[offset : offset + (DEFAULT_ITEMS if limit is None else limit)]:
        size += len(orjson.dumps(item)) + 1
        if size > max_bytes:
            break
        value.append(item)
    if not value and offset < len(items):
        raise Fixable(
            "invalid_arguments",
            f"Item {offset} alone is larger than {max_bytes} bytes.",
            f"Read it with the pointer {pointer}/{offset}.",
        )
    return _part(len(items), offset, value, len(value))


def _part(total: int, offset: int, value: Any, length: int) -> dict[str, Any]:
    part = {"total": total, "offset": offset, "value": value}
    if length and offset + length < total:
        part["next_offset"] = offset + length
    return part


def _found(value: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901) leads to; `items/0` is taken for `/items/0`."""
    if pointer in ("", "#"):
        return value
    steps = pointer.removeprefix("#").removeprefix("/").split("/")
    for step in steps:
        value = _step(value, step.replace("~1", "/").replace("~0", "~"), pointer)
    return value


def _step(value: Any, name: str, pointer: str) -> Any:
    if isinstance(value, dict) and name in value:
        return value[name]
    if isinstance(value, list) and name.isascii() and name.isdigit() and int(name) < len(value):
        return value[int(name)]
    raise problem("pointer", f"{pointer[:100]!r} leads nowhere: at {name[:50]!r} {_there(value)}")


def _there(value: Any) -> str:
    if isinstance(value, dict):
        keys = ", ".join(repr(key[:50]) for key in list(value)[:MAX_NAMED_KEYS])
        return f"there are the keys {keys}" if keys else "there is an empty object"
    if isinstance(value, list):
        return f"there is an array of {len(value)}"
    return "there is nothing further inside"
