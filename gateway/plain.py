"""Schemas in the plainest words of JSON Schema, for clients that choke on others.

Plain schemas have types, properties, items, values and bounds, and neither references nor
alternatives. A reference is written out where it stands, a few levels deep where it leads back to
itself; then the object is open. What must hold together (`allOf`) becomes one schema. Alternatives
are merged: those of the richest type stay, an object has the properties of them all and requires
what all require, and its description says which there are. So what is filled in by a plain schema
mostly fits the whole one, by which calls are checked for everybody; where it does not, the refusal
names what to change. No plain schema takes much more room than the one that it was made of.

It goes level by level, so that where room ends, only what lies deepest is left open.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import orjson

from gateway.limits import (
    MAX_SCHEMA_BYTES,
    MAX_TOLD_ITEMS,
    PLAIN_LEVELS,
    PLAIN_STEP_BYTES,
    SUMMARY_CHARS,
)
from gateway.model import Tool
from gateway.naming import cut

Part = dict[str, Any]  # a schema without references and alternatives; those inside it are as given

# What stays as it is, beside what is said of objects and arrays.
_KEPT = """title description enum default format pattern multipleOf uniqueItems deprecated
    contentEncoding x-mcp-header""".split()
_LEAST = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_MOST = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_OF_KIND: Mapping[str, Sequence[str]] = {  # the richest first
    "object": ("minProperties", "maxProperties"),
    "array": ("minItems", "maxItems", "uniqueItems"),
    "string": ("minLength", "maxLength", "pattern", "format", "contentEncoding"),
    "number": (*_LEAST[:2], *_MOST[:2], "multipleOf", "format"),
    "integer": (*_LEAST[:2], *_MOST[:2], "multipleOf", "format"),
    "boolean": (),
    "null": (),
}
_SAYS_KIND = {"properties": "object", "required": "object", "additionalProperties": "object"}
_SAYS_KIND |= {"items": "array", "pattern": "string", "minLength": "string", "maxLength": "string"}
_SAYS_KIND |= {"minimum": "number", "maximum": "number"}
_PYTHON_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object"}
_PYTHON_KINDS |= {list: "array", type(None): "null"}


def forms_of(entry: bytes) -> dict[str, bytes]:
    """An entry of tools/list plain, and bare: without its output schema; where it is otherwise."""
    whole = orjson.loads(entry)
    bare = {key: value for key, value in whole.items() if key != "outputSchema"}
    plain = {**bare, "inputSchema": plain_schema(whole["inputSchema"])}
    forms = {"plain": plain, "bare": bare}
    return {form: orjson.dumps(found) for form, found in forms.items() if found != whole}


def plain_input(tool: Tool) -> Any:
    """The input schema of a tool as plain clients are shown it."""
    return orjson.loads(tool.forms.get("plain", tool.entry))["inputSchema"]


def plain_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The input schema of a tool, plain."""
    root: dict[str, Any] = {}
    try:
        _Writer(dict(schema)).write(root)
    except (RecursionError, TypeError):  # nested too deeply to be followed, or to be written
        root.clear()
    root.pop("title", None)
    kind = root.setdefault("type", "object")
    return {"type": kind, "properties": {}, **root} if kind == "object" else root


def in_form(schema: Mapping[str, Any] | None, form: str) -> Mapping[str, Any] | None:
    """A schema as clients are shown it in this form."""
    return schema if schema is None or form != "plain" else plain_schema(schema)


