"""What the bytes of an answer are: text, JSON, or neither.

Large ones are decoded in steps: one call over sixteen megabytes would keep every other thread, and
with them the event loop, from running. `as_json` can't do that: what parses large JSON belongs into
a process of its own (see `elsewhere`), for which reason this module imports next to nothing.
"""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import Callable, Iterator
from typing import Any

import orjson

HEAVY_BYTES = 65_536
MAX_DEPTH = 200  # deeper, and what we parsed could not be written again once it is in a result
STEP_BYTES = 48 * 1024  # as base64, 64 KiB

NOT_JSON = object()
_TEXT_TYPES = (
    "json",
    "xml",
    "javascript",
    "yaml",
    "x-www-form-urlencoded",
    "graphql",
    "csv",
    "sql",
)
_FILES = ("image/", "audio/", "video/", "font/")
_VAGUE = frozenset(("", "text/plain", "application/octet-stream", "text/html", "text/json"))
_JSON_BEGINS = re.compile(rb"\s*[\[{]")
_SPARE_DEPTH = 254 - MAX_DEPTH  # 254 is how deep orjson writes


def essence(media_type: str) -> str:
    """`application/json` of `Application/JSON; charset=utf-8`."""
    return media_type.partition(";")[0].strip().lower()


def is_text(body: bytes, media_type: str) -> bool:
    """Whether the body, which is in UTF-8 if it is text at all, is text."""
    kind = essence(media_type)
    if kind.startswith("text/") or kind.endswith(_TEXT_TYPES):
        return True
    return not kind.startswith(_FILES) and b"\0" not in body[:HEAVY_BYTES] and _is_utf8(body)


def as_text(body: bytes, media_type: str) -> str | None:
    """The body as text; None if it is none."""
    if not is_text(body, media_type):
        return None
    # By hand, without the mark: the codec that knows of it is written in Python.
    return body.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")


def shown(body: bytes, media_type: str) -> Iterator[str]:
    """The body as text, or else in base64, in pieces."""
    if is_text(body, media_type):
        yield from decoded(body, "utf-8-sig")
    else:
        for at in range(0, len(body), STEP_BYTES):
            yield base64.b64encode(body[at : at + STEP_BYTES]).decode()


def decoded(body: bytes, charset: str, errors: str = "replace") -> Iterator[str]:
    """The text of these bytes, in pieces."""
    decoder = codecs.getincrementaldecoder(charset)(errors)
    for at in range(0, len(body), STEP_BYTES):
        yield decoder.decode(body[at : at + STEP_BYTES])
    yield decoder.decode(b"", final=True)


def may_be_json(body: bytes, media_type: str) -> bool:
    """Whether it is worth a try: a type that says little is tried for what it is."""
    kind = essence(media_type)
    return kind.endswith("json") or (kind in _VAGUE and bool(_JSON_BEGINS.match(body)))


def as_json(
    body: bytes, media_type: str, loads: Callable[[bytes | str], Any] = orjson.loads
) -> Any:
    """The body as a JSON value, or NOT_JSON."""
    if not may_be_json(body, media_type):
        return NOT_JSON
    try:
        value = loads(body)
    except orjson.JSONDecodeError:
        text = body.decode("utf-8-sig", "replace")
        try:
            value = loads(text)
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            return NOT_JSON
    brackets = body.count(b"[") + body.count(b"{")
    return NOT_JSON if brackets > MAX_DEPTH and _is_too_deep(value) else value


def _is_utf8(body: bytes) -> bool:
    try:
        for _ in decoded(body, "utf-8-sig", "strict"):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _is_too_deep(value: Any) -> bool:
    """Asks who knows: walking through millions of values here would take seconds."""
    for _ in range(_SPARE_DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except TypeError:
        return True
    return False
