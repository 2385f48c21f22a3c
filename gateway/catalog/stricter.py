"""Whether input that was good before may be refused now: two schemas compared by what they accept.

Each reason is a sentence about one place. References are followed on both sides, recursion
included. What can't be compared (a condition, a schema beyond the bound) counts as stricter: a
change that is not understood is not harmless. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

MAX_NODES = 20_000
MAX_REASONS = 3
MAX_SHOWN = 60

AT_LEAST = ("minLength", "minimum", "exclusiveMinimum", "minItems", "minProperties")
AT_MOST = ("maxLength", "maximum", "exclusiveMaximum", "maxItems", "maxProperties")
EXACT = (
    *("pattern", "format", "multipleOf", "contains", "minContains", "maxContains"),
    *("propertyNames", "patternProperties", "dependentRequired", "dependentSchemas"),
    *("not", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems", "prefixItems"),
)
ALL_TYPES = frozenset(("string", "number", "integer", "boolean", "object", "array", "null"))
IMPLIED = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "minItems", "maxItems"),
    "string": ("minLength", "maxLength", "pattern"),
    "number": ("minimum", "maximum", "multipleOf"),
}


def stricter(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Why input that was good before may be refused now, or None."""
    reasons = list(islice(dict.fromkeys(_Comparison(old, new).reasons()), MAX_REASONS))
    return "; ".join(reasons) or None


class _Comparison:
    """Two schemas side by side, each with its own definitions."""

    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self._old, self._new = old, new
        self._same_definitions = old.get("$defs") == new.get("$defs")
        self._seen: set[tuple[int, int]] = set()
        self._nodes = MAX_NODES

    def reasons(self) -> Iterator[str]:
        yield from self._narrower(self._old, self._new, "")

    def _narrower(self, old: Any, new: Any, at: str) -> Iterator[str]:
        old, new = _resolved(old, self._old), _resolved(new, self._new)
        self._nodes -= 1
        if new is True or new == {} or old is False or (old == new and self._same_definitions):
            return
        if new is False:
            yield f"{at or 'the input'} is no longer accepted"
            return
        if not isinstance(new, dict) or not isinstance(old, (dict, bool)) or self._nodes < 0:
            yield f"{at or 'the input'} can't be compared with what it was"
            return
        if (id(old), id(new)) in self._seen:
            return
        self._seen.add((id(old), id(new)))
        yield from self._keywords(old if isinstance(old, dict) else {}, new, at)

    def _keywords(self, old: dict[str, Any], new: dict[str, Any], at: str) -> Iterator[str]:
        name = at or "the input"
        if lost := _types(old) - _types(new):
            yield f"{name} may no longer be {' or '.join(sorted(lost))}"
        yield from _values(old, new, name)
        yield from _bounds(old, new, name)
        yield from self._object(old, new, at)
        if "items" in new:
            yield from self._narrower(old.get("items", True), new["items"], f"{at}[]")
        for key in ("anyOf", "oneOf"):
            if key in new:
                yield from self._alternatives(old, new, key, at)
        for part in new.get("allOf", ()):
            if not (part in old.get("allOf", ()) and self._same_definitions):
                yield from self._narrower(old, part, at)

    def _object(self, old: dict[str, Any], new: dict[str, Any], at: str) -> Iterator[str]:
        prefix = f"{at}." if at else ""
        for name in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
            yield f"{prefix}{name} is now required"
        before, after = old.get("properties", {}), new.get("properties", {})
        others = new.get("additionalProperties", True)
        for name, schema in before.items():
            if name in after:
                yield from self._narrower(schema, after[name], f"{prefix}{name}")
            elif others is False:
                yield f"{prefix}{name} is no longer accepted"
            else:
                yield from self._narrower(schema, others, f"{prefix}{name}")
        if "additionalProperties" in new and old.get("additionalProperties", True) is not False:
            at = f"{prefix}further properties" if prefix else "further properties"
            yield from self._narrower(old.get("additionalProperties", True), others, at)

    def _alternatives(
        self, old: dict[str, Any], new: dict[str, Any], key: str, at: str
    ) -> Iterator[str]:
        """Each way that was good before must still fit one of the ways there are now."""
        for before in old.get(key) or [{k: v for k, v in old.items() if k != key}]:
            if not any(self._fits(before, after) for after in new[key]):
                yield f"{at or 'the input'} has fewer alternatives"
                return

    def _fits(self, old: Any, new: Any) -> bool:
        inner = _Comparison(self._old, self._new)
        inner._nodes = self._nodes // 2
        inner._seen = set(self._seen)
        return next(inner._narrower(old, new, ""), None) is None


def _values(old: dict[str, Any], new: dict[str, Any], name: str) -> Iterator[str]:
    allowed, before = _listed(new), _listed(old)
    if allowed is None:
        return
    if before is None:
        yield f"{name} is now limited to certain values"
    elif gone := [value for value in before if value not in allowed]:
        yield f"{name} no longer allows {repr(gone[0])[:MAX_SHOWN]}"


def _bounds(old: dict[str, Any], new: dict[str, Any], name: str) -> Iterator[str]:
    for key in AT_LEAST:
        if _is_number(new.get(key)) and new[key] > _number(old.get(key), float("-inf")):
            yield f"{name} has a higher {key}"
    for key in AT_MOST:
        if _is_number(new.get(key)) and new[key] < _number(old.get(key), float("inf")):
            yield f"{name} has a lower {key}"
    for key in EXACT:
        if key in new and new[key] != old.get(key):
            yield f"{name} must fit another {key}"
    if new.get("uniqueItems") and not old.get("uniqueItems"):
        yield f"{name} may no longer repeat an item"


def _listed(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    for _ in range(32):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        target = str(schema["$ref"])
        if target == "#":
            return root
        for prefix in ("#/$defs/", "#/definitions/"):
            if target.startswith(prefix):
                holder = root.get(prefix.split("/")[1], {})
                schema = holder.get(target.removeprefix(prefix), {})
                break
        else:
            return target  # elsewhere: two of them are the same or can't be compared
    return schema


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types a schema accepts; where it does not say, those its other keywords speak of."""
    kinds = schema.get("type")
    if kinds is None:
        implied = {kind for kind, keys in IMPLIED.items() if any(key in schema for key in keys)}
        kinds = implied or ALL_TYPES
    found = frozenset([kinds] if isinstance(kinds, str) else kinds)
    return found | {"integer"} if "number" in found else found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any, default: float) -> Any:
    return value if _is_number(value) else default
