"""A tool's schema in one piece: its root, the definitions it needs, and no more than there is room.

Where there is not room for everything, descriptions go first, beginning with those of the deepest
definitions; then the properties that may be left out, the deepest first: such an object is open,
and names only what it requires. So arguments made from the rest still fit. Parts are compiled one
by one, each once a document: a part that does not compile is opened, and the whole then compiles
because its parts do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import orjson

from gateway import limits
from gateway.model import json_text
from gateway.naming import cut
from gateway.openapi import keywords
from gateway.openapi.document import Unusable, mapping
from gateway.openapi.schema import ReportIssue, Schemas

# The steps of cutting, where room is short: levels of objects, characters of a description.
_LEVELS = ((math.inf, 100), (5, 100), (3, 100), (2, 100), (1, 100), (1, 0))
_TAKES_MORE = "Takes more than is listed here."
_TOO_LARGE = (
    "its inputs are too large to list whole: objects deep in them list only what they require; "
    "mcp_get_tool_schema and GET /api/v1/tools/NAME give all"
)


def input_schema(
    text: bytes, schemas: Schemas, report: ReportIssue, room: int
) -> tuple[bytes, bool]:
    """A tool's input schema, within its room and sure to compile; whether that is all of it."""
    definitions = _all_below(text, schemas, room)
    complete = definitions is not None
    if definitions is None:
        text, is_cut = _thin_root(orjson.loads(text), schemas, room)
        definitions, cut_below = _fitting(schemas.refs_in(text), schemas, room - len(text))
        if is_cut or cut_below:
            report("warning", _TOO_LARGE)
    if len(text) > limits.MAX_SCHEMA_BYTES:
        most = f"at most {limits.MAX_SCHEMA_BYTES:,} are listed"
        raise Unusable(f"its inputs take {len(text):,} bytes, {most}")
    if not keywords.compiles(keywords.join_defs(text, dict.fromkeys(schemas.refs_in(text), b"{}"))):
        raise Unusable("its inputs are not a valid schema")
    return keywords.join_defs(text, definitions), complete


def whole_input(text: bytes, schemas: Schemas) -> bytes:
    """All of a tool's input schema, with words if there is room; b"" if it is too large."""
    definitions = _all_below(text, schemas, limits.MAX_TOOL_BYTES)
    if definitions is None:
        return b""
    if len(text) + _size(definitions) > limits.MAX_SCHEMA_BYTES:
        text = json_text(_without_words(orjson.loads(text)))
        definitions = {name: _thin(schemas, name, math.inf)[0] for name in definitions}
    return keywords.join_defs(text, definitions)


def input_size(text: bytes, schemas: Schemas) -> int:
    """The room that a tool's input needs, but no more than any input gets."""
    definitions = _all_below(text, schemas, limits.INPUT_BYTES)
    return limits.INPUT_BYTES if definitions is None else len(text) + _size(definitions)


