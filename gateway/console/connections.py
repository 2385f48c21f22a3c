"""Connections: their state, adding and editing one with a preview, and what refreshes changed.

A change of one operation is shown as people read it: the facts before and after, and the lines of
its schemas that differ.

People who signed a connection in come back to an address with a sealed note. It names the
connection and says until when it is valid, so that nobody can make such an address up.
"""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.catalog.changes import Adoption
from gateway.catalog.snapshot import ConnectionState
from gateway.config.connection import NAME_RULE
from gateway.console import forms
from gateway.console.forms import KINDS, Edit, fields_of, read_edit, refuse_hosts
from gateway.console.pages import (
    Navigation,
    Visit,
    choose_rows,
    clip,
    clip_text,
    download,
    file_links,
    fragment,
    go,
    html,
    is_partial,
    list_page,
    navigation,
    page,
    plural,
    sort_rows,
    toast,
)
from gateway.errors import GatewayError
from gateway.limits import PAGE_ENTRIES
from gateway.model import Tool, whole_schema, without_constants
from gateway.store.catalog import list_changes
from gateway.store.secrets import Seal
from gateway.store.tables import Change
from gateway.web import own_tools, rest
from gateway.web.display import azure_resource, change_row, tool_row
from gateway.web.gateway import Gateway
from gateway.web.guard import PAGE_HEADERS
from gateway.web.rest import error_status

log = structlog.get_logger("gateway.console")


async def connections(visit: Visit) -> Response:
    nav = await navigation(visit)
    filter = visit.filter("q", "status", "kind")
    chosen = choose_rows(nav.connections, filter, "name", "display_name", "kind", "host")
    columns = ("display_name", "status", "tools", "tokens", "last_refresh")
    rows, sort = sort_rows(visit, chosen, filter, *columns)
    lines = await visit.figures.lines("connection", [row["name"] for row in rows])
    return await list_page(
        visit, "connections.html", "Connections", rows, filter, nav=nav, lines=lines, sort=sort
    )


async def connection(visit: Visit) -> Response:
    nav = await navigation(visit)
    values = await connection_values(visit, nav)
    without_diff = [{k: v for k, v in row.items() if k != "diff"} for row in values["changes"]]
    if (file := download(visit, "changes", without_diff)) is not None:
        return file
    files = file_links(visit, values["filter"])
    title = clip(values["connection"]["display_name"], 60)
    charts = await visit.figures.charts(
        visit.query("range"), connection=values["connection"]["name"]
    )
    return await page(visit, "connection.html", title, nav, files=files, **values, **charts)


async def connection_values(visit: Visit, nav: Navigation) -> dict[str, Any]:
    """The values of a connection's page."""
    snapshot, state = visit.snapshot, visit.inquiry.connection(visit.id)
    tools = visit.inquiry.view.connections.get(state.name, ())
    filter = visit.filter("change_status", "change_class")
    columns = {"status": filter["change_status"], "class": filter["change_class"]}
    db, seen = visit.gateway.db, visit.inquiry.oversight()
    found = await list_changes(db, connection=state.name, oversight=seen, limit=PAGE_ENTRIES)
    changes = changes_with_diffs(found)
    return {
        "connection": await own_tools.get_connection(visit.inquiry, state.name),
        "skipped": state.skipped[:PAGE_ENTRIES],
        "tools": [tool_row(tool, snapshot.permissions) for tool in tools[:PAGE_ENTRIES]],
        "all_tools": len(tools),
        "changes": sorted(choose_rows(changes, columns), key=lambda row: row["status"] != "held"),
        "filter": filter,
    }


# --- actions --------------------------------------------------------------------------------------


async def refresh(visit: Visit) -> Response:
    found = await own_tools.refresh_tools(visit.inquiry, visit.id)
    [report] = found["connections"]
    if report.get("error"):
        words = f"{visit.id} could not be refreshed: {clip(report['error'], 200)}"
        return toast(visit, words, good=False)
    counts = [
        f"{plural(len(report[word]), 'tool')} {word}"
        for word in ("added", "removed", "changed", "held")
        if report[word]
    ]
    return toast(visit, f"{visit.id} refreshed: {', '.join(counts) or 'nothing has changed'}")


async def delete(visit: Visit) -> Response:
    await own_tools.delete_connection(visit.inquiry, visit.id)
    return go(visit, "/console/connections")


