"""Schemas of any OpenAPI version as JSON Schema 2020-12, each reference translated once.

A reference becomes `#/$defs/NAME` and its target is put off until somebody bundles it: recursion
and diamonds cost nothing, and no schema is ever written out as a tree. Keywords that 2020-12 does
not know, or that hold what they may not hold, are left out: the result accepts more, never less.

References that lead back to themselves without going down into the value, or that fan out too far
on one level, would keep a validator busy for ever: they are opened where the circle closes.

What callers give must be accepted wherever the API takes it: in inputs `oneOf` becomes `anyOf`,
since alternatives overlap. Properties that Microsoft calls internal are not asked for: their
defaults are noted at the object they belong to, under `CONSTANTS`, for whoever fills them in.

JSON Schema keywords one by one: which are kept, and what each may hold.

OpenAPI's dialects differ from 2020-12 in a few keywords, and writers get many values wrong. A
keyword with a value it may not have is left out: the schema then accepts more, never less.

Whether a schema can be used to check arguments, by the very engine that will check them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal
from urllib.parse import unquote

import jsonschema_rs
import orjson

from gateway.model import CONSTANTS
from gateway.openapi.document import (
    MAX_HOPS,
    Document,
    Made,
    Unusable,
    is_internal,
    mapping,
    resolved,
    sequence,
    spend,
    target_of,
)
from gateway.openapi.wording import MAX_TITLE, phrase, property_description

_MAX_VALUE = 12 * 1024  # bytes of an enum, a constant or a default
_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_PYTHON_TYPES = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}
_NAMING_KEYWORDS = ("title", "description")


def mend_limits(raw: Mapping[str, Any], result: dict[str, Any]) -> None:
    """`exclusiveMinimum: true` beside `minimum` is how it was written before 2020-12."""
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if raw.get(exclusive) is True and limit in result:
            result[exclusive] = result.pop(limit)


def mend_enum(result: dict[str, Any]) -> bool:
    """Leave only values in an enum that its own type allows; False where there were none.

    What no value fits says what a list's items are, or nothing: it is left out.
    """
    values, types = result["enum"], types_of(result)
    fitting = [value for value in (mended(each, types) for each in values) if _is_any(value, types)]
    if fitting:
        result["enum"] = list({orjson.dumps(value): value for value in fitting}.values())
        return True
    del result["enum"]
    items = result.get("items", {})
    if "array" in types and isinstance(items, dict) and not items.keys() & {"enum", "$ref"}:
        inner = {**items, "enum": values}
        result["items"] = inner if mend_enum(inner) else items
    return False


def mended(value: Any, types: Sequence[str]) -> Any:
    """The value in one of these types: writers of YAML forget quotes, others set too many."""
    if _is_any(value, types):
        return value
    if type(value) in (int, float, bool) and "string" in types:
        return str(value).lower()  # true, 1e5
    if isinstance(value, str):
        with suppress(orjson.JSONDecodeError):
            read = orjson.loads(value)
            return read if _is_any(read, types) else value
    return value


def _is_any(value: Any, types: Sequence[str]) -> bool:
    return not types or any(_is(value, kind) for kind in types)


def types_of(schema: Mapping[str, Any]) -> list[str]:
    """The types a value may have; none said: any."""
    kind = schema.get("type")
    listed = kind if isinstance(kind, list) else [kind]
    return [each for each in listed if isinstance(each, str)]


def _is(value: Any, kind: str) -> bool:
    if kind in ("integer", "number"):
        return type(value) is int or (
            type(value) is float and (kind == "number" or value.is_integer())
        )
    return type(value) is _PYTHON_TYPES.get(kind)


def allow_null(result: dict[str, Any]) -> None:
    if "enum" in result and None not in result["enum"]:
        result["enum"] = [*result["enum"], None]
    kind = result.get("type")
    if isinstance(kind, str):
        result["type"] = [kind, "null"] if kind != "null" else kind
    elif isinstance(kind, list):
        result["type"] = list(dict.fromkeys([*kind, "null"]))
    elif kind is None and any(key in result for key in ("allOf", "anyOf", "oneOf", "properties")):
        inner = {key: result.pop(key) for key in list(result) if key not in _NAMING_KEYWORDS}
        result["anyOf"] = [inner, {"type": "null"}]


def _type(value: Any) -> Any:
    if value == "file":
        return "string"
    if isinstance(value, str):
        return value if value in _TYPES else None
    if isinstance(value, list):
        known = list(dict.fromkeys(kind for kind in value if kind in _TYPES))
        return known if known and len(known) == len(value) else None
    return None


def _number(value: Any) -> Any:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _positive(value: Any) -> Any:
    number = _number(value)
    return number if number is not None and number > 0 else None


def _count(value: Any) -> Any:
    number = _number(value)
    return int(number) if number is not None and number >= 0 and number == int(number) else None


def _text(value: Any) -> Any:
    return value if isinstance(value, str) and value else None


def _true(value: Any) -> Any:
    return True if value is True else None


def _some(value: Any) -> Any:
    return list(value) if isinstance(value, list) and value and _is_small(value) else None


def _datum(value: Any) -> Any:
    return value if not isinstance(value, (str, list, dict)) or _is_small(value) else None


def _is_small(value: Any) -> bool:
    return len(value) <= _MAX_VALUE and len(orjson.dumps(value)) <= _MAX_VALUE


def _names_by_name(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return None
    return {key: names for key, names in value.items() if _is_names(names)} or None


def _is_names(value: Any) -> bool:
    return (
        isinstance(value, list)
        and all(isinstance(name, str) for name in value)
        and len(set(value)) == len(value)
    )


PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "type": _type,
    "enum": _some,
    "const": _datum,
    "default": _datum,
    "format": _text,
    "multipleOf": _positive,
    "maximum": _number,
    "exclusiveMaximum": _number,
    "minimum": _number,
    "exclusiveMinimum": _number,
    "maxLength": _count,
    "minLength": _count,
    "maxItems": _count,
    "minItems": _count,
    "uniqueItems": _true,
    "maxContains": _count,
    "minContains": _count,
    "maxProperties": _count,
    "minProperties": _count,
    "dependentRequired": _names_by_name,
    "contentEncoding": _text,
    "contentMediaType": _text,
    "deprecated": _true,
}
ONE_SCHEMA = frozenset(
    ("items", "additionalProperties", "not", "contains", "propertyNames", "if", "then", "else")
    + ("unevaluatedItems", "unevaluatedProperties")
)
SAME_VALUE = frozenset({"not", "if", "then", "else"})
MANY_SCHEMAS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "dependentSchemas"})


MAX_PATTERN = 1_000  # characters
_PATTERN_BYTES = 256 * 1024  # compiled
PATTERN_OPTIONS = jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES)
_LITERAL = re.compile(r"/(\^.+\$)/([a-z]*)")  # as JavaScript writes it, perhaps with flags
_TOKENS = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\(\?<?[=!]|\{\d+,\d\d+\}|.", re.DOTALL)


def compiles(text: bytes) -> bool:
    """Whether the schema can be used to check arguments."""
    return _compiles(orjson.loads(text))


def usable_pattern(pattern: str) -> str | None:
    """The pattern as an engine that never goes back can check it, or one that accepts more.

    What is left out of such a one are looks ahead or behind, and the highest of high numbers.
    """
    if literal := _LITERAL.fullmatch(pattern):
        pattern = literal[1] if not literal[2] else ".*"
    return next((each for each in (pattern, _looser(pattern)) if _is_linear(each)), None)


def _looser(pattern: str) -> str:
    kept: list[str] = []
    groups = [False]  # whether each that is open is left out
    for token in _TOKENS.findall(pattern):
        if token[0] == "(":
            groups.append(groups[-1] or len(token) > 1)
        gone = groups.pop() if token == ")" and len(groups) > 1 else groups[-1]
        if not gone:
            high = len(token) > 1 and token[0] == "{"
            kept.append(f"{token.partition(',')[0]},}}" if high else token)
    return "".join(kept)


@lru_cache(maxsize=8192)
def _is_linear(pattern: str) -> bool:
    return len(pattern) <= MAX_PATTERN and _compiles({"pattern": pattern})


def _compiles(schema: Any) -> bool:
    try:
        jsonschema_rs.Draft202012Validator(schema, pattern_options=PATTERN_OPTIONS, offline=True)
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True


def joined(text: bytes, definitions: Mapping[str, bytes]) -> bytes:
    """Definitions are serialised once a document, so putting them together is joining bytes."""
    if not definitions:
        return text
    listed = b",".join(b'"%b":%b' % (name.encode(), part) for name, part in definitions.items())
    comma = b"" if text == b"{}" else b","
    return b'%b%b"$defs":{%b}}' % (text[:-1], comma, listed)


def written(value: Any) -> bytes:
    """The JSON text of a value, to be kept: orjson's own takes four kilobytes at the least."""
    return bytes(memoryview(orjson.dumps(value)))


