"""Bytes of unknown origin become one plain JSON value, or one clear refusal.

What a document would cost is estimated on its bytes before a parser sees them: brackets and commas
bound the objects that parsing would make, method keys bound the operations. JSON is tried first;
what is almost JSON (trailing commas, raw control characters) a YAML reader takes. Encodings other
than UTF-8 occur in real definitions: a byte order mark decides, then Windows-1252.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.connectors.openapi.yaml12 import read_yaml
from gateway.errors import DefinitionUnreadable

MAX_OPERATIONS = 10_000
MAX_BYTES = 64 * 1024 * 1024
MAX_CONTAINERS = 250_000  # GitHub's 13 MB have about 100,000
MAX_ITEMS = 400_000  # commas, prose included; GitHub's have about 180,000
MAX_YAML_LINES = 400_000  # Stripe's 3.7 MB have 92,000

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_BLANK = b" \t\r\n" + codecs.BOM_UTF8
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
_TAB_AFTER_BREAK = re.compile(r"(?m)^[ ]*\t[\t ]*")


def read_definition(raw: bytes) -> dict[str, Any]:
    """The definition itself, out of its encoding, its syntax and its wrapper."""
    refuse_out_of_bounds(raw)
    value = _parse(raw)
    if not isinstance(value, dict):
        raise DefinitionUnreadable(
            f"The document is {_kind_of(value)}, not an OpenAPI definition.",
            "Give the address of the definition itself, in JSON or YAML.",
        )
    return _unwrapped(value)


def refuse_out_of_bounds(raw: bytes) -> None:
    """Refuse on the bytes alone what would be too much to parse."""
    if not raw.strip(_BLANK):
        raise DefinitionUnreadable("The document is empty.")
    if len(raw) > MAX_BYTES:
        raise _too_much("bytes", len(raw), MAX_BYTES)
    containers = raw.count(b"{") + raw.count(b"[")
    if containers > MAX_CONTAINERS:
        raise _too_much("objects and lists", containers, MAX_CONTAINERS)
    items = raw.count(b",")
    if items > MAX_ITEMS:
        raise _too_much("items", items, MAX_ITEMS)
    operations = sum(raw.count(b'"%b":' % m) + raw.count(b" %b:\n" % m) for m in _METHOD_BYTES)
    if operations > MAX_OPERATIONS:
        raise _too_much("operations", operations, MAX_OPERATIONS)


_METHOD_BYTES = tuple(method.encode() for method in METHODS)


def _too_much(what: str, found: int, limit: int) -> DefinitionUnreadable:
    return DefinitionUnreadable(
        f"The definition has about {found:,} {what}; at most {limit:,} are read.",
        "Split the definition, or serve only the part that is needed.",
    )


def _parse(raw: bytes) -> Any:
    data: bytes | str = raw
    try:
        data = _decoded(raw)
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return _parse_yaml(data if isinstance(data, str) else data.decode("utf-8"))


def _decoded(raw: bytes) -> bytes | str:
    """UTF-8 bytes where the document is UTF-8 already, else its text."""
    if raw.startswith(codecs.BOM_UTF8):
        raw = raw[3:]
    elif raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw.decode("utf-16", "replace")
    elif raw[1:2] == b"\0" or raw[:1] == b"\0":
        return raw.decode("utf-16-le" if raw[1:2] == b"\0" else "utf-16-be", "replace")
    if raw.isascii():
        return raw
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("cp1252", "replace")
    return raw


def _parse_yaml(text: str) -> Any:
    lines = text.count("\n")
    if lines > MAX_YAML_LINES:
        raise _too_much("lines", lines, MAX_YAML_LINES)
    try:
        return read_yaml(text)
    except DefinitionUnreadable:
        mended = _TAB_AFTER_BREAK.sub(_spaces, _CONTROL.sub(" ", text))
        if mended == text:
            raise
    return read_yaml(mended)


def _spaces(indent: re.Match[str]) -> str:
    return " " * len(indent[0])


def _kind_of(value: Any) -> str:
    if isinstance(value, str):
        return "a web page" if value.lstrip().startswith("<") else "plain text"
    return "a list" if isinstance(value, list) else "a single value"


def _unwrapped(value: dict[str, Any]) -> dict[str, Any]:
    """Azure and Power Platform hand the Swagger out inside an envelope of their own."""
    properties = value.get("properties")
    if "paths" in value or not isinstance(properties, Mapping):
        return value
    definitions = properties.get("apiDefinitions")
    inner = definitions.get("value") if isinstance(definitions, Mapping) else None
    for candidate in (properties.get("swagger"), inner):
        if isinstance(candidate, str):
            return read_definition(candidate.encode())
        if isinstance(candidate, dict):
            return candidate
    return value