async def decide_change(visit: Visit) -> Response:
    """Accepts or rejects one held change."""
    accept = visit.form.get("decision") == "accept"
    await rest.decide_change(visit.inquiry, visit.id, "accept" if accept else "reject")
    return toast(visit, "Accepted: it is served now" if accept else "Rejected: it stays as it was")


# --- adding and editing one -----------------------------------------------------------------------


async def new(visit: Visit) -> Response:
    visit.inquiry.require_admin()
    return await form_page(visit, None, {"revision": "0"})


async def edit(visit: Visit) -> Response:
    """The form of a connection; read only, where the connection is written elsewhere."""
    state = own_tools.own_connection(visit.inquiry, visit.id)
    fields = fields_of(state.settings) | {"name": state.name, "revision": str(state.revision)}
    return await form_page(visit, state, fields)


async def preview(visit: Visit) -> Response:
    """What the posted form would give and change, with nothing stored."""
    visit.inquiry.require_admin()
    dry_run = problem = None
    changes: list[dict[str, Any]] = []
    editing = _edited_state(visit)
    if editing or any(visit.form.get(key, "").strip() for key in ("source", "file")):
        try:
            draft = read_edit(visit.form, _states_by_name(visit))
            dry_run, adoption = await _plan(visit, draft)
            changes = [] if adoption.first else changes_with_diffs(adoption.changes)
        except GatewayError as error:
            problem = error
    values = {"found": dry_run, "error": problem, "changes": changes}
    if not is_partial(visit.request):
        return await form_page(visit, editing, visit.form, **values)
    return fragment(visit, "_preview.html", editing=editing, shown=PAGE_ENTRIES, **values)


async def put(visit: Visit) -> Response:
    """Adds or replaces the connection; its tools are served at once."""
    visit.inquiry.require_admin()
    try:
        draft = read_edit(visit.form, _states_by_name(visit))
        if draft.state is not None and draft.may_change_hosts:
            await _plan(visit, draft)
        # A browser that goes away does not leave half a connection behind.
        saving = own_tools.put(visit.inquiry, draft.name, draft.values, expected=draft.expected)
        await asyncio.shield(saving)
    except GatewayError as error:
        if is_partial(visit.request):
            message_html = visit.render("_said.html", problem=error, fields=visit.form)
            place = {"hx-retarget": "#said", "hx-reswap": "innerHTML"}
            return Response(message_html, error_status(error), place, "text/html")
        page = await form_page(visit, _edited_state(visit), visit.form, problem=error)
        page.status_code = error_status(error)
        return page
    return go(visit, f"/console/connections/{draft.name}")


def _states_by_name(visit: Visit) -> dict[str, ConnectionState]:
    return {state.name: state for state in visit.inquiry.connections()}


def _edited_state(visit: Visit) -> ConnectionState | None:
    is_new = visit.form.get("revision", "0") == "0"
    return None if is_new else _states_by_name(visit).get(visit.form.get("name", ""))


async def _plan(visit: Visit, draft: Edit) -> tuple[dict[str, Any], Adoption]:
    """A dry run of a draft; refused where it would take kept secrets to another host."""
    within = visit.principal.organization
    dry_run, adoption = await visit.gateway.catalog.preview(draft.name, draft.values, within)
    refuse_hosts(draft, visit.form, adoption.built.build.tools)
    return dry_run, adoption


async def form_page(
    visit: Visit, state: ConnectionState | None, fields: Mapping[str, str], **values: Any
) -> Response:
    """The form with the settings of a connection, or with the fields typed so far."""
    within, kinds = visit.principal.organization, {k: words for k, (words, _) in KINDS.items()}
    owner = None
    if state is not None:
        kinds = {state.settings.kind: kinds.get(state.settings.kind, "Azure connection")}
        is_foreign = within is not None and state.settings.organization != within
        owner = state.origin if state.origin != "stored" else "others" if is_foreign else None
    defaults: dict[str, Any] = {
        "editing": state,
        "owner": owner,  # where it is to be changed, if not here
        "fields": fields,
        "kinds": kinds,
        "forms": forms,
        "callback": f"{visit.backend.public_url}/oauth/callback",
        "name_rule": NAME_RULE,
        "found": None,
        "error": None,
        "changes": [],
        "problem": None,
        "shown": PAGE_ENTRIES,
    }
    title = ("" if owner else "Edit ") + state.name if state else "Add a connection"
    return await page(visit, "connection_form.html", title, **(defaults | values))


