"""What a caller need not give is filled in, at any depth: required values that have a default, and
the constants that an API wants and nobody is asked for.

The schema is walked along with the arguments. Among alternatives the first that fits as it is
counts, else the first that fits once it is filled in. A value that the caller gave is never
replaced but by a constant. What would take too many steps is left as it is: the check then says
what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
from jsonschema_rs import Draft202012Validator, ValidationError

from gateway.invoke.intricacy import References, is_too_much, multiplies
from gateway.model import CONSTANTS, unpack

MAX_STEPS = 10_000
MAX_HOPS = 20
MAX_FILLERS = 256
_MISSING = object()

Schema = Any


def with_constants(whole_schema: bytes, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a tool with what its packed schema says is always there."""
    filler = _filler(whole_schema)
    return filler.filled(arguments) if filler is not None else arguments


@lru_cache(maxsize=MAX_FILLERS)
def _filler(whole_schema: bytes) -> Filler | None:
    schema = unpack(whole_schema)
    return Filler(orjson.loads(schema)) if CONSTANTS.encode() in schema else None


class Filler:
    """Fills in what one schema knows."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._references = References(schema)
        self._multiplies = multiplies(schema)
        self._validators: dict[int, Draft202012Validator | None] = {}
        self._steps = 0

    def filled(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """The arguments with what is missing; the very same where nothing is."""
        self._steps = 0
        try:
            filled: dict[str, Any] = self._value(self._schema, arguments)
        except (RecursionError, OverflowError):
            return arguments
        return filled

    def _value(self, schema: Schema, value: Any) -> Any:
        if not isinstance(schema, dict) or not isinstance(value, (dict, list)):
            return value
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise OverflowError
        for same in (*self._references.targets(schema), *_listed(schema, "allOf")):
            value = self._value(same, value)
        for key in ("anyOf", "oneOf"):
            value = self._alternative(_listed(schema, key), value)
        return self._object(schema, value) if isinstance(value, dict) else self._list(schema, value)

    def _object(self, schema: Mapping[str, Any], value: dict[str, Any]) -> dict[str, Any]:
        properties = _mapping(schema, "properties")
        more = dict(_mapping(schema, CONSTANTS))
        for name in _needed(schema, value):
            if (default := self._default(properties.get(name), MAX_HOPS)) is not _MISSING:
                more[name] = default
        for name, inner in value.items():
            part = properties.get(name, schema.get("additionalProperties"))
            if name not in more and (filled := self._value(part, inner)) is not inner:
                more[name] = filled
        return {**value, **more} if more else value

    def _list(self, schema: Mapping[str, Any], value: list[Any]) -> list[Any]:
        first = _listed(schema, "prefixItems")
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

    def _default(self, schema: Schema, hops: int) -> Any:
        if not isinstance(schema, dict) or not hops:
            return _MISSING
        if "default" in schema:
            return schema["default"]
        for same in (*self._references.targets(schema), *_listed(schema, "allOf")):
            if (found := self._default(same, hops - 1)) is not _MISSING:
                return found
        return _MISSING


def _needed(schema: Mapping[str, Any], value: Mapping[str, Any]) -> Iterator[str]:
    """The names that must be there and are not."""
    yield from (name for name in _listed(schema, "required") if name not in value)
    for given, names in _mapping(schema, "dependentRequired").items():
        if given in value:
            yield from (name for name in names if name not in value)


def _mapping(schema: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = schema.get(key)
    return found if isinstance(found, dict) else {}


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    found = schema.get(key)
    return found if isinstance(found, list) else []