def fair_share(sizes: Sequence[int]) -> int:
    """The room for one input such that all fit together: small inputs leave room to large ones.

    However many tools there are, an input gets a quarter of what it gets where tools are few.
    """
    remaining = max(limits.LISTED_BYTES, len(sizes) * limits.INPUT_BYTES // 4)
    for index, size in enumerate(ordered := sorted(sizes)):
        share = remaining // (len(ordered) - index)
        if size > share:
            return share
        remaining -= size
    return limits.INPUT_BYTES


def output_schema(text: bytes, schemas: Schemas) -> bytes | None:
    """An answer's schema with all the definitions it refers to; None if that is too much."""
    definitions = _all_below(text, schemas, limits.MAX_SCHEMA_BYTES)
    return None if definitions is None else keywords.join_defs(text, definitions)


# --- definitions ----------------------------------------------------------------------------------


def _all_below(text: bytes, schemas: Schemas, room: int) -> dict[str, bytes] | None:
    """The definitions that a schema needs, and those that they need; None if that is too much."""
    room -= len(text)
    found: dict[str, bytes] = {}
    waiting = deque(schemas.refs_in(text))
    while waiting and room >= 0:
        name = waiting.popleft()
        if name not in found:
            definition = schemas.definition(name)
            found[name] = definition.text
            room -= len(definition.text)
            waiting.extend(definition.refs)
    return found if room >= 0 else None


def _fitting(refs: Collection[str], schemas: Schemas, room: int) -> tuple[dict[str, bytes], bool]:
    """As much of the definitions as fits, level by level, and whether properties are left out."""
    chosen = _bare_definitions(refs, schemas, {}, room)
    room -= _size(chosen)
    unabridged: dict[str, bytes] = {}  # those with all their properties
    waiting, visited = deque(refs), set[str]()
    while waiting:
        if (name := waiting.popleft()) in visited:
            continue
        visited.add(name)
        text, below = _thin(schemas, name, math.inf)
        added = _bare_definitions(below, schemas, chosen, room)
        cost = len(text) - len(chosen[name]) + _size(added)
        if cost <= max(room, 0):
            room -= cost
            chosen |= {**added, name: text}
            unabridged[name] = text
        waiting.extend(each for each in below if each in chosen)
    for name, text in unabridged.items():
        full = schemas.definition(name).text
        if len(full) - len(text) <= room:
            room -= len(full) - len(text)
            chosen[name] = full
    return chosen, len(unabridged) < len(chosen)


def _bare_definitions(
    names: Iterable[str], schemas: Schemas, chosen: Mapping[str, bytes], room: int
) -> dict[str, bytes]:
    """These definitions and those they need, unless chosen already, with only what they require."""
    found: dict[str, bytes] = {}
    waiting = deque(names)
    while waiting:
        name = waiting.popleft()
        if name in chosen or name in found:
            continue
        text, below = _thin(schemas, name, 0)
        if len(text) > max(room, 300):  # a smaller one costs no more than a stub would
            text, below = keywords.stub_of(text), ()
        found[name] = text
        room -= len(text)
        waiting.extend(below)
    return found


def _size(definitions: Mapping[str, bytes]) -> int:
    return sum(map(len, definitions.values()))


def _thin(schemas: Schemas, name: str, levels: float) -> tuple[bytes, tuple[str, ...]]:
    """A definition without words, and below `levels` without optional properties."""
    cached = schemas.thinner.get((name, levels))
    if cached is None:
        text = json_text(_thin_out(orjson.loads(schemas.definition(name).text), levels))
        cached = schemas.thinner[name, levels] = (text, schemas.refs_in(text))
    return cached


# --- one schema -----------------------------------------------------------------------------------


def _thin_root(root: Mapping[str, Any], schemas: Schemas, room: int) -> tuple[bytes, bool]:
    """The root with as many levels as leave room for all that is required; whether any were cut.

    Only the inputs themselves have descriptions, and short ones.
    """
    text, most, is_cut = b"", 0, False
    for levels, words in _LEVELS:
        root = _without_words(root, levels, words)
        text = json_text(root)
        most = most or len(text)
        is_cut = len(text) < most if words else is_cut
        if len(text) + _size(_bare_definitions(schemas.refs_in(text), schemas, {}, room)) <= room:
            break
    return text, is_cut


def _without_words(
    root: Mapping[str, Any], levels: float = math.inf, words: int = 100
) -> dict[str, Any]:
    properties = dict(root["properties"])
    for name, part in properties.items():
        properties[name] = thin = _thin_out(part, levels)
        if words and (description := mapping(part).get("description")):
            properties[name] = {**thin, "description": cut(description, words)}
    return {**root, "properties": properties}


def _thin_out(schema: Any, levels: float) -> Any:
    """The schema without words; objects below `levels` name only what they require."""
    if not isinstance(schema, dict):
        return schema
    thin = {key: value for key, value in schema.items() if key not in ("title", "description")}
    for key, value in thin.items():
        if key in keywords.NAMED_SCHEMAS:
            thin[key] = {name: _thin_out(part, levels - 1) for name, part in value.items()}
        elif key in ("items", "additionalProperties"):
            thin[key] = _thin_out(value, levels - 1)
        elif key in keywords.MANY_SCHEMAS:
            thin[key] = [_thin_out(part, levels) for part in value]
    return thin if levels > 0 else _only_required(thin)


def _only_required(schema: dict[str, Any]) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), set(schema.get("required", ()))
    if required.issuperset(properties):
        return schema
    needed = {name: part for name, part in properties.items() if name in required}
    closing = ("additionalProperties", "unevaluatedProperties", "properties")
    rest = {key: value for key, value in schema.items() if key not in closing}
    return {**rest, **({"properties": needed} if needed else {}), "description": _TAKES_MORE}
