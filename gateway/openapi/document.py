"""Bytes of unknown origin become one document whose references can be followed.

JSON is tried first; the YAML reader takes texts that are almost JSON (trailing commas, raw control
characters). Encodings other than UTF-8 occur in real definitions: a byte order mark decides, then
Windows-1252. References are looked up in this document only: nothing is ever fetched. Size is not
checked here, since the reader process has bounds on its memory and its time; only YAML's aliases
are, which let a small text stand for a huge one.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import orjson
import yaml

from gateway.errors import DefinitionUnreadable
from gateway.limits import MAX_HOPS, MAX_OPERATIONS, MAX_WIRE_NAME, MAX_YAML_NODES
from gateway.model import Nameable

METHODS = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace"})
_EMPTY: Mapping[str, Any] = {}


class Unusable(Exception):
    """This operation, or this reference, can't be understood; the message says why."""


@dataclass(frozen=True, slots=True)
class Document:
    """A definition whose version is known."""

    root: Mapping[str, Any]
    format: str
    swagger: bool
    _targets: dict[str, Any] = field(default_factory=dict)  # of references, as far as resolved

    def resolve(self, value: Any) -> Mapping[str, Any]:
        """The object that a value is or, through references, stands for."""
        for _ in range(MAX_HOPS):
            if not isinstance(value, dict):
                raise Unusable("a reference leads to something that is not an object")
            reference = value.get("$ref")
            if not isinstance(reference, str):
                return value
            value = self.target(reference)
        raise Unusable("references lead to each other in a circle")

    def find(self, value: Any) -> Mapping[str, Any]:
        """The object that `resolve` gives; an empty one where a reference leads nowhere."""
        try:
            return self.resolve(value)
        except Unusable:
            return _EMPTY

    def target(self, reference: str) -> Any:
        """The value that a local reference points at."""
        if reference not in self._targets:
            if not reference.startswith("#"):
                raise Unusable(f"reference to another document is not followed: {reference[:200]}")
            value: Any = self.root
            for segment in reference.removeprefix("#/").split("/"):
                value = _step(value, segment, reference)
            self._targets[reference] = value
        return self._targets[reference]


@dataclass(frozen=True, slots=True)
class Operation(Nameable):
    """One method of one path, as written."""

    raw: Mapping[str, Any] = field(default_factory=dict)
    item: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""  # why it can't be used


def open_document(definition: Mapping[str, Any], location: str = "") -> Document:
    """The definition with its version; what 2.0 has elsewhere stands where OpenAPI 3 has it."""
    swagger, openapi = (_version(definition.get(key)) for key in ("swagger", "openapi"))
    if swagger == "2.0":
        components = {
            "schemas": definition.get("definitions"),
            "securitySchemes": definition.get("securityDefinitions"),
        }
        servers = [{"url": _swagger_address(definition, location)}]
        root = {"components": components, **definition, "servers": servers}
        return Document(root, "swagger-2.0", swagger=True)
    if openapi.startswith("3.0"):
        return Document(definition, "openapi-3.0", swagger=False)
    if openapi.startswith("3."):
        return Document(definition, "openapi-3.1", swagger=False)
    version = f"version {swagger or openapi} " if swagger or openapi else "no version "
    raise DefinitionUnreadable(
        f'Not an OpenAPI definition we know: {version}at "swagger" or "openapi".',
        'Swagger 2.0 ("swagger": "2.0") and OpenAPI 3.0 and 3.1 ("openapi": "3.…") are read.',
    )


def _version(value: Any) -> str:
    text = str(value).strip() if isinstance(value, (str, int, float)) else ""
    return "2.0" if text == "2" else text


def _swagger_address(root: Mapping[str, Any], location: str) -> str:
    host, path = (text_of(root.get(key)).strip() for key in ("host", "basePath"))
    if not host:
        return path or "/"
    origin = urlsplit(location)
    default = "http" if origin.scheme == "http" and origin.netloc == host else "https"
    schemes = sequence(root.get("schemes")) or [default]
    scheme = next((each for each in ("https", "http") if each in schemes), schemes[0])
    return f"{scheme}://{host}/{path.lstrip('/')}"


def find_operations(document: Document) -> list[Operation]:
    """Every operation in document order, also those that can't be understood."""
    operations: list[Operation] = []
    for path, entry in mapping(document.root.get("paths")).items():
        if not path.startswith("x-"):
            operations.extend(_operations_at(document, path, entry))
        if len(operations) > MAX_OPERATIONS:
            raise DefinitionUnreadable(
                f"The definition has more operations than {MAX_OPERATIONS:,}.",
                "Split the definition, or serve only the part that is needed.",
            )
    return operations