class _Writer:
    """Writes one schema out, as far as there is room."""

    def __init__(self, schema: Part) -> None:
        self._whole = schema
        self._room = min(2 * len(orjson.dumps(schema)) + 2 * SUMMARY_CHARS, MAX_SCHEMA_BYTES)
        self._steps = self._room // PLAIN_STEP_BYTES  # as many as could be written
        self._required: list[tuple[dict[str, Any], list[str]]] = []  # of objects, by what they are
        # A schema, where it goes, the references that led to it, and how deep it lies.
        Waiting = deque[tuple[Any, dict[str, Any], str, tuple[str, ...], int]]
        self._waiting: Waiting = deque()

    def write(self, root: dict[str, Any]) -> None:
        """Writes the whole schema into `root`."""
        place: dict[str, Any] = {"": root}
        self._waiting.append((self._whole, place, "", (), 0))
        while self._waiting:
            schema, place, name, trail, level = self._waiting.popleft()
            part, trail = self._merged(schema, trail)
            if part is None:
                self._leave_out(place, name)
                continue
            kind, written = _kind_of(part), place[name]
            said = _written(part, kind)
            size = len(orjson.dumps(said))
            written |= said if size <= self._room else {"type": kind} if kind else {}
            self._room -= size
            if kind == "array":
                written["items"] = {}
            if self._room > 0 and level < PLAIN_LEVELS:
                self._go_down(part, kind, written, trail, level + 1)
        for written, required in self._required:
            if named := [name for name in required if name in written["properties"]]:
                written["required"] = named

    def _leave_out(self, place: dict[str, Any], name: str) -> None:
        """There is no value that fits: a property is not there, an array is empty."""
        if place.get("type") == "array":
            place["maxItems"] = 0
        else:
            del place[name]

    def _go_down(
        self, part: Part, kind: str, written: dict[str, Any], trail: tuple[str, ...], level: int
    ) -> None:
        """Puts what lies inside in line: what is required first."""
        if kind == "array":
            self._waiting.append((part.get("items", {}), written, "items", trail, level))
        if kind != "object":
            return
        required = [name for name in part.get("required", ()) if isinstance(name, str)]
        names = dict.fromkeys([*part.get("properties", ()), *required])
        cost = sum(len(name) + PLAIN_STEP_BYTES for name in names)
        if cost > self._room and level > 1:
            return  # it stays open
        self._room -= cost
        if names:
            place: dict[str, Any] = {name: {} for name in names}
            written["properties"] = place
            self._required.append((written, required))
            for name in sorted(names, key=lambda name: name not in required):
                self._waiting.append((_at(part, name), place, name, trail, level))
        if "additionalProperties" in part:
            written["additionalProperties"] = part["additionalProperties"] is not False

    # --- one schema of several --------------------------------------------------------------------

    def _merged(self, schema: Any, trail: tuple[str, ...]) -> tuple[Part | None, tuple[str, ...]]:
        """The schema as one part, None where nothing fits; and the references on the way."""
        self._steps -= 1
        if schema is False:
            return None, trail
        if not isinstance(schema, dict) or self._steps < 0:
            return {}, trail
        merged: Part | None = _own_part(schema)
        for each in schema.get("allOf") or ():
            inner, trail = self._merged(each, trail)
            merged = _both(merged, inner)
        if isinstance(reference := schema.get("$ref") or schema.get("$dynamicRef"), str):
            target, trail = self._target(reference, trail)
            merged = _both(merged, target)
        for group in _groups(schema):
            found = [self._merged(each, trail) for each in group]
            merged = _either([(_both(merged, part), part) for part, _ in found])
            led = (step for _, there in found for step in there[len(trail) :])
            trail = (*trail, *dict.fromkeys(led))
        return merged, trail

    def _target(
        self, reference: str, trail: tuple[str, ...]
    ) -> tuple[Part | None, tuple[str, ...]]:
        """What a reference leads to; one that has led here twice is not followed again."""
        found: Any = self._whole if reference.startswith("#") else {}
        for step in reference.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            else:
                found = found.get(step, {}) if isinstance(found, dict) else {}
        if trail.count(reference) > 1:
            kind = found.get("type", "object") if isinstance(found, dict) else "object"
            return {"type": [kind]} if isinstance(kind, str) else {}, trail
        return self._merged(found, (*trail, reference))


def _own_part(schema: Part) -> Part:
    """What a schema says by itself, in the words that parts have."""
    part = {key: schema[key] for key in (*_KEPT, *_LEAST, *_MOST) if key in schema}
    if isinstance(kinds := schema.get("type"), (str, list)):
        part["type"] = [kinds] if isinstance(kinds, str) else list(kinds)
    if "const" in schema:
        part["enum"] = [schema["const"]]
    for key, kind in (("properties", dict), ("required", list)):
        if isinstance(schema.get(key), kind):
            part[key] = schema[key]
    others = schema.get("additionalProperties", schema.get("unevaluatedProperties"))
    if others is not None:
        part["additionalProperties"] = True if schema.get("patternProperties") else others
    if isinstance(first := schema.get("prefixItems"), list):
        rest = schema.get("items", True)
        part["items"] = {"anyOf": [*first, *([rest] if isinstance(rest, dict) else ())]}
        if rest is False:
            part["maxItems"] = min(len(first), schema.get("maxItems", len(first)))
    elif schema.get("items") is False:
        part["maxItems"] = 0
    elif isinstance(schema.get("items"), dict):
        part["items"] = schema["items"]
    return part


