"""JSON Schema keywords: which are kept, what each may hold, and what they make of an object.

OpenAPI's dialects differ from 2020-12 in a few keywords, and writers get many values wrong. A
keyword with a value it may not have is left out: the schema then accepts more, never less. Whether
a schema can be used to check arguments is asked of the very engine that will check them. What an
object is made of is read from its own keywords and those of every part of its allOf.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jsonschema_rs
import orjson

from gateway.limits import INPUT_BYTES, MAX_WIDTH, PATTERN_BYTES
from gateway.model import json_text
from gateway.openapi.document import Document, Unusable, mapping, sequence, text_of
from gateway.plain import fits

_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})


def mend_limits(raw: Mapping[str, Any], result: dict[str, Any]) -> None:
    """`exclusiveMinimum: true` beside `minimum` is how it was written before 2020-12."""
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if raw.get(exclusive) is True and limit in result:
            result[exclusive] = result.pop(limit)


def mend_enum(result: dict[str, Any]) -> str:
    """Leaves only values in an enum that its own type allows; returns what was wrong, in words.

    An enum without a fitting value is meant for the list's items, or means nothing: it goes.
    """
    values, types = result["enum"], types_of(result)
    fitting = [v for v in (mend_value(value, types) for value in values) if _is_of_any(v, types)]
    if fitting:
        result["enum"] = list({orjson.dumps(value): value for value in fitting}.values())
        wrong = [value for value in values if value is not None and not _is_of_any(value, types)]
        return f"values of an enum do not have its type: {wrong!s:.100}" if wrong else ""
    del result["enum"]
    items = result.get("items", {})
    if "array" in types and isinstance(items, dict) and not items.keys() & {"enum", "$ref"}:
        inner = {**items, "enum": values}
        mend_enum(inner)
        result["items"] = inner if "enum" in inner else items
    return f"no value of an enum has its type: {values!s:.100}"


def mend_value(value: Any, types: Sequence[str]) -> Any:
    """The value in one of these types: some definitions lack quotes, others have too many."""
    if _is_of_any(value, types):
        return value
    if type(value) in (int, float, bool) and "string" in types:
        return str(value).lower()  # true, 1e5
    if isinstance(value, str):
        with suppress(orjson.JSONDecodeError):
            read = orjson.loads(value)
            return read if _is_of_any(read, types) else value
    return value


def _is_of_any(value: Any, types: Sequence[str]) -> bool:
    return not types or any(fits(value, kind) for kind in types)


def types_of(schema: Mapping[str, Any]) -> list[str]:
    """The types a value may have; an empty list: any."""
    kind = schema.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    return [kind for kind in kinds if isinstance(kind, str)]


def allow_null(result: dict[str, Any]) -> None:
    if "enum" in result and None not in result["enum"]:
        result["enum"] = [*result["enum"], None]
    kind = result.get("type")
    if isinstance(kind, str):
        result["type"] = [kind, "null"] if kind != "null" else kind
    elif isinstance(kind, list):
        result["type"] = list(dict.fromkeys([*kind, "null"]))
    elif kind is None and any(key in result for key in ("allOf", "anyOf", "oneOf", "properties")):
        keys = [key for key in result if key not in ("title", "description")]
        inner = {key: result.pop(key) for key in keys}
        result["anyOf"] = [inner, {"type": "null"}]


def _type(value: Any) -> Any:
    if value == "file":
        return "string"
    if isinstance(value, str):
        return value if value in _TYPES else None
    if isinstance(value, list):
        kinds = list(dict.fromkeys(kind for kind in value if kind in _TYPES))
        return kinds if kinds and len(kinds) == len(value) else None
    return None


def _number(value: Any) -> Any:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _count(value: Any) -> Any:
    number = _number(value)
    return int(number) if number is not None and number >= 0 and number == int(number) else None


def _datum(value: Any) -> Any:
    return value if not isinstance(value, (str, list, dict)) or _is_small(value) else None


def _is_small(value: Any) -> bool:
    return len(value) <= INPUT_BYTES and len(orjson.dumps(value)) <= INPUT_BYTES


_COUNTS = (
    "maxLength minLength maxItems minItems maxContains minContains maxProperties minProperties"
)
PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "type": _type,
    "enum": lambda value: value if isinstance(value, list) and value and _is_small(value) else None,
    "const": _datum,
    "default": _datum,
    "multipleOf": lambda value: value if (_number(value) or 0) > 0 else None,
    **dict.fromkeys(("maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"), _number),
    **dict.fromkeys(_COUNTS.split(), _count),
    **dict.fromkeys(("uniqueItems", "deprecated"), lambda value: True if value is True else None),
    **dict.fromkeys(
        ("format", "contentEncoding", "contentMediaType"), lambda value: text_of(value) or None
    ),
}
ONE_SCHEMA = frozenset(
    ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
    + ("unevaluatedItems", "unevaluatedProperties")
)
SAME_VALUE = frozenset({"not", "if", "then", "else"})
MANY_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "dependentSchemas"})


# --- the engine that checks arguments -------------------------------------------------------------

PATTERN_OPTIONS = jsonschema_rs.RegexOptions(size_limit=PATTERN_BYTES)
_LITERAL = re.compile(r"/(\^.+\$)/([a-z]*)")  # as JavaScript writes it, perhaps with flags


def compiles(text: bytes) -> bool:
    """Whether the schema can be used to check arguments."""
    return _compiles(orjson.loads(text))


def usable_pattern(pattern: str) -> str | None:
    """The pattern, if an engine that never backtracks can check it; else None."""
    if literal := _LITERAL.fullmatch(pattern):
        pattern = literal[1] if not literal[2] else ".*"
    return pattern if _is_linear(pattern) else None


@lru_cache(maxsize=8192)
def _is_linear(pattern: str) -> bool:
    return _compiles({"pattern": pattern})


def _compiles(schema: Any) -> bool:
    try:
        jsonschema_rs.Draft202012Validator(schema, pattern_options=PATTERN_OPTIONS, offline=True)
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True


def join_defs(text: bytes, definitions: Mapping[str, bytes]) -> bytes:
    """A schema with its `$defs`: all are serialised already, so their bytes are joined."""
    if not definitions:
        return text
    entries = b",".join(b'"%b":%b' % (name.encode(), part) for name, part in definitions.items())
    comma = b"" if text == b"{}" else b","
    return b'%b%b"$defs":{%b}}' % (text[:-1], comma, entries)


def stub_of(text: bytes) -> bytes:
    """A schema of which only the type is left: it accepts more, and needs nothing."""
    schema = orjson.loads(text)
    has_type = isinstance(schema, dict) and "type" in schema
    return json_text({"type": schema["type"]} if has_type else {})


# --- what an object is made of --------------------------------------------------------------------

_ANYTHING: Mapping[str, Any] = {}
DYNAMIC_SCHEMAS = ("x-ms-dynamic-schema", "x-ms-dynamic-properties")
_OTHERS = ("additionalProperties", "unevaluatedProperties")
_OF_ALL = frozenset(
    "maxProperties patternProperties propertyNames dependentRequired dependentSchemas"
    " if not".split()
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of an object body, those of allOf included."""

    properties: Mapping[str, Any]
    required: frozenset[str]
    alternatives: tuple[Sequence[frozenset[str]], ...] = ()  # one set of each must be given
    not_empty: bool = False  # it has at least one property
    others: tuple[Any, ...] | None = ()  # schemas of properties not named; None: it has no others
    of_all: bool = False  # it has rules for all properties that can't be written for arguments


