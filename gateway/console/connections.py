"""Connections: how they are, adding one with a preview first, and what refreshes changed."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import Response

from gateway.config.connection import NAME_RULE
from gateway.console.forms import containing, diff_of, download, file_links, matching
from gateway.console.rendering import clip, plural, render
from gateway.console.visit import Around, Visit, around, fragment, go, page, toast
from gateway.errors import Fixable, GatewayError
from gateway.policy.access import visible_tools
from gateway.store.catalog import Change, list_changes
from gateway.web.shown import change_row, connection_detail, tool_row

MAX_PREVIEWED = 300
MAX_SKIPPED = 300
MAX_CHANGES = 60
MAX_LISTED_TOOLS = 200
KINDS = {
    "openapi": "OpenAPI definition",
    "mcp": "MCP server",
    "manifest": "Built-in provider",
}
AUTHS = ("none", "bearer", "basic", "api-key")
MAX_TITLE_AT = 4000
_TITLE = re.compile(r"""["']?title["']?\s*:\s*["']?(\w[^"'\n,}]*)""")
_NOT_NAME = re.compile(r"[^a-z0-9_-]+")


async def connections(visit: Visit) -> Response:
    beside = await around(visit)
    filter = {key: visit.query(key) for key in ("q", "status", "kind")}
    rows = matching(beside.connections, status=filter["status"], kind=filter["kind"])
    rows = containing(rows, filter["q"], "name", "display_name", "kind")
    if (file := download(visit, "connections", rows)) is not None:
        return file
    return await page(
        visit,
        "connections.html",
        "Connections",
        "connections",
        around=beside,
        rows=rows,
        filter=filter,
        files=file_links("/connections", **filter),
    )


async def connection(visit: Visit) -> Response:
    shown = await _shown(visit)
    if (file := download(visit, "changes", shown["change_rows"])) is not None:
        return file
    title = clip(shown["one"]["display_name"], 60)
    return await page(visit, "connection.html", title, "connections", **shown)


async def live_one(visit: Visit, beside: Around) -> dict[str, str]:
    """The parts of a connection's page that move."""
    shown = await _shown(visit) | {"me": visit.principal, "csrf": visit.session.csrf}
    names = {"state": "_connection_state.html", "changes": "_changes.html"}
    return {name: render(template, **shown) for name, template in names.items()} | {
        "connection-tools": render("_connection_tools.html", **shown)
    }


async def new(visit: Visit) -> Response:
    visit.need_admin()
    return await page(
        visit,
        "connection_new.html",
        "Add a connection",
        "connections",
        kinds=KINDS,
        auths=AUTHS,
        name_rule=NAME_RULE,
    )


async def preview(visit: Visit) -> Response:
    """What a put would give, with nothing stored."""
    visit.need_admin()
    if not visit.form.get("source", "").strip():
        return fragment("_preview.html", visit, found=None, error=None)
    try:
        name, values = connection_values(visit)
        found = await visit.asked.gateway.catalog.preview(name, values)
    except GatewayError as error:
        return fragment("_preview.html", visit, found=None, error=error)
    return fragment(
        "_preview.html",
        visit,
        found=found | {"tools": found["tools"][:MAX_PREVIEWED]},
        total=len(found["tools"]),
        skipped=found["skipped"][:MAX_SKIPPED],
        error=None,
    )


async def put(visit: Visit) -> Response:
    """Adds the connection; its tools are served at once."""
    visit.need_admin()
    name, values = connection_values(visit)
    if name in visit.asked.snapshot.connections:
        raise Fixable("connection_invalid", f"There is a connection {name} already.")
    # A browser that goes away does not leave half a connection behind.
    await asyncio.shield(
        visit.asked.gateway.catalog.put(
            name,
            values,
            by=visit.principal.name,
            within=visit.principal.organization,
            expected=0,
        )
    )
    return go(visit, f"/console/connections/{name}")


async def refresh(visit: Visit) -> Response:
    visit.need_admin()
    name = visit.asked.connection(visit.request.path_params["name"]).name
    by = visit.principal.name
    [report] = await visit.asked.gateway.catalog.refresh([name], by=by, asked=True)
    if report.error:
        return toast(visit, f"{name} could not be refreshed: {clip(report.error, 200)}", good=False)
    counts = [
        plural(len(names), "tool") + f" {word}"
        for word, names in (
            ("added", report.added),
            ("removed", report.removed),
            ("changed", report.changed),
            ("held", report.held),
        )
        if names
    ]
    return toast(visit, f"{name} refreshed: {', '.join(counts) or 'nothing has changed'}")


async def delete(visit: Visit) -> Response:
    visit.need_admin()
    name = visit.asked.connection(visit.request.path_params["name"]).name
    await visit.asked.gateway.catalog.delete(name, by=visit.principal.name)
    return go(visit, "/console/connections")


async def decide_change(visit: Visit) -> Response:
    """Accepts or rejects one held change."""
    visit.need_admin()
    accept = visit.form.get("decision") == "accept"
    await visit.asked.gateway.catalog.decide_change(
        visit.request.path_params["id"],
        "accepted" if accept else "rejected",
        by=visit.principal.name,
    )
    return toast(visit, "Accepted: it is served now" if accept else "Rejected: it stays as it was")


def connection_values(visit: Visit) -> tuple[str, dict[str, Any]]:
    """A posted form as name and settings, the keys of config.toml."""
    form = visit.form
    kind = form.get("kind", "openapi")
    source = form.get("source", "").strip()
    name = form.get("name", "").strip() or suggested_name(source, kind)
    key = {"openapi": "spec", "mcp": "url", "manifest": "manifest"}.get(kind)
    if key is None:
        raise Fixable("connection_invalid", f"kind must be one of {', '.join(KINDS)}")
    values: dict[str, Any] = {"kind": kind, key: source}
    for field in ("display_name", "access", "trust", "on_change"):
        if text := form.get(field, "").strip():
            values[field] = text
    if kind == "openapi" and (base := form.get("base_url", "").strip()):
        values["base_url"] = base
    if (auth := _auth(form)) is not None:
        values["auth"] = auth
    return name, values


def suggested_name(source: str, kind: str) -> str:
    """A name for a connection nobody named: of its host, its title, or what it is."""
    host = urlsplit(source).hostname if "://" in source[:12] else None
    titled = _TITLE.search(source[:MAX_TITLE_AT])
    if kind == "manifest":
        text = source
    elif titled:
        text = titled[1].split()[0]
    elif host is None or host.replace(".", "").isdigit() or ":" in host:
        text = "api"
    else:
        words = [word for word in host.split(".") if word not in ("www", "api", "com", "org", "io")]
        text = words[0] if words else host
    return (_NOT_NAME.sub("-", text.lower()).strip("-_0123456789") or "api")[:32]


def _auth(form: Any) -> dict[str, Any] | None:
    kind = form.get("auth", "none")
    secret = form.get("secret", "")
    match kind:
        case "bearer":
            return {"type": kind, "token": secret}
        case "basic":
            return {"type": kind, "username": form.get("username", ""), "password": secret}
        case "api-key":
            named = {"name": form["key_name"]} if form.get("key_name") else {}
            place = {"in": form["key_in"]} if form.get("key_in") else {}
            return {"type": kind, "value": secret, **named, **place}
    return None


async def _shown(visit: Visit) -> dict[str, Any]:
    asked = visit.asked
    state = asked.connection(visit.request.path_params["name"])
    found = await _changes(visit, state.name)
    refreshed = asked.gateway.catalog.refreshed_at.get(state.name)
    tools = visible_tools(asked.snapshot, visit.principal, state)
    filter = {key: visit.query(key) for key in ("change_status", "change_class")}
    return {
        "one": connection_detail(asked.snapshot, visit.principal, state, refreshed),
        "skipped": state.skipped[:MAX_SKIPPED],
        "tools": [tool_row(t, asked.snapshot.permissions) for t in tools[:MAX_LISTED_TOOLS]],
        "all_tools": len(tools),
        "changes": [_change(change) for change in found],
        "change_rows": [change_row(change) for change in found],
        "filter": filter,
        "files": file_links(f"/connections/{state.name}", **filter),
    }


async def _changes(visit: Visit, name: str) -> list[Change]:
    found = await list_changes(visit.asked.gateway.db, connection=name, limit=MAX_CHANGES)
    status, wanted = visit.query("change_status"), visit.query("change_class")
    kept = [
        change
        for change in found
        if (not status or change.status == status) and (not wanted or change.change_class == wanted)
    ]
    return sorted(kept, key=lambda change: change.status != "held")


def _change(change: Change) -> dict[str, Any]:
    return change_row(change) | {"diff": diff_of(change.before, change.after)}