def _groups(schema: Part) -> Iterator[list[Any]]:
    """The alternatives of a schema, group by group."""
    if isinstance(kinds := schema.get("type"), list):
        yield [{"type": kind} for kind in kinds]
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            yield schema[key]
    if "if" in schema and ("then" in schema or "else" in schema):
        yield [{"allOf": [schema["if"], schema.get("then", True)]}, schema.get("else", True)]
    if isinstance(dependent := schema.get("dependentSchemas"), dict):
        yield from ([inner, True] for inner in dependent.values())


def _both(one: Part | None, other: Part | None) -> Part | None:
    """What both ask for together."""
    if one is None or other is None:
        return None
    both = {**other, **one}  # the words of what stands nearer
    if one.get("type") and other.get("type"):
        both["type"] = [kind for kind in _kinds(one) if kind in _kinds(other)]
        if not both["type"]:
            return None
    if "enum" in one and "enum" in other:
        known = {orjson.dumps(value) for value in other["enum"]}
        both["enum"] = [value for value in one["enum"] if orjson.dumps(value) in known]
        if not both["enum"]:
            return None
    for keys, tighter in ((_LEAST, max), (_MOST, min)):
        for key in keys:
            if key in one and key in other:
                both[key] = tighter(one[key], other[key])
    if "required" in one and "required" in other:
        both["required"] = list(dict.fromkeys([*one["required"], *other["required"]]))
    if "items" in one and "items" in other:
        both["items"] = _all_of(one["items"], other["items"])
    return both | _both_objects(one, other)


def _both_objects(one: Part, other: Part) -> Part:
    """The properties that two objects allow together, and whether there may be others."""
    together: Part = {}
    others = [
        part["additionalProperties"] for part in (one, other) if "additionalProperties" in part
    ]
    if others:
        together["additionalProperties"] = False not in others
    mine, its = one.get("properties", {}), other.get("properties", {})
    if mine or its:
        names = dict.fromkeys([*mine, *its])
        found = {name: _all_of(_at(one, name), _at(other, name)) for name in names}
        together["properties"] = {n: part for n, part in found.items() if part is not False}
    return together


def _at(part: Part, name: str) -> Any:
    """What an object says of the property of this name."""
    return part.get("properties", {}).get(name, part.get("additionalProperties", True))


def _all_of(one: Any, other: Any) -> Any:
    if one is False or other is False:
        return False
    if one is True or one == other:
        return other
    return one if other is True else {"allOf": [one, other]}


def _either(alternatives: Sequence[tuple[Part | None, Part | None]]) -> Part | None:
    """What fits one of the alternatives: those of the richest kind merged, the others in words.

    Each comes with what holds beside it, and by itself.
    """
    possible = [whole for whole, _ in alternatives if whole is not None]
    if not possible:
        return None
    found = next((part for part in possible if not _kind_of(part)), None)  # anything fits
    if found is None:
        kind = next(kind for kind in _OF_KIND if any(kind in _kinds(part) for part in possible))
        chosen = [part for part in possible if kind in _kinds(part)]
        found = {**(chosen[0] if len(chosen) == 1 else _merge(chosen, kind)), "type": [kind]}
    return _described(found, [own for whole, own in alternatives if whole is not None and own])


