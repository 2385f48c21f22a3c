"""How values are worded for people: times, sizes, cut text. Pure, and the templates' filters."""

from __future__ import annotations

import time
import unicodedata
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import orjson

from gateway.store.columns import json_bytes

MAX_NAME = 128
MAX_TEXT = 2000
MAX_CODE = 20_000
# Characters that change what stands beside them, or show nothing at all.
HIDDEN = frozenset("Cc Cf Co Cs Zl Zp".split())
KEPT = frozenset("\n\t")

RISK_WORDS = {
    "none": "reads only",
    "low": "low risk",
    "medium": "medium risk",
    "high": "high risk",
}
RISK_ICONS = {
    "none": "eye",
    "low": "info",
    "medium": "triangle-alert",
    "high": "octagon-alert",
}
STATUS_WORDS = {
    "pending_confirmation": "waiting",
    "executing": "running",
    "completed": "ok",
    "failed": "failed",
    "denied": "denied",
    "expired": "expired",
    "unknown": "unknown",
}


def clip(value: object, length: int = MAX_NAME) -> str:
    """Text on one line, without characters that hide or turn their neighbours, cut to a length."""
    return _cut(" ".join(visible(str(value)[: length * 4]).split()), length)


def clip_text(value: object, length: int = MAX_TEXT) -> str:
    """The same for running text, which keeps its lines."""
    return _cut(visible(str(value)[: length * 4]), length)


def visible(text: str) -> str:
    """The text with hidden and direction-changing characters shown as U+FFFD."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        "\ufffd" if unicodedata.category(char) in HIDDEN and char not in KEPT else char
        for char in text
    )


def pretty(value: Any, length: int = MAX_CODE) -> str:
    """A JSON value as people read it."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
    except TypeError:
        text = json_bytes(value).decode("utf-8", "replace")
    return clip_text(text, length)


def compact(value: Any, length: int = MAX_NAME) -> str:
    """A JSON value on one line."""
    return clip(json_bytes(value).decode("utf-8", "replace").strip(), length)


def ago(at: float | None, now: float | None = None) -> str:
    """How long ago, or in how long."""
    if at is None:
        return "never"
    seconds = (time.time() if now is None else now) - at
    word = _span(abs(seconds))
    if word == "now":
        return "just now"
    return f"{word} ago" if seconds >= 0 else f"in {word}"


def full_time(at: float | None) -> str:
    """The whole time, for those who point at it."""
    if at is None:
        return ""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso_time(at: float | None) -> str:
    """The time as machines read it."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def clock(at: float | None) -> str:
    """The time of day."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def duration(milliseconds: float | None) -> str:
    """How long something took."""
    if milliseconds is None:
        return "–"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms" if milliseconds >= 1 else "<1 ms"
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 60_000 else _span(milliseconds / 1000)


def number(value: float) -> str:
    """A count with its thousands apart."""
    return f"{value:,.0f}"


def plural(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def segment(value: object) -> str:
    """Text as one part of an address."""
    return quote(str(value)[:4096], safe="", errors="replace")


FILTERS = {
    "clip": clip,
    "clip_text": clip_text,
    "pretty": pretty,
    "compact": compact,
    "ago": ago,
    "full_time": full_time,
    "iso_time": iso_time,
    "clock": clock,
    "duration": duration,
    "number": number,
    "plural": plural,
    "segment": segment,
    "risk_words": lambda risk: RISK_WORDS.get(risk, clip(risk)),
    "risk_icon": lambda risk: RISK_ICONS.get(risk, "triangle-alert"),
    "status_words": lambda status: STATUS_WORDS.get(status, clip(status)),
}


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 1] + "…"


def _span(seconds: float) -> str:
    if seconds < 5:
        return "now"
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "now"
