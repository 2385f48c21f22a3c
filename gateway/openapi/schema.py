"""Schemas of any OpenAPI version as JSON Schema 2020-12, each reference translated once.

A reference becomes `#/$defs/NAME` and its target is translated only when it is bundled: recursion
and diamonds cost nothing, and no schema is ever written out as a tree. Keywords that 2020-12 does
not know, or that hold a value they may not hold, are left out: the result accepts more, never less.
References that lead back to themselves without going down into the value, or that fan out too far
on one level, would keep a validator busy for ever: they are opened where the circle closes.

Arguments must be accepted wherever the API takes them: in inputs `oneOf` becomes `anyOf`, since
alternatives overlap. Callers are not asked for properties that Microsoft calls internal: their
defaults are noted at the object they belong to, under `CONSTANTS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from gateway.limits import MAX_HOPS, MAX_LEVELS, MAX_WIDTH, NAME_CHARS
from gateway.model import CONSTANTS, Severity, json_text
from gateway.naming import ENUM_NAMES, phrase, property_description
from gateway.openapi import keywords
from gateway.openapi.document import Document, Unusable, is_internal, mapping, sequence
from gateway.openapi.keywords import usable_pattern

Schema = dict[str, Any] | bool
ReportIssue = Callable[[Severity, str], None]  # takes a problem that a person should know of

_WORDS = ENUM_NAMES | {"description", "title", "x-ms-summary", "x-ms-description-for-model"}
_MENDED = frozenset(
    ("items", "required", "pattern", "exclusiveMinimum", "exclusiveMaximum", "enum")
    + ("nullable", "x-nullable", "discriminator", "default", "allOf", "anyOf", "oneOf")
)
_SIBLINGS = _WORDS | {"default"}  # the keywords that count beside a reference before 3.1
_ALTERNATIVES = frozenset({"allOf", "anyOf", "oneOf"})
_MORE_THAN_NAMED = (*_ALTERNATIVES, *keywords.DYNAMIC_SCHEMAS, "additionalProperties")
_DEFS = "#/$defs/"
_REFERENCE = re.compile(rb'"\$ref":"#/\$defs/([\w.-]+)"')
_UNSAFE_NAME = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class Definition:
    """One entry for `$defs`, serialised, and what it refers to in turn."""

    text: bytes
    refs: tuple[str, ...]


class Schemas:
    """The schemas of one document as seen in requests or in answers."""

    def __init__(self, document: Document, *, for_inputs: bool, report: ReportIssue) -> None:
        self.document = document
        self._for_inputs = for_inputs
        self._hidden_mark = "readOnly" if for_inputs else "writeOnly"
        self._report = report
        self._has_siblings = document.format == "openapi-3.1"
        self._names: dict[str, str | None] = {}  # by reference, None where it is broken
        self._names_of_targets: dict[int, str] = {}
        self._targets: dict[str, Any] = {}
        self._turns: dict[str, int] = {}  # by name, how many definitions asked for it
        self._definitions: dict[str, Definition] = {}
        self._weights: dict[str, int] = {}
        # A cache for `bundle`: by name and levels, the definition as it is where room is short.
        self.thinner: dict[tuple[str, float], tuple[bytes, tuple[str, ...]]] = {}

    def definition(self, name: str) -> Definition:
        """The definition that `#/$defs/NAME` stands for, safe to validate with."""
        if name not in self._definitions:
            self._define(name, 0)
        return self._definitions[name]

    def refs_in(self, text: bytes) -> tuple[str, ...]:
        """The names of the definitions that a translated schema refers to."""
        found = dict.fromkeys(map(bytes.decode, _REFERENCE.findall(text)))
        return tuple(name for name in found if name in self._targets)

    def is_hidden(self, raw: Any) -> bool:
        """Whether a property has no place in this direction, also when a reference says so."""
        own, target = mapping(raw), self.document.find(raw)
        return own.get(self._hidden_mark) is True or target.get(self._hidden_mark) is True

    def split_properties(self, raw: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The properties of an object that callers give, and the constants of the others.

        Callers give an internal property only if it is required and has no known default. A
        required object that has only constants is a constant itself.
        """
        visible, constants = dict[str, Any](), dict[str, Any]()
        required = keywords.required_names(raw)
        for name, part in mapping(raw.get("properties")).items():
            if self.is_hidden(part):
                continue
            value, is_hidden = None, self._for_inputs and is_internal(mapping(part))
            if is_hidden:
                value = keywords.PLAIN["default"](default_of(self.document, part))
            elif self._for_inputs and name in required:
                value = self._constant_object(part)
            if value is not None:
                constants[name] = value
            elif name in required or not is_hidden:
                visible[name] = part
        return visible, constants

    def _constant_object(self, part: Any) -> dict[str, Any] | None:
        """The constants of a plain object that has nothing else; None if callers give any of it."""
        schema = self.document.find(part)
        inner = map(mapping, mapping(schema.get("properties")).values())
        if any(map(schema.get, _MORE_THAN_NAMED)) or not all(map(is_internal, inner)):
            return None
        visible, constants = self.split_properties(schema)
        return constants if constants and not visible else None

    # --- references ---

    def _reference(self, raw: Mapping[str, Any]) -> Schema:
        name = self._name_of(raw["$ref"])
        result: dict[str, Any] = {} if name is None else {"$ref": _DEFS + name}
        if len(raw) == 1:
            return result
        if raw.get("nullable") is True and result and not self._has_siblings:
            result = {"anyOf": [result, {"type": "null"}]}
        counting = raw.keys() - {"$ref"} if self._has_siblings else _SIBLINGS
        siblings = self.translate({key: value for key, value in raw.items() if key in counting})
        return {**result, **mapping(siblings)}

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
            target = self.document.target(reference)
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
            base = _UNSAFE_NAME.sub("_", last)[:64] or "schema"
            name = base
            while name in self._targets:
                self._turns[base] = turn = self._turns.get(base, 1) + 1
                name = f"{base}_{turn}"
            self._targets[name] = target
            self._names_of_targets[key] = name
        return self._names_of_targets[key]

    def _define(self, name: str, depth: int) -> int:
        """Translates a definition; returns how many of them one value meets there on one level."""
        if name in self._weights:
            return self._weights[name]
        self._weights[name] = MAX_WIDTH  # a reference that comes back here closes a circle
        try:
            schema = self.translate(self._targets[name])
            text = json_text(schema)
        except (TypeError, RecursionError):
            self._report("warning", f"schema {name} is nested too deeply; it is left open")
            schema, text = {}, b"{}"
        weight = MAX_WIDTH if depth > MAX_HOPS else 1
        for reference in _refs_in_place(schema):
            if weight >= MAX_WIDTH:
                break
            weight += self._define(reference, depth + 1)
        if weight >= MAX_WIDTH:
            self._report("warning", f"schema {name} refers to itself without end; it is left open")
            text, weight = keywords.stub_of(text), 1
        anything = dict.fromkeys(self.refs_in(text), b"{}")
        if self._for_inputs and not keywords.compiles(keywords.join_defs(text, anything)):
            self._report("warning", f"schema {name} is not valid; anything is accepted there")
            text = b"{}"
        self._definitions[name] = Definition(text, self.refs_in(text))
        self._weights[name] = weight
        return weight

    # --- keywords ---

    def translate(self, raw: Any) -> Schema:
        """The schema in 2020-12."""
        if isinstance(raw, bool):
            return raw
        if not isinstance(raw, dict):
            return {}
        if isinstance(raw.get("$ref"), str):
            return self._reference(raw)
        result: dict[str, Any] = {}
        for key, value in raw.items():
            if key in keywords.PLAIN:
                if (checked := keywords.PLAIN[key](value)) is not None:
                    result[key] = checked
                elif key == "enum" and sequence(value):
                    words = f"the {len(value):,} choices of an input are too many to be checked"
                    self._report("info", f"{words}: {value[:3]!s:.100}")
            elif key in keywords.ONE_SCHEMA:
                if isinstance(value, (dict, bool)):
                    result[key] = self.translate(value)
            elif key in keywords.MANY_SCHEMAS:
                if isinstance(value, list) and value:
                    several = key == "allOf" and (len(value) > 1 or "properties" in raw)
                    parts = map(self._open, value) if several and self._for_inputs else value
                    result[key] = [self.translate(part) for part in parts]
            elif key == "properties" and isinstance(value, dict):
                self._set_properties(raw, result)
            elif key in keywords.NAMED_SCHEMAS and isinstance(value, dict):
                result[key] = {
                    usable: self.translate(part)
                    for name, part in value.items()
                    if (usable := usable_pattern(name) if key == "patternProperties" else name)
                }
        self._finish(raw, result)
        return result

    def _open(self, part: Any) -> Any:
        """A part of an object, open to properties of other parts: else no value would fit all."""
        with suppress(Unusable):
            target = self.document.resolve(part)
            if target.get("additionalProperties") is False:
                opened = {k: v for k, v in target.items() if k != "additionalProperties"}
                if target is part:
                    return opened
                key = f"{part['$ref']}\0"  # no reference is spelled so
                if key not in self._names:
                    self._names[key] = self._register(f"{part['$ref']}_open", opened)
                return {**part, "$ref": key}
        return part

    def _set_properties(self, raw: Mapping[str, Any], result: dict[str, Any]) -> None:
        visible, constants = self.split_properties(raw)
        result["properties"] = parts = dict[str, Schema]()
        for name, part in visible.items():
            parts[name] = schema = self.translate(part)
            if isinstance(schema, dict):
                drop_echo(schema, name)
        if constants:
            result[CONSTANTS] = constants

    def _finish(self, raw: Mapping[str, Any], result: dict[str, Any]) -> None:
        """Adds the keywords that 2020-12 writes in another way than OpenAPI."""
        if not _WORDS.isdisjoint(raw):
            words = {"description": property_description(raw), "title": _title(raw)}
            result.update((key, text) for key, text in words.items() if text)
        if raw.get("format") == "int-or-string":  # a port: 80, or a name
            result["type"] = ["integer", "string"]
        if _MENDED.isdisjoint(raw) and raw.get("type") != "file":
            return
        if isinstance(raw.get("items"), list):
            result["prefixItems"] = [self.translate(part) for part in raw["items"]]
        if "required" in raw:
            self._set_required(raw, result)
        if "pattern" in raw:
            self._mend_pattern(raw["pattern"], result)
        if raw.get("type") == "file":
            result["contentEncoding"] = "base64"
        if "discriminator" in raw:
            self._mark_kinds(raw, result)
        if self._for_inputs and not _ALTERNATIVES.isdisjoint(result):
            _loosen_alternatives(result)
        keywords.mend_limits(raw, result)
        if "enum" in result and (problem := keywords.mend_enum(result)):
            self._report("warning", problem)
        if "default" in result:
            result["default"] = keywords.mend_value(result["default"], keywords.types_of(result))
        if raw.get("nullable") is True or raw.get("x-nullable") is True:
            keywords.allow_null(result)

    def _mark_kinds(self, raw: Mapping[str, Any], result: dict[str, Any]) -> None:
        """Says in each alternative which value stands for it, where only the mapping says so."""
        discriminator = mapping(raw["discriminator"])
        name = str(discriminator.get("propertyName"))
        values: dict[str, list[str]] = {}
        for value, target in mapping(discriminator.get("mapping")).items():
            reference = str(target) if "/" in str(target) else f"#/components/schemas/{target}"
            values.setdefault(reference, []).append(value)
        for key in ("oneOf", "anyOf"):
            for part, alternative in zip(result.get(key, ()), sequence(raw.get(key)), strict=False):
                reference = str(mapping(alternative).get("$ref"))
                kinds = values.get(reference, ()) if mapping(part).keys() == {"$ref"} else ()
                if kinds and _takes_text(self.document.target(reference), name):
                    part["properties"] = {name: {"enum": kinds}}

    def _mend_pattern(self, pattern: Any, result: dict[str, Any]) -> None:
        if not isinstance(pattern, str):
            return
        if usable := usable_pattern(pattern):
            result["pattern"] = usable
        else:
            self._report("info", f"pattern left out, not linear: {pattern[:100]}")

    def _set_required(self, raw: Mapping[str, Any], result: dict[str, Any]) -> None:
        """Requires the properties that have a place here, and never one that can't be given."""
        if not isinstance(raw["required"], list):
            return
        properties = result.get("properties", {})
        absent = {*mapping(raw.get("properties"))} | self._absent_by_parts(raw)
        names = dict.fromkeys(name for name in raw["required"] if isinstance(name, str))
        if needed := [name for name in names if name in properties or name not in absent]:
            result["required"] = needed
        if "properties" in result and _ALTERNATIVES.isdisjoint(raw):
            others = result.get("additionalProperties")
            for name in needed:
                properties.setdefault(name, others if isinstance(others, dict) else {})

    def _absent_by_parts(self, raw: Mapping[str, Any]) -> set[str]:
        """The properties that a schema has by its allOf, and that have no place here."""
        absent = set[str]()
        with suppress(Unusable):
            for part in keywords.parts_of(self.document, raw)[:-1]:
                absent |= {*mapping(part.get("properties"))} - {*self.split_properties(part)[0]}
        return absent