def _merge(chosen: Sequence[Part], kind: str) -> Part:
    """Several parts of one kind as one that allows what any does."""
    merged = {
        k: chosen[0][k] for k in _KEPT if all(k in p and p[k] == chosen[0][k] for p in chosen)
    }
    if all("enum" in part for part in chosen):
        merged["enum"] = _distinct(value for part in chosen for value in part["enum"])
    looser: tuple[tuple[Sequence[str], Callable[..., Any]], ...] = ((_LEAST, min), (_MOST, max))
    for keys, choose in looser:
        for key in keys:
            if all(key in part for part in chosen):
                merged[key] = choose(part[key] for part in chosen)
    if kind == "array" and all("items" in part for part in chosen):
        merged["items"] = _any_of([part["items"] for part in chosen])
    if kind == "object":
        names = dict.fromkeys(name for part in chosen for name in part.get("properties", ()))
        merged["properties"] = {
            name: _any_of(
                [p["properties"][name] for p in chosen if name in p.get("properties", ())]
            )
            for name in names
        }
        first = chosen[0].get("required", ())
        merged["required"] = [n for n in first if all(n in p.get("required", ()) for p in chosen)]
        if all(part.get("additionalProperties") is False for part in chosen):
            merged["additionalProperties"] = False
    return merged


def _any_of(schemas: Sequence[Any]) -> Any:
    distinct = _distinct(schemas)
    return distinct[0] if len(distinct) == 1 else {"anyOf": distinct}


def _distinct(values: Any) -> list[Any]:
    return list(
        {orjson.dumps(value, option=orjson.OPT_SORT_KEYS): value for value in values}.values()
    )


# --- the words ------------------------------------------------------------------------------------


def _described(merged: Part, parts: Sequence[Part]) -> Part:
    """The part with a description that says which alternatives there are."""
    told = dict.fromkeys(filter(None, map(_summary, parts)))
    if len(told) < 2 or "enum" in merged:
        return merged
    words = cut("; or ".join(list(told)[:MAX_TOLD_ITEMS]), SUMMARY_CHARS)
    said = merged.get("description", "")
    return {**merged, "description": f"{said} One of: {words}".strip()}


def _summary(part: Part) -> str:
    """An alternative in a few words: what it is called, what it requires, its values."""
    fixed = {
        name: f"{name} = {_text(value)}"
        for name, inner in part.get("properties", {}).items()
        for value in _only_value(inner)
    }
    told = [*fixed.values(), *(name for name in part.get("required", ()) if name not in fixed)]
    told += [_text(value) for value in part.get("enum", ())[:4]]
    kind, words = _kind_of(part), ", ".join(map(str, told))
    if kind == "null":
        return ""
    title = part.get("title")
    if isinstance(title, str) and title:
        return f"{title} ({words})" if words else title
    return words or kind


def _only_value(schema: Any) -> list[Any]:
    """The one value that a property may have, where there is but one."""
    if not isinstance(schema, dict):
        return []
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) and len(values) == 1 else []


def _text(value: Any) -> str:
    return cut(orjson.dumps(value).decode(), 40)


# --- kinds ----------------------------------------------------------------------------------------


def _kinds(part: Part) -> list[str]:
    """The kinds of values that a part may mean; none said and none told by other words: all."""
    kinds = part.get("type")
    if kinds is None and "enum" in part:
        kinds = [_PYTHON_KINDS[type(value)] for value in part["enum"]]
    if kinds is None:
        kinds = [kind for key, kind in _SAYS_KIND.items() if key in part] or list(_OF_KIND)
    return [*kinds, "integer"] if "number" in kinds and "integer" not in kinds else list(kinds)


def _kind_of(part: Part) -> str:
    """The one kind that a part is written as; "": any."""
    kinds = _kinds(part)
    if len(set(kinds)) == len(_OF_KIND):
        return ""
    return next((kind for kind in _OF_KIND if kind in kinds), "")


def _written(part: Part, kind: str) -> dict[str, Any]:
    """What a part says that is no schema itself."""
    wrong = {key for other, keys in _OF_KIND.items() if other != kind for key in keys}
    wrong -= set(_OF_KIND.get(kind, ()))
    written: dict[str, Any] = {"type": kind} if kind else {}
    for key in (*_KEPT, *_LEAST, *_MOST):
        if key in part and not (kind and key in wrong):
            written[key] = part[key]
    if "enum" in written:
        written["enum"] = [value for value in written["enum"] if _fits(value, kind)]
        if not written["enum"]:
            del written["enum"]
    if "default" in written and not _fits(written["default"], kind):
        del written["default"]
    return written


def _fits(value: Any, kind: str) -> bool:
    if kind in ("number", "integer"):
        whole = isinstance(value, float) and value.is_integer()
        return type(value) is int or whole or (kind == "number" and type(value) is float)
    return not kind or _PYTHON_KINDS[type(value)] == kind
