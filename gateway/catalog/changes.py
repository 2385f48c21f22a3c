"""Compares a refreshed connection with the one served, operation by operation. Pure.

`safe` needs no admin; `breaking` may fail callers that worked before (an input got stricter, a tool
is gone); `risky` may do something other than what people approved (another host, method, path,
access or credential, a new write, new words from a source that is not trusted). A tool whose change
is held back is served as it was. A refresh without a usable tool is a failure, not an empty
connection; only an MCP server that answers and lists no tools has none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import orjson

from gateway.catalog.snapshot import ConnectionState, operations_of, with_tools
from gateway.errors import DefinitionUnreadable, GatewayError
from gateway.limits import COMPARED_NODES
from gateway.model import CONSTANTS, Build, BuiltDefinition, Problem, Tool, new_id, whole_schema
from gateway.store.tables import Change, FormerName

ChangePolicy = Literal["accept", "hold_risky", "hold_all"]


OUTCOMES = ("added", "removed", "changed", "held")


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a put or a refresh for one connection."""

    name: str
    status: str
    error: str | None = None
    revision: int = 0
    tools: Mapping[str, Sequence[str]] = field(default_factory=dict)  # names by outcome

    def as_dict(self) -> dict[str, Any]:
        """The entry of `refresh_tools`' answer."""
        names = {outcome: list(self.tools.get(outcome, ())) for outcome in OUTCOMES}
        entry = {"name": self.name, "status": self.status, **names}
        return entry | ({"error": self.error} if self.error else {})


@dataclass(frozen=True, slots=True)
class Adoption:
    """A connection after a discovery, and how it got there."""

    state: ConnectionState
    # With the served tools, those with held changes as they were, and with its bytes.
    built: BuiltDefinition
    changes: Sequence[Change]
    first: bool  # the connection had no tools to compare with
    renamed: Sequence[FormerName]


def adopt(state: ConnectionState, found: BuiltDefinition, now: float, by: str) -> Adoption:
    """The connection with the tools found, without the changes that its settings hold back."""
    if state.tools and not found.build.tools and found.build.format != "mcp":
        raise DefinitionUnreadable(
            "the definition has no usable operation left",
            "The tools served so far are kept; `gateway inspect` says why each was skipped.",
        )
    first = state.build is None
    changes = compare(state.build.tools if state.build else (), found.build.tools)
    waiting = [] if first else changes_to_hold(changes, state.settings.change_policy)
    build = replace(found.build, tools=tools_to_serve(found.build.tools, waiting))
    if state.build is not None and any(asks_other_credential(change) for change in waiting):
        build = with_credentials_of(build, state.build)
    renamed = former_names(state.name, state.built, found, now)  # held ones too
    found = replace(found, build=build, at=now)
    waiting_operations = {change.operation for change in waiting}
    records = [
        replace(
            change,
            id=new_id(now),
            connection=state.name,
            organization=state.settings.organization,
            status="held" if change.operation in waiting_operations else "applied",
            at=now,
            by=by,
        )
        for change in changes
    ]
    return Adoption(with_built(state, found), found, records, first, renamed)


def former_names(
    connection: str, before: BuiltDefinition | None, after: BuiltDefinition, now: float
) -> list[FormerName]:
    """The former names of the operations that have other names in `after`."""
    if before is None:
        return []
    old, new = (operations_of(found, found.build.tools) for found in (before, after))
    return [
        FormerName(connection, old[key].name, old[key].local_name, key, now)
        for key in sorted(old.keys() & new.keys())
        if old[key].name != new[key].name
    ]


def with_built(state: ConnectionState, found: BuiltDefinition) -> ConnectionState:
    """The connection with the definition and the tools that were found."""
    build = found.build
    status = build.status if state.settings.is_active else "disabled"
    after = replace(state, built=found.without_bytes(), status=status, problems=build.problems)
    return with_tools(after, build.tools)


def is_same(old: ConnectionState, base: ConnectionState, cached: BuiltDefinition | None) -> bool:
    """Whether a running connection equals the one that is configured and stored now."""
    same_build = cached is None or (old.built is not None and old.built.at == cached.at)
    settings = (base.settings, base.origin, base.revision)
    return same_build and (old.settings, old.origin, old.revision) == settings


def with_last_good(base: ConnectionState, old: ConnectionState | None) -> ConnectionState:
    """The new settings with the tools served so far, until theirs are known."""
    if old is None or base.status == "disabled" or old.built is None:
        return base
    return with_tools(replace(base, built=old.built), old.tools)


