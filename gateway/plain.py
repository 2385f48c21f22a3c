"""Schemas in the simplest keywords of JSON Schema, for clients that fail on any others.

Plain schemas have types, properties, items, values and bounds, and neither references nor
alternatives. A reference is written out where it stands, a few levels deep where it leads back to
itself; then the object is open. The parts of `allOf` become one schema. Alternatives are merged:
those of the richest type stay, an object has the properties of all of them and requires the
properties that all require, and its description names the alternatives. So arguments made by a
plain schema mostly fit the whole schema, by which all calls are checked; where they do not, the
refusal names what to change. No plain schema takes much more room than its original.

The schema is written level by level, so that where room ends, only the deepest parts are open.
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
from gateway.model import Tool, json_text
from gateway.naming import cut

Part = dict[str, Any]  # a schema that has no references and alternatives itself; its parts may

# The keywords that stay as they are, beside those of objects and arrays.
_COPIED = """title description enum default format pattern multipleOf uniqueItems deprecated
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
_KEY_KINDS = {"properties": "object", "required": "object", "additionalProperties": "object"}
_KEY_KINDS |= {"items": "array", "pattern": "string", "minLength": "string", "maxLength": "string"}
_KEY_KINDS |= {"minimum": "number", "maximum": "number"}
_PYTHON_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object"}
_PYTHON_KINDS |= {list: "array", type(None): "null"}


def forms_of(entry: bytes) -> dict[str, bytes]:
    """The plain and the bare (without output schema) form of an entry, if they differ from it."""
    whole = orjson.loads(entry)
    bare = {key: value for key, value in whole.items() if key != "outputSchema"}
    plain = {**bare, "inputSchema": plain_schema(whole["inputSchema"])}
    forms = {"plain": plain, "bare": bare}
    return {form: json_text(value) for form, value in forms.items() if value != whole}


def plain_input(tool: Tool) -> Any:
    """The input schema of a tool as clients of the plain form see it."""
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
    """A schema as clients of this form see it."""
    return schema if schema is None or form != "plain" else plain_schema(schema)


class _Writer:
    """Writes one schema out, as far as there is room."""

    def __init__(self, schema: Part) -> None:
        self._whole = schema
        self._room = min(2 * len(orjson.dumps(schema)) + 2 * SUMMARY_CHARS, MAX_SCHEMA_BYTES)
        self._steps = self._room // PLAIN_STEP_BYTES  # as many as could be written
        self._required: list[tuple[dict[str, Any], list[str]]] = []  # objects, what they require
        # A schema, where it is written, the references that led to it, and how deep it lies.
        Waiting = deque[tuple[Any, dict[str, Any], str, tuple[str, ...], int]]
        self._waiting: Waiting = deque()

    def write(self, root: dict[str, Any]) -> None:
        """Writes the whole schema into `root`."""
        place: dict[str, Any] = {"": root}
        self._waiting.append((self._whole, place, "", (), 0))
        while self._waiting:
            schema, place, name, trail, level = self._waiting.popleft()
            part, trail = self._merge(schema, trail)
            if part is None:
                self._leave_out(place, name)
                continue
            kind, target = _kind_of(part), place[name]
            keywords = _own_keywords(part, kind)
            size = len(orjson.dumps(keywords))
            target |= keywords if size <= self._room else {"type": kind} if kind else {}
            self._room -= size
            if kind == "array":
                target["items"] = {}
            if self._room > 0 and level < PLAIN_LEVELS:
                self._go_down(part, kind, target, trail, level + 1)
        for target, required in self._required:
            if present := [name for name in required if name in target["properties"]]:
                target["required"] = present

    def _leave_out(self, place: dict[str, Any], name: str) -> None:
        """Leaves out a schema that no value fits: its property goes, its array is always empty."""
        if place.get("type") == "array":
            place["maxItems"] = 0
        else:
            del place[name]

    def _go_down(
        self, part: Part, kind: str, target: dict[str, Any], trail: tuple[str, ...], level: int
    ) -> None:
        """Queues the schemas inside a part: those of required properties first."""
        if kind == "array":
            self._waiting.append((part.get("items", {}), target, "items", trail, level))
        if kind != "object":
            return
        required = [name for name in part.get("required", ()) if isinstance(name, str)]
        names = dict.fromkeys([*part.get("properties", ()), *required])
        cost = sum(len(name) + PLAIN_STEP_BYTES for name in names)
        if cost > self._room and level > 1:
            return  # the object stays open
        self._room -= cost
        if names:
            place: dict[str, Any] = {name: {} for name in names}
            target["properties"] = place
            self._required.append((target, required))
            for name in sorted(names, key=lambda name: name not in required):
                self._waiting.append((_at(part, name), place, name, trail, level))
        if "additionalProperties" in part:
            target["additionalProperties"] = part["additionalProperties"] is not False

    # --- one schema of several --------------------------------------------------------------------

    def _merge(self, schema: Any, trail: tuple[str, ...]) -> tuple[Part | None, tuple[str, ...]]:
        """The schema as one part, None where nothing fits; and the references on the way."""
        self._steps -= 1
        if schema is False:
            return None, trail
        if not isinstance(schema, dict) or self._steps < 0:
            return {}, trail
        merged: Part | None = _own_part(schema)
        for member in schema.get("allOf") or ():
            inner, trail = self._merge(member, trail)
            merged = _merge_both(merged, inner)
        if isinstance(reference := schema.get("$ref") or schema.get("$dynamicRef"), str):
            target, trail = self._follow(reference, trail)
            merged = _merge_both(merged, target)
        for group in _groups(schema):
            choices = [self._merge(each, trail) for each in group]
            merged = _merge_any([(_merge_both(merged, part), part) for part, _ in choices])
            steps = (step for _, longer in choices for step in longer[len(trail) :])
            trail = (*trail, *dict.fromkeys(steps))
        return merged, trail

    def _follow(
        self, reference: str, trail: tuple[str, ...]
    ) -> tuple[Part | None, tuple[str, ...]]:
        """The part that a reference leads to; each is followed twice at most on one trail."""
        target: Any = self._whole if reference.startswith("#") else {}
        for step in reference.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and step.isdecimal() and int(step) < len(target):
                target = target[int(step)]
            else:
                target = target.get(step, {}) if isinstance(target, dict) else {}
        if trail.count(reference) > 1:
            kind = target.get("type", "object") if isinstance(target, dict) else "object"
            return {"type": [kind]} if isinstance(kind, str) else {}, trail
        return self._merge(target, (*trail, reference))


