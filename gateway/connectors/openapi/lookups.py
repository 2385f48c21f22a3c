"""Which inputs can be looked up: Microsoft's dynamic values, lists, trees and schemas.

The rules themselves go along with the tool, word for word, for whoever resolves them; the model
only reads that there is a look-up and which other inputs it needs first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import orjson

from gateway.connectors.openapi.arguments import Slot
from gateway.connectors.openapi.checks import written
from gateway.connectors.openapi.document import Document, Unusable, mapping, resolved, text_of
from gateway.model import Problem, Tool

VALUES = ("x-ms-dynamic-values", "x-ms-dynamic-list", "x-ms-dynamic-tree")
SCHEMAS = ("x-ms-dynamic-schema", "x-ms-dynamic-properties")
MAX_RULES = 64 * 1024  # bytes, of one tool
MAX_DEAD = 50


def look_ups(document: Document, slots: Sequence[Slot], body: Any) -> bytes:
    """The rules by argument, "" for those of a body that was taken apart; b"" if there are none."""
    rules = {slot.argument: found for slot in slots if (found := _rules(document, slot.raw))}
    if body is not None and (found := _rules(document, body)):
        rules.setdefault("body" if any(slot.raw is body for slot in slots) else "", found)
    if not rules:
        return b""
    text = written(rules)
    return text if len(text) <= MAX_RULES else b""


def with_hint(document: Document, slot: Slot) -> Slot:
    """The input, its description saying what can be looked up and what that depends on."""
    rules = _rules(document, slot.raw)
    if not rules or not isinstance(slot.schema, dict):
        return slot
    tool = "lookup_values" if any(key in rules for key in VALUES) else "lookup_schema"
    needed = sorted(set(_inputs(rules)))[:5]
    hint = f"({tool} knows more{', given ' + ', '.join(needed) if needed else ''}.)"
    words = f"{slot.schema.get('description', '')} {hint}".strip()
    return replace(slot, schema={**slot.schema, "description": words})


def dead_look_ups(tools: Sequence[Tool], hidden: Sequence[Tool]) -> list[Problem]:
    """A word on each look-up that names an operation nobody can call."""
    callable_ids = {tool.operation for tool in (*tools, *hidden)}
    return [
        Problem("info", f"{tool.method} {tool.path}", f"{argument} can't be looked up: no {name}")
        for tool in tools
        if tool.lookups
        for argument, rules in orjson.loads(tool.lookups).items()
        for name in sorted(set(_operations(rules)) - callable_ids)
    ][:MAX_DEAD]


def _operations(rules: Any) -> Iterator[str]:
    """The operations a rule names, at whatever depth the form has them."""
    for key, value in rules.items() if isinstance(rules, Mapping) else ():
        if key == "operationId" and isinstance(value, str):
            yield value
        elif key != "parameters":
            yield from _operations(value)


def _rules(document: Document, raw: Any) -> dict[str, Any]:
    try:
        found = {**mapping(raw), **resolved(document, raw)} if raw else {}
    except Unusable:
        return {}
    rules = {key: found[key] for key in (*VALUES, *SCHEMAS) if isinstance(found.get(key), dict)}
    capability = text_of(mapping(rules.get("x-ms-dynamic-values")).get("capability"))
    picker = mapping(document.root.get("x-ms-capabilities")).get(capability)
    if capability and isinstance(picker, Mapping):
        rules["x-ms-capabilities"] = {capability: picker}
    return rules


def _inputs(rules: Mapping[str, Any]) -> Iterator[str]:
    """The other inputs that a rule's parameters name, old form and new."""
    for rule in rules.values():
        for argument in mapping(mapping(rule).get("parameters")).values():
            reference = mapping(argument).get(
                "parameter", mapping(argument).get("parameterReference")
            )
            if isinstance(reference, str) and reference:
                yield reference.rsplit("/", 1)[-1][:64]
