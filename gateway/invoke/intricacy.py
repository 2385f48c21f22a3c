"""How often the parts of a schema are applied to arguments: some multiply with every level.

A schema that refers to itself in several ways at one place asks several times as much of each level
below it. Fourteen levels of a small one then take hours, in a check that nothing can interrupt. So
where a schema can do this at all, the work is counted first: what is asked of the same value by the
same part is counted once and remembered, however often it would be done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

FREE = 10_000  # applications of a part to a value, whatever is checked
EACH = 100  # and for every value in the arguments
MAX_STEPS = 200_000  # of counting
_FACTOR = 4
_ENDLESS = 1 << 62
_SAME = ("allOf", "anyOf", "oneOf")
_ONE = ("not", "if", "then", "else")
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

Schema = Any


def multiplies(schema: Schema) -> bool:
    """Whether it is many times as large with its references written out, or without end."""
    references, weights = References(schema), dict[int, int]()
    try:
        return _weight(schema, references, weights) > FREE + _FACTOR * len(weights)
    except RecursionError:
        return True


def is_too_much(schema: Schema, arguments: Mapping[str, Any]) -> bool:
    """Whether checking these arguments would take too long."""
    count = _Count(References(schema))
    try:
        applied = count.of(schema, arguments)
    except (RecursionError, OverflowError):
        return True
    return applied > FREE + EACH * len({value for _, value in count.known})


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
        for key in _REFERENCES:
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
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            else:
                return self._root
        return found


def _weight(part: Schema, references: References, known: dict[int, int]) -> int:
    """How many parts it has with all references written out."""
    if not isinstance(part, (dict, list)):
        return 0
    if id(part) not in known:
        known[id(part)] = _ENDLESS  # until it is known: who comes here again goes in a circle
        inner = list(part.values() if isinstance(part, dict) else part)
        inner += references.targets(part) if isinstance(part, dict) else ()
        known[id(part)] = min(1 + sum(_weight(i, references, known) for i in inner), _ENDLESS)
    return known[id(part)]


class _Count:
    """How often parts are applied, by the ids of part and value: both stay while it is counted."""

    def __init__(self, references: References) -> None:
        self._references = references
        self.known: dict[tuple[int, int], int] = {}

    def of(self, part: Schema, value: Any) -> int:
        if not isinstance(part, dict):
            return 1
        key = (id(part), id(value))
        if key not in self.known:
            if len(self.known) >= MAX_STEPS:
                raise OverflowError
            self.known[key] = _ENDLESS
            here = sum(self.of(each, value) for each in self._here(part))
            below = sum(self.of(each, inner) for each, inner in _below(part, value))
            self.known[key] = min(1 + here + below, _ENDLESS)
        return self.known[key]

    def _here(self, part: Mapping[str, Any]) -> Iterator[Schema]:
        """What is applied to the same value."""
        yield from self._references.targets(part)
        for key in _SAME:
            yield from _list(part.get(key))
        yield from (part[key] for key in _ONE if key in part)
        yield from _mapping(part.get("dependentSchemas")).values()


def _below(part: Mapping[str, Any], value: Any) -> Iterator[tuple[Schema, Any]]:
    """What is applied to the values inside."""
    if isinstance(value, dict):
        named = _mapping(part.get("properties"))
        patterns = list(_mapping(part.get("patternProperties")).values())
        others = [part[k] for k in ("additionalProperties", "unevaluatedProperties") if k in part]
        for name, inner in value.items():
            yield from ((each, inner) for each in patterns)
            yield from ((each, inner) for each in ([named[name]] if name in named else others))
            if "propertyNames" in part:
                yield part["propertyNames"], name
    elif isinstance(value, list):
        first = _list(part.get("prefixItems"))
        every = [part[key] for key in ("items", "contains", "unevaluatedItems") if key in part]
        for index, inner in enumerate(value):
            yield from ((each, inner) for each in (*first[index : index + 1], *every))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
