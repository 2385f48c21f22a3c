"""What a refresh changed, operation by operation, and how much care it asks for.

`safe` needs nobody; `breaking` may fail callers that worked before (an input got stricter, a tool
is gone); `risky` may do something other than what people approved (another host, method, path,
access or credential, a new write, new words from a source that is not trusted). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson

from gateway.catalog.stricter import stricter
from gateway.model import Build, HttpOperation, Tool

Kind = Literal["added", "removed", "changed"]
Class = Literal["safe", "breaking", "risky"]
Hold = Literal["accept", "hold_risky", "hold_all"]


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


def asks_other_credential(change: Change) -> bool:
    """Whether the definition now wants calls of this tool to prove themselves in another way."""
    before, after = change.before, change.after
    return before is not None and after is not None and before.security != after.security


def with_credentials_of(build: Build, other: Build) -> Build:
    """A build whose calls carry their credential as those of another build do."""
    return replace(
        build,
        auth_scheme=other.auth_scheme,
        auth_name=other.auth_name,
        auth_in=other.auth_in,
    )


def by_operation(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Tools by what makes each the same one across two versions of a definition."""
    listed = list(tools)
    times = Counter(operation_key(tool) for tool in listed)
    found: dict[str, Tool] = {}
    for tool in listed:
        key = operation_key(tool)
        if times[key] > 1:
            # A definition may use one id twice, and a tool be wrapped twice: then the rest tells.
            key = f"{key} ({tool.method} {tool.path})" if tool.method else f"{key} ({tool.name})"
        found[key if key not in found else f"{key} {tool.name}"] = tool
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
    if _told(old) == _told(new):
        return None
    if reasons := list(_risks(old, new)):
        return Change(key, new.name, "changed", "risky", "; ".join(reasons), old, new)
    if reason := stricter(orjson.loads(old.input_schema), orjson.loads(new.input_schema)):
        return Change(key, new.name, "changed", "breaking", reason, old, new)
    return Change(key, new.name, "changed", "safe", _harmless(old, new), old, new)


def _told(tool: Tool) -> tuple[Any, ...]:
    """What of a tool is anyone's business but ours; what only serves our search is not."""
    return (
        *(tool.fingerprint, tool.entry, tool.http, tool.upstream),
        *(tool.access, tool.risk, tool.trust, tool.security, tool.output_schema),
    )


def _risks(old: Tool, new: Tool) -> Iterator[str]:
    """Why a call may now do something else than what people approved, or go somewhere else."""
    if old.http and new.http:
        if old.http.base_url != new.http.base_url:
            yield f"the host changed from {old.http.base_url} to {new.http.base_url}"
        yield from _sent_otherwise(old.http, new.http)
    if old.method != new.method:
        yield f"the method changed from {old.method} to {new.method}"
    if old.path != new.path:
        yield f"the path changed from {old.path} to {new.path}"
    if old.access != new.access:
        yield f"the access changed from {old.access} to {new.access}"
    if old.security != new.security:
        yield "the definition asks for another credential"
    if new.trust == "untrusted" and old.description != new.description:
        yield "the description of an untrusted source changed"
    if old.fingerprint != new.fingerprint and _looks(old) == _looks(new):
        yield "it is reached at another place or with another kind of credential"


def _looks(tool: Tool) -> tuple[Any, ...]:
    """What the fingerprint covers and the tool itself shows."""
    base_url = tool.http.base_url if tool.http else ""
    shown = (tool.method, base_url, tool.path, tool.access, tool.security)
    return (*shown, tool.input_schema, tool.description)


def _sent_otherwise(old: HttpOperation, new: HttpOperation) -> Iterator[str]:
    before, after = _places(old), _places(new)
    for argument in sorted(before.keys() & after.keys()):
        if before[argument] != after[argument]:
            yield f"{argument} is now sent as {after[argument]}, not as {before[argument]}"
    if _hidden(old) != _hidden(new):
        yield "it sends other values that callers don't see"


def _places(operation: HttpOperation) -> dict[str, str]:
    places = {
        parameter.argument: f"{parameter.place} {parameter.name}"
        for parameter in operation.parameters
        if parameter.argument is not None
    }
    fields = operation.body.fields if operation.body else ()
    return places | {each.argument: f"body {each.name}" for each in fields}


def _hidden(operation: HttpOperation) -> tuple[Any, ...]:
    constants = sorted(
        (parameter.place, parameter.name, repr(parameter.constant))
        for parameter in operation.parameters
        if parameter.argument is None
    )
    return constants, dict(operation.body.constants) if operation.body else {}


def _harmless(old: Tool, new: Tool) -> str:
    if old.input_schema != new.input_schema:
        return "the input accepts what it accepted before"
    return "the description changed" if old.description != new.description else "details changed"
