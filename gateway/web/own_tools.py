"""The gateway's own tools: their names, texts and schemas, their audience, and their functions.

A tool is a function of the inquiry and of its arguments by name; its docstring is what models read,
an argument without a default is required. It answers with an object; errors are raised and become
results at the one door they all come through. REST calls the same functions.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial
from hashlib import blake2b
from typing import Annotated, Any, Literal, TypeVar, get_args

import orjson
from msgspec.structs import replace

from gateway.azure.directory import LISTING, SIGN_IN
from gateway.calls.answer import read_part
from gateway.calls.lookups import LookUp
from gateway.calls.record import mention_rename
from gateway.catalog.changes import Report, report_of
from gateway.catalog.snapshot import ConnectionState
from gateway.errors import Fixable, NotFound, Refused
from gateway.limits import PAGE_ENTRIES, SEARCH_ENTRIES, STEP_BYTES, STORE_ROWS, SUMMARY_CHARS
from gateway.model import Tool, whole_schema, without_constants
from gateway.naming import listed_tokens
from gateway.plain import in_form, plain_input
from gateway.policy.access import level, looks_after, may_know
from gateway.store import ledger
from gateway.store.tables import ExecutionStatus
from gateway.web import display
from gateway.web.gateway import Inquiry, Run, ServedTool, allow_questions
from gateway.web.tool_schemas import (
    CONNECTION,
    ConnectionKind,
    Cursor,
    Flag,
    Input,
    Json,
    Known,
    Limit,
    LocalName,
    Name,
    Offset,
    Pointer,
    ServerId,
    Text,
    ToolArguments,
    ToolName,
    count_from,
    declare_tool,
)

Audience = Literal["all", "admin", "azure", "meta", "everywhere"]
AnyRun = TypeVar("AnyRun", bound=Run)

OWN_TOOLS: list[ServedTool] = []
STATUSES = get_args(ExecutionStatus)
NOTHING: Mapping[str, Any] = {}


def own_tool(
    audience: Audience, title: str, *, gives_result: bool = False, **options: Any
) -> Callable[[AnyRun], AnyRun]:
    """Lists a function among the gateway's own tools."""

    def register(run: AnyRun) -> AnyRun:
        entry, schema = declare_tool(run, title, **options)
        digest = blake2b(entry, digest_size=16).digest()
        OWN_TOOLS.append(
            ServedTool(run.__name__, entry, digest, audience, schema, run, gives_result)
        )
        return run

    return register


# --- tools and connections ------------------------------------------------------------------------


@own_tool("all", "List tools")
async def list_dynamic_tools(
    inquiry: Inquiry,
    connection: Name = "",
    search: Text = "",
    offset: Offset = 0,
    limit: Limit = PAGE_ENTRIES,
    cursor: Cursor = "",
    client: str = "",  # over REST: costs are those for a client of this name
) -> Json:
    """The tools of all connections that you may call, with their access, risk and token cost. Give
    `search` to find one by words, `connection` to see one API's. What is not in your own list of
    tools can be called with call_dynamic_tool."""
    tools = inquiry.view.tools
    names = sorted(name for name in tools if connection in ("", tools[name].connection))
    if search:
        names = await inquiry.gateway.search(inquiry.snapshot, search, set(names), len(names))
    page, following = _page(names, offset, limit, "" if search else cursor)
    permissions, form = inquiry.snapshot.permissions, inquiry.serving(client).form
    return {
        "tools": [display.tool_row(tools[name], permissions, form) for name in page],
        "total": len(names),
        "tokens": sum(listed_tokens(tools[name], form) for name in names),
        "revision": inquiry.snapshot.revision,
        "next": None if search else following,
    }


def _page(names: list[str], offset: int, limit: int, cursor: str) -> tuple[list[str], str | None]:
    """One page of these names, and the cursor for the next: its last name, which stays right while
    tools come and go."""
    start = bisect_right(names, cursor) + offset
    page = names[start : start + limit]
    return page, page[-1] if start + limit < len(names) else None


