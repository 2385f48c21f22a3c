"""Tools: found by words and filters; one with its schema, its cost, and a form to try it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from gateway.edge.console.forms import arguments_of, fields_of
from gateway.edge.console.layout import page
from gateway.edge.console.tables import download, file_links
from gateway.edge.console.visit import Visit, fragment, link
from gateway.edge.doors import tool_door
from gateway.edge.history import known_execution
from gateway.edge.shown import tool_row
from gateway.errors import NotFound
from gateway.invoke.attempt import output_of
from gateway.invoke.caller import AbsentCaller
from gateway.invoke.redact import MASK
from gateway.model import Tool
from gateway.policy.decide import decide

PAGE = 100
DOWNLOADED = 5000
MAX_SCHEMA_BYTES = 256 * 1024  # a larger one is not drawn as a form
CLIENT = "console"


async def tools(visit: Visit) -> Response:
    filter = {key: visit.query(key) for key in ("q", "connection", "access", "risk", "confirm")}
    found = await _found(visit, filter)
    permissions = visit.asked.snapshot.permissions
    if visit.query("format"):
        rows = [tool_row(tool, permissions) for tool in found[:DOWNLOADED]]
        answer = download(visit, "tools", rows, total=len(found))
        assert answer is not None
        return answer
    start = _start(visit, len(found))
    rows = [tool_row(tool, permissions) for tool in found[start : start + PAGE]]
    after = start + PAGE
    return await page(
        visit,
        "tools.html",
        "Tools",
        "tools",
        rows=rows,
        total=len(found),
        start=start,
        tokens=sum(tool.tokens for tool in found),
        filter=filter,
        facets=_facets(visit),
        next=link("/tools", **filter, start=after) if after < len(found) else None,
        previous=link("/tools", **filter, start=max(0, start - PAGE)) if start else None,
        files=file_links("/tools", **filter),
    )


async def tool(visit: Visit) -> Response:
    found = _known(visit)
    like = await _like(visit)
    return await page(
        visit,
        "tool.html",
        found.name,
        "tools",
        tool=found,
        row=tool_row(found, visit.asked.snapshot.permissions),
        decision=decide(found, visit.asked.snapshot.permissions),
        like=like,
        masked=MASK.encode() in orjson.dumps(like["arguments"]) if like else False,
        **_form(found, like["arguments"] if like else None),
    )


async def call(visit: Visit) -> Response:
    """Tries the tool, as the visitor, through the door every call comes through."""
    found = _known(visit)
    arguments = arguments_of(_schema(found), visit.form)
    asked = visit.asked
    result = await asked.gateway.invoker.call(
        asked.snapshot,
        found,
        arguments,
        AbsentCaller(visit.principal, CLIENT),
        asked.view.bundle_ids,
        tool_door(asked.gateway, found.name, asked.context.scope, unattended=True),
    )
    meta = result["_meta"]
    return fragment(
        "_result.html",
        visit,
        id=meta["gateway/execution_id"],
        status_word=meta["gateway/status"],
        ms=meta.get("gateway/duration_ms"),
        failed=bool(result.get("isError")),
        output=output_of(result),
        others=[p["type"] for p in result.get("content", ()) if p.get("type") != "text"],
    )


async def _found(visit: Visit, filter: Mapping[str, str]) -> list[Tool]:
    chosen = visit.asked.view.tools
    permissions = visit.asked.snapshot.permissions
    kept = {
        name: tool
        for name, tool in chosen.items()
        if (not filter["connection"] or tool.connection == filter["connection"])
        and (not filter["access"] or tool.access == filter["access"])
        and (not filter["risk"] or tool.risk == filter["risk"])
        and (not filter["confirm"] or decide(tool, permissions).outcome == filter["confirm"])
    }
    if not filter["q"]:
        return sorted(kept.values(), key=lambda tool: (tool.connection, tool.name))
    gateway, snapshot = visit.asked.gateway, visit.asked.snapshot
    names = await gateway.search(snapshot, filter["q"], set(kept), len(kept))
    literal = [n for n in kept if filter["q"].lower() in n.lower() and n not in set(names)]
    return [kept[name] for name in (*names, *sorted(literal))]


def _facets(visit: Visit) -> dict[str, list[tuple[str, int]]]:
    tools = visit.asked.view.tools.values()
    return {
        "connection": sorted(Counter(tool.connection for tool in tools).items()),
        "access": sorted(Counter(tool.access for tool in tools).items()),
        "risk": sorted(Counter(tool.risk for tool in tools).items()),
    }


def _start(visit: Visit, total: int) -> int:
    text = visit.query("start", 9)
    start = int(text) if text.isascii() and text.isdigit() else 0
    return min(start, max(0, (total - 1) // PAGE * PAGE))


def _known(visit: Visit) -> Tool:
    found = visit.asked.view.tools.get(visit.request.query_params.get("name", ""))
    if found is None:
        raise NotFound("invalid_arguments", "There is no such tool.", "It may have been removed.")
    return found


async def _like(visit: Visit) -> dict[str, Any] | None:
    """The earlier call whose arguments fill the form."""
    if not (id := visit.query("like")):
        return None
    earlier = await known_execution(visit.asked, id)
    return {"id": earlier.id, "at": earlier.created_at, "arguments": dict(earlier.arguments)}


def _form(tool: Tool, values: Mapping[str, Any] | None) -> dict[str, Any]:
    schema = _schema(tool)
    output = orjson.loads(tool.output_schema) if tool.output_schema else None
    return {
        "fields": fields_of(schema, values),
        "schema": schema or None,
        "output": output,
        "written": orjson.dumps(values, option=orjson.OPT_INDENT_2).decode() if values else "",
    }


def _schema(tool: Tool) -> dict[str, Any]:
    if len(tool.input_schema) > MAX_SCHEMA_BYTES:
        return {}
    schema: dict[str, Any] = orjson.loads(tool.input_schema)
    return schema
