"""A tool's schema in one piece: its root, the definitions it needs, and no more than there is room.

Where there is not room for everything, words go first, those of the deepest definitions before
others; then the properties that may be left out, the deepest first: such an object is open, and
names only what it requires. So what is generated from the rest still fits. Parts are compiled one
by one, each once a document: what does not compile is opened, and the whole then compiles because
its parts do.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.limits import (
    INPUT_BYTES,
    LISTED_BYTES,
    MAX_SCHEMA_BYTES,
    MAX_TOOL_BYTES,
)
from gateway.naming import cut
from gateway.openapi.document import Unusable, mapping
from gateway.openapi.keywords import MANY_SCHEMAS, NAMED_SCHEMAS, compiles, joined, stub_of, written
from gateway.openapi.schema import Fragment, Report, Schemas

# What is tried where room is short: levels of objects, and characters of an input's description.
_LEVELS = ((math.inf, 100), (5, 100), (3, 100), (2, 100), (1, 100), (1, 0))
_TAKES_MORE = "Takes more than is listed here."
_TOO_LARGE = (
    "its inputs are too large to list whole: objects deep in them list only what they require; "
    "mcp_get_tool_schema and GET /api/v1/tools/NAME give all"
)


@dataclass(frozen=True, slots=True)
class Listed:
    """A tool's input schema as it is listed."""

    text: bytes
    complete: bool  # nothing is left out for want of room, not even words


def input_schema(whole: Fragment, schemas: Schemas, report: Report, room: int) -> Listed:
    """A tool's input schema, within its room and sure to compile."""
    root, refs = mapping(whole.schema), whole.refs
    text = written(root)
    definitions = _all_below(refs, schemas, room - len(text))
    complete = definitions is not None
    if definitions is None:
        root, is_cut = _thin_root(root, schemas, room)
        text, refs = written(root), refs_in(root)
        definitions, cut_below = _fitting(refs, schemas, room - len(text))
        if is_cut or cut_below:
            report("warning", _TOO_LARGE)
    if len(text) > MAX_SCHEMA_BYTES:
        most = f"at most {MAX_SCHEMA_BYTES:,} are listed"
        raise Unusable(f"its inputs take {len(text):,} bytes, {most}")
    if not compiles(joined(text, dict.fromkeys(refs, b"{}"))):
        text = _loosened(root, refs, report)
    return Listed(joined(text, definitions), complete)


def whole_input(whole: Fragment, schemas: Schemas) -> bytes:
    """All of a tool's input schema, with words if there is room; b"" if it is larger than any."""
    text = written(whole.schema)
    definitions = _all_below(whole.refs, schemas, MAX_TOOL_BYTES - len(text))
    if definitions is None:
        return b""
    if len(text) + _size(definitions) > MAX_SCHEMA_BYTES:
        text = written(_without_words(mapping(whole.schema)))
        definitions = {name: _thin(schemas, name, math.inf)[0] for name in definitions}
    return joined(text, definitions)


def input_size(whole: Fragment, schemas: Schemas) -> int:
    """The room that a tool's input wants: as much as all of it takes, but no more than any gets."""
    text = written(whole.schema)
    definitions = _all_below(whole.refs, schemas, INPUT_BYTES - len(text))
    return INPUT_BYTES if definitions is None else len(text) + _size(definitions)