@own_tool("all", "Call any tool", reads=False, gives_result=True)
async def call_dynamic_tool(
    inquiry: Inquiry, name: ToolName, arguments: ToolArguments = NOTHING
) -> dict[str, Any]:
    """Calls a tool by its name, also one that came after your list of tools was made;
    list_dynamic_tools names them. The same as calling the tool itself."""
    tool = inquiry.find_tool(name)
    if tool is None:
        inquiry.gateway.note_unknown(inquiry, name)
        near = await inquiry.nearest_tool("", name[:SUMMARY_CHARS])
        guess = f" (did you mean {near.name!r}?)" if near else ""
        hint = "list_dynamic_tools names those you can call."
        raise NotFound("invalid_arguments", f"Unknown tool: {name}{guess}", hint)
    return mention_rename(await _call_indirectly(inquiry, tool, arguments), name, tool)


async def _call_indirectly(
    inquiry: Inquiry, tool: Tool, arguments: Mapping[str, Any]
) -> dict[str, Any]:
    """The result of a tool that is called through another one."""
    inquiry.gateway.check_scope(inquiry.principal, tool.name, tool)
    allow_questions(inquiry.caller, inquiry.snapshot.connections[tool.connection])
    return await inquiry.call(tool, arguments)


@own_tool("all", "List connections")
async def list_connections(inquiry: Inquiry) -> Json:
    """The APIs that are connected here, how they are, and what you may do with each."""
    problems = inquiry.snapshot.problems if inquiry.principal.admin else ()
    problem_rows = [problem.as_dict() for problem in problems]
    return {"connections": connection_rows(inquiry), "problems": problem_rows}


def connection_rows(inquiry: Inquiry) -> list[Json]:
    """Every connection that exists for the caller."""
    return [_connection_row(inquiry, state) for state in inquiry.connections()]


def _connection_row(inquiry: Inquiry, state: ConnectionState) -> Json:
    """One connection in a list, with its sign-in link where that is known."""
    snapshot, principal, gateway = inquiry.snapshot, inquiry.principal, inquiry.gateway
    tools = inquiry.view.connections.get(state.name, ())
    resource_id = display.azure_resource(state) if state.status == "unauthenticated" else None
    return {
        "name": state.name,
        "display_name": state.display_name,
        "kind": state.settings.kind,
        "host": display.host_of(state.build.base_url) if state.build else "",
        "origin": state.origin,
        "status": state.status,
        "effective_access": level(snapshot, principal, state) or "disabled",
        "tools": len(tools),
        "tokens": sum(tool.tokens for tool in tools),
        "last_refresh": gateway.catalog.refreshed_at.get(state.name),
        "problems": [problem.as_dict() for problem in state.problems[:PAGE_ENTRIES]],
        "consent_link": gateway.directory.known_consent_link(resource_id) if resource_id else None,
    }


@own_tool("all", "Get a connection")
async def get_connection(inquiry: Inquiry, name: Name) -> Json:
    """One connection: status, your access, number of tools, last refresh, problems, settings."""
    state = inquiry.connection(name)
    row = _connection_row(inquiry, state) | {
        **display.access_row(inquiry.snapshot, inquiry.principal, state),
        "base_url": display.base_url_for(inquiry.principal, state),
        "revision": state.revision,
        "instructions": inquiry.instructions(name),
        "consent_link": await _consent_link(inquiry, state),
    }
    if looks_after(inquiry.principal, state):
        row["settings"] = display.masked_settings(state.settings)
    if inquiry.principal.admin:
        row["skipped"] = len(state.skipped)
    return row


async def _consent_link(inquiry: Inquiry, state: ConnectionState | None) -> str | None:
    """The link by which a person signs a connection in; None where none is needed, or known."""
    if state is None or state.status != "unauthenticated":
        return None
    return await inquiry.gateway.directory.sign_in_link(state.name, state.settings)


def own_connection(inquiry: Inquiry, name: str) -> ConnectionState:
    """The connection of this name, for an admin who looks after it."""
    inquiry.require_admin()
    state = inquiry.connection(name)
    if not looks_after(inquiry.principal, state):
        words = f"{name} is for everybody: admins of no organization look after it"
        raise Refused("access_denied", words, "Ask one of them.")
    return state


