"""What a 2026-07-28 request over HTTP repeats in its headers, so that proxies can route on it.

`Mcp-Method` and `Mcp-Name` repeat the request; `Mcp-Param-TOKEN` repeats each argument whose
property is marked `x-mcp-header: TOKEN` in the tool's input schema. A mark is only valid on plain
properties of a plain type; a tool with an invalid mark must not be called at all.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any

HeaderMarks = Mapping[tuple[str, ...], str]
NAMED_BY: Mapping[str, str] = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
MARK = "x-mcp-header"

_PLAIN_TYPES = ("string", "integer", "boolean")
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SAFE_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?|")
_ENCODED = re.compile(r"=\?base64\?.*\?=")


def routing_headers(method: str, params: Mapping[str, Any], marks: HeaderMarks) -> dict[str, str]:
    """The `Mcp-*` headers that repeat one request's body."""
    headers = {"Mcp-Method": method}
    named = params.get(NAMED_BY.get(method, ""))
    if isinstance(named, str):
        headers["Mcp-Name"] = _header_value(named)
    for path, token in marks.items():
        text = _plain_text(_at(params.get("arguments"), path))
        if text is not None:
            headers[f"Mcp-Param-{token}"] = _header_value(text)
    return headers


def header_marks(schema: Any) -> dict[tuple[str, ...], str]:
    """Where a tool's arguments are to be repeated as headers: property path → token."""
    return {path: mark for path, mark, _ in _marked(schema) if path and isinstance(mark, str)}


def invalid_header_mark(schema: Any) -> str | None:
    """Why the marks of this schema can't be followed, or None."""
    seen: set[str] = set()
    for path, mark, kind in _marked(schema):
        if not path:
            return f"`{MARK}` stands where no plain property is"
        if not isinstance(mark, str) or not _TOKEN.fullmatch(mark):
            return f"`{MARK}` of {'.'.join(path)!r} is not a header name"
        if kind not in _PLAIN_TYPES:
            return f"`{MARK}` of {'.'.join(path)!r} is not on a string, integer or boolean"
        if mark.lower() in seen:
            return f"`{MARK}` names the same header twice"
        seen.add(mark.lower())
    return None


_ONE = frozenset(
    (
        *("items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames"),
        *("unevaluatedProperties", "not", "if", "then", "else", "contentSchema"),
    )
)
_LISTS = frozenset(("allOf", "anyOf", "oneOf", "prefixItems"))
_MAPS = frozenset(("patternProperties", "dependentSchemas", "$defs", "definitions"))


def _marked(schema: Any) -> Iterator[tuple[tuple[str, ...] | None, Any, Any]]:
    """(property path, mark, type) of every marked schema; the path is None off the plain chain."""
    stack: list[tuple[tuple[str, ...] | None, Any]] = [((), schema)]
    while stack:
        path, node = stack.pop()
        if not isinstance(node, dict):
            continue
        if MARK in node:
            yield path, node[MARK], node.get("type")
        for key, value in node.items():
            stack.extend(_below(path, key, value))


def _below(
    path: tuple[str, ...] | None, key: str, value: Any
) -> Iterator[tuple[tuple[str, ...] | None, Any]]:
    if key == "properties" and isinstance(value, dict):
        yield from ((None if path is None else (*path, name), sub) for name, sub in value.items())
    elif key in _ONE:
        yield None, value
    elif key in _LISTS and isinstance(value, list):
        yield from ((None, sub) for sub in value)
    elif key in _MAPS and isinstance(value, dict):
        yield from ((None, sub) for sub in value.values())


def _at(value: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _plain_text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, str | int | float) else None


def _header_value(text: str) -> str:
    """The text itself where a header can carry it, else base64 in the protocol's brackets."""
    if _SAFE_VALUE.fullmatch(text) and not _ENCODED.fullmatch(text):
        return text
    return f"=?base64?{base64.b64encode(text.encode('utf-8', 'replace')).decode('ascii')}?="
