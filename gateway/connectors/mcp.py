"""An upstream MCP server's `tools/list` → tools here. Pure.

Upstream tools keep their own spelling and their own words; what a connection's configuration says
is laid over them: which ones are shown, under which name (`wrap`), what is filled in for the caller
and so leaves the schema, and what each may do. A tool that is malformed is skipped with a reason:
one bad tool in a page would otherwise fail the whole list at the client. `wrap` is explicit, so
neither `tools` nor `exclude_tools` hides a wrapped tool (an operator names the original in both to
show only the wrapped tool); the connection's `exclude` does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import jsonschema_rs
import orjson
from mcp.shared.inbound import find_invalid_x_mcp_header
from mcp_types import Icon
from pydantic import ValidationError

from gateway.limits import MAX_EXTRAS_BYTES, MAX_TOOL_BYTES, NAME_CHARS
from gateway.model import (
    RISK_OF_ACCESS,
    Access,
    Build,
    Override,
    Problem,
    Skipped,
    Source,
    Tool,
    UpstreamOperation,
    Wrap,
    json_text,
)
from gateway.naming import (
    description_of,
    exclusion_reason,
    find_pattern,
    fingerprint,
    override_for,
    token_cost,
    unmatched_patterns,
    visible,
)
from gateway.plain import forms_of
from gateway.upstream.protocol import TOO_DEEP, mapping

NAME_PATTERN = re.compile(r"[A-Za-z0-9_.-]{1,128}")
NAME_RULE = "letters, digits, `_`, `-` and `.`, at most 128 with the prefix"
Raw = Mapping[str, Any]

HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint")
IDEMPOTENCY_NOTE = " 🔑 Auto-generates an idempotency token"
OUR_PREFIXES = ("gateway/", "io.modelcontextprotocol/", "modelcontextprotocol.io/", "mcp/")
CUT: Mapping[str, Any] = {  # as short as can be: every tool's entry holds it
    "title": "Too large: read_result reads it",
    "properties": {"truncated": {"const": True}},
    "required": ["truncated", "result_id"],
}
FAILED: Mapping[str, Any] = {"properties": {"error": {"type": "object"}}, "required": ["error"]}
OUR_PROPERTIES = ("truncated", "bytes", "result_id", "preview", "error")
CONSTRAINS_NOTHING = ("$schema", "$id", "$defs", "definitions", "type", "title", "description")


def build_upstream(listing: Sequence[Raw], source: Source) -> Build:
    """The tools of one upstream as this connection shows them, sorted by name."""
    tools: dict[str, Tool] = {}
    skipped: list[Skipped] = []
    usable: dict[str, Raw] = {}
    for raw in listing:
        if reason := _tool_fault(raw, usable):
            skipped.append(_skip(raw, reason))
        else:
            usable[raw["name"]] = raw
    for raw, wrap in _select_tools(usable, source, skipped):
        outcome = _tool(raw, source, wrap)
        if isinstance(outcome, Tool) and outcome.name in tools:
            outcome = _skip(raw, f"another tool is already called {outcome.name}")
        if isinstance(outcome, Tool):
            tools[outcome.name] = outcome
        else:
            skipped.append(outcome)
    problems = drift(listing, source)
    with_output = {str(raw.get("name")) for raw in listing if raw.get("outputSchema") is not None}
    problems += [
        Problem("info", tool.name, "its output schema can't be listed and is left out")
        for tool in tools.values()
        if tool.output_schema is None and tool.operation in with_output
    ]
    return Build(
        format="mcp",
        title=source.display_name,
        base_url=_origin(source.location),
        tools=tuple(sorted(tools.values(), key=lambda tool: tool.name)),
        skipped=tuple(skipped),
        problems=tuple(problems),
    )


def drift(listing: Sequence[Raw], source: Source) -> list[Problem]:
    """Problems where the configuration names tools or parameters that the upstream lacks."""
    by_name = {str(raw.get("name")): raw for raw in listing}
    problems = [problem for wrap in source.wraps for problem in _wrap_drift(wrap, by_name)]
    parameters = {name for raw in listing for name in _properties(raw.get("inputSchema"))}
    problems += [
        _about("warning", f"inject.{name}", "no tool of the upstream has such a parameter")
        for name in source.inject
        if name not in parameters
    ]
    aliases = [wrap.as_ for wrap in source.wraps if wrap.as_]
    lists = {"tools": source.tools, "exclude_tools": source.exclude_tools}
    found = unmatched_patterns(source, by_name, "tool of the upstream", aliases=aliases, **lists)
    return [*problems, *found]


_about = partial(Problem, configured=True)
_NO_PARAMETER = "the upstream's tool has no parameter {!r}"


def _wrap_drift(wrap: Wrap, by_name: Mapping[str, Raw]) -> Iterator[Problem]:
    where = f"wrap.{wrap.tool}"
    if wrap.tool not in by_name:
        yield _about("error", where, f"the upstream has no tool {wrap.tool!r}")
        return
    properties = _properties(by_name[wrap.tool].get("inputSchema"))
    if (field := wrap.idempotency_field) and field not in properties:
        yield _about("error", f"{where}.idempotency_field", _NO_PARAMETER.format(field))
    for name in wrap.inject:
        if name not in properties:
            yield _about("warning", f"{where}.inject", _NO_PARAMETER.format(name))


def _select_tools(
    usable: Mapping[str, Raw], source: Source, skipped: list[Skipped]
) -> Iterator[tuple[Raw, Wrap]]:
    """The tools that the configuration shows: wrapped ones first, so that they keep their names."""
    wrapped: dict[str, list[str]] = {}
    for wrap in source.wraps:
        if wrap.tool in usable and not find_pattern(wrap.tool, source.exclude):
            wrapped.setdefault(wrap.tool, []).append(wrap.as_ or wrap.tool)
            yield usable[wrap.tool], wrap
    for name, raw in usable.items():
        if name in wrapped:
            reason = "" if name in wrapped[name] else f"wrapped as {', '.join(wrapped[name])}"
        elif not (reason := exclusion_reason(name, source)):
            yield raw, Wrap(name)
        if reason:
            skipped.append(_skip(raw, reason))


def _tool_fault(raw: Raw, usable: Mapping[str, Raw]) -> str | None:
    name, schema = raw.get("name"), raw.get("inputSchema")
    if not isinstance(name, str) or not name:
        return "its name is not a string"
    if schema == TOO_DEEP:
        return f"its schema is {TOO_DEEP}"
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return 'its input schema is not of `"type": "object"`'
    if not isinstance(schema.get("properties", {}), dict):
        return "its input schema's `properties` is not an object"
    if mapping(raw.get("execution")).get("taskSupport") == "required":
        return "it only runs as a task, which the gateway does not pass on"
    if fault := _schema_fault(schema) or find_invalid_x_mcp_header(schema):
        return fault
    return "the upstream lists this name twice" if name in usable else None


def _schema_fault(schema: Raw) -> str | None:
    """Why arguments can't be checked against this schema, or None."""
    try:
        size = len(orjson.dumps(schema))
    except TypeError:
        return f"its schema is {TOO_DEEP}"
    if size > MAX_TOOL_BYTES:
        return f"its schema has {size} bytes, the limit is {MAX_TOOL_BYTES}"
    try:
        jsonschema_rs.validator_cls_for(dict(schema))(dict(schema), retriever=_never_fetch)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        first_line = visible(str(error)).partition("\n")[0][:200]
        return f"its schema is not a valid JSON Schema: {first_line}"
    return None


