"""What an upstream's tool carries for programs beside its words: icons, `_meta`, an output schema.

A trusted upstream's icons and `_meta` are passed on, within bounds. One malformed icon would fail
the whole list at a client, so only what is well formed is kept. Keys of `_meta` that are ours, or
the protocol's own, are not an upstream's to set.

Clients check structured content against the output schema, the official TypeScript client that of
errors too. So the schema that is listed also allows what the gateway itself answers: the preview of
an answer that was too large, and an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from gateway.model import Source

MAX_ICONS = 8
MAX_ICONS_BYTES = 32_768  # pictures may be part of the list
MAX_META_BYTES = 8192
OURS = ("gateway/", "io.modelcontextprotocol/", "modelcontextprotocol.io/", "mcp/")
THEMES = ("light", "dark")
CUT: Mapping[str, Any] = {  # as short as can be: every tool's entry holds it
    "title": "Too large: read_result reads it",
    "properties": {"truncated": {"const": True}},
    "required": ["truncated", "result_id"],
}
FAILED: Mapping[str, Any] = {
    "properties": {"error": {"type": "object"}},
    "required": ["error"],
}
OUR_PROPERTIES = ("truncated", "bytes", "result_id", "preview", "error")
CONSTRAINS_NOTHING = ("$schema", "$id", "$defs", "definitions", "type", "title", "description")


def extras(raw: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """The part of a tool's entry that is passed on as it is."""
    if source.trust != "trusted":
        return {}
    found = {"icons": _icons(raw.get("icons")), "_meta": _meta(raw.get("_meta"))}
    return {name: value for name, value in found.items() if value}


def listed_output(schema: Mapping[str, Any]) -> dict[str, Any]:
    """An upstream's output schema that also allows the gateway's own answers.

    Its properties stay at the top, where clients read the types of an answer from, but for those
    that have the name of one of ours.
    """
    properties = schema.get("properties", {})
    shared = {name: found for name, found in properties.items() if name not in OUR_PROPERTIES}
    top = {key: schema[key] for key in schema if key in CONSTRAINS_NOTHING or key.startswith("x-")}
    rest = {key: schema[key] for key in schema if key not in top}
    rest["properties"] = {**properties, **dict.fromkeys(shared, {})}
    return {**top, "properties": shared, "anyOf": [rest, CUT, FAILED]}


def _icons(given: Any) -> list[dict[str, Any]]:
    listed = given if isinstance(given, list) else []
    icons = [icon for icon in map(_icon, listed[:MAX_ICONS]) if icon]
    return icons if _fits(icons, MAX_ICONS_BYTES) else []


def _icon(given: Any) -> dict[str, Any]:
    source = given.get("src") if isinstance(given, dict) else None
    if not isinstance(source, str) or not source.startswith(("https:", "http:", "data:image/")):
        return {}
    icon: dict[str, Any] = {"src": source}
    if isinstance(given.get("mimeType"), str):
        icon["mimeType"] = given["mimeType"]
    sizes = given.get("sizes")
    if isinstance(sizes, list) and all(isinstance(size, str) for size in sizes):
        icon["sizes"] = sizes
    if given.get("theme") in THEMES:
        icon["theme"] = given["theme"]
    return icon


def _meta(given: Any) -> dict[str, Any]:
    items = given.items() if isinstance(given, dict) else ()
    kept = {key: value for key, value in items if not key.startswith(OURS)}
    return kept if _fits(kept, MAX_META_BYTES) else {}


def _fits(value: Any, limit: int) -> bool:
    return len(orjson.dumps(value)) <= limit  # too deep a list was refused when it came in
