"""Plans become tools: once all are made, each gets a name of its own, and the entry that lists it.

Nothing here is as the definition writes it: by now that is gone, and its room is for the tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.connectors.naming import Nameable, collisions, tool_names
from gateway.connectors.openapi.bundle import Listed
from gateway.connectors.openapi.lookups import dead_look_ups
from gateway.connectors.openapi.selection import Revision
from gateway.connectors.tools import fingerprint, token_cost, tool_annotations
from gateway.model import (
    Access,
    Build,
    HttpOperation,
    Problem,
    Risk,
    Skipped,
    Source,
    Tool,
    digest,
)


@dataclass(frozen=True, slots=True)
class Whole:
    """A tool's input before anything is left out of it."""

    root: dict[str, Any]
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All there is to a tool but its name."""

    operation: Nameable
    revision: Revision | None
    title: str
    description: str
    access: Access
    risk: Risk
    safe: bool  # the definition says that it only reads
    http: HttpOperation
    listed: Listed
    whole: Whole | None  # where more of it may be needed than is listed now
    answer: bytes | None
    keywords: str
    lookups: bytes
    security: str
    whole_schema: bytes = b""  # packed


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a definition was needed for."""

    source: Source
    format: str
    title: str
    base_url: str
    own_base_url: str  # whatever is configured
    plans: tuple[Plan, ...]
    hidden: tuple[Plan, ...]
    skipped: tuple[Skipped, ...]
    problems: tuple[Problem, ...]
    key: tuple[str | None, str | None]


def finished(found: Findings) -> Build:
    """The build, its tools under names that are theirs alone."""
    tools, hidden = _named(found.plans, found.source), _named(found.hidden, found.source)
    shared = collisions(found.source.prefix, [plan.operation for plan in found.plans])
    return Build(
        format=found.format,
        title=found.title,
        base_url=found.base_url,
        tools=tools,
        skipped=found.skipped,
        problems=(*found.problems, *dead_look_ups(tools, hidden), *shared),
        hidden=hidden,
        auth_name=found.key[0],
        auth_in=found.key[1],
        links_base=found.own_base_url if found.source.kind == "arm" else "",
    )


def _named(plans: Sequence[Plan], source: Source) -> tuple[Tool, ...]:
    names = tool_names(source.prefix, [plan.operation for plan in plans])
    return tuple(_tool(plan, name, source) for plan, name in zip(plans, names, strict=True))


def _tool(plan: Plan, name: str, source: Source) -> Tool:
    annotations = tool_annotations(plan.title, plan.access, plan.operation.method)
    if plan.safe:
        annotations["readOnlyHint"] = True
    entry = _entry(name, plan.title, plan.description, plan.listed.text, annotations)
    return Tool(
        name=name,
        local_name=name.removeprefix(source.prefix),
        connection=source.connection,
        operation=plan.operation.operation,
        method=plan.operation.method,
        path=plan.operation.path,
        access=plan.access,
        risk=plan.risk,
        trust=source.trust,
        title=plan.title,
        description=plan.description,
        input_schema=plan.listed.text,
        entry=entry,
        tokens=token_cost(entry),
        fingerprint=_fingerprint(plan, source),
        http=plan.http,
        output_schema=plan.answer,
        keywords=plan.keywords,
        security=plan.security,
        lookups=plan.lookups,
        whole_schema=plan.whole_schema,
    )


def _fingerprint(plan: Plan, source: Source) -> str:
    """Another credential is another tool to whoever approved it."""
    plain = fingerprint(source, plan.http, plan.access, plan.description, plan.listed.text)
    return digest(f"{plain} {plan.security}".encode()) if plan.security else plain


def _entry(
    name: str, title: str, description: str, schema: bytes, annotations: dict[str, str | bool]
) -> bytes:
    """The tools/list entry; the schema is text already and goes in as it is."""
    start = orjson.dumps({"name": name, "title": title, "description": description})
    end = orjson.dumps({"annotations": annotations})
    return b'%b,"inputSchema":%b,%b' % (start[:-1], schema, end[1:])
