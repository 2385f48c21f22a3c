"""Reading a large answer in parts: the other half of the preview that its caller was given.

A JSON pointer leads to a part of the answer. Where it leads to an array, offset and limit count
items; elsewhere they count characters of the text, which for a part of a JSON document is its JSON.
Each part is itself bounded, so that reading can't bring back what was too large to show.

The store keeps an answer whole. A large JSON text is parsed in a worker process each time it is
read; an answer whose parsing takes too much is read as the text that it is. Little is imported
here, since the worker process imports this module too.
"""

from __future__ import annotations

import asyncio
import json
from itertools import islice
from typing import Any

import orjson

from gateway.calls.arguments import problem
from gateway.calls.limits import DEFAULT_CHARS, DEFAULT_ITEMS, MAX_NAMES_TOLD, MAX_PART_BYTES
from gateway.errors import Fixable
from gateway.outbound.content import (
    NOT_JSON,
    Work,
    as_json,
    as_text,
    is_heavy_json,
    text_or_base64,
)

_MAX_DIGITS = 18  # of a position in an array


async def read_part(
    work: Work, body: bytes, media_type: str, *, pointer: str, offset: int, limit: int | None
) -> dict[str, Any]:
    """`{bytes, total, offset, value, next_offset?}` of the part that the pointer leads to."""
    if offset < 0:
        raise problem("offset", "can't be negative")
    if limit is not None and limit < 1:
        raise problem("limit", "must be at least 1")
    if not is_heavy_json(body, media_type):
        part = await asyncio.to_thread(part_of, body, media_type, pointer, offset, limit)
    else:
        asked = json.dumps([pointer, offset, limit])
        data = await work(part_in_worker, body, media_type, asked)
        if data is not None:
            part = _part_from_worker(data)
        elif pointer:
            raise problem("pointer", "can't be followed: this result is too intricate")
        else:
            part = await asyncio.to_thread(_part_of_text, body, media_type, offset, limit)
    return {"bytes": len(body), **part}


def part_in_worker(body: bytes, media_type: str, asked: str) -> bytes:
    """As `part_of`, from and to another process."""
    try:
        return orjson.dumps({"part": part_of(body, media_type, *json.loads(asked))})
    except Fixable as refusal:
        return orjson.dumps({"refusal": refusal.as_dict()})


def _part_from_worker(data: bytes | bytearray) -> dict[str, Any]:
    found = orjson.loads(data)
    if "refusal" in found:
        raise Fixable(**found["refusal"])
    part: dict[str, Any] = found["part"]
    return part


def part_of(
    body: bytes,
    media_type: str,
    pointer: str,
    offset: int,
    limit: int | None,
    max_bytes: int = MAX_PART_BYTES,
) -> dict[str, Any]:
    """`{total, offset, value, next_offset?}` of the part that the pointer leads to."""
    value = as_json(body, media_type)
    if value is NOT_JSON:
        if pointer:
            raise problem("pointer", "leads nowhere: this result is not JSON, or was cut")
        return _part_of_text(body, media_type, offset, limit, max_bytes)
    target = _follow(value, pointer)
    if isinstance(target, list):
        return _items(target, pointer, offset, limit, max_bytes)
    text = target if isinstance(target, str) else None
    if text is None and not pointer:
        text = as_text(body, media_type)
    text = orjson.dumps(target).decode() if text is None else text
    return _characters(text, offset, limit, max_bytes)


def _part_of_text(
    body: bytes, media_type: str, offset: int, limit: int | None, max_bytes: int = MAX_PART_BYTES
) -> dict[str, Any]:
    return _characters(text_or_base64(body, media_type), offset, limit, max_bytes)


def _characters(text: str, offset: int, limit: int | None, max_bytes: int) -> dict[str, Any]:
    end = offset + (DEFAULT_CHARS if limit is None else limit)
    value = text[offset : min(end, offset + max_bytes)]
    if len(value.encode("utf-8", "replace")) > max_bytes:
        value = value.encode("utf-8", "replace")[:max_bytes].decode("utf-8", "ignore")
    return _part(len(text), offset, value)


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
    return _part(len(items), offset, value)


def _part(total: int, offset: int, value: str | list[Any]) -> dict[str, Any]:
    part = {"total": total, "offset": offset, "value": value}
    if value and offset + len(value) < total:
        part["next_offset"] = offset + len(value)
    return part


def _follow(value: Any, pointer: str) -> Any:
    """What a JSON pointer (RFC 6901) leads to; `items/0` is taken for `/items/0`."""
    if pointer in ("", "#"):
        return value
    for step in pointer.removeprefix("#").removeprefix("/").split("/"):
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and _is_position(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            words = f"{pointer[:100]!r} leads nowhere: at {name[:50]!r} {_describe(value)}"
            raise problem("pointer", words)
    return value


def _is_position(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= _MAX_DIGITS


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        keys = ", ".join(repr(key[:50]) for key in islice(value, MAX_NAMES_TOLD))
        return f"there are the keys {keys}" if keys else "there is an empty object"
    if isinstance(value, list):
        return f"there is an array of {len(value)}"
    return "there is nothing further inside"