def with_failure(state: ConnectionState, error: GatewayError) -> ConnectionState:
    """The connection after a failed refresh: as it was, with a problem that says so."""
    problems = state.build.problems if state.build else ()
    problem = Problem("error", "definition", error.message)
    return replace(state, status="failing", problems=(*problems, problem))


def report_of(adoption: Adoption, revision: int, exposed: Collection[str] | None = None) -> Report:
    """The caller's report; new and changed tools are named only where they are exposed."""
    tools: dict[str, list[str]] = {outcome: [] for outcome in OUTCOMES}
    for change in adoption.changes:
        outcome = "held" if change.status == "held" else change.kind
        if exposed is None or outcome in ("removed", "held") or change.tool in exposed:
            tools[outcome].append(change.tool)
    state = adoption.state
    return Report(state.name, state.status, revision=revision, tools=tools)


def compare(before: Iterable[Tool], after: Iterable[Tool]) -> list[Change]:
    """Every change between two builds of one connection, in stable order."""
    old, new = by_operation(before), by_operation(after)
    changes = (_change(key, old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys()))
    return [change for change in changes if change is not None]


def changes_to_hold(changes: Sequence[Change], policy: ChangePolicy) -> list[Change]:
    """The changes that wait for an admin."""
    if policy == "accept":
        return []
    return [c for c in changes if policy == "hold_all" or c.change_class == "risky"]


def tools_to_serve(after: Iterable[Tool], waiting: Iterable[Change]) -> tuple[Tool, ...]:
    """The tools to serve while these changes wait: the changed tools as they were before."""
    return replace_tools(after, {change.operation: change.before for change in waiting})


def replace_tools(tools: Iterable[Tool], by_key: Mapping[str, Tool | None]) -> tuple[Tool, ...]:
    """The tools with those in `by_key` replaced by operation key, or left out for None."""
    return tuple(tool for tool in {**by_operation(tools), **by_key}.values() if tool)


def asks_other_credential(change: Change) -> bool:
    """Whether the definition now asks calls of this tool for another kind of credential."""
    before, after = change.before, change.after
    return before is not None and after is not None and before.security != after.security


def with_credentials_of(build: Build, model: Build) -> Build:
    """The build with calls that carry their credential as the calls of `model` do."""
    scheme, name, place = model.auth_scheme, model.auth_name, model.auth_in
    return replace(build, auth_scheme=scheme, auth_name=name, auth_in=place)


def by_operation(tools: Iterable[Tool]) -> dict[str, Tool]:
    """Tools by the key that identifies each across two versions of a definition."""
    all_tools = list(tools)
    times = Counter(operation_key(tool) for tool in all_tools)
    by_key: dict[str, Tool] = {}
    for tool in all_tools:
        key = operation_key(tool)
        if times[key] > 1:
            # A definition may use an id twice, a tool be wrapped twice: add what tells them apart.
            key = f"{key} ({tool.method} {tool.path})" if tool.method else f"{key} ({tool.name})"
        by_key[key if key not in by_key else f"{key} {tool.name}"] = tool
    return by_key


def operation_key(tool: Tool) -> str:
    """The key that identifies a tool across two versions of a definition."""
    return tool.operation or f"{tool.method} {tool.path}"


def _change(key: str, old: Tool | None, new: Tool | None) -> Change | None:
    if old is None:
        assert new is not None
        words = f"a new {new.access} operation"
        is_read = new.access == "read"
        return Change(key, new.name, "added", "safe" if is_read else "risky", words, None, new)
    if new is None:
        return Change(key, old.name, "removed", "breaking", "the operation is gone", old, None)
    if _compared_fields(old) == _compared_fields(new):
        return None
    if reasons := list(_risks(old, new)):
        return Change(key, new.name, "changed", "risky", "; ".join(reasons), old, new)
    if reason := why_stricter(orjson.loads(whole_schema(old)), orjson.loads(whole_schema(new))):
        return Change(key, new.name, "changed", "breaking", reason, old, new)
    return Change(key, new.name, "changed", "safe", _describe_safe_change(old, new), old, new)


def _compared_fields(tool: Tool) -> tuple[Any, ...]:
    """The fields of a tool that callers or admins notice; those for our search are left out."""
    return (
        *(tool.fingerprint, tool.entry, tool.http, tool.upstream, tool.whole_schema),
        *(tool.access, tool.risk, tool.trust, tool.security, tool.output_schema),
    )


