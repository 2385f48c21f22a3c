"""Walks a schema along with arguments: to fill in what a caller need not give, and to count.

Required values that have a default are filled in at any depth, and constants that an API wants and
nobody is asked for.

A schema that refers to itself in several ways at one place asks several times as much of each level
below it. Fourteen levels of a small one then take hours, in a check that nothing can interrupt. So
where a schema can do this at all, the work is counted first: what is asked of the same value by the
same part is counted once and remembered, however often it would be done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import Any
from urllib.parse import unquote

import orjson
from jsonschema_rs import Draft202012Validator, ValidationError

from gateway.limits import CHECK_STEPS, MAX_REMEMBERED
from gateway.model import CONSTANTS, unpack

Schema = Any
_MISSING = object()


@lru_cache(maxsize=MAX_REMEMBERED)
def constants_filler(whole_schema: bytes) -> Filler | None:
    """What fills in the constants of a packed schema, where it has any."""
    schema = unpack(whole_schema)
    return Filler(orjson.loads(schema)) if CONSTANTS.encode() in schema else None


class Filler:
    """Fills in what a caller need not give: required values with a default, and constants.

    Among alternatives the first that fits as it is counts, else the first that fits once it is
    filled in. A value that the caller gave is never replaced but by a constant. What would take
    too many steps is left as it is: the check then says what is missing.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._references = References(schema)
        self._multiplies = multiplies(schema)
        self._validators: dict[int, Draft202012Validator | None] = {}
        self._steps = 0
        self._making: set[int] = set()  # a schema may ask for itself

    def filled(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with what is missing; the very same where nothing is."""
        self._steps = 0
        self._making.clear()
        try:
            filled: dict[str, Any] = self._value(self._schema, arguments)
        except (RecursionError, OverflowError):
            return arguments
        return filled

    def _value(self, schema: Schema, value: Any) -> Any:
        if not isinstance(schema, dict) or not isinstance(value, (dict, list)):
            return value
        self._steps += 1
        if self._steps > CHECK_STEPS:
            raise OverflowError
        for same in (*self._references.targets(schema), *list_in(schema, "allOf")):
            value = self._value(same, value)
        for key in ("anyOf", "oneOf"):
            value = self._alternative(list_in(schema, key), value)
        fill = self._object if isinstance(value, dict) else self._items
        return fill(schema, value)

    def _object(self, schema: Mapping[str, Any], value: dict[str, Any]) -> dict[str, Any]:
        properties = mapping_in(schema, "properties")
        more = dict(mapping_in(schema, CONSTANTS))
        for name in _needed(schema, value):
            part = properties.get(name)
            default = self._default(part)
            default = self._made(part) if default is _MISSING else default
            if default is not _MISSING:
                more[name] = default
        for name, inner in value.items():
            part = properties.get(name, schema.get("additionalProperties"))
            if name not in more and (filled := self._value(part, inner)) is not inner:
                more[name] = filled
        return {**value, **more} if more else value

    def _items(self, schema: Mapping[str, Any], value: list[Any]) -> list[Any]:
        first = list_in(schema, "prefixItems")
        parts = [*first, *[schema.get("items")] * (len(value) - len(first))]
        filled = [self._value(part, inner) for part, inner in zip(parts, value, strict=False)]
        same = all(new is old for new, old in zip(filled, value, strict=True))
        return value if same else filled

    def _alternative(self, branches: Sequence[Schema], value: Any) -> Any:
        tried = [(branch, self._value(branch, value)) for branch in branches]
        if all(filled is value for _, filled in tried):
            return value
        for branch, filled in sorted(tried, key=lambda each: each[1] is not value):
            if self._fits(branch, filled):
                return filled
        return value

    def _fits(self, branch: Schema, value: Any) -> bool:
        shared = {key: self._schema[key] for key in ("$defs", "definitions") if key in self._schema}
        schema = {**shared, "allOf": [branch]}
        if id(branch) not in self._validators:
            try:
                validator = Draft202012Validator(schema, validate_formats=False, offline=True)
            except (ValidationError, ValueError):
                validator = None
            self._validators[id(branch)] = validator
        validator = self._validators[id(branch)]
        if validator is None or (self._multiplies and is_too_much(schema, value)):
            return False
        return validator.is_valid(value)

    def _made(self, schema: Schema) -> Any:
        """An object of which nothing is left to ask for, once it is filled in."""
        if id(schema) in self._making:
            return _MISSING
        self._making.add(id(schema))
        made = self._value(schema, {})
        self._making.discard(id(schema))
        return made if made and self._fits(schema, made) else _MISSING

    def _default(self, schema: Schema, hops: int = 20) -> Any:
        if not isinstance(schema, dict) or not hops:
            return _MISSING
        if "default" in schema:
            return schema["default"]
        for same in (*self._references.targets(schema), *list_in(schema, "allOf")):
            if (found := self._default(same, hops - 1)) is not _MISSING:
                return found
        return _MISSING


def _needed(schema: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[str]:
    """The names that must be there and are not."""
    yield from (name for name in list_in(schema, "required") if name not in value)
    for given, names in mapping_in(schema, "dependentRequired").items():
        if given in value:
            yield from (name for name in names if name not in value)


# --- counting -------------------------------------------------------------------------------------

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")


def multiplies(schema: Schema) -> bool:
    """Whether it is many times as large with its references written out, or without end."""
    references, weights = References(schema), dict[int, float]()
    try:
        return _weight(schema, references, weights) > CHECK_STEPS + 4 * len(weights)
    except RecursionError:
        return True


def is_too_much(schema: Schema, arguments: Mapping[str, Any]) -> bool:
    """Whether checking these arguments would take too long."""
    count = _Count(References(schema))
    try:
        applied = count.of(schema, arguments)
    except (RecursionError, OverflowError):
        return True
    return applied > CHECK_STEPS + 100 * len({value for _, value in count.known})


class References:
    """Where the references of one schema lead."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._named: dict[str, Schema] = {}
        waiting = [root]
        while waiting:
            part = waiting.pop()
            if isinstance(part, dict):
                for key in ("$anchor", "$dynamicAnchor", "$id"):
                    if isinstance(name := part.get(key), str):
                        self._named[name.rstrip("#") if key == "$id" else f"#{name}"] = part
                waiting.extend(part.values())
            elif isinstance(part, list):
                waiting.extend(part)

    def targets(self, part: Mapping[str, Any]) -> Iterator[Schema]:
        for key in REFERENCES:
            if isinstance(reference := part.get(key), str):
                yield self._target(reference)

    def _target(self, reference: str) -> Schema:
        if reference in self._named:
            return self._named[reference]
        place, _, fragment = reference.partition("#")
        found = self._named.get(place, self._root)  # what nobody knows may be all of it
        if f"#{fragment}" in self._named:
            return self._named[f"#{fragment}"]
        for step in unquote(fragment).split("/")[1:]:
            try:
                found = step_into(found, step)
            except LookupError:
                return self._root
        return found


def _weight(part: Schema, references: References, known: dict[int, float]) -> float:
    """How many parts it has with all references written out."""
    if not isinstance(part, (dict, list)):
        return 0
    if id(part) not in known:
        known[id(part)] = inf  # until it is known: who comes here again goes in a circle
        inner = list(part.values() if isinstance(part, dict) else part)
        inner += references.targets(part) if isinstance(part, dict) else ()
        known[id(part)] = 1 + sum(_weight(i, references, known) for i in inner)
    return known[id(part)]


class _Count:
    """How often parts are applied, by the ids of part and value: both stay while it is counted."""

    def __init__(self, references: References) -> None:
        self._references = references
        self.known: dict[tuple[int, int], float] = {}

    def of(self, part: Schema, value: Any) -> float:
        if not isinstance(part, dict):
            return 1
        key = (id(part), id(value))
        if key not in self.known:
            if len(self.known) >= 20 * CHECK_STEPS:
                raise OverflowError
            self.known[key] = inf
            here = sum(self.of(each, value) for each in self._here(part))
            below = sum(self.of(each, inner) for each, inner in _below(part, value))
            self.known[key] = 1 + here + below
        return self.known[key]

    def _here(self, part: Mapping[str, Any]) -> Iterator[Schema]:
        """What is applied to the same value."""
        yield from self._references.targets(part)
        for key in ("allOf", "anyOf", "oneOf"):
            yield from list_in(part, key)
        yield from (part[key] for key in ("not", "if", "then", "else") if key in part)
        yield from mapping_in(part, "dependentSchemas").values()


def _below(part: Mapping[str, Any], value: Any) -> Iterator[tuple[Schema, Any]]:
    """What is applied to the values inside."""
    if isinstance(value, dict):
        named = mapping_in(part, "properties")
        patterns = list(mapping_in(part, "patternProperties").values())
        others = [part[k] for k in ("additionalProperties", "unevaluatedProperties") if k in part]
        for name, inner in value.items():
            yield from ((each, inner) for each in patterns)
            yield from ((each, inner) for each in ([named[name]] if name in named else others))
            if "propertyNames" in part:
                yield part["propertyNames"], name
    elif isinstance(value, list):
        first = list_in(part, "prefixItems")
        every = [part[key] for key in ("items", "contains", "unevaluatedItems") if key in part]
        for index, inner in enumerate(value):
            yield from ((each, inner) for each in (*first[index : index + 1], *every))


def mapping_in(schema: Any, key: str) -> dict[str, Any]:
    found = schema.get(key) if isinstance(schema, dict) else None
    return found if isinstance(found, dict) else {}


def list_in(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []


def step_into(value: Any, step: str) -> Any:
    """What one step of a JSON pointer (RFC 6901) leads to; raises LookupError where to nothing."""
    name = step.replace("~1", "/").replace("~0", "~")
    if isinstance(value, dict):
        return value[name]
    if isinstance(value, list) and name.isascii() and name.isdigit():
        return value[int(name[:18])]
    raise LookupError(name)