def _refs_in_place(schema: Any) -> Iterator[str]:
    """The definitions that a value itself is checked against, not the parts inside it."""
    for key, part in mapping(schema).items():
        if key == "$ref":
            yield part.removeprefix(_DEFS)
        elif key in keywords.SAME_VALUE:
            yield from _refs_in_place(part)
        elif key in _ALTERNATIVES:
            for alternative in part:
                yield from _refs_in_place(alternative)


def default_of(document: Document, schema: Any, level: int = 0) -> Any:
    """A schema's own default, else the defaults of its properties together."""
    try:
        whole = {**document.resolve(schema), **mapping(schema)}
    except Unusable:
        return None
    if "default" in whole:
        return keywords.mend_value(whole["default"], keywords.types_of(whole))
    if level >= MAX_LEVELS:
        return None
    parts = {
        name: value
        for name, raw in mapping(whole.get("properties")).items()
        if (value := default_of(document, raw, level + 1)) is not None
    }
    return parts or None


def _loosen_alternatives(result: dict[str, Any]) -> None:
    """Lets alternatives overlap, and opens the object to properties that only they name."""
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
    return phrase(raw.get("x-ms-summary"), NAME_CHARS) or phrase(raw.get("title"), NAME_CHARS)


def _takes_text(target: Any, name: str) -> bool:
    """Whether the schema lets any text be the property's value."""
    own = mapping(mapping(mapping(target).get("properties")).get(name))
    return own.get("type", "string") == "string" and not own.keys() & {"enum", "const", "$ref"}


def drop_echo(schema: dict[str, Any], name: str) -> None:
    """Drops a title that only says the name again."""
    if "title" in schema and _letters(schema["title"]) == _letters(name):
        del schema["title"]


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).lower()