def _operations_at(document: Document, path: str, entry: Any) -> Iterator[Operation]:
    try:
        item = _path_item(document, entry)
    except Unusable as error:
        yield Operation(None, "", path, problem=str(error))
        return
    for method in item:
        if method.lower() in METHODS:
            yield _operation(method.upper(), path, item[method], item)


def _path_item(document: Document, entry: Any) -> Mapping[str, Any]:
    if not isinstance(entry, dict):
        raise Unusable("the path item is not an object")
    if "$ref" not in entry:
        return entry
    target = document.resolve(entry)
    return {**target, **{key: value for key, value in entry.items() if key != "$ref"}}


def _operation(method: str, path: str, raw: Any, item: Mapping[str, Any]) -> Operation:
    if not isinstance(raw, dict):
        return Operation(None, method, path, problem="the operation is not an object")
    name = text_of(raw.get("operationId"))
    is_usable = name.strip() and len(name) <= MAX_WIRE_NAME
    return Operation(name if is_usable else None, method, path, raw, item)


def _step(value: Any, segment: str, reference: str) -> Any:
    for name in (unquote(segment), segment):
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            return value[key]
        if isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
            return value[int(key)]
    raise Unusable(f"reference leads nowhere: {reference[:200]}")


def objects_in(root: Any) -> Iterator[Mapping[str, Any]]:
    """Every object once, though YAML's aliases share them."""
    waiting, visited = [root], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict) and id(value) not in visited:
            visited.add(id(value))
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list) and id(value) not in visited:
            visited.add(id(value))
            waiting.extend(value)


# --- values of any type ---------------------------------------------------------------------------


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else _EMPTY


