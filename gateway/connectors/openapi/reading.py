"""Bytes of unknown origin become one plain JSON value, or one clear refusal.

What a document would cost is estimated on its bytes before a parser sees them: brackets and commas
bound the objects that parsing would make, and no text is longer than real ones are. JSON is tried
first; what is almost JSON (trailing commas, raw control characters) a YAML reader takes. Encodings
other than UTF-8 occur in real definitions: a byte order mark decides, then Windows-1252. YAML and
other encodings cost several times their size, so less of them is read.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.connectors.openapi.parts import Parts, PartUnreadable, divided
from gateway.connectors.openapi.yaml12 import read_yaml
from gateway.errors import DefinitionUnreadable

MAX_OPERATIONS = 10_000
MAX_BYTES = 64 * 1024 * 1024
MAX_REWRITTEN = 12 * 1024 * 1024  # bytes of YAML, or in an encoding other than UTF-8
MAX_TEXT = 1024 * 1024  # bytes of one text; Stripe's longest has 60 KB
MAX_CONTAINERS = 300_000  # GitHub's 13 MB have about 100,000
MAX_ITEMS = 600_000  # commas, prose included; GitHub's have about 180,000
MAX_YAML_LINES = 250_000  # Stripe's 3.7 MB have 92,000

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
_START = 1024  # bytes that tell JSON from YAML
_CHUNK = 1024 * 1024
_LARGEST = 2**63
_WRITTEN = re.compile(rb"[^ \t\r\n\xef\xbb\xbf]")
_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_LARGE_NUMBER = b"0" * 19
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
_TAB_AFTER_BREAK = re.compile(r"(?m)^[ ]*\t[\t ]*")


def read_definition(raw: bytes) -> dict[str, Any]:
    """The definition itself, out of its encoding, its syntax and its wrapper."""
    refuse_out_of_bounds(raw)
    return _read_whole(raw)


def read_in_parts(raw: bytes) -> dict[str, Any]:
    """The same, but what is a definition in JSON is read part by part, as its parts are reached.

    Whoever reaches one may get PartUnreadable: then `read_definition` knows what is to be said.
    """
    refuse_out_of_bounds(raw)
    # An anchor is looked for everywhere, and must be the very object that a pointer leads to.
    parts = _divided(_in_utf8(raw)) if b"$anchor" not in raw else None
    return _read_whole(raw) if parts is None or "paths" not in parts else parts


def _divided(data: bytes | memoryview) -> Parts | None:
    if bytes(data[:_START]).lstrip()[:1] != b"{":
        return None
    try:
        return divided(data, _narrowed_part if _has_large_number(data) else msgspec.json.decode)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, PartUnreadable):
        return None


def _read_whole(raw: bytes) -> dict[str, Any]:
    value = _parse(raw)
    if not isinstance(value, dict):
        raise DefinitionUnreadable(
            f"The document is {_kind_of(value)}, not an OpenAPI definition.",
            "Give the address of the definition itself, in JSON or YAML.",
        )
    return _unwrapped(value)


def refuse_out_of_bounds(raw: bytes) -> None:
    """Refuse on the bytes alone what would be too much to parse."""
    if not _WRITTEN.search(raw):
        raise DefinitionUnreadable("The document is empty.")
    if len(raw) > MAX_BYTES:
        raise _too_much("bytes", len(raw), MAX_BYTES)
    containers = raw.count(b"{") + raw.count(b"[")
    if containers > MAX_CONTAINERS:
        raise _too_much("objects and lists", containers, MAX_CONTAINERS)
    items = raw.count(b",")
    if items > MAX_ITEMS:
        raise _too_much("items", items, MAX_ITEMS)
    if _has_long_text(raw):
        raise _too_much("bytes in one text", MAX_TEXT, MAX_TEXT, "more than")


def _has_long_text(raw: bytes) -> bool:
    """Whether a whole stretch of the document has neither a quote nor the end of a line."""
    stretches = range(0, len(raw) - MAX_TEXT, MAX_TEXT)
    return any(
        raw.find(b'"', at, at + MAX_TEXT) < 0 and raw.find(b"\n", at, at + MAX_TEXT) < 0
        for at in stretches
    )


def _too_much(what: str, found: int, limit: int, about: str = "about") -> DefinitionUnreadable:
    return DefinitionUnreadable(
        f"The definition has {about} {found:,} {what}; at most {limit:,} are read.",
        "Split the definition, or serve only the part that is needed.",
    )


def _parse(raw: bytes) -> Any:
    """JSON if it is that, straight from the bytes; else YAML, which much of what is broken is."""
    data = _in_utf8(raw)
    try:
        value = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        if len(data) > MAX_REWRITTEN:
            raise DefinitionUnreadable(
                f"The definition is not valid JSON ({error}), and too large to be read as YAML.",
                f"Correct it, or split it: YAML is read up to {MAX_REWRITTEN:,} bytes.",
            ) from None
    else:
        return _narrowed(value) if _has_large_number(data) else value
    return _parse_yaml(bytes(data))


def _in_utf8(raw: bytes) -> bytes | memoryview:
    """The document itself where it is in UTF-8, else rewritten."""
    if raw.startswith(codecs.BOM_UTF8):
        return memoryview(raw)[len(codecs.BOM_UTF8) :]
    encoding = _encoding_of(raw)
    if encoding == "utf-8":
        return raw
    if len(raw) > MAX_REWRITTEN:
        raise DefinitionUnreadable(
            f"The definition has more than {MAX_REWRITTEN:,} bytes and is not in UTF-8.",
            "Save it in UTF-8.",
        )
    return raw.decode(encoding, "replace").encode()


def _encoding_of(raw: bytes) -> str:
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if raw[1:2] == b"\0" or raw[:1] == b"\0":
        return "utf-16-le" if raw[1:2] == b"\0" else "utf-16-be"
    return "utf-8" if raw.isascii() or _is_utf8(raw) else "cp1252"


def _is_utf8(raw: bytes) -> bool:
    """In pieces: one letter outside of Latin makes a text of the whole several times as large."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for at in range(0, len(raw), _CHUNK):
            decoder.decode(raw[at : at + _CHUNK], final=at + _CHUNK >= len(raw))
    except UnicodeDecodeError:
        return False
    return True


def _has_large_number(data: bytes | memoryview) -> bool:
    """Whether so many digits stand in a row somewhere."""
    step = _CHUNK + len(_LARGE_NUMBER)
    pieces = (bytes(data[at : at + step]) for at in range(0, len(data), _CHUNK))
    return any(_LARGE_NUMBER in piece.translate(_DIGITS) for piece in pieces)


def _narrowed_part(raw: msgspec.Raw) -> Any:
    return _narrowed(msgspec.json.decode(raw))


def _narrowed(root: Any) -> Any:
    """The same with whole numbers beyond 64 bits, which no writer of JSON takes, as fractions."""
    waiting: list[Any] = [[root]]
    while waiting:
        value = waiting.pop()
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(part, (dict, list)):
                waiting.append(part)
            elif type(part) is int and not -_LARGEST <= part < 2 * _LARGEST:
                value[key] = float(str(part))
    return root


def _parse_yaml(raw: bytes) -> Any:
    lines = raw.count(b"\n")
    if lines > MAX_YAML_LINES:
        raise _too_much("lines", lines, MAX_YAML_LINES)
    try:
        return read_yaml(raw)
    except DefinitionUnreadable:
        text = raw.decode("utf-8", "replace")
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
