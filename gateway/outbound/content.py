"""The bodies of answers: how much may be held, and whether they are text, JSON, or neither.

The Content-Type is believed as far as it goes; a vague one is checked against the bytes.
A charset comes from a byte order mark or from the Content-Type. Parsing a large JSON text takes up
to forty times its memory and holds up every thread of its process, so that it is done in a worker
process.
"""

from __future__ import annotations

import asyncio
import codecs
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable
from email.message import Message
from functools import lru_cache
from io import BytesIO
from typing import Any

import orjson

from gateway.limits import MAX_JSON_DEPTH, MAX_REMEMBERED, STEP_BYTES

# Runs a function of ours on data in a worker process; None where that takes too much.
RunInWorker = Callable[..., Awaitable[bytes | bytearray | None]]

NOT_JSON = object()
CUT_JSON = "text/x-json-cut"  # text that begins as JSON and breaks off: parsing it is of no use
_TEXT_TYPES = tuple("json xml javascript yaml x-www-form-urlencoded graphql csv sql".split())
_FILES = ("image/", "audio/", "video/", "font/")
_VAGUE = frozenset(("", "text/plain", "application/octet-stream", "text/html", "text/json"))
_JSON_BEGINS = re.compile(rb"\s*[\[{]")
# Codecs that are no charset of any document: slow ones, and spellings of text in text.
_NO_CHARSETS = {"idna", "punycode", "undefined", "utf-7", "unicode_escape", "raw_unicode_escape"}


class Room:
    """The right to hold one large answer while the block lasts; taken once the answer is large.

    An answer up to `bytes` needs no right. An answer that waits for the right is not read from the
    wire meanwhile, and an answer that does not get it in time is cut.
    """

    __slots__ = ("_free", "_slots", "bytes")

    def __init__(self, bytes: int, free: tuple[asyncio.Semaphore, ...]) -> None:
        self.bytes = bytes
        self._free = free
        self._slots: list[asyncio.Semaphore] = []

    async def holds(self, size: int) -> bool:
        """Whether an answer of this size may be held."""
        return size <= self.bytes or await self.take(None)

    async def take(self, until: float | None) -> bool:
        """Whether a large answer may be held; waits for that, at most until `until`."""
        try:
            async with asyncio.timeout_at(until):
                for slot in self._free[len(self._slots) :]:
                    await slot.acquire()
                    self._slots.append(slot)
        except TimeoutError:
            return False
        return True

    def __enter__(self) -> Room:
        return self

    def __exit__(self, *_: object) -> None:
        for slot in self._slots:
            slot.release()


async def collect(
    read: Callable[[], Awaitable[bytes]], max_bytes: int, room: Room | None, until: float
) -> tuple[bytes, bool]:
    """The chunks that `read` gives, joined up to a bound, and whether there were more."""
    body, size, bound = BytesIO(), 0, max_bytes
    while chunk := await read():
        size += len(chunk)
        if room is not None and size > room.bytes:
            bound = max_bytes if await room.take(until) else room.bytes
            room = None
        body.write(chunk)  # grows in place: joining chunks would hold them twice
        if size > bound:
            body.truncate(bound)
            break
    return body.getvalue(), size > bound


@lru_cache(maxsize=MAX_REMEMBERED)
def essence(media_type: str) -> str:
    """`application/json` of `Application/JSON; charset=utf-8`."""
    return media_type.partition(";")[0].strip().lower()


def as_text(body: bytes, media_type: str) -> str | None:
    """The body, which is in UTF-8 if it is text at all, as text; None if it is not text."""
    kind, body = essence(media_type), body.removeprefix(codecs.BOM_UTF8)
    if kind.startswith("text/") or kind.endswith(_TEXT_TYPES):
        return body.decode("utf-8", "replace")
    if kind.startswith(_FILES) or b"\0" in body[:STEP_BYTES]:
        return None
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def text_or_base64(body: bytes, media_type: str) -> str:
    """The body as text, or else in base64."""
    text = as_text(body, media_type)
    return b64encode(body).decode() if text is None else text


def may_be_json(body: bytes, media_type: str) -> bool:
    """Whether parsing as JSON is worth a try: under a vague type the first bytes decide."""
    kind = essence(media_type)
    return kind.endswith("json") or (kind in _VAGUE and bool(_JSON_BEGINS.match(body)))


def as_json(body: bytes, media_type: str) -> Any:
    """The body as a JSON value, or NOT_JSON."""
    if not may_be_json(body, media_type):
        return NOT_JSON
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        try:
            value = orjson.loads(body.decode("utf-8-sig", "replace"))
        except orjson.JSONDecodeError:
            return NOT_JSON
    brackets = body.count(b"[") + body.count(b"{")
    return NOT_JSON if brackets > MAX_JSON_DEPTH and _is_too_deep(value) else value


def _is_too_deep(value: Any) -> bool:
    """Whether orjson can't write the value inside a result; walking it here would take seconds."""
    for _ in range(254 - MAX_JSON_DEPTH):  # deeper values orjson reads but does not write
        value = [value]
    try:
        orjson.dumps(value)
    except TypeError:
        return True
    return False


def charset_of(body: bytes, media_type: str) -> str | None:
    """The charset to decode a text with; None: it is UTF-8, or no text."""
    if essence(media_type).startswith(_FILES):
        return None
    if body.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return _declared_charset(media_type[:200])


@lru_cache(maxsize=MAX_REMEMBERED)
def _declared_charset(media_type: str) -> str | None:
    """The charset that a Content-Type names, if it is one to decode with and not UTF-8."""
    message = Message()
    message["content-type"] = media_type
    try:
        codec = codecs.lookup(message.get_content_charset() or "utf-8").name
        b"x".decode(codec, "replace")  # raises LookupError for a codec that is no encoding of text
    except (LookupError, ValueError):
        return None
    if codec in _NO_CHARSETS or codec.startswith("utf-8"):
        return None
    return f"{codec}-le" if codec in ("utf-16", "utf-32") else codec  # as most write it unmarked