def _risks(old: Tool, new: Tool) -> Iterator[str]:
    """Why a call may now do something else than what people approved, or go somewhere else."""
    if old.http and new.http:
        yield from _reason_if_changed("host", old.http.base_url, new.http.base_url)
        yield from _argument_risks(old, new)
    for attribute in ("method", "path", "access"):
        yield from _reason_if_changed(attribute, getattr(old, attribute), getattr(new, attribute))
    if old.security != new.security:
        yield "the definition asks for another credential"
    if new.trust == "untrusted" and old.description != new.description:
        yield "the description of an untrusted source changed"
    if old.fingerprint != new.fingerprint and _shown_fields(old) == _shown_fields(new):
        yield "it is reached at another place or with another kind of credential"


def _reason_if_changed(attribute: str, before: str, after: str) -> Iterator[str]:
    if before != after:
        yield f"the {attribute} changed from {before} to {after}"


def _shown_fields(tool: Tool) -> tuple[Any, ...]:
    """The fields that the fingerprint covers and the tool itself shows."""
    base_url = tool.http.base_url if tool.http else ""
    fields = (tool.method, base_url, tool.path, tool.access, tool.security)
    return (*fields, tool.input_schema, tool.description)


def _argument_risks(old: Tool, new: Tool) -> Iterator[str]:
    before, after = _places(old), _places(new)
    for argument in sorted(before.keys() & after.keys()):
        if before[argument] != after[argument]:
            yield f"{argument} is now sent as {after[argument]}, not as {before[argument]}"
    if _hidden_values(old) != _hidden_values(new):
        yield "it sends other values that callers don't see"


def _places(tool: Tool) -> dict[str, str]:
    assert tool.http
    places = {
        parameter.argument: f"{parameter.place} {parameter.name}"
        for parameter in tool.http.parameters
        if parameter.argument is not None
    }
    fields = tool.http.body.fields if tool.http.body else ()
    return places | {each.argument: f"body {each.name}" for each in fields}


def _hidden_values(tool: Tool) -> tuple[Any, ...]:
    """The values that are sent without a caller giving them, deep in a body too, and where."""
    assert tool.http
    fixed = {(p.place, p.name): p.constant for p in tool.http.parameters if p.argument is None}
    body, schema = tool.http.body, whole_schema(tool)
    inside = _constants(orjson.loads(schema)) if CONSTANTS.encode() in schema else {}
    return fixed, dict(body.constants) if body else {}, inside


def _constants(part: Any) -> Any:
    """A schema reduced to its constants, each at its place."""
    if isinstance(part, list):
        part = dict(enumerate(part))
    if not isinstance(part, dict):
        return None
    found = {key: value if key == CONSTANTS else _constants(value) for key, value in part.items()}
    return {key: value for key, value in found.items() if value}


def _describe_safe_change(old: Tool, new: Tool) -> str:
    if old.input_schema != new.input_schema:
        return "the input accepts what it accepted before"
    return "the description changed" if old.description != new.description else "details changed"