def shape_of(document: Document, schema: Any) -> Shape | None:
    """The shape of an object; None if it is no object, or not described by properties."""
    try:
        parts = parts_of(document, schema)
        if not all(map(is_object, parts)):
            return None
        properties = _properties(parts)
        for name, raw in _properties_of_kinds(document, document.resolve(schema)).items():
            properties.setdefault(name, raw)
    except Unusable:
        return None
    required = frozenset().union(*(required_names(part) for part in parts))
    alternatives = tuple(
        [required_names(choice) for choice in sequence(part[key])]
        for part in parts
        for key in ("anyOf", "oneOf")
        if part.get(key)
    )
    others = _other_properties(parts)
    demanded = required.union(*(names for group in alternatives for names in group))
    for name in sorted(demanded):  # in the same order on every start
        properties.setdefault(name, others[0] if others else True)  # named nowhere else
    if not properties or len(properties) > MAX_WIDTH:
        return None
    least = max(n if type(n := part.get("minProperties")) is int else 0 for part in parts)
    of_all = least > 1 or any(part.keys() & _OF_ALL for part in parts)
    return Shape(properties, required, alternatives, least > 0, others, of_all)


def _properties(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for part in parts:
        for name, raw in mapping(part.get("properties")).items():
            properties[name] = _refine(properties[name], raw) if name in properties else raw
        if any(key in part for key in DYNAMIC_SCHEMAS):
            properties.pop("dynamicProperties", None)  # the designer's placeholder
    return properties


def _refine(base: Any, raw: Any) -> Any:
    """A property as one part of an object describes it over another part's description."""
    plain = isinstance(base, dict) and isinstance(raw, dict) and "$ref" not in {**base, **raw}
    return {**base, **raw} if plain and base != raw else raw


def required_names(part: Mapping[str, Any]) -> frozenset[str]:
    """The names that a schema requires."""
    return frozenset(name for name in sequence(part.get("required")) if type(name) is str)


def _other_properties(parts: Sequence[Mapping[str, Any]]) -> tuple[Any, ...] | None:
    """The schemas of properties that are not named; None where there are no others."""
    schemas = [part[key] for part in parts for key in _OTHERS if key in part]
    return None if False in schemas else tuple(s for s in schemas if isinstance(s, (dict, bool)))


def parts_of(document: Document, schema: Any) -> list[Mapping[str, Any]]:
    """The schema and what its allOf adds, base first."""
    waiting, visited = [schema], dict[int, Mapping[str, Any]]()
    while waiting:
        part = document.resolve(waiting.pop())
        if id(part) not in visited:
            visited[id(part)] = part
            waiting.extend(sequence(part.get("allOf")))
    return [*visited.values()][::-1]


def _properties_of_kinds(document: Document, base: Mapping[str, Any]) -> Mapping[str, Any]:
    """The properties of the schemas that extend an object, if it has a discriminator."""
    properties: dict[str, Any] = {}
    for part in _extending(document, base) if "discriminator" in base else ():
        for name, raw in mapping(part.get("properties")).items():
            properties[name] = raw if properties.get(name, raw) == raw else _ANYTHING
    return properties


def _extending(document: Document, base: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    schemas = mapping(mapping(document.root.get("components")).get("schemas"))
    for schema in schemas.values():
        parts = sequence(mapping(schema).get("allOf"))
        extended = (part for part in parts if "$ref" in mapping(part))
        if any(document.find(part) is base for part in extended):
            with suppress(Unusable):
                yield from parts_of(document, schema)


def is_object(part: Mapping[str, Any]) -> bool:
    """Whether a schema is that of a plain object."""
    kind = part.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        return False
    alternatives = [*sequence(part.get("oneOf")), *sequence(part.get("anyOf"))]
    return all(isinstance(each, Mapping) and set(each) <= {"required"} for each in alternatives)
