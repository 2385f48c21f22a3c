"""A tool's schema in one piece: its root, the definitions it needs, and no more than there is room.

Definitions are taken breadth first until the budget is used up; what lies deeper becomes an open
schema with the same description, so the input stays valid and only gets looser. A root that is too
large by itself loses its deepest levels. Parts are compiled one by one, each once a document: what
does not compile is opened, and the whole then compiles because its parts do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import orjson

from gateway.connectors.openapi.checks import compiles, joined, written
from gateway.connectors.openapi.document import Unusable
from gateway.connectors.openapi.schema import Schema, Schemas
from gateway.connectors.text import cut

INPUT_BUDGET = 16 * 1024
_SMALLEST_BUDGET = 1024
LISTED_BUDGET = 1536 * 1024  # for the inputs of all tools together, where they are few
LISTED_EACH = 4 * 1024  # and for each, where they are many: nothing smaller is ever cut
_MOST_LISTED = 16 * 1024 * 1024
MAX_INPUT = 64 * 1024  # what no pruning brings below this is not a tool
MAX_OUTPUT = 64 * 1024
_SMALL = 300  # a leaf this small costs no more than a stub would
_LEVELS = (5, 3, 2, 1)
_PARTS = 4  # definitions put together, for one unit of work
_COST = 256  # bytes of an input that is too large, for one unit of work
_LONG_ENUM = 1024
_SHORT_DESCRIPTION = 100


def input_schema(
    root: dict[str, Any],
    refs: Collection[str],
    schemas: Schemas,
    report: Callable[[str, str], None],
    budget: int = INPUT_BUDGET,
) -> bytes:
    """The JSON text of a tool's input schema, within its budget and sure to compile."""
    text = written(root)
    if len(text) > budget:
        schemas.spend(len(text) // _COST)
        root = _pruned_root(root, budget)
        text, refs = written(root), refs_in(root)
        report("info", "its inputs are too large to list whole; the deepest levels are left open")
    if len(text) > MAX_INPUT:
        raise Unusable(f"its inputs take {len(text):,} bytes, at most {MAX_INPUT:,} are listed")
    if not compiles(joined(text, dict.fromkeys(refs, b"{}"))):
        text = _loosened(root, refs, report)
    return joined(text, _within(refs, schemas, budget - len(text)))


def input_budget(operations: int) -> int:
    """The room for one tool's input where there are so many."""
    return max(_SMALLEST_BUDGET, min(INPUT_BUDGET, _MOST_LISTED // max(operations, 1)))


def fair_share(sizes: Sequence[int]) -> int:
    """The room for one input such that all fit together: small ones leave theirs to large ones."""
    left = max(LISTED_BUDGET, len(sizes) * LISTED_EACH)
    for index, size in enumerate(ordered := sorted(sizes)):
        share = left // (len(ordered) - index)
        if size > share:
            return max(share, _SMALLEST_BUDGET)
        left -= size
    return INPUT_BUDGET


def output_schema(schema: Schema, refs: Iterable[str], schemas: Schemas) -> bytes | None:
    """The JSON text of an answer's schema with all it refers to, unless that is too much."""
    text = written(schema)
    definitions: dict[str, bytes] = {}
    waiting, used = deque(refs), len(text)
    while waiting and used <= MAX_OUTPUT:
        name = waiting.popleft()
        if name in definitions:
            continue
        definition = schemas.definition(name)
        definitions[name] = definition.text
        used += len(definition.text)
        waiting.extend(definition.refs)
    schemas.spend(len(definitions) // _PARTS)
    return joined(text, definitions) if used <= MAX_OUTPUT else None


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


def _within(refs: Iterable[str], schemas: Schemas, budget: int) -> dict[str, bytes]:
    chosen: dict[str, bytes] = {}
    waiting, left = deque(refs), budget
    while waiting:
        name = waiting.popleft()
        if name in chosen:
            continue
        definition = schemas.definition(name)
        size = len(definition.text)
        if size <= left or (size <= _SMALL and not definition.refs):
            chosen[name] = definition.text
            left -= size
            waiting.extend(definition.refs)
        else:
            chosen[name] = definition.stub
    schemas.spend(len(chosen) // _PARTS)
    return chosen


def _pruned_root(root: dict[str, Any], budget: int) -> dict[str, Any]:
    for levels in _LEVELS:
        # Level by level from the last result: each pass has less to go through.
        properties = {name: _pruned(part, levels) for name, part in root["properties"].items()}
        root = {**root, "properties": properties}
        if len(orjson.dumps(root)) <= budget:
            break
    return root


def _pruned(schema: Any, levels: int) -> Any:
    """The schema down to so many levels of objects and lists; below, only type and words."""
    if not isinstance(schema, dict):
        return schema
    if levels == 0 and any(key in schema for key in ("properties", "items", "anyOf", "oneOf")):
        return _words_of(schema)
    return {
        key: _pruned_keyword(key, value, levels)
        for key, value in schema.items()
        if key != "enum" or len(orjson.dumps(value)) <= _LONG_ENUM
    }


def _pruned_keyword(key: str, value: Any, levels: int) -> Any:
    if key in ("properties", "patternProperties") and isinstance(value, dict):
        return {name: _pruned(part, levels - 1) for name, part in value.items()}
    if key in ("items", "additionalProperties"):
        return _pruned(value, levels - 1)
    if key in ("anyOf", "oneOf", "allOf") and isinstance(value, list):
        return [_pruned(part, levels) for part in value]
    if key == "description" and levels <= 2 and isinstance(value, str):
        return cut(value, _SHORT_DESCRIPTION)
    return value


def _words_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: schema[key] for key in ("type", "description") if key in schema}
    if "description" in kept:
        kept["description"] = cut(kept["description"], _SHORT_DESCRIPTION)
    return kept


def _loosened(
    root: dict[str, Any], refs: Collection[str], report: Callable[[str, str], None]
) -> bytes:
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