def sequence(value: Any) -> Sequence[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else ()


def text_of(value: Any) -> str:
    """The value if it is text, else none."""
    return value if isinstance(value, str) else ""


def is_internal(raw: Mapping[str, Any]) -> bool:
    """Whether Microsoft's mark says that people are not to see this; its case varies."""
    return text_of(raw.get("x-ms-visibility")).lower() == "internal"


# --- media types ----------------------------------------------------------------------------------

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
OCTETS = "application/octet-stream"
_TEXT_ENDINGS = ("+xml", "/xml", "yaml", "graphql", "ndjson", "jsonl")


@lru_cache(maxsize=256)
def media_kind(media_type: str) -> str:
    """json, form, multipart, text or octets."""
    plain = media_type.partition(";")[0].strip().lower()
    if plain in (JSON, "text/json", "*/*", "application/*") or plain.endswith("+json"):
        return "json"
    if plain == FORM:
        return "form"
    if plain.startswith("multipart/"):
        return "multipart"
    text = plain.startswith("text/") or plain.endswith(_TEXT_ENDINGS)
    return "text" if text else "octets"


def sendable(media_type: str) -> str:
    """The media type to announce: ranges are narrowed to one."""
    if "*" not in media_type:
        return media_type
    return JSON if media_kind(media_type) == "json" else OCTETS


# --- bytes ----------------------------------------------------------------------------------------

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")
_TAB_AFTER_BREAK = re.compile(r"(?m)^[ ]*\t[\t ]*")


def read_definition(raw: bytes) -> dict[str, Any]:
    """The definition as JSON values, whatever its encoding, its syntax and its envelope."""
    value = _parse(raw)
    if not isinstance(value, dict):
        raise DefinitionUnreadable(
            f"The document is {_kind_of(value)}, not an OpenAPI definition.",
            "Give the address of the definition itself, in JSON or YAML.",
        )
    return _unwrap(value)


def _parse(raw: bytes) -> Any:
    """The value of a text in JSON or, as much broken JSON can be read, in YAML."""
    if not raw.strip(b" \t\r\n\xef\xbb\xbf"):
        raise DefinitionUnreadable("The document is empty.")
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        return _read_json(raw)
    text = _decode(raw)
    with suppress(msgspec.DecodeError):
        return _read_json(text)
    try:
        return read_yaml(text)
    except DefinitionUnreadable:
        plain = _CONTROL.sub(" ", text)
        mended = _TAB_AFTER_BREAK.sub(lambda indent: " " * len(indent[0]), plain)
        if mended == text:
            raise
    return read_yaml(mended)


def _read_json(text: bytes | str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # orjson may also fail for memory: it takes twelve times the document's size.
        return msgspec.json.decode(text)


def _decode(raw: bytes) -> str:
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return raw.decode("utf-16", "replace")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("cp1252", "replace")


def _kind_of(value: Any) -> str:
    if isinstance(value, str):
        return "a web page" if value.lstrip().startswith("<") else "plain text"
    return "a list" if isinstance(value, list) else "a single value"


def _unwrap(value: dict[str, Any]) -> dict[str, Any]:
    """The definition, also where Azure or Power Platform put it into an envelope of their own."""
    properties = mapping(value.get("properties"))
    if "paths" in value:
        return value
    inner = mapping(properties.get("apiDefinitions")).get("value")
    for candidate in (properties.get("swagger"), inner):
        if isinstance(candidate, str):
            return read_definition(candidate.encode())
        if isinstance(candidate, dict):
            return candidate
    return value


# --- YAML -----------------------------------------------------------------------------------------

_INT = re.compile(r"[-+]?[0-9]+\Z|0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_YAML_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_STRING_TAGS = frozenset({"!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:binary"})


def read_yaml(text: str) -> Any:
    """The first document as plain JSON values. Raises DefinitionUnreadable with line and column.

    PyYAML's own constructors speak YAML 1.1 (dates, `no` as false, `24:00:00` as a number, `=` as
    an error) and take five times as long: so values are made of libyaml's events here.
    """
    try:
        return _Yaml(text).first_document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "could not be read"
        raise DefinitionUnreadable(
            f"Not valid JSON or YAML: {problem}{_place(mark) if mark else ''}.",
            "Correct the definition at that place.",
        ) from error
    except yaml.YAMLError as error:
        raise DefinitionUnreadable(f"Not valid JSON or YAML: {error}") from error


class _Yaml:
    """The values of a stream of events; aliases share an object, but each counts with its nodes.

    The core schema of YAML 1.2 says what a plain scalar is.
    """

    def __init__(self, text: str) -> None:
        self._events = iter(yaml.parse(text, Loader=yaml.CSafeLoader))
        self._anchors: dict[str, tuple[Any, int]] = {}  # the value, and how many nodes it has
        self._scalars: dict[str, Any] = {}
        self._nodes = 0

    def first_document(self) -> Any:
        for event in self._events:
            if isinstance(event, yaml.NodeEvent):
                return self._value(event)
        raise DefinitionUnreadable("The document is empty.")

    def _value(self, event: Any, *, is_key: bool = False) -> Any:
        before, kind = self._nodes, type(event)
        if kind is yaml.AliasEvent:
            return self._alias(event)
        self._count(event, 1)
        if kind is yaml.ScalarEvent:
            value = self._scalar(event, is_key)
        elif kind is yaml.SequenceStartEvent:
            value = []
            while type(item := next(self._events)) is not yaml.SequenceEndEvent:
                value.append(self._value(item))
        else:
            value = self._object()
        if event.anchor is not None:
            self._anchors[event.anchor] = (value, self._nodes - before)
        return value

    def _object(self) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        while type(event := next(self._events)) is not yaml.MappingEndEvent:
            key = self._value(event, is_key=True)
            if not isinstance(key, str):
                key = _key_text(key, event)
            value = self._value(next(self._events))
            if key == "<<" and isinstance(value, (dict, list)):
                _merge(entries, value)
            else:
                entries[key] = value
        return entries

    def _scalar(self, event: Any, is_key: bool) -> Any:
        text: str = event.value
        if event.style or is_key or event.tag in _STRING_TAGS:
            return text
        if text not in self._scalars:
            self._scalars[text] = plain_scalar(text)
        return self._scalars[text]

    def _alias(self, event: Any) -> Any:
        if event.anchor not in self._anchors:
            raise _out_of_bounds(event, f"alias *{event.anchor} stands for nothing before it")
        value, size = self._anchors[event.anchor]
        self._count(event, size)
        return value

    def _count(self, event: Any, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > MAX_YAML_NODES:
            raise _out_of_bounds(event, f"more than {MAX_YAML_NODES:,} nodes, aliases written out")


def plain_scalar(text: str) -> Any:
    """An unquoted scalar by the core schema of YAML 1.2."""
    if text in _YAML_WORDS:
        return _YAML_WORDS[text]
    if text[0] not in "0123456789+-.":
        return text
    if _INT.match(text):
        return _integer(text)
    return float(text) if _FLOAT.match(text) else text


def _integer(text: str) -> int | float | str:
    if len(text) > 40:  # no number is that long: it is an identifier
        return text
    value = int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    return value if -(2**63) <= value < 2**63 else float(value)


def _merge(entries: dict[str, Any], value: Any) -> None:
    """Adds the entries of a merge key: YAML 1.2 has none, but definitions do. Older keys win."""
    for source in value if isinstance(value, list) else [value]:
        for key, item in mapping(source).items():
            entries.setdefault(key, item)


def _key_text(value: Any, event: Any) -> str:
    if isinstance(value, (dict, list)):
        raise _out_of_bounds(event, "a key that is not a scalar")
    return "null" if value is None else str(value)


def _out_of_bounds(event: Any, problem: str) -> DefinitionUnreadable:
    return DefinitionUnreadable(
        f"The definition can't be read: {problem}{_place(event.start_mark)}.",
        "Use a smaller or simpler definition.",
    )


def _place(mark: Any) -> str:
    return f" (line {mark.line + 1}, column {mark.column + 1})"