@own_tool("admin", "Refresh tools", reads=False)
async def refresh_tools(inquiry: Inquiry, connection: Name = "") -> Json:
    """Reads the definition of one connection, or of all, again and reports what changed."""
    inquiry.require_admin()
    gateway, principal, since = inquiry.gateway, inquiry.principal, time.monotonic()
    if connection:
        names = [inquiry.connection(connection).name]
    else:
        await gateway.catalog.list_group(on_demand=True)
        states = gateway.snapshot.connections.values()
        names = [state.name for state in states if may_know(principal, state)]
    reports = await gateway.catalog.refresh(names, by=principal.name, on_demand=True, since=since)
    if not connection and (problem := gateway.catalog.group_problem):
        reports.append(Report(LISTING, "failing", error=problem.message))
    rows = [report.as_dict() for report in reports]
    return {"revision": gateway.snapshot.revision, "connections": rows}


@own_tool("admin", "Connect an API", reads=False, extra_inputs=CONNECTION)
async def put_connection(
    inquiry: Inquiry, name: Name, kind: ConnectionKind, dry_run: Flag = False, **settings: Any
) -> Json:
    """Adds or replaces a connection; its tools are there at once. With dry_run nothing is kept and
    you see the tools it would give, what changes, what is skipped and why, and the token cost."""
    return await put(inquiry, name, {"kind": kind, "dry_run": dry_run, **settings})


async def put(
    inquiry: Inquiry, name: str, settings: Mapping[str, Any], expected: int | None = None
) -> Json:
    """The report of a put or of its dry run, with a link where a person has to sign in for it."""
    inquiry.require_admin()
    gateway, principal, values = inquiry.gateway, inquiry.principal, dict(settings)
    if values.pop("dry_run", False):
        plan, state = await gateway.catalog.preview(name, values, principal.organization)
        return report_of(state, 0, {tool["name"] for tool in plan["tools"]}).as_dict() | plan
    report = await gateway.catalog.put(
        name, values, by=principal.name, within=principal.organization, expected=expected
    )
    entry = report.as_dict() | {"revision": report.revision}
    link = await _consent_link(inquiry, gateway.snapshot.connections.get(name))
    return entry | ({"consent_link": link} if link else {})


@own_tool("admin", "Delete a connection", reads=False, destructive=True)
async def delete_connection(inquiry: Inquiry, name: Name, *, expected: int | None = None) -> Json:
    """Removes a connection that was added at run time, and its tools."""
    name, by = own_connection(inquiry, name).name, inquiry.principal.name
    revision = await inquiry.gateway.catalog.delete(name, by=by, expected=expected)
    return {"name": name, "deleted": True, "revision": revision}


# --- results and executions -----------------------------------------------------------------------