def _own_part(schema: Part) -> Part:
    """The part that a schema's own keywords make, without references and alternatives."""
    part = {key: schema[key] for key in (*_COPIED, *_LEAST, *_MOST) if key in schema}
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


def _merge_both(first: Part | None, second: Part | None) -> Part | None:
    """The part that asks for all that both parts ask for; None where no value fits both."""
    if first is None or second is None:
        return None
    both = {**second, **first}  # with the title and the description of the first
    if first.get("type") and second.get("type"):
        both["type"] = [kind for kind in _kinds(first) if kind in _kinds(second)]
        if not both["type"]:
            return None
    if "enum" in first and "enum" in second:
        allowed = {orjson.dumps(value) for value in second["enum"]}
        both["enum"] = [value for value in first["enum"] if orjson.dumps(value) in allowed]
        if not both["enum"]:
            return None
    for keys, tighter in ((_LEAST, max), (_MOST, min)):
        for key in keys:
            if key in first and key in second:
                both[key] = tighter(first[key], second[key])
    if "required" in first and "required" in second:
        both["required"] = list(dict.fromkeys([*first["required"], *second["required"]]))
    if "items" in first and "items" in second:
        both["items"] = _all_of(first["items"], second["items"])
    return both | _merge_objects(first, second)


def _merge_objects(first: Part, second: Part) -> Part:
    """The properties that two objects allow together, and whether there may be others."""
    merged: Part = {}
    others = [
        part["additionalProperties"] for part in (first, second) if "additionalProperties" in part
    ]
    if others:
        merged["additionalProperties"] = False not in others
    names = dict.fromkeys([*first.get("properties", ()), *second.get("properties", ())])
    if names:
        schemas = {name: _all_of(_at(first, name), _at(second, name)) for name in names}
        merged["properties"] = {n: part for n, part in schemas.items() if part is not False}
    return merged


def _at(part: Part, name: str) -> Any:
    """The schema that an object has for the property of this name."""
    return part.get("properties", {}).get(name, part.get("additionalProperties", True))


def _all_of(first: Any, second: Any) -> Any:
    if first is False or second is False:
        return False
    if first is True or first == second:
        return second
    return first if second is True else {"allOf": [first, second]}


