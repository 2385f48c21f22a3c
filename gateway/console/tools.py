"""Tools: found by words and filters; one with its schema, its cost, and a form to try it.

Who sees what: one's own access, and for admins everyone's, with the rule that asks or allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args

import orjson
from starlette.responses import Response

from gateway.calls.record import Caller, output_of
from gateway.calls.redact import MASK
from gateway.config.reading import parse_permissions
from gateway.console.forms import (
    arguments_of,
    containing,
    download,
    fields_of,
    file_links,
    matching,
)
from gateway.console.visit import Visit, fragment, link, page, toast
from gateway.errors import Fixable, NotFound
from gateway.model import Level, Principal, Tool
from gateway.policy.access import admin_level, decide, level, may_know, user_level
from gateway.policy.view import Scope, bundles_of
from gateway.web.gateway import tool_door
from gateway.web.shown import tool_row

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
        Caller(visit.principal, client=CLIENT),
        asked.view.bundle_ids,
        tool_door(asked.gateway, found.name, asked.caller.scope, unattended=True),
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
    earlier = await visit.asked.execution(id)
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


LEVELS: dict[str, str] = {
    "read_only": "Nothing but reads is carried out.",
    "execute_with_confirm": "Reads run; everything else waits for a person.",
    "full_access": "Everything runs at once. Nobody is asked.",
}
MAX_PRINCIPALS = 200
MAX_CONNECTIONS = 100


async def access(visit: Visit) -> Response:
    rows = _rows(visit)
    filter = {key: visit.query(key) for key in ("q", "connection", "effective_access")}
    kept = matching(
        rows, connection=filter["connection"], effective_access=filter["effective_access"]
    )
    kept = containing(kept, filter["q"], "principal", "role", "organization", "connection")
    if (file := download(visit, "access", kept)) is not None:
        return file
    snapshot = visit.asked.snapshot
    return await page(
        visit,
        "access.html",
        "Access",
        "access",
        rows=kept,
        filter=filter,
        own=[row for row in rows if row["principal"] == visit.principal.name],
        levels=get_args(Level),
        permissions=snapshot.permissions,
        stored=snapshot.stored_permissions is not None,
        level_words=LEVELS,
        settings=snapshot.settings if visit.principal.admin else None,
        names=sorted({row["connection"] for row in rows}),
        files=file_links("/access", **filter),
    )


async def choose(visit: Visit) -> Response:
    """The visitor's own choice for one connection."""
    state = visit.asked.connection(visit.request.path_params["name"])
    wanted = visit.form.get("access", "")
    for known in get_args(Level):
        if wanted == known:
            await visit.asked.gateway.catalog.choose(visit.principal.name, state.name, known)
            return toast(visit, f"Your access to {state.name} is now {wanted}")
    raise Fixable("invalid_arguments", f"access must be one of {', '.join(get_args(Level))}")


async def permissions(visit: Visit) -> Response:
    """The level for everyone; config.toml's again where `reset` says so."""
    visit.need_admin()
    catalog, snapshot = visit.asked.gateway.catalog, visit.asked.snapshot
    if visit.form.get("reset"):
        await catalog.put_permissions(None, by=visit.principal.name)
        return toast(visit, "The permissions of config.toml are in force again")
    wanted = visit.form.get("level", "")
    if wanted not in LEVELS:
        raise Fixable("invalid_arguments", f"level must be one of {', '.join(LEVELS)}")
    values = snapshot.permissions.model_dump(mode="json") | {"level": wanted}
    put = parse_permissions(snapshot.settings.permissions, values)
    await catalog.put_permissions(put, by=visit.principal.name)
    return toast(visit, f"Permissions are now {wanted}")


def _rows(visit: Visit) -> list[dict[str, Any]]:
    snapshot = visit.asked.snapshot
    rows = []
    for principal in _principals(visit):
        bundles = bundles_of(snapshot, principal, Scope("own"))
        seen = visit.asked.gateway.view_of(snapshot, principal, Scope("own")).tools
        counts = Counter(tool.connection for tool in seen.values())
        for state in list(snapshot.connections.values())[:MAX_CONNECTIONS]:
            if not (may_know(principal, state) and may_know(visit.principal, state)):
                continue
            rows.append(
                {
                    "principal": principal.name,
                    "admin": principal.admin,
                    "role": principal.role or "",
                    "organization": principal.organization or "",
                    "bundles": list(bundles or ()),
                    "connection": state.name,
                    "admin_access": admin_level(state),
                    "user_access": user_level(snapshot, principal, state.name),
                    "effective_access": level(snapshot, principal, state) or "disabled",
                    "tools": counts[state.name],
                }
            )
    return rows


def _principals(visit: Visit) -> list[Principal]:
    """The visitor first, then for an admin everyone who is configured."""
    known = visit.parts.identity.settings.principals
    others = [each for name, each in known.items() if name != visit.principal.name]
    return [visit.principal, *(others[:MAX_PRINCIPALS] if visit.principal.admin else ())]