def fair_share(sizes: Sequence[int]) -> int:
    """The room for one input such that all fit together: small ones leave theirs to large ones.

    However many there are, each has a quarter of what one may have where they are few.
    """
    left = max(LISTED_BYTES, len(sizes) * INPUT_BYTES // 4)
    for index, size in enumerate(ordered := sorted(sizes)):
        share = left // (len(ordered) - index)
        if size > share:
            return share
        left -= size
    return INPUT_BYTES


def output_schema(answer: Fragment, schemas: Schemas) -> bytes | None:
    """The JSON text of an answer's schema with all it refers to, unless that is too much."""
    text = written(answer.schema)
    definitions = _all_below(answer.refs, schemas, MAX_SCHEMA_BYTES - len(text))
    return None if definitions is None else joined(text, definitions)


def refs_in(value: Any) -> tuple[str, ...]:
    """The names of the definitions a translated schema refers to."""
    found: dict[str, None] = {}
    waiting: deque[Any] = deque([value])
    while waiting:
        part = waiting.popleft()
        if isinstance(part, dict):
            reference = part.get("$ref")
            if isinstance(reference, str):
                found[reference.removeprefix("#/$defs/")] = None
            waiting.extend(part.values())
        elif isinstance(part, list):
            waiting.extend(part)
    return tuple(found)


# --- definitions ----------------------------------------------------------------------------------


def _all_below(refs: Sequence[str], schemas: Schemas, room: int) -> dict[str, bytes] | None:
    """The definitions that these need, and those that they need in turn; None if it is too much."""
    if any(_reach(name, schemas) > room for name in refs):
        return None
    found: dict[str, bytes] = {}
    waiting = deque(refs)
    while waiting and room >= 0:
        name = waiting.popleft()
        if name not in found:
            definition = schemas.definition(name)
            found[name] = definition.text
            room -= len(definition.text)
            waiting.extend(definition.refs)
    return found if room >= 0 else None


def _reach(name: str, schemas: Schemas) -> float:
    """How many bytes a definition takes with all that it needs; what is too much for any is inf."""
    if name not in schemas.reach:
        size, seen, waiting = 0.0, set[str](), deque([name])
        while waiting and size <= MAX_TOOL_BYTES:
            if (below := waiting.popleft()) not in seen:
                seen.add(below)
                definition = schemas.definition(below)
                endless = schemas.reach.get(below) == math.inf
                size += math.inf if endless else len(definition.text)
                waiting.extend(definition.refs)
        schemas.reach[name] = size if size <= MAX_TOOL_BYTES else math.inf
    return schemas.reach[name]


def _fitting(refs: Collection[str], schemas: Schemas, room: int) -> tuple[dict[str, bytes], bool]:
    """As much of the definitions as fits, level by level, and whether properties are left out."""
    chosen = _bare(refs, schemas, {}, room)
    room -= _size(chosen)
    plain: dict[str, bytes] = {}  # with all their properties
    waiting, seen = deque(refs), set[str]()
    while waiting:
        if (name := waiting.popleft()) in seen:
            continue
        seen.add(name)
        text, below = _thin(schemas, name, math.inf)
        more = _bare(below, schemas, chosen, room)
        cost = len(text) - len(chosen[name]) + _size(more)
        if cost <= max(room, 0):
            room -= cost
            chosen |= {**more, name: text}
            plain[name] = text
        waiting.extend(each for each in below if each in chosen)
    for name, text in plain.items():
        full = schemas.definition(name).text
        if len(full) - len(text) <= room:
            room -= len(full) - len(text)
            chosen[name] = full
    return chosen, len(plain) < len(chosen)


def _bare(
    names: Iterable[str], schemas: Schemas, known: Mapping[str, bytes], room: int
) -> dict[str, bytes]:
    """These definitions, but for those known, with no more than they require."""
    found: dict[str, bytes] = {}
    waiting = deque(names)
    while waiting:
        name = waiting.popleft()
        if name in known or name in found:
            continue
        text, below = _thin(schemas, name, 0)
        if len(text) > max(room, 300):  # a smaller one costs no more than a stub would
            text, below = stub_of(text), ()
        found[name] = text
        room -= len(text)
        waiting.extend(below)
    return found


def _size(definitions: Mapping[str, bytes]) -> int:
    return sum(map(len, definitions.values()))


def _thin(schemas: Schemas, name: str, levels: float) -> tuple[bytes, tuple[str, ...]]:
    """A definition without words and without what may be left out below so many levels."""
    known = schemas.thinner.get((name, levels))
    if known is None:
        schema = _thinned(orjson.loads(schemas.definition(name).text), levels)
        known = schemas.thinner[name, levels] = (written(schema), refs_in(schema))
    return known


# --- one schema -----------------------------------------------------------------------------------


def _thin_root(
    root: Mapping[str, Any], schemas: Schemas, budget: int
) -> tuple[Mapping[str, Any], bool]:
    """The root with as many levels as leave room for all that is required; whether others went.

    It has words only on the inputs themselves, and short ones.
    """
    thin, most, is_cut = root, 0, False
    for levels, words in _LEVELS:
        thin = _without_words(thin, levels, words)
        size = len(orjson.dumps(thin))
        most = most or size
        is_cut = size < most if words else is_cut
        if size + _size(_bare(refs_in(thin), schemas, {}, budget)) <= budget:
            break
    return thin, is_cut


def _without_words(
    root: Mapping[str, Any], levels: float = math.inf, words: int = 100
) -> dict[str, Any]:
    properties = dict(root["properties"])
    for name, part in properties.items():
        properties[name] = thin = _thinned(part, levels)
        if words and (said := mapping(part).get("description")):
            properties[name] = {**thin, "description": cut(said, words)}
    return {**root, "properties": properties}


def _thinned(schema: Any, levels: float) -> Any:
    """The schema without words; objects below so many levels name only what they require."""
    if not isinstance(schema, dict):
        return schema
    thin = {key: value for key, value in schema.items() if key not in ("title", "description")}
    for key, value in thin.items():
        if key in NAMED_SCHEMAS:
            thin[key] = {name: _thinned(part, levels - 1) for name, part in value.items()}
        elif key in ("items", "additionalProperties"):
            thin[key] = _thinned(value, levels - 1)
        elif key in MANY_SCHEMAS:
            thin[key] = [_thinned(part, levels) for part in value]
    return thin if levels > 0 else _only_required(thin)


def _only_required(schema: dict[str, Any]) -> dict[str, Any]:
    properties, required = schema.get("properties", {}), set(schema.get("required", ()))
    if required.issuperset(properties):
        return schema
    kept = {name: part for name, part in properties.items() if name in required}
    closing = ("additionalProperties", "unevaluatedProperties", "properties")
    rest = {key: value for key, value in schema.items() if key not in closing}
    return {**rest, **({"properties": kept} if kept else {}), "description": _TAKES_MORE}


def _loosened(root: Mapping[str, Any], refs: Collection[str], report: Report) -> bytes:
    """The same with every input that does not compile by itself left open."""
    anything = dict.fromkeys(refs, b"{}")
    properties = dict(root["properties"])
    for name, part in root["properties"].items():
        if not compiles(joined(orjson.dumps({"properties": {name: part}}), anything)):
            report("warning", f"the schema of {name} is not valid; anything is accepted there")
            properties[name] = {}
    text = written({**root, "properties": properties})
    if not compiles(joined(text, anything)):
        raise Unusable("its inputs are not a valid schema")
    return text