def _merge_any(alternatives: Sequence[tuple[Part | None, Part | None]]) -> Part | None:
    """The alternatives of the richest kind merged, the others named in the description.

    Each alternative comes merged with the schema around it, and by itself.
    """
    possible = [whole for whole, _ in alternatives if whole is not None]
    if not possible:
        return None
    merged = next((part for part in possible if not _kind_of(part)), None)  # anything fits
    if merged is None:
        kind = next(kind for kind in _OF_KIND if any(kind in _kinds(part) for part in possible))
        chosen = [part for part in possible if kind in _kinds(part)]
        merged = {**(chosen[0] if len(chosen) == 1 else _widen(chosen, kind)), "type": [kind]}
    return _describe(merged, [own for whole, own in alternatives if whole is not None and own])


def _widen(chosen: Sequence[Part], kind: str) -> Part:
    """One part that allows every value that any of these parts of one kind allows."""
    merged = {
        k: chosen[0][k] for k in _COPIED if all(k in p and p[k] == chosen[0][k] for p in chosen)
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


def _describe(merged: Part, parts: Sequence[Part]) -> Part:
    """The part with a description that names the alternatives."""
    summaries = dict.fromkeys(filter(None, map(_summary, parts)))
    if len(summaries) < 2 or "enum" in merged:
        return merged
    words = cut("; or ".join(list(summaries)[:MAX_TOLD_ITEMS]), SUMMARY_CHARS)
    description = merged.get("description", "")
    return {**merged, "description": f"{description} One of: {words}".strip()}


def _summary(part: Part) -> str:
    """An alternative in a few words: what it is called, what it requires, its values."""
    fixed = {
        name: f"{name} = {_text(value)}"
        for name, inner in part.get("properties", {}).items()
        for value in _only_value(inner)
    }
    facts = [*fixed.values(), *(name for name in part.get("required", ()) if name not in fixed)]
    facts += [_text(value) for value in part.get("enum", ())[:4]]
    kind, words = _kind_of(part), ", ".join(map(str, facts))
    if kind == "null":
        return ""
    title = part.get("title")
    if isinstance(title, str) and title:
        return f"{title} ({words})" if words else title
    return words or kind


def _only_value(schema: Any) -> list[Any]:
    """The value of a property that may have only one, as a list; else an empty list."""
    if not isinstance(schema, dict):
        return []
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return values if isinstance(values, list) and len(values) == 1 else []


def _text(value: Any) -> str:
    return cut(orjson.dumps(value).decode(), 40)


# --- kinds ----------------------------------------------------------------------------------------


def _kinds(part: Part) -> list[str]:
    """The kinds of values that a part allows, by its type, its values or its other keywords."""
    kinds = part.get("type")
    if kinds is None and "enum" in part:
        kinds = [_PYTHON_KINDS[type(value)] for value in part["enum"]]
    if kinds is None:
        kinds = [kind for key, kind in _KEY_KINDS.items() if key in part] or list(_OF_KIND)
    return [*kinds, "integer"] if "number" in kinds and "integer" not in kinds else list(kinds)


def _kind_of(part: Part) -> str:
    """The kind that a plain schema has for a part; "": any."""
    kinds = _kinds(part)
    if len(set(kinds)) == len(_OF_KIND):
        return ""
    return next((kind for kind in _OF_KIND if kind in kinds), "")


def _own_keywords(part: Part, kind: str) -> dict[str, Any]:
    """The keywords of a part that are no schemas themselves."""
    wrong = {key for name, keys in _OF_KIND.items() if name != kind for key in keys}
    wrong -= set(_OF_KIND.get(kind, ()))
    chosen: dict[str, Any] = {"type": kind} if kind else {}
    for key in (*_COPIED, *_LEAST, *_MOST):
        if key in part and not (kind and key in wrong):
            chosen[key] = part[key]
    if "enum" in chosen:
        chosen["enum"] = [value for value in chosen["enum"] if fits(value, kind)]
        if not chosen["enum"]:
            del chosen["enum"]
    if "default" in chosen and not fits(chosen["default"], kind):
        del chosen["default"]
    return chosen


def fits(value: Any, kind: str) -> bool:
    """Whether a value is of a kind; every value is of kind ""."""
    if kind in ("number", "integer"):
        is_whole = isinstance(value, float) and value.is_integer()
        return type(value) is int or is_whole or (kind == "number" and type(value) is float)
    return not kind or _PYTHON_KINDS.get(type(value)) == kind
