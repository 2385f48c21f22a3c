"""A change of one operation as people read it: what it was, what it is. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from gateway.edge.console.words import clip, clip_text
from gateway.model import Tool

MAX_LINES = 160
MAX_VALUE = 600
CONTEXT_LINES = 2

_decode = msgspec.msgpack.Decoder(Tool).decode


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that differs."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Diff:
    """All that differs in one operation."""

    rows: tuple[Row, ...]
    lines: tuple[tuple[str, str], ...]  # sign and text of the input schema
    cut: bool = False


def diff_of(before: bytes | None, after: bytes | None) -> Diff:
    """The difference between two tools as the store keeps them."""
    old, new = _tool(before), _tool(after)
    rows = tuple(Row(name, was, now) for name, was, now in _pairs(old, new) if was != now)
    lines = list(_lines(_schema(old), _schema(new)))
    return Diff(rows, tuple(lines[:MAX_LINES]), len(lines) > MAX_LINES)


def _tool(data: bytes | None) -> Tool | None:
    if data is None:
        return None
    try:
        return _decode(data)
    except msgspec.MsgspecError:  # written by another version
        return None


def _pairs(old: Tool | None, new: Tool | None) -> Iterator[tuple[str, str, str]]:
    was, now = _facts(old), _facts(new)
    for name in was or now:
        yield name, _text(was.get(name, "")), _text(now.get(name, ""))


def _facts(tool: Tool | None) -> dict[str, str]:
    if tool is None:
        return {}
    return {
        "Name": tool.name,
        "Request": f"{tool.method} {tool.path}".strip(),
        "Host": tool.http.base_url if tool.http else "",
        "Access": tool.access,
        "Risk": tool.risk,
        "Credentials": tool.security,
        "Title": tool.title,
        "Description": tool.description,
    }


def _text(value: str) -> str:
    return clip_text(value, MAX_VALUE)


def _schema(tool: Tool | None) -> list[str]:
    if tool is None:
        return []
    value: Any = orjson.loads(tool.input_schema)
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode()
    return text.splitlines()


def _lines(old: list[str], new: list[str]) -> Iterator[tuple[str, str]]:
    if old == new:
        return
    for line in difflib.unified_diff(old, new, lineterm="", n=CONTEXT_LINES):
        if line.startswith(("---", "+++")):
            continue
        sign = line[:1] if line[:1] in "+-@" else " "
        yield sign, clip_line(line if sign == "@" else line[1:])


def clip_line(line: str) -> str:
    """A line that keeps its indentation."""
    inner = line.lstrip(" ")
    return " " * min(len(line) - len(inner), 60) + clip(inner, 200)