AT_LEAST = ("minLength", "minimum", "exclusiveMinimum", "minItems", "minProperties")
AT_MOST = ("maxLength", "maximum", "exclusiveMaximum", "maxItems", "maxProperties")
EXACT = (
    *("pattern", "format", "multipleOf", "contains", "minContains", "maxContains"),
    *("propertyNames", "patternProperties", "dependentRequired", "dependentSchemas"),
    *("not", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems", "prefixItems"),
)
ALL_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")


def why_stricter(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """Why input that was good before may be refused now, or None.

    Two schemas are compared by what they accept, each reason is a sentence about one place. What
    can't be compared (a condition, a schema beyond the bound) counts as stricter: a change that is
    not understood is not harmless.
    """
    reasons = list(islice(dict.fromkeys(_Comparison(old, new).reasons(old, new, "")), 3))
    return "; ".join(reasons) or None


class _Comparison:
    """Two schemas side by side, each with its own definitions."""

    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self._old, self._new = old, new
        self._same_definitions = old.get("$defs") == new.get("$defs")
        self._compared_pairs: set[tuple[int, int]] = set()
        self._nodes = COMPARED_NODES

    def reasons(self, old: Any, new: Any, at: str) -> Iterator[str]:
        old, new = _resolve(old, self._old), _resolve(new, self._new)
        self._nodes -= 1
        if new is True or new == {} or old is False or (old == new and self._same_definitions):
            return
        if new is False:
            yield f"{at or 'the input'} is no longer accepted"
            return
        if not isinstance(new, dict) or not isinstance(old, (dict, bool)) or self._nodes < 0:
            yield f"{at or 'the input'} can't be compared with what it was"
            return
        if (id(old), id(new)) in self._compared_pairs:
            return
        self._compared_pairs.add((id(old), id(new)))
        yield from self._keywords(old if isinstance(old, dict) else {}, new, at)

    def _keywords(self, old: dict[str, Any], new: dict[str, Any], at: str) -> Iterator[str]:
        name = at or "the input"
        if lost_types := _types(old) - _types(new):
            yield f"{name} may no longer be {' or '.join(sorted(lost_types))}"
        yield from _values(old, new, name)
        yield from _bounds(old, new, name)
        yield from self._object(old, new, at)
        if "items" in new:
            yield from self.reasons(old.get("items", True), new["items"], f"{at}[]")
        for key in ("anyOf", "oneOf"):
            if key in new:
                yield from self._alternatives(old, new, key, at)
        for part in new.get("allOf", ()):
            if not (part in old.get("allOf", ()) and self._same_definitions):
                yield from self.reasons(old, part, at)

    def _object(self, old: dict[str, Any], new: dict[str, Any], at: str) -> Iterator[str]:
        prefix = f"{at}." if at else ""
        for name in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
            yield f"{prefix}{name} is now required"
        before, after = old.get("properties", {}), new.get("properties", {})
        extra = new.get("additionalProperties", True)
        for name, schema in before.items():
            if name in after:
                yield from self.reasons(schema, after[name], f"{prefix}{name}")
            elif extra is False:
                yield f"{prefix}{name} is no longer accepted"
            else:
                yield from self.reasons(schema, extra, f"{prefix}{name}")
        if "additionalProperties" in new and old.get("additionalProperties", True) is not False:
            at = f"{prefix}further properties" if prefix else "further properties"
            yield from self.reasons(old.get("additionalProperties", True), extra, at)

    def _alternatives(
        self, old: dict[str, Any], new: dict[str, Any], key: str, at: str
    ) -> Iterator[str]:
        """Each alternative that was accepted before must still fit an alternative of now."""
        ways = old.get("anyOf") or old.get("oneOf")
        for before in ways or [{k: v for k, v in old.items() if k != key}]:
            if not any(self._fits(before, after) for after in new[key]):
                yield f"{at or 'the input'} has fewer alternatives"
                return

    def _fits(self, old: Any, new: Any) -> bool:
        inner = _Comparison(self._old, self._new)
        inner._nodes = self._nodes // 2
        inner._compared_pairs = set(self._compared_pairs)
        return next(inner.reasons(old, new, ""), None) is None


def _values(old: dict[str, Any], new: dict[str, Any], name: str) -> Iterator[str]:
    allowed, before = _allowed_values(new), _allowed_values(old)
    if allowed is None:
        return
    if before is None:
        yield f"{name} is now limited to certain values"
    elif missing := [value for value in before if value not in allowed]:
        yield f"{name} no longer allows {repr(missing[0])[:60]}"


def _bounds(old: dict[str, Any], new: dict[str, Any], name: str) -> Iterator[str]:
    for key in AT_LEAST:
        if _is_number(new.get(key)) and new[key] > _number(old.get(key), float("-inf")):
            yield f"{name} has a higher {key}"
    for key in AT_MOST:
        if _is_number(new.get(key)) and new[key] < _number(old.get(key), float("inf")):
            yield f"{name} has a lower {key}"
    for key in EXACT:
        if key in new and new[key] != old.get(key):
            yield f"{name} must fit another {key}"
    if new.get("uniqueItems") and not old.get("uniqueItems"):
        yield f"{name} may no longer repeat an item"


def _allowed_values(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def _resolve(schema: Any, root: Mapping[str, Any]) -> Any:
    for _ in range(32):
        if not isinstance(schema, dict) or "$ref" not in schema:
            return schema
        target = str(schema["$ref"])
        if target == "#":
            return root
        holder, _, name = target.removeprefix("#/").partition("/")
        if holder not in ("$defs", "definitions"):
            return target  # a reference elsewhere: equal ones are the same schema
        schema = root.get(holder, {}).get(name, {})
    return schema


def _types(schema: Mapping[str, Any]) -> frozenset[str]:
    """The types a schema accepts."""
    kinds = schema.get("type", ALL_TYPES)
    found = frozenset([kinds] if isinstance(kinds, str) else kinds)
    return found | {"integer"} if "number" in found else found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any, default: float) -> Any:
    return value if _is_number(value) else default
