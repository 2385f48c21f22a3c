"""What a refresh changed, operation by operation, and how much care it asks for.

`safe` needs nobody; `breaking` may fail callers that worked before (an input got stricter, a tool
is gone); `risky` may do something other than what people approved (another host, method, path,
access or credential, a new write, new words from a source that is not trusted). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import orjson

from gateway.model import Tool

Kind = Literal["added", "removed", "changed"]
Class = Literal["safe", "breaking", "risky"]
Hold = Literal["accept", "hold_risky", "hold_all"]

MAX_DEPTH = 12
NARROWING = ("minLength", "minimum", "exclusiveMinimum", "minItems", "minProperties")
CAPPING = ("maxLength", "maximum", "exclusiveMaximum", "maxItems", "maxProperties")


@dataclass(frozen=True, slots=True)
class Change:
    """One operation that is not what it was."""

    operation: str
    tool: str
    kind: Kind
    change_class: Class
    reason: str
    before: Tool | None = None
    after: Tool | None = None


def compare(before: Iterable[Tool], after: Iterable[Tool]) -> list[Change]:
    """Every change between two builds of one connection, in stable order."""
    old, new = by_operation(before), by_operation(after)
    changes = []
    for key in sorted(old.keys() | new.keys()):
        change = _change(key, old.get(key), new.get(key))
        if change is not None:
            changes.append(change)
    return changes


def held(changes: Sequence[Change], hold: Hold) -> list[Change]:
    """The changes that wait for an admin."""
    if hold == "accept":
        return []
    return [c for c in changes if hold == "hold_all" or c.change_class == "risky"]


def served(after: Iterable[Tool], waiting: Sequence[Change]) -> list[Tool]:
    """The tools to serve while these changes wait: what was there before them."""
    tools = by_operation(after)
    for change in waiting:
        tools.pop(change.operation, None)
        if change.before is not None:
            tools[change.operation] = change.before
    return list(tools.values())


def by_operation(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Tools by what makes each the same one across two versions of a definition."""
    found: dict[str, Tool] = {}
    for tool in tools:
        # Definitions may use one operation id twice: method and path then tell them apart.
        key = operation_key(tool)
        found[key if key not in found else f"{key} ({tool.method} {tool.path})"] = tool
    return found


def operation_key(tool: Tool) -> str:
    """What makes a tool the same one across two versions of a definition."""
    return tool.operation or f"{tool.method} {tool.path}"


def _change(key: str, old: Tool | None, new: Tool | None) -> Change | None:
    if old is None and new is not None:
        if new.access == "read":
            return Change(key, new.name, "added", "safe", "a new read operation", None, new)
        return Change(key, new.name, "added", "risky", f"a new {new.access} operation", None, new)
    if old is not None and new is None:
        return Change(key, old.name, "removed", "breaking", "the operation is gone", old, None)
    assert old is not None and new is not None
    if old.fingerprint == new.fingerprint and old.entry == new.entry and old.http == new.http:
        return None
    if reason := _risk(old, new):
        return Change(key, new.name, "changed", "risky", reason, old, new)
    if reason := stricter(orjson.loads(old.input_schema), orjson.loads(new.input_schema)):
        return Change(key, new.name, "changed", "breaking", reason, old, new)
    return Change(key, new.name, "changed", "safe", _harmless(old, new), old, new)


def _risk(old: Tool, new: Tool) -> str | None:
    if old.http and new.http and old.http.base_url != new.http.base_url:
        return f"the host changed from {old.http.base_url} to {new.http.base_url}"
    if old.method != new.method:
        return f"the method changed from {old.method} to {new.method}"
    if old.path != new.path:
        return f"the path changed from {old.path} to {new.path}"
    if old.access != new.access:
        return f"the access changed from {old.access} to {new.access}"
    if old.security != new.security:
        return "the definition asks for another credential"
    if new.trust == "untrusted" and old.description != new.description:
        return "the description of an untrusted source changed"
    return None


def _harmless(old: Tool, new: Tool) -> str:
    if old.input_schema != new.input_schema:
        return "the input accepts what it accepted before"
    return "the description changed" if old.description != new.description else "details changed"


def stricter(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Why input that was good before may be refused now, or None."""
    return next(_stricter(old, new, old, new, "", MAX_DEPTH), None)


def _stricter(
    old: Any,
    new: Any,
    old_root: Mapping[str, Any],
    new_root: Mapping[str, Any],
    at: str,
    depth: int,
) -> Iterator[str]:
    old, new = _resolved(old, old_root), _resolved(new, new_root)
    if depth == 0 or old == new or not isinstance(old, dict) or not isinstance(new, dict):
        return
    name = at or "the input"
    if lost := _types(old) - _types(new):
        yield f"{name} may no longer be {' or '.join(sorted(lost))}"
    if "enum" in new and (gone := [v for v in old.get("enum", [None]) if v not in new["enum"]]):
        yield f"{name} no longer allows {gone[0]!r}" if "enum" in old else f"{name} is now an enum"
    for key in NARROWING:
        if key in new and new[key] > old.get(key, float("-inf")):
            yield f"{name} has a higher {key}"
    for key in CAPPING:
        if key in new and new[key] < old.get(key, float("inf")):
            yield f"{name} has a lower {key}"
    if "pattern" in new and new["pattern"] != old.get("pattern"):
        yield f"{name} must match another pattern"
    yield from _stricter_object(old, new, old_root, new_root, at, depth)
    if "items" in old and "items" in new:
        yield from _stricter(old["items"], new["items"], old_root, new_root, f"{at}[]", depth - 1)


def _stricter_object(
    old: dict[str, Any],
    new: dict[str, Any],
    old_root: Mapping[str, Any],
    new_root: Mapping[str, Any],
    at: str,
    depth: int,
) -> Iterator[str]:
    prefix = f"{at}." if at else ""
    for name in set(new.get("required", ())) - set(old.get("required", ())):
        yield f"{prefix}{name} is now required"
    before, after = old.get("properties", {}), new.get("properties", {})
    closed = new.get("additionalProperties") is False
    for name, schema in before.items():
        if name in after:
            yield from _stricter(
                schema, after[name], old_root, new_root, f"{prefix}{name}", depth - 1
            )
        elif closed:
            yield f"{prefix}{name} is no longer accepted"


def _resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    for _ in range(MAX_DEPTH):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        name = str(schema["$ref"]).removeprefix("#/$defs/")
        schema = root.get("$defs", {}).get(name)
    return schema


def _types(schema: Mapping[str, Any]) -> set[str]:
    kinds = schema.get("type")
    if kinds is None:
        return set() if set(schema) - {"description", "title", "default"} else ALL_TYPES
    found = {kinds} if isinstance(kinds, str) else set(kinds)
    return found | {"integer"} if "number" in found else found


ALL_TYPES = {"string", "number", "integer", "boolean", "object", "array", "null"}
