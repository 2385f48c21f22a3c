"""Bytes of unknown origin become one plain JSON value, or one clear refusal.

What a document would cost is estimated on its bytes before a parser sees them: brackets and commas
bound the objects that parsing would make, and no text is longer than real ones are. JSON is tried
first; what is almost JSON (trailing commas, raw control characters) a YAML reader takes. Encodings
other than UTF-8 occur in real definitions: a byte order mark decides, then Windows-1252. YAML and
other encodings cost several times their size, so less of them is read.

YAML 1.2 as plain JSON values, straight from libyaml's events.

PyYAML's own constructors speak YAML 1.1 (dates, `no` as false, `24:00:00` as a number, `=` as an
error) and take five times as long. Here an event stream becomes dicts, lists and core-schema
scalars in one loop that counts as it goes: aliases are shared objects, and what they would come to
when written out is bounded, so a small document can't stand for a huge one.

A document in JSON, read part by part: of most, only a little is needed at a time.

Read as a whole, a document takes ten times its size. So only its outline is read at first, down to
path items and named schemas; what these hold is bytes until somebody reaches it. A named part that
was reached is kept: the same reference always leads to the same object. Path items are passed
through one after the other, and only those that a reference leads into are kept.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any

import msgspec
import yaml

from gateway.errors import DefinitionUnreadable

MAX_DEPTH = 200
MAX_NODES = 400_000  # Stripe's have 165,000
MAX_EXPANDED = 1_500_000  # nodes, counting each alias as the whole it stands for

_INT = re.compile(r"[-+]?[0-9]+\Z|0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER_STARTS = frozenset("0123456789+-.")
_LARGEST = 2**63
_STRING_TAGS = frozenset({"!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:binary"})


def read_yaml(text: str | bytes) -> Any:
    """The first document. Raises DefinitionUnreadable with line and column."""
    try:
        return _Reader().read(yaml.parse(text, Loader=yaml.CSafeLoader))
    except yaml.MarkedYAMLError as error:
        raise _unreadable(error) from error
    except yaml.YAMLError as error:
        raise DefinitionUnreadable(f"Not valid JSON or YAML: {error}") from error


def plain_scalar(text: str) -> Any:
    """An unquoted scalar by the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_STARTS:
        return text
    if _INT.match(text):
        return _integer(text)
    return float(text) if _FLOAT.match(text) else text


def _integer(text: str) -> int | float | str:
    if len(text) > 40:
        return text
    value = int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    return value if -_LARGEST <= value < _LARGEST else float(value)


class _Reader:
    """The state of one pass over the events: open containers, anchors, and what was counted."""

    def __init__(self) -> None:
        self.nodes = 0
        self.expanded = 0
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.scalars: dict[str, Any] = {}
        # Each open container: the container, the key that waits for a value, its anchor, and
        # how many nodes had been counted when it began.
        self.stack: list[tuple[Any, str | None, str | None, int]] = []

    def read(self, events: Any) -> Any:
        container: Any = None
        key: str | None = None
        anchor: str | None = None
        began = 0
        for event in events:
            kind = type(event)
            if kind is yaml.ScalarEvent:
                value = self.scalar(event, is_key=type(container) is dict and key is None)
                self.count(event)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self.count(event)
                self.stack.append((container, key, anchor, began))
                if len(self.stack) > MAX_DEPTH:
                    raise _out_of_bounds(event, f"nested more than {MAX_DEPTH} levels deep")
                container = {} if kind is yaml.MappingStartEvent else []
                key, anchor, began = None, event.anchor, self.expanded
                continue
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                value = container
                if anchor is not None:
                    self.anchors[anchor] = (value, self.expanded - began)
                container, key, anchor, began = self.stack.pop()
            elif kind is yaml.AliasEvent:
                value = self.alias(event)
            elif kind is yaml.DocumentEndEvent:
                return value
            else:
                continue
            if type(container) is dict:
                if key is None:
                    key = value if type(value) is str else _key_text(value, event)
                    continue
                if key == "<<" and isinstance(value, (dict, list)):
                    _merge(container, value)
                else:
                    container[key] = value
                key = None
            elif container is not None:
                container.append(value)
        raise DefinitionUnreadable("The document is empty.")

    def scalar(self, event: Any, *, is_key: bool) -> Any:
        text: str = event.value
        if event.style or is_key or event.tag in _STRING_TAGS:
            value: Any = text
        elif text in self.scalars:
            value = self.scalars[text]
        else:
            value = self.scalars[text] = plain_scalar(text)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1)
        return value

    def alias(self, event: Any) -> Any:
        if event.anchor not in self.anchors:
            raise _out_of_bounds(event, f"alias *{event.anchor} stands for nothing before it")
        value, size = self.anchors[event.anchor]
        self.expanded += size
        if self.expanded > MAX_EXPANDED:
            raise _out_of_bounds(event, f"aliases stand for more than {MAX_EXPANDED:,} nodes")
        return value

    def count(self, event: Any) -> None:
        self.nodes += 1
        self.expanded += 1
        if self.nodes > MAX_NODES or self.expanded > MAX_EXPANDED:
            raise _out_of_bounds(event, f"more than {MAX_NODES:,} nodes")