# --- the differences of a change ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between two versions of one operation."""

    rows: tuple[tuple[str, str, str], ...]  # fact, before, after
    lines: tuple[tuple[str, str], ...]  # sign and text of the input schema
    cut: bool


def changes_with_diffs(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """The rows of these changes with their diffs, up to a page."""
    return [
        change_row(change) | {"diff": compare(change.before, change.after)}
        for change in changes[:PAGE_ENTRIES]
    ]


def compare(old: Tool | None, new: Tool | None) -> Diff:
    """The differences between a tool's old and new version."""
    before, after = _facts(old), _facts(new)
    rows = [(name, before.get(name, ""), after.get(name, "")) for name in before or after]
    lines = [
        *_changed_lines(_input_lines(old), _input_lines(new)),
        *_changed_lines(_output_lines(old), _output_lines(new)),
    ]
    changed = tuple(row for row in rows if row[1] != row[2])
    return Diff(changed, tuple(lines[:PAGE_ENTRIES]), len(lines) > PAGE_ENTRIES)


def _facts(tool: Tool | None) -> dict[str, str]:
    if tool is None:
        return {}
    facts = {
        "Name": tool.name,
        "Request": f"{tool.method} {tool.path}".strip(),
        "Host": tool.http.base_url if tool.http else "",
        "Access": tool.access,
        "Risk": tool.risk,
        "Trust": tool.trust,
        "Credentials": tool.security,
        "Sent as": _argument_places(tool),
        "Title": tool.title,
        "Description": tool.description,
    }
    return {name: clip_text(value, 600) for name, value in facts.items()}


def _argument_places(tool: Tool) -> str:
    """The places in the request that a call's arguments go to."""
    if tool.http is None:
        return tool.upstream.tool if tool.upstream else ""
    places = [f"{each.name} in {each.place}" for each in tool.http.parameters]
    body = tool.http.body
    return ", ".join([*places, *([f"a body of {body.media_type}"] if body else ())])


def _input_lines(tool: Tool | None) -> list[str]:
    return _schema_lines(without_constants(whole_schema(tool))) if tool else []


def _output_lines(tool: Tool | None) -> list[str]:
    return _schema_lines(tool.output_schema) if tool and tool.output_schema else []


def _schema_lines(schema: bytes) -> list[str]:
    value: Any = orjson.loads(schema)
    text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS).decode()
    return text.splitlines()


def _changed_lines(old: list[str], new: list[str]) -> Iterator[tuple[str, str]]:
    for line in difflib.unified_diff(old, new, lineterm="", n=2):
        if not line.startswith(("---", "+++")):
            yield line[0], clip_text(line if line[0] == "@" else line[1:], 200)


# --- where people come back to after signing a connection in --------------------------------------

CONSENT = "/azure/consent/"


def return_address(seal: Seal, public_url: str, id_: str) -> str:
    """The address where Azure sends a person who signed in for this resource, for an hour."""
    note = seal.seal_values(CONSENT, id_, time.time() + 3600)
    return f"{public_url}{CONSENT}{note.rstrip('=')}"


def consent_route(gateway: Gateway, seal: Seal) -> Route:
    """Answers people who come back from signing in: the code they bring is handed to Azure."""

    async def come_back(request: Request) -> Response:
        id_, code = _open_note(seal, request.path_params["note"]), request.query_params.get("code")
        title, words, status = await _confirm(gateway, id_, code)
        return html("came_back.html", status, PAGE_HEADERS, title=title, words=words)

    return Route(CONSENT + "{note}", come_back)


async def _confirm(gateway: Gateway, id_: str | None, code: str | None) -> tuple[str, str, int]:
    if id_ is None:
        return "This link has expired", "Ask for a new one with get_connection.", 404
    if not code:
        return "Not signed in", "The sign-in was not completed. Try the link again.", 400
    try:
        await gateway.directory.confirm(id_, code)
    except GatewayError as error:
        log.warning("consent not confirmed", error=error.message)
        return "Not signed in", "Azure did not accept the sign-in. Try the link again.", 502
    states = gateway.snapshot.connections.values()
    names = [s.name for s in states if id_.lower() == (azure_resource(s) or "").lower()]
    await gateway.catalog.refresh(names, by="consent")
    return "Signed in", "The connection is ready. You can close this page.", 200


def _open_note(seal: Seal, note: str) -> str | None:
    """The id of the resource that a note names, while the note is valid."""
    id_, until = seal.open_values(CONSENT, note + "=" * (-len(note) % 4)) or ("", 0.0)
    return id_ if until >= time.time() else None