Direction = Literal["input", "output"]
Schema = dict[str, Any] | bool

MAX_WEIGHT = 1_000  # schemas that one value is checked against on one level
MAX_PATTERNS = 1_000  # different ones in one document
MAX_NODES = 20_000  # of one schema between references
_MAX_CHAIN = 60
_NODES = 2  # translated, for one unit of work
_COMPILED = 512  # bytes, for one unit of work
_MAX_LEVELS = 8  # of defaults that make up one hidden value, of allOf
_WORDS = frozenset(
    ("description", "title", "x-ms-summary", "x-ms-enum-values", "x-ms-description-for-model")
)
_MENDED = frozenset(
    ("items", "required", "pattern", "exclusiveMinimum", "exclusiveMaximum", "enum")
    + ("nullable", "x-nullable", "discriminator", "default", "allOf", "anyOf", "oneOf")
)
_ALTERNATIVES = frozenset({"allOf", "anyOf", "oneOf"})
_UNSAFE_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Fragment:
    """A translated schema and the definitions it refers to."""

    schema: Schema
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Definition:
    """One entry for `$defs`, serialised, and what it refers to in turn."""

    text: bytes
    refs: tuple[str, ...]
    in_place: tuple[str, ...]  # references met before going down into the value, repeats included


_OPEN = Definition(b"{}", (), ())