def _merge(container: dict[str, Any], value: Any) -> None:
    """YAML 1.2 dropped merge keys, writers of definitions did not. Keys already there win."""
    for source in value if isinstance(value, list) else [value]:
        if isinstance(source, dict):
            for key, item in source.items():
                container.setdefault(key, item)


def _key_text(value: Any, event: Any) -> str:
    if isinstance(value, (dict, list)):
        raise _out_of_bounds(event, "a key that is not a scalar")
    return "null" if value is None else str(value)


def _unreadable(error: yaml.MarkedYAMLError) -> DefinitionUnreadable:
    mark = error.problem_mark or error.context_mark
    what = error.problem or error.context or "could not be read"
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return DefinitionUnreadable(
        f"Not valid JSON or YAML: {what}{where}.", "Correct the definition at that place."
    )


def _out_of_bounds(event: Any, what: str) -> DefinitionUnreadable:
    mark = event.start_mark
    return DefinitionUnreadable(
        f"The definition can't be read: {what} (line {mark.line + 1}, column {mark.column + 1}).",
        "Use a smaller or simpler definition.",
    )


Decode = Callable[[msgspec.Raw], Any]

_OUTLINE = msgspec.json.Decoder(dict[str, msgspec.Raw])
# What is read in parts, and how many levels of it: a path item's operations, a kind's schemas.
_LEVELS = {"paths": 2, "components": 2, "definitions": 1, "parameters": 1, "responses": 1}


class PartUnreadable(Exception):
    """A part can't be decoded, though the outline around it could: only reading all of it tells."""


class Parts(dict[str, Any]):
    """An object whose members are bytes until they are reached."""

    __slots__ = ("_decode", "_levels", "_passing")

    def __init__(self, raw: Any, decode: Decode, levels: int) -> None:
        super().__init__(_OUTLINE.decode(raw))
        self._decode = decode
        self._levels = levels
        self._passing: tuple[str, Any] | None = None

    def __getitem__(self, key: str) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, msgspec.Raw):
            value = self[key] = self._passing_or_read(key, value)
        return value

    def get(self, key: str, default: Any = None) -> Any:
        if key not in self:
            return default
        return self[key]

    def items(self) -> ItemsView[str, Any]:  # type: ignore[override]  # a view as well
        return ItemsView(self)

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # a view as well
        return ValuesView(self)

    def passing(self, key: str) -> Any:
        """The member, which is not kept unless it is asked for before the next one passes."""
        value = super().__getitem__(key)
        if isinstance(value, msgspec.Raw):
            value = self._read(value, self._levels)
            self._passing = (key, value)
        return value

    def keeps(self, key: str) -> bool:
        """Whether the member is the same object whenever it is asked for."""
        return not isinstance(super().__getitem__(key), msgspec.Raw)

    def read_so_far(self) -> list[Any]:
        """The members that were reached."""
        return [value for value in super().values() if not isinstance(value, msgspec.Raw)]

    def divide(self, key: str, levels: int) -> None:
        """Read this member in parts as well, if it is an object."""
        if key in self and not self.keeps(key):
            self[key] = self._read(super().__getitem__(key), levels + 1)

    def _passing_or_read(self, key: str, raw: msgspec.Raw) -> Any:
        if self._passing is not None and self._passing[0] == key:
            return self._passing[1]
        return self._read(raw, self._levels)

    def _read(self, raw: msgspec.Raw, levels: int) -> Any:
        try:
            if levels > 1 and bytes(memoryview(raw)[:1]) == b"{":
                return Parts(raw, self._decode, levels - 1)
            return self._decode(raw)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise PartUnreadable(str(error)) from error


def divided(data: bytes | memoryview, decode: Decode) -> Parts:
    """The document in parts. Raises what the decoder does if it is not an object in JSON."""
    root = Parts(data, decode, 1)
    for key, levels in _LEVELS.items():
        root.divide(key, levels)
    return root


def whole(value: Any) -> Any:
    """The value with nothing left to be read: for where anything may be done with it."""
    if not isinstance(value, Parts):
        return value
    return {key: whole(part) for key, part in value.items()}


def objects_in(root: Any) -> Iterator[dict[str, Any]]:
    """Every object once, though YAML's aliases share them; parts go when they have been seen."""
    waiting, seen = [root], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, Parts):
            yield value
            for key in reversed(value):
                # With ids of its own to remember: those of a part that went are given out again.
                yield from objects_in(value.passing(key))
        elif isinstance(value, dict) and id(value) not in seen:
            seen.add(id(value))
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


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