def _never_fetch(uri: str) -> Any:
    raise ValueError(f"a reference to {uri[:100]} is never followed")


def _tool(raw: Raw, source: Source, wrap: Wrap) -> Tool | Skipped:
    local = wrap.as_ or raw["name"]
    name = wrap.as_ or source.prefix + local
    if not NAME_PATTERN.fullmatch(name):
        return _skip(raw, f"its name is not allowed: {NAME_RULE}")
    override = override_for(source.operations, raw["name"], local)
    access = override.access or _access_by_hints(raw, source)
    if access == "dangerous":
        return _skip(raw, "marked dangerous")
    inject = [name for name in source.inject if name in _properties(raw["inputSchema"])]
    inject = list(dict.fromkeys((*wrap.inject, *inject)))
    field = wrap.idempotency_field
    target = UpstreamOperation(raw["name"], tuple(inject), field, wrap.record)
    schema = _without_parameters(raw["inputSchema"], {*inject, field})
    title = _clean_title(raw.get("title"))
    description = _description(raw, source, override, IDEMPOTENCY_NOTE if field else "")
    output = _output_schema(raw)
    listed_tool: dict[str, Any] = {"name": name, "description": description, "inputSchema": schema}
    if title:
        listed_tool["title"] = title
    if output is not None:
        listed_tool["outputSchema"] = _output_to_list(output)
    if annotations := _annotations(raw, source, override.access):
        listed_tool["annotations"] = annotations
    entry = json_text({**listed_tool, **_extras(raw, source)})
    tool = Tool(
        name=name,
        local_name=local,
        connection=source.connection,
        operation=raw["name"],
        method="",
        path="",
        access=access,
        risk=override.risk or RISK_OF_ACCESS[access],
        trust=source.trust,
        title=_title(raw),
        description=description,
        input_schema=json_text(schema),
        entry=entry,
        tokens=token_cost(orjson.dumps(listed_tool)),  # of what a model reads
        upstream=target,
        output_schema=None if output is None else json_text(output),
        keywords=" ".join(schema.get("properties", {})),
        forms=forms_of(entry),
    )
    return replace(tool, fingerprint=fingerprint(source, tool))


