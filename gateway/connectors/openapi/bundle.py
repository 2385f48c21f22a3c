"""A tool's schema in one piece: its root, the definitions it needs, and no more than there is room.

Definitions are taken breadth first until the budget is used up; what lies deeper becomes an open
schema with the same description, so the input stays valid and only gets looser. A root that is too
large by itself loses its deepest levels. At last the whole is compiled as a caller's arguments
would be: a part that does not compile is opened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jsonschema_rs
import orjson

from gateway.connectors.openapi.document import Unusable
from gateway.connectors.openapi.keywords import PATTERN_OPTIONS
from gateway.connectors.openapi.schema import Schema, Schemas
from gateway.connectors.text import cut

INPUT_BUDGET = 16 * 1024
_SMALLEST_BUDGET = 1024
LISTED_BUDGET = 16 * 1024 * 1024  # for the inputs of all tools together
MAX_INPUT = 256 * 1024  # what no pruning brings below this is not a tool
MAX_OUTPUT = 64 * 1024
_SMALL = 300  # a leaf this small costs no more than a stub would
_LEVELS = (6, 4, 3, 2, 1)
_LONG_ENUM = 1024
_SHORT_DESCRIPTION = 100


def input_schema(
    root: dict[str, Any],
    refs: Iterable[str],
    schemas: Schemas,
    report: Callable[[str, str], None],
    budget: int = INPUT_BUDGET,
) -> bytes:
    """The JSON text of a tool's input schema, within its budget and sure to compile."""
    text = orjson.dumps(root)
    if len(text) > budget:
        root = _pruned_root(root, budget)
        text, refs = orjson.dumps(root), refs_in(root)
        report("info", "its inputs are too large to list whole; the deepest levels are left open")
    if len(text) > MAX_INPUT:
        raise Unusable(f"its inputs take {len(text):,} bytes, at most {MAX_INPUT:,} are listed")
    definitions = _within(refs, schemas, budget - len(text))
    joined = _joined(text, definitions)
    return joined if compiles(joined) else _loosened(root, definitions, report)


def input_budget(operations: int) -> int:
    """The room for one tool's input where there are so many."""
    return max(_SMALLEST_BUDGET, min(INPUT_BUDGET, LISTED_BUDGET // max(operations, 1)))


def output_schema(schema: Schema, refs: Iterable[str], schemas: Schemas) -> bytes | None:
    """The JSON text of an answer's schema with all it refers to, unless that is too much."""
    text = orjson.dumps(schema)
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
    return _joined(text, definitions) if used <= MAX_OUTPUT else None


def compiles(text: bytes) -> bool:
    """Whether the schema can be used to check arguments."""
    try:
        jsonschema_rs.Draft202012Validator(
            orjson.loads(text), pattern_options=PATTERN_OPTIONS, offline=True
        )
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True


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
    return chosen


def _joined(text: bytes, definitions: Mapping[str, bytes]) -> bytes:
    """Definitions are serialised once a document, so putting them together is joining bytes."""
    if not definitions:
        return text
    listed = b",".join(b'"%b":%b' % (name.encode(), part) for name, part in definitions.items())
    comma = b"" if text == b"{}" else b","
    return b'%b%b"$defs":{%b}}' % (text[:-1], comma, listed)


def _pruned_root(root: dict[str, Any], budget: int) -> dict[str, Any]:
    for levels in _LEVELS:
        properties = {name: _pruned(part, levels) for name, part in root["properties"].items()}
        pruned = {**root, "properties": properties}
        if len(orjson.dumps(pruned)) <= budget:
            break
    return pruned


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
    root: dict[str, Any], definitions: Mapping[str, bytes], report: Callable[[str, str], None]
) -> bytes:
    """The same with every part that does not compile by itself left open."""
    open_all = dict.fromkeys(definitions, b"{}")
    sound = dict(definitions)
    for name, part in definitions.items():
        if not compiles(_joined(b"{}", {**open_all, name: part})):
            report("warning", f"schema {name} is not valid; anything is accepted there")
            sound[name] = b"{}"
    properties = dict(root["properties"])
    for name, part in root["properties"].items():
        if not compiles(_joined(orjson.dumps({"properties": {name: part}}), open_all)):
            report("warning", f"the schema of {name} is not valid; anything is accepted there")
            properties[name] = {}
    text = _joined(orjson.dumps({**root, "properties": properties}), sound)
    if not compiles(text):
        raise Unusable("its inputs are not a valid schema")
    return text