@own_tool("everywhere", "Read a large result")
async def read_result(
    inquiry: Inquiry,
    result_id: Text,
    offset: Annotated[int, count_from(0)] = 0,
    limit: Annotated[int, count_from(1)] = 0,
    pointer: Pointer = "",
) -> Json:
    """The rest of an answer that was too large: a part of its text, or with a JSON pointer the
    value there; for an array `offset` and `limit` count items."""
    gateway, owner = inquiry.gateway, inquiry.principal.name
    result = await ledger.read_result(gateway.db, result_id, owner, time.time())
    if result is None:
        raise NotFound(
            "invalid_arguments",
            "there is no such result, or it has expired",
            "Make the call again; results are kept for an hour.",
        )
    selection: Json = {"pointer": pointer, "offset": offset, "limit": limit}
    if (max_chars := inquiry.serving().max_output_chars) is not None:  # half: quotes take room, too
        selection["most"] = max(1, min(STEP_BYTES, max_chars // 2))
    part = await read_part(gateway.work, result.body, result.media_type, **selection)
    return {"result_id": result_id, **part}


@own_tool("all", "List executions")
async def list_executions(
    inquiry: Inquiry,
    status: Text = "",
    tool: Text = "",
    connection: Text = "",
    limit: Limit = PAGE_ENTRIES,
    cursor: Text = "",
    principal: str = "",
    token: str = "",
    since: float = 0.0,
    id: str = "",
    until: float = 0.0,
) -> Json:
    """Your past calls, newest first: tool, status, times, arguments with secrets masked."""
    if status and status not in STATUSES:
        raise Fixable("invalid_arguments", f"status must be one of {', '.join(STATUSES)}")
    db, times = inquiry.gateway.db, {"since": since, "until": until or None}
    values = {"status": status, "tool": tool, "connection": connection, "id": id}
    criteria = inquiry.calls_with(principal, idempotency_token=token, **values, **times)
    await db.settle()
    page = await ledger.list_executions(db, criteria, limit=limit, cursor=cursor or None)
    return {"executions": await inquiry.records(page.executions), "next": page.next}


@own_tool("all", "Get an execution")
async def get_execution(inquiry: Inquiry, id: Text) -> Json:
    """One past or running call with its state and result."""
    [record] = await inquiry.records([await inquiry.execution(id)])
    return record


@own_tool("all", "Find an execution")
async def find_execution(inquiry: Inquiry, token: Text) -> Json:
    """The call that used an idempotency token, with the values recorded from its answer."""
    uses = inquiry.calls_with(idempotency_token=token)
    page = await ledger.list_executions(inquiry.gateway.db, uses, limit=STORE_ROWS)
    if not page.executions:
        raise NotFound("invalid_arguments", "no call has used this token")
    records = await inquiry.records(page.executions)
    # The newest counts: a call that was never sent leaves its token to a later call.
    return records[0] | {"executions": records}


# --- what may go into a tool's inputs -------------------------------------------------------------


@own_tool("all", "Look up values")
async def lookup_values(
    inquiry: Inquiry, tool: ToolName, parameter: Input, known: Known = NOTHING
) -> Json:
    """What may go into an input of a tool whose description says that it can be looked up. Give the
    inputs you have in `known`. To open a folder, give its `node` as the input's value."""
    return await _look_up(inquiry, tool, known).values(parameter)


@own_tool("all", "Look up a schema")
async def lookup_schema(inquiry: Inquiry, tool: ToolName, known: Known = NOTHING) -> Json:
    """The input schema of a tool whose inputs depend on each other, for those you have."""
    schema = await _look_up(inquiry, tool, known).schema()
    return {"tool": tool, "input_schema": in_form(schema, inquiry.serving().form)}


def _look_up(inquiry: Inquiry, name: str, known: Mapping[str, Any]) -> LookUp:
    tool, names = inquiry.tool(name), inquiry.view.tools.keys()
    # The options of the caller's own call (a token, running later) are not for the calls made here.
    caller = replace(inquiry.caller, meta={}, input_responses=None, request_state=None)
    call = partial(inquiry.gateway.invoker.call, bundle_ids=inquiry.view.bundle_ids)
    return LookUp(call, inquiry.gateway.db, inquiry.snapshot, caller, tool, names, known)


# --- Azure's catalogue of connectors --------------------------------------------------------------


@own_tool("azure", "List Azure's connectors")
async def list_managed_apis(
    inquiry: Inquiry, search: Text = "", offset: Offset = 0, limit: Limit = PAGE_ENTRIES
) -> Json:
    """The APIs that put_connection with kind arm can connect by way of Azure."""
    rows = sorted(await inquiry.gateway.directory.managed_apis(), key=lambda row: row["name"])
    found = display.matching_rows(rows, search)
    return {"apis": found[offset : offset + limit], "total": len(found)}


@own_tool("azure", "Get one of Azure's connectors")
async def get_managed_api(
    inquiry: Inquiry, name: Text, search: Text = "", offset: Offset = 0, limit: Limit = PAGE_ENTRIES
) -> Json:
    """What a connection to it needs, and what it can do. `search` finds an operation by words."""
    directory = inquiry.gateway.directory
    api, entries = await asyncio.gather(directory.managed_api(name), directory.api_operations(name))
    operations = display.matching_rows(entries, search)
    return {
        **api,
        "needs_consent": any(each["type"] == SIGN_IN for each in api["parameters"]),
        "operations": operations[offset : offset + limit],
        "total_operations": len(operations),
    }


# --- tools that are reached through others --------------------------------------------------------


@own_tool("meta", "List a server's tools")
async def mcp_list_tools(
    inquiry: Inquiry,
    server_id: ServerId,
    offset: Offset = 0,
    limit: Limit = PAGE_ENTRIES,
    cursor: Cursor = "",
) -> Json:
    """The tools of one connection by name and first words, and what holds for all of them. Call
    them with mcp_call_tool."""
    tools = inquiry.view.tools
    names = sorted(name for name in tools if tools[name].connection == server_id)
    if not names:
        raise NotFound(
            "invalid_arguments",
            f"there is no server {server_id!r}",
            "mcp_search_tools gives the server_id of each tool.",
        )
    page, following = _page(names, offset, limit, cursor)
    rows = [display.tool_summary(tools[name], inquiry.serving().form) for name in page]
    extras = {"instructions": text} if (text := inquiry.instructions(server_id)) else {}
    return {"tools": rows, "total": len(names), "next": following, **extras}


@own_tool("meta", "Search tools")
async def mcp_search_tools(inquiry: Inquiry, query: Text, limit: Limit = SEARCH_ENTRIES) -> Json:
    """Finds the tools for a task by words, best first, and says what their servers are for; all
    servers where no tool is found. Then read the schema and call."""
    tools = inquiry.view.tools
    names = await inquiry.gateway.search(inquiry.snapshot, query, tools, limit)
    servers = dict.fromkeys(tools[name].connection for name in names or tools)
    return {
        "tools": [display.tool_summary(tools[name], inquiry.serving().form) for name in names],
        "servers": [display.server_summary(*inquiry.server(name)) for name in servers],
    }


@own_tool("meta", "Get a tool's schema")
async def mcp_get_tool_schema(
    inquiry: Inquiry, server_id: ServerId, tool_name: LocalName, output: Flag = False
) -> Json:
    """What a tool takes: read this before mcp_call_tool. With `output` also what it gives."""
    tool = await _find_named_tool(inquiry, server_id, tool_name)
    max_bytes = inquiry.snapshot.settings.limits.max_schema_bytes
    full = without_constants(whole_schema(tool))
    schema = full if len(full) <= max_bytes else tool.input_schema
    if len(schema) > max_bytes:
        raise Fixable(
            "invalid_arguments",
            f"the schema of {tool.name} has {len(schema)} bytes, more than {max_bytes}",
            "Raise limits.max_schema_bytes to read it.",
        )
    raw = tool.output_schema if len(tool.output_schema or b"") <= max_bytes else None
    form, answer = inquiry.serving().form, orjson.loads(raw) if raw and output else None
    return {
        **display.tool_summary(tool, form),
        "description": tool.description,
        "risk": tool.risk,
        "input_schema": plain_input(tool) if form == "plain" else orjson.loads(schema),
        **({"output_schema": in_form(answer, form)} if output else {}),
        **({"cut": f"all of it takes {len(full)} bytes"} if len(full) > max_bytes else {}),
    }


@own_tool("meta", "Call a tool", reads=False, gives_result=True)
async def mcp_call_tool(
    inquiry: Inquiry, server_id: ServerId, tool_name: LocalName, args: ToolArguments = NOTHING
) -> dict[str, Any]:
    """Calls a tool of a connection with `args` that fit its schema."""
    try:
        tool = await _find_named_tool(inquiry, server_id, tool_name)
    except NotFound:
        inquiry.gateway.note_unknown(inquiry, f"{server_id} {tool_name}")
        raise
    result = await _call_indirectly(inquiry, tool, args)
    return result if tool_name == tool.local_name else mention_rename(result, tool_name, tool)


async def _find_named_tool(inquiry: Inquiry, server_id: str, name: str) -> Tool:
    """The tool a meta call names, by its full or its local name, within the caller's view.

    Either may be a name that the tool had lately.
    """
    tools = inquiry.view.tools
    tool = tools.get(name)
    if tool is None or tool.connection != server_id:
        by_name = {each.local_name: each for each in tools.values() if each.connection == server_id}
        state = inquiry.snapshot.connections.get(server_id) if by_name else None
        full = f"{state.prefix}{name}" if state else name
        tool = by_name.get(name) or inquiry.find_tool(name) or inquiry.find_tool(full)
    if tool is None or tool.connection != server_id:
        near = await inquiry.nearest_tool(server_id, name[:SUMMARY_CHARS])
        guess = f" (did you mean {near.local_name!r} on {near.connection!r}?)" if near else ""
        words = f"there is no tool {name!r} on {server_id!r}{guess}"
        raise NotFound("invalid_arguments", words, "mcp_list_tools names those you can call.")
    return tool