def _without_parameters(schema: Raw, names: set[str | None]) -> dict[str, Any]:
    """The schema without these parameters in `properties` and `required`."""
    reduced = dict(schema)
    if names.isdisjoint(_properties(schema)) and names.isdisjoint(schema.get("required") or ()):
        return reduced
    reduced["properties"] = {k: v for k, v in _properties(schema).items() if k not in names}
    required = [name for name in schema.get("required") or () if name not in names]
    reduced.pop("required", None)
    return {**reduced, "required": required} if required else reduced


def _access_by_hints(raw: Raw, source: Source) -> Access:
    """Hints are the upstream's own word, so only a trusted one's count."""
    hints = _hints(raw) if source.trust == "trusted" else {}
    if hints.get("readOnlyHint") is True:
        return "read"
    return "delete" if hints.get("destructiveHint") is True else "write"


def _annotations(raw: Raw, source: Source, configured: Access | None) -> dict[str, Any]:
    """The hints of a trusted upstream, unless the configuration says another access.

    A hint that is missing has a default, which is the careful one.
    """
    all_hints = _hints(raw)
    trusted = all_hints if source.trust == "trusted" else {}
    hints = {name: trusted[name] for name in HINTS if isinstance(trusted.get(name), bool)}
    if configured is not None:
        hints["readOnlyHint"] = configured == "read"
        if configured == "delete" or hints.get("destructiveHint"):
            hints["destructiveHint"] = configured == "delete"
    title = _clean_title(all_hints.get("title"))
    return {"title": title, **hints} if title else hints


def _clean_title(title: Any) -> str:
    return visible(title).strip()[:NAME_CHARS] if isinstance(title, str) else ""


def _description(raw: Raw, source: Source, override: Override, note: str) -> str:
    own_text = raw.get("description")
    text = override.description or (own_text if isinstance(own_text, str) else _title(raw))
    if not source.authenticated:
        note = f" ⚠ {source.display_name} is not authenticated yet.{note}"
    return description_of(source, visible(text).strip(), note)


def _title(raw: Raw) -> str:
    titles = (raw.get("title"), _hints(raw).get("title"), raw["name"])
    return next(filter(None, map(_clean_title, titles)), "")


def _output_schema(raw: Raw) -> dict[str, Any] | None:
    """The upstream's output schema, unless it would fail the whole list at a client."""
    schema = raw.get("outputSchema")
    if not isinstance(schema, dict) or schema.get("type") != "object":
        return None
    return None if _schema_fault(schema) or _schema_fault(_output_to_list(schema)) else schema


def _output_to_list(schema: Raw) -> dict[str, Any]:
    """An upstream's output schema that also allows the gateway's own answers.

    Clients check structured content against it, the official TypeScript client that of errors too.
    Its properties stay at the top, where clients read the types of an answer from, except those
    that have the name of a property of the gateway's own answers.
    """
    properties = schema.get("properties", {})
    shared = {name: part for name, part in properties.items() if name not in OUR_PROPERTIES}
    top = {key: schema[key] for key in schema if key in CONSTRAINS_NOTHING or key.startswith("x-")}
    rest = {key: schema[key] for key in schema if key not in top}
    rest["properties"] = {**properties, **dict.fromkeys(shared, {})}
    return {**top, "properties": shared, "anyOf": [rest, CUT, FAILED]}


def _extras(raw: Raw, source: Source) -> dict[str, Any]:
    """Icons and `_meta` of a trusted upstream's tool, for programs: passed on within bounds.

    One malformed icon would fail the whole list at a client, so only what is well formed is kept.
    Keys of `_meta` that belong to the gateway or the protocol are left out.
    """
    entries = raw.get("icons") if source.trust == "trusted" else None
    icons = list(filter(None, map(_icon, entries if isinstance(entries, list) else ())))
    items = mapping(raw.get("_meta")).items() if source.trust == "trusted" else ()
    extras = {"icons": icons, "_meta": {k: v for k, v in items if not k.startswith(OUR_PREFIXES)}}
    return {k: v for k, v in extras.items() if v and len(orjson.dumps(v)) <= MAX_EXTRAS_BYTES}


def _icon(value: Any) -> dict[str, Any]:
    try:
        icon = Icon.model_validate(value).model_dump(by_alias=True, exclude_none=True)
    except ValidationError:
        return {}
    return icon if icon["src"].startswith(("https:", "http:", "data:image/")) else {}


def _origin(location: str) -> str:
    parts = urlsplit(location)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}" if parts.netloc else ""


def _properties(schema: Any) -> Raw:
    return mapping(mapping(schema).get("properties"))


def _hints(raw: Raw) -> Raw:
    return mapping(raw.get("annotations"))


def _skip(raw: Raw, reason: str) -> Skipped:
    name = raw.get("name")
    return Skipped(visible(name)[:128] if isinstance(name, str) else None, "", "", reason)
