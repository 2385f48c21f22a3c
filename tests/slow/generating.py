"""Arguments made up from a tool's listed schema, as a program would that knows nothing else.

Three ways: only what is required, everything there is, and a draw at random. What comes out is
checked against the schema; a schema that nothing fits after some tries gives None.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any, Literal

import hypothesis
import jsonschema_rs
from hypothesis import strategies as st

Way = Literal["required", "all", "random"]
WAYS: tuple[Way, ...] = ("required", "all", "random")
TRIES = 12
DEEP = 4  # levels, from which on only what is required is given
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXT = LETTERS + LETTERS.upper() + "0123456789 -_.~/&=+?#:;,'\"<>{}[]()|@!$*"
FORMATS = {
    "date-time": "2024-02-29T12:30:00Z",
    "date": "2024-02-29",
    "time": "12:30:00Z",
    "uuid": "8f14e45f-ceea-467f-a8f2-0c1a2b3c4d5e",
    "email": "ann@example.com",
    "uri": "https://example.com/a?b=c",
    "url": "https://example.com/a",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "byte": "AAE=",
}


def made_up(schema: Mapping[str, Any], way: Way, seed: object) -> dict[str, Any] | None:
    """Arguments that fit the schema, the same for the same seed."""
    validator = jsonschema_rs.Draft202012Validator(dict(schema), offline=True)
    for turn in range(TRIES):
        maker = _Maker(schema, way if turn < TRIES // 2 else "random", Random(f"{seed} {turn}"))
        try:
            arguments = maker.value(schema, 0)
        except RecursionError:
            continue
        if isinstance(arguments, dict) and validator.is_valid(arguments):
            return arguments
    return None


class _Maker:
    def __init__(self, root: Mapping[str, Any], way: Way, random: Random) -> None:
        self._root = root
        self._way = way
        self._random = random

    def value(self, schema: Any, level: int) -> Any:
        """A value that the schema should accept."""
        merged = self._merged(schema)
        if "const" in merged:
            return merged["const"]
        if merged.get("enum"):
            return self._one(merged["enum"])
        kind = self._kind(merged)
        if kind == "object":
            return self._object(merged, level)
        if kind == "array":
            return self._array(merged, level)
        if kind in ("integer", "number"):
            return self._number(merged, kind)
        if kind == "boolean":
            return self._random.random() < 0.5
        return None if kind == "null" else self._text(merged)

    def _merged(self, schema: Any, hops: int = 0) -> dict[str, Any]:
        """The schema with references, allOf and one of its alternatives written into it."""
        if not isinstance(schema, Mapping) or hops > 40:
            return {}
        merged = {k: v for k, v in schema.items() if k not in ("$ref", "allOf", "anyOf", "oneOf")}
        parts = [*schema.get("allOf", ())]
        if "$ref" in schema:
            parts.append(self._target(schema["$ref"]))
        parts += [self._one(schema[key]) for key in ("anyOf", "oneOf") if schema.get(key)]
        for part in parts:
            self._join(merged, self._merged(part, hops + 1))
        return merged

    def _join(self, merged: dict[str, Any], part: Mapping[str, Any]) -> None:
        for key, value in part.items():
            if key == "properties":
                both = merged.get(key, {}).keys() & value.keys()
                joined = {name: {"allOf": [merged[key][name], value[name]]} for name in both}
                merged[key] = {**value, **merged.get(key, {}), **joined}
            elif key == "required":
                merged[key] = list(dict.fromkeys([*merged.get(key, ()), *value]))
            elif key == "enum" and "enum" in merged:
                merged[key] = [each for each in merged[key] if each in value]
            elif key in ("minimum", "minLength", "minItems", "minProperties"):
                merged[key] = max(value, merged.get(key, value))
            elif key in ("maximum", "maxLength", "maxItems", "maxProperties"):
                merged[key] = min(value, merged.get(key, value))
            elif key == "type" and "type" in merged:
                merged[key] = _both(merged[key], value)
            else:
                merged.setdefault(key, value)

    def _target(self, reference: str) -> Any:
        value: Any = self._root
        for step in reference.removeprefix("#").split("/")[1:]:
            value = value[step.replace("~1", "/").replace("~0", "~")]
        return value

    def _one(self, choices: Sequence[Any]) -> Any:
        return choices[0] if self._way == "required" else self._random.choice(choices)

    def _kind(self, schema: Mapping[str, Any]) -> str:
        kinds = schema.get("type")
        if isinstance(kinds, str):
            return kinds
        if kinds:
            real = [kind for kind in kinds if kind != "null"] or ["null"]
            return str(self._one(real))
        if "properties" in schema or "required" in schema or "additionalProperties" in schema:
            return "object"
        if "items" in schema:
            return "array"
        return "number" if "minimum" in schema or "maximum" in schema else "string"

    def _object(self, schema: Mapping[str, Any], level: int) -> dict[str, Any]:
        properties, required = schema.get("properties", {}), list(schema.get("required", ()))
        wanted = [name for name in properties if name in required or self._is_given(level)]
        wanted += [name for name in required if name not in properties]
        for given, needed in schema.get("dependentRequired", {}).items():
            if given in wanted:
                wanted += [name for name in needed if name not in wanted]
        extra = schema.get("additionalProperties", True)
        made = {name: self.value(properties.get(name, extra), level + 1) for name in wanted}
        fewest = schema.get("minProperties", 0)
        for name in properties:
            if len(made) < fewest and name not in made:
                made[name] = self.value(properties[name], level + 1)
        if isinstance(extra, Mapping) and not properties and self._is_given(level):
            fewest = max(fewest, 1)
        while len(made) < fewest and extra is not False:
            made[f"key{len(made)}"] = self.value(extra, level + 1)
        return made

    def _is_given(self, level: int) -> bool:
        if self._way == "required" or level >= DEEP:
            return False
        return self._way == "all" or self._random.random() < 0.5

    def _array(self, schema: Mapping[str, Any], level: int) -> list[Any]:
        fewest = schema.get("minItems", 0)
        count = max(fewest, 0 if self._way == "required" or level >= DEEP else 2)
        count = min(count, schema.get("maxItems", count))
        first = schema.get("prefixItems", ())
        rest = schema.get("items", {})
        items: list[Any] = []
        for _ in range(count * 5):
            item = self.value(first[len(items)] if len(items) < len(first) else rest, level + 1)
            if not (schema.get("uniqueItems") and item in items):
                items.append(item)
            if len(items) == count:
                break
        return items

    def _number(self, schema: Mapping[str, Any], kind: str) -> int | float:
        low = schema.get("minimum", schema.get("exclusiveMinimum"))
        high = schema.get("maximum", schema.get("exclusiveMaximum"))
        if low is None:
            low = 0 if high is None or high >= 0 else high - 10
        if high is None:
            high = low + 1000
        step = schema.get("multipleOf") or (1 if kind == "integer" else None)
        value: int | float = low + (high - low) * self._random.random()
        if step:
            value = math.ceil(value / step) * step
            value = value - step if value > high else value
            return int(value) if float(value).is_integer() else value
        if kind == "integer":
            return int(value)
        return round(value, 3) if low <= round(value, 3) <= high else value

    def _text(self, schema: Mapping[str, Any]) -> str:
        fewest, most = schema.get("minLength", 0), schema.get("maxLength", 1_000_000)
        if "pattern" in schema:
            return _matching(schema["pattern"], fewest, most)
        if schema.get("contentEncoding") == "base64":
            return base64.b64encode(self._random.randbytes(5)).decode()
        known = FORMATS.get(schema.get("format", ""), "")
        if known and fewest <= len(known) <= most:
            return known
        length = min(max(fewest, self._random.randint(1, 12)), most)
        if self._way == "required":
            return "".join(self._random.choice(LETTERS) for _ in range(length))
        inner = "".join(self._random.choice(TEXT) for _ in range(max(length - 2, 0)))
        return f"a{inner}z"[:length] if length > 1 else "a"[:length]


def _both(one: Any, other: Any) -> Any:
    """The types that two schemas allow together."""
    first, second = ({kinds} if isinstance(kinds, str) else set(kinds) for kinds in (one, other))
    shared = first & second
    if "number" in first | second and "integer" in first | second:
        shared |= {"integer"}
    return sorted(shared) or one


@lru_cache(maxsize=4096)
def _matching(pattern: str, fewest: int, most: int) -> str:
    """A text that the pattern matches; any text, where Python does not understand it."""
    try:
        strategy = st.from_regex(
            re.sub(r"\\p\{\w+\}", "a", pattern),
            alphabet=st.characters(min_codepoint=32, max_codepoint=126),
        )
        settings = hypothesis.settings(
            database=None,
            deadline=None,
            derandomize=True,
            max_examples=20,
            phases=[hypothesis.Phase.generate],
        )
        wanted = strategy.filter(lambda text: fewest <= len(text) <= most and "\n" not in text)
        return str(hypothesis.find(wanted, lambda text: True, settings=settings))
    except Exception:  # of a library that tells apart what does not matter here
        return "a" * max(fewest, 1)