@dataclass(slots=True)
class _Trace:
    refs: dict[str, None] = field(default_factory=dict)
    in_place: list[str] = field(default_factory=list)
    nodes: int = 0


class Schemas:
    """The schemas of one document as seen in requests or in answers."""

    def __init__(
        self, document: Document, direction: Direction, report: Callable[[str, str], None]
    ) -> None:
        self.document = document
        self._asked = direction == "input"
        self._hidden = "readOnly" if self._asked else "writeOnly"
        self._report = report
        self._siblings_count = document.format == "openapi-3.1"
        self._fragments: dict[int, tuple[Any, Fragment]] = {}
        self._names: dict[str, str | None] = {}  # by reference, None where it is broken
        self._names_of_targets: dict[int, str] = {}
        self._targets: dict[str, Any] = {}
        self._turns: dict[str, int] = {}  # by name, how many wanted it
        self._definitions: dict[str, Definition] = {}
        self._weights: dict[str, int] = {}
        self._checked: set[str] = set()
        self._patterns: set[str] = set()
        # For whoever describes inputs: by id, then by what is called so and whether it is needed.
        self.remembered: dict[int, dict[tuple[str, bool], Any]] = {}
        # For whoever puts them together: by name and levels, what is left where room is short.
        self.thinner: dict[tuple[str, int], tuple[bytes, tuple[str, ...]]] = {}
        document.by_others.extend((self._fragments, self.remembered))

    def translate(self, raw: Any) -> Fragment:
        """The schema in 2020-12. The same object is translated once; nobody may change it."""
        if isinstance(raw, Made):
            return self.translated(raw)
        known = self._fragments.get(id(raw))
        if known is None:
            known = self._fragments[id(raw)] = (raw, self.translated(raw))
        return known[1]

    def translated(self, raw: Any) -> Fragment:
        """The same, for whoever remembers it by something else."""
        trace = _Trace()
        schema = self._schema(raw, trace, in_place=True)
        self.spend(trace.nodes // _NODES)
        return Fragment(schema, tuple(trace.refs))

    def definition(self, name: str) -> Definition:
        """The definition that `#/$defs/NAME` stands for, safe to validate with."""
        if name not in self._checked:
            self._weigh(name, 0)
            self._check(name)
            self._checked.add(name)
        return self._definitions[name]

    def spend(self, amount: int) -> None:
        """Count work on the document's account."""
        spend(self.document, amount)

    def is_hidden(self, raw: Any) -> bool:
        """Whether a property has no place in this direction, also when a reference says so."""
        for _ in range(MAX_HOPS):
            if not isinstance(raw, dict):
                return False
            if raw.get(self._hidden) is True:
                return True
            reference = raw.get("$ref")
            if not isinstance(reference, str):
                return False
            try:
                raw = target_of(self.document, reference)
            except Unusable:
                return False
        return False

    def visible(self, raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The properties of an object that are asked for, and the values of those that are not.

        Internal ones are asked for only where nothing works without, and no default is known.
        """
        found, constants = dict[str, Any](), dict[str, Any]()
        for name, part in mapping(raw.get("properties")).items():
            if self.is_hidden(part):
                continue
            if self._asked and is_internal(mapping(part)):
                value = PLAIN["default"](default_of(self.document, part))
                if value is not None:
                    constants[name] = value
                if value is not None or name not in sequence(raw.get("required")):
                    continue
            found[name] = part
        return found, constants

    # --- references ---

    def _reference(self, raw: Mapping[str, Any], trace: _Trace, in_place: bool) -> Schema:
        name = self._name_of(raw["$ref"])
        if name is None:
            return self._annotations(raw)
        trace.refs[name] = None
        if in_place:
            trace.in_place.append(name)
        result: dict[str, Any] = {"$ref": f"#/$defs/{name}"}
        if len(raw) == 1:
            return result
        if self._siblings_count:
            siblings = {key: value for key, value in raw.items() if key != "$ref"}
            more = self._schema(siblings, trace, in_place)
            return {**result, **more} if isinstance(more, dict) else result
        if raw.get("nullable") is True:
            result = {"anyOf": [result, {"type": "null"}]}
        return {**result, **self._annotations(raw)}

    def _annotations(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        kept = {"title": _title(raw), "description": property_description(raw)}
        result: dict[str, Any] = {key: value for key, value in kept.items() if value}
        if "default" in raw:
            result["default"] = raw["default"]
        return result

    def _name_of(self, reference: str) -> str | None:
        if reference not in self._names:
            try:
                self._names[reference] = self._named_target(reference)
            except Unusable as error:
                self._report("warning", f"{error}; anything is accepted there")
                self._names[reference] = None
        return self._names[reference]

    def _named_target(self, reference: str) -> str:
        for _ in range(MAX_HOPS):
            target = target_of(self.document, reference)
            if not isinstance(target, (dict, bool)):
                raise Unusable(f"reference leads to something that is no schema: {reference[:200]}")
            if isinstance(target, bool) or len(target) != 1 or "$ref" not in target:
                return self._register(reference, target)
            reference = str(target["$ref"])
        raise Unusable("references lead to each other in a circle")

    def _register(self, reference: str, target: Any) -> str:
        key = id(target)
        if key not in self._names_of_targets:
            last = unquote(reference.rsplit("/", 1)[-1]).replace("~1", "_").replace("~0", "_")
            wanted = _UNSAFE_NAME.sub("_", last)[:64] or "schema"
            name = wanted
            while name in self._targets:
                self._turns[wanted] = turn = self._turns.get(wanted, 1) + 1
                name = f"{wanted}_{turn}"
            self._targets[name] = target
            self._names_of_targets[key] = name
        return self._names_of_targets[key]

    def _define(self, name: str) -> Definition:
        if name not in self._definitions:
            trace = _Trace()
            try:
                schema = self._schema(self._targets[name], trace, in_place=True)
                text = written(schema)
                self.spend(trace.nodes // _NODES + len(text) // _COMPILED)
                found = Definition(text, tuple(trace.refs), tuple(trace.in_place))
            except (TypeError, RecursionError):
                self._report("warning", f"schema {name} is nested too deeply; it is left open")
                found = _OPEN
            self._definitions[name] = found
        return self._definitions[name]

    def _weigh(self, name: str, depth: int) -> int:
        """How many schemas a value meets here on one level; opens what would not end."""
        if name in self._weights:
            return self._weights[name]
        self._weights[name] = MAX_WEIGHT  # whoever comes back here meanwhile closes a circle
        definition = self._define(name)
        weight = MAX_WEIGHT if depth > _MAX_CHAIN else 1
        for reference in definition.in_place:
            if weight >= MAX_WEIGHT:
                break
            weight += self._weigh(reference, depth + 1)
        if weight >= MAX_WEIGHT:
            self._report("warning", f"schema {name} refers to itself without end; it is left open")
            self._definitions[name] = Definition(stub_of(definition.text), (), ())
            weight = 1
        self._weights[name] = weight
        return weight

    def _check(self, name: str) -> None:
        definition = self._definitions[name]
        anything = dict.fromkeys(definition.refs, b"{}")
        if self._asked and not compiles(joined(definition.text, anything)):
            self._report("warning", f"schema {name} is not valid; anything is accepted there")
            self._definitions[name] = _OPEN

    # --- keywords ---

    def _schema(self, raw: Any, trace: _Trace, in_place: bool) -> Schema:
        if isinstance(raw, bool):
            return raw
        if not isinstance(raw, dict):
            return {}
        trace.nodes += 1
        if trace.nodes > MAX_NODES:
            if trace.nodes == MAX_NODES + 1:
                self._report("warning", "a schema is too large; the rest of it is left open")
            return {}
        if isinstance(raw.get("$ref"), str):
            return self._reference(raw, trace, in_place)
        result: dict[str, Any] = {}
        for key, value in raw.items():
            if key in PLAIN:
                if (checked := PLAIN[key](value)) is not None:
                    result[key] = checked
            elif key in ONE_SCHEMA:
                if isinstance(value, (dict, bool)):
                    result[key] = self._schema(value, trace, in_place and key in SAME_VALUE)
            elif key in MANY_SCHEMAS:
                if isinstance(value, list) and value:
                    below = in_place and key != "prefixItems"
                    several = key == "allOf" and (len(value) > 1 or "properties" in raw)
                    parts = map(self._opened, value) if several and self._asked else value
                    result[key] = [self._schema(part, trace, below) for part in parts]
            elif key == "properties" and isinstance(value, dict):
                self._set_properties(raw, trace, result)
            elif key in NAMED_SCHEMAS and isinstance(value, dict):
                result[key] = {
                    usable: self._schema(part, trace, in_place=False)
                    for name, part in value.items()
                    if (usable := usable_pattern(name) if key == "patternProperties" else name)
                }
        self._finish(raw, trace, result)
        return result

    def _opened(self, part: Any) -> Any:
        """A part of an object, not closed to what other parts name: else nothing would fit both."""
        with suppress(Unusable):
            target = resolved(self.document, part)
            if target.get("additionalProperties") is False:
                opened = Made({k: v for k, v in target.items() if k != "additionalProperties"})
                if target is part:
                    return opened
                key = f"{part['$ref']}\0"  # no reference is spelled so
                if key not in self._names:
                    self._names[key] = self._register(f"{part['$ref']}_open", opened)
                return {**part, "$ref": key}
        return part

    def _set_properties(
        self, raw: Mapping[str, Any], trace: _Trace, result: dict[str, Any]
    ) -> None:
        visible, constants = self.visible(raw)
        result["properties"] = parts = dict[str, Schema]()
        for name, part in visible.items():
            parts[name] = found = self._schema(part, trace, in_place=False)
            if isinstance(found, dict) and _says_the_same(found.get("title"), name):
                del found["title"]
        if constants:
            result[CONSTANTS] = constants

    def _finish(self, raw: Mapping[str, Any], trace: _Trace, result: dict[str, Any]) -> None:
        """What is said in other words than 2020-12 would say it."""
        if not _WORDS.isdisjoint(raw):
            words = {"description": property_description(raw), "title": _title(raw)}
            result.update((key, text) for key, text in words.items() if text)
        if _MENDED.isdisjoint(raw) and raw.get("type") != "file":
            return
        if isinstance(raw.get("items"), list):
            result["prefixItems"] = [self._schema(p, trace, False) for p in raw["items"]]
        if "required" in raw:
            self._set_required(raw, result)
        if "pattern" in raw:
            self._mend_pattern(raw["pattern"], result)
        if raw.get("type") == "file":
            result["contentEncoding"] = "base64"
        if "discriminator" in raw:
            self._mark_kinds(raw, result)
        if self._asked and not _ALTERNATIVES.isdisjoint(result):
            _loosen_alternatives(result)
        mend_limits(raw, result)
        if "enum" in result and not mend_enum(result):
            self._report("warning", f"no value of an enum has its type: {raw['enum']!s:.100}")
        if "default" in result:
            result["default"] = mended(result["default"], types_of(result))
        if raw.get("nullable") is True or raw.get("x-nullable") is True:
            allow_null(result)

    def _mark_kinds(self, raw: Mapping[str, Any], result: dict[str, Any]) -> None:
        """Say in each alternative which value stands for it, where only the mapping says so."""
        told = mapping(raw["discriminator"])
        name = str(told.get("propertyName"))
        values: dict[str, list[str]] = {}
        for value, target in mapping(told.get("mapping")).items():
            reference = str(target) if "/" in str(target) else f"#/components/schemas/{target}"
            values.setdefault(reference, []).append(value)
        for key in ("oneOf", "anyOf"):
            for part, alternative in zip(result.get(key, ()), sequence(raw.get(key)), strict=False):
                reference = str(mapping(alternative).get("$ref"))
                known = values.get(reference, ()) if mapping(part).keys() == {"$ref"} else ()
                if known and _takes_text(target_of(self.document, reference), name):
                    part["properties"] = {name: {"enum": known}}

    def _mend_pattern(self, pattern: Any, result: dict[str, Any]) -> None:
        """Compiling patterns is dear: a document has so many, and the rest is not checked."""
        if len(self._patterns) >= MAX_PATTERNS or not isinstance(pattern, str):
            return
        self._patterns.add(pattern)
        if usable := usable_pattern(pattern):
            result["pattern"] = usable
        else:
            self._report("info", f"pattern left out, not linear: {pattern[:100]}")

    def _set_required(self, raw: Mapping[str, Any], result: dict[str, Any]) -> None:
        """What must be given: not what has no place here, and never what can't be given."""
        if not isinstance(raw["required"], list):
            return
        kept = result.get("properties", {})
        absent = {*mapping(raw.get("properties"))} | self._absent_by_parts(raw, 0)
        names = dict.fromkeys(name for name in raw["required"] if isinstance(name, str))
        if needed := [name for name in names if name in kept or name not in absent]:
            result["required"] = needed
        if "properties" in result and _ALTERNATIVES.isdisjoint(raw):
            more = result.get("additionalProperties")
            for name in needed:
                kept.setdefault(name, more if isinstance(more, dict) else {})

    def _absent_by_parts(self, raw: Mapping[str, Any], level: int) -> set[str]:
        """The properties that a schema has by its allOf, and that have no place here."""
        absent = set[str]()
        for part in sequence(raw.get("allOf")) if level < _MAX_LEVELS else ():
            with suppress(Unusable):
                found = resolved(self.document, part)
                properties = mapping(found.get("properties"))
                self.spend(len(properties) // 10)
                absent |= properties.keys() - self.visible(found)[0].keys()
                absent |= self._absent_by_parts(found, level + 1)
        return absent


def default_of(document: Document, schema: Any, level: int = 0) -> Any:
    """What a schema's defaults come to: its own, else those of its properties together."""
    try:
        found = {**resolved(document, schema), **mapping(schema)}
    except Unusable:
        return None
    if "default" in found:
        return mended(found["default"], types_of(found))
    if level >= _MAX_LEVELS:
        return None
    properties = mapping(found.get("properties"))
    spend(document, len(properties))
    parts = {
        name: value
        for name, raw in properties.items()
        if (value := default_of(document, raw, level + 1)) is not None
    }
    return parts or None


def stub_of(text: bytes) -> bytes:
    """A schema of which only the type is left: it accepts more, and needs nothing."""
    schema = orjson.loads(text)
    return written({"type": schema["type"]} if "type" in mapping(schema) else {})


def _loosen_alternatives(result: dict[str, Any]) -> None:
    """Alternatives may overlap, and the object they describe is not closed to what they name."""
    parts = [part for key in _ALTERNATIVES for part in result.get(key, ())]
    names_more = not all(mapping(part).keys() <= {"required"} for part in parts)
    if names_more and result.get("additionalProperties") is False:
        del result["additionalProperties"]
    if alternatives := result.pop("oneOf", None):
        if "anyOf" in result:
            result["allOf"] = [*result.get("allOf", ()), {"anyOf": alternatives}]
        else:
            result["anyOf"] = alternatives


def _title(raw: Mapping[str, Any]) -> str:
    return phrase(raw.get("x-ms-summary"), MAX_TITLE) or phrase(raw.get("title"), MAX_TITLE)


def _takes_text(target: Any, name: str) -> bool:
    """Whether any text may be the property's value, for all that the schema says."""
    own = mapping(mapping(mapping(target).get("properties")).get(name))
    return own.get("type", "string") == "string" and not own.keys() & {"enum", "const", "$ref"}


def _says_the_same(title: Any, name: str) -> bool:
    return isinstance(title, str) and _letters(title) == _letters(name)


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).lower()
