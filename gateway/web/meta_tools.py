"""What the gateway's own tools do. Each is a few lines around the function REST calls as well.

A tool gets an `Asked`: who asks, the snapshot the request began on, and the view it may see. It
answers with an object; errors are raised and become results at the one door they all come through.

The gateway's own tools for looking up what may go into another tool's inputs.

Azure for people and models: its catalogue of connectors, and where a connection is signed in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson

from gateway.azure.directory import LISTING
from gateway.calls.large_results import read_part
from gateway.calls.lookups import Question
from gateway.calls.record import Caller
from gateway.catalog.discover import Report, problem_dict
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import ArmConnection
from gateway.errors import Fixable, NotFound, Refused
from gateway.model import Tool, whole_schema, without_constants
from gateway.policy.access import may_know
from gateway.policy.view import View
from gateway.store import results
from gateway.text import cut, visible
from gateway.web.shown import (
    connection_detail,
    connection_row,
    find_execution,
    get_execution,
    list_executions,
    tool_row,
)

if TYPE_CHECKING:
    pass


async def lookup_values(asked: Asked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What may go into one input of a tool."""
    question = _question(asked, arguments)
    return await asked.gateway.lookups.values(question, arguments["parameter"])


async def lookup_schema(asked: Asked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's input schema with what depends on the known inputs filled in."""
    question = _question(asked, arguments)
    schema = await asked.gateway.lookups.schema(question)
    return {"tool": question.tool.name, "input_schema": schema}


def _question(asked: Asked, arguments: Mapping[str, Any]) -> Question:
    tools = asked.view.tools
    tool = tools.get(arguments["tool"])
    if tool is None:
        raise NotFound(
            "invalid_arguments",
            f"there is no tool {arguments['tool']!r}",
            "list_dynamic_tools names those you can call.",
        )
    # What the caller wants of this call (a token, to be run later) is not about the calls it makes.
    caller = replace(asked.context, meta={}, input_responses=None, request_state=None)
    return Question(
        asked.snapshot,
        caller,
        tool,
        tools.keys(),
        arguments.get("known", {}),
        asked.view.bundle_ids,
    )


if TYPE_CHECKING:
    from gateway.web.gateway import Gateway


DEFAULT_APIS = 50
MAX_DESCRIPTION = 300


async def list_managed_apis(asked: Asked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The connectors that a connection can be made to, by words."""
    rows = [_row(entry) for entry in await asked.gateway.azure.directory.managed_apis()]
    found = _matching(sorted(rows, key=lambda row: str(row["name"])), arguments)
    return {"apis": _page_of_apis(found, arguments), "total": len(found)}


async def get_managed_api(asked: Asked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """One connector: what a connection to it needs, and what it can do."""
    directory, name = asked.gateway.azure.directory, arguments["name"]
    entry, listed = await asyncio.gather(
        directory.managed_api(name), directory.api_operations(name)
    )
    parameters = [_parameter(*pair) for pair in _parameters(entry).items()]
    operations = _matching([_operation(operation) for operation in listed], arguments)
    return {
        **_row(entry),
        "parameters": parameters,
        "needs_consent": any(one["type"] == "oauthSetting" for one in parameters),
        "operations": _page_of_apis(operations, arguments),
        "total_operations": len(operations),
    }


async def consent_link(gateway: Gateway, state: ConnectionState) -> str | None:
    """Where a person signs this connection in; None where there is nothing to sign, or no link."""
    if state.status != "unauthenticated":
        return None
    return await gateway.azure.directory.sign_in_link(state.name, state.settings)


def known_consent_link(gateway: Gateway, state: ConnectionState) -> str | None:
    """The same as far as it was asked for lately: a listing does not wait for Azure."""
    id_ = azure_resource(state)
    if id_ is None or state.status != "unauthenticated":
        return None
    return gateway.azure.directory.known_consent_link(id_)


def azure_resource(state: ConnectionState) -> str | None:
    """The id of the resource behind a connection."""
    if not isinstance(state.settings, ArmConnection):
        return None
    return state.settings.resource_id or (state.build.envelope if state.build else None)


def _row(entry: Mapping[str, Any]) -> dict[str, Any]:
    properties = _mapping(entry.get("properties"))
    about = _mapping(properties.get("generalInformation"))
    name = _text(entry.get("name")) or _text(properties.get("name"))
    return {
        "name": name,
        "display_name": _text(about.get("displayName")) or name,
        "description": _text(about.get("description")),
    }


def _parameters(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(_mapping(entry.get("properties")).get("connectionParameters"))


def _parameter(name: str, entry: Any) -> dict[str, Any]:
    parameter = _mapping(entry)
    words = _mapping(parameter.get("uiDefinition"))
    constraints = _mapping(words.get("constraints"))
    return {
        "name": name,
        "type": _text(parameter.get("type")),
        "display_name": _text(words.get("displayName")) or name,
        "description": _text(words.get("description")),
        "required": str(constraints.get("required", "")).lower() == "true",
    }


def _operation(entry: Mapping[str, Any]) -> dict[str, Any]:
    properties = _mapping(entry.get("properties"))
    return {
        "name": _text(entry.get("name")),
        "summary": _text(properties.get("summary")),
        "description": _text(properties.get("description")),
    }


def _matching(
    rows: Sequence[dict[str, Any]], arguments: Mapping[str, Any]
) -> Sequence[dict[str, Any]]:
    """The rows that hold every word; those whose name does come first."""
    words = str(arguments.get("search", "")).lower().split()
    if not words:
        return rows
    found = [row for row in rows if all(word in _all_words(row) for word in words)]
    return sorted(found, key=lambda row: words[0] not in row["name"].lower())


def _all_words(row: Mapping[str, Any]) -> str:
    return " ".join(str(value) for value in row.values()).lower()


def _page_of_apis(
    rows: Sequence[dict[str, Any]], arguments: Mapping[str, Any]
) -> list[dict[str, Any]]:
    offset, limit = arguments.get("offset", 0), arguments.get("limit", DEFAULT_APIS)
    return list(rows[offset : offset + limit])


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return cut(visible(value).strip(), MAX_DESCRIPTION) if isinstance(value, str) else ""


if TYPE_CHECKING:
    from gateway.web.gateway import Gateway

DEFAULT_LIMIT = 100
SEARCH_LIMIT = 10
SUMMARY_CHARS = 160


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of one of the gateway's own tools."""

    gateway: Gateway
    context: Caller
    snapshot: Snapshot
    view: View


Arguments = Mapping[str, Any]
Handler = Callable[[Asked, Arguments], Awaitable[dict[str, Any]]]


async def list_dynamic_tools(asked: Asked, arguments: Arguments) -> dict[str, Any]:
    tools = asked.view.tools
    names = list(tools)
    if connection := arguments.get("connection"):
        names = [name for name in names if tools[name].connection == connection]
    if search := arguments.get("search"):
        names = await asked.gateway.search(asked.snapshot, search, set(names), len(names))
    page = _page(names, arguments)
    permissions = asked.snapshot.permissions
    return {
        "tools": [tool_row(tools[name], permissions) for name in page],
        "total": len(names),
        "tokens": sum(tools[name].tokens for name in names),
        "revision": asked.snapshot.revision,
    }


async def list_connections(asked: Asked, arguments: Arguments) -> dict[str, Any]:
    return shown_connections(asked)


def shown_connections(asked: Asked) -> dict[str, Any]:
    """Every connection that exists for the caller; for admins, what is wrong beside them."""
    problems = asked.snapshot.problems if asked.context.principal.admin else ()
    shown = [problem_dict(problem) for problem in problems]
    return {"connections": connection_rows(asked), "problems": shown}


def connection_rows(asked: Asked) -> list[dict[str, Any]]:
    """Every connection that exists for the caller."""
    principal, snapshot = asked.context.principal, asked.snapshot
    refreshed = asked.gateway.catalog.refreshed_at
    return [
        connection_row(snapshot, principal, state, refreshed.get(name))
        | {"consent_link": known_consent_link(asked.gateway, state)}
        for name, state in snapshot.connections.items()
        if may_know(principal, state)
    ]


async def get_connection(asked: Asked, arguments: Arguments) -> dict[str, Any]:
    return await shown_connection(asked, known_connection(asked, arguments["name"]))


async def shown_connection(asked: Asked, state: ConnectionState) -> dict[str, Any]:
    """One connection with everything the caller may know, and where it is signed in."""
    refreshed = asked.gateway.catalog.refreshed_at.get(state.name)
    detail = connection_detail(asked.snapshot, asked.context.principal, state, refreshed)
    return detail | {"consent_link": await consent_link(asked.gateway, state)}


def known_connection(asked: Asked, name: str) -> ConnectionState:
    """The connection of this name, if it exists for the caller."""
    state = asked.snapshot.connections.get(name)
    if state is None or not may_know(asked.context.principal, state):
        raise NotFound(
            "connection_invalid",
            f"there is no connection {name!r}",
            "list_connections names those you can use.",
        )
    return state


async def refresh_tools(asked: Asked, arguments: Arguments) -> dict[str, Any]:
    _need_admin(asked)
    name, principal, since = arguments.get("connection"), asked.context.principal, None
    if name:
        names = [known_connection(asked, name).name]
    else:
        since = await asked.gateway.azure.look(asked=True)
        states = asked.gateway.snapshot.connections.values()
        names = [state.name for state in states if may_know(principal, state)]
    reports = await asked.gateway.catalog.refresh(names, by=principal.name, asked=True, since=since)
    if not name and (problem := asked.gateway.azure.problem):
        reports.append(Report(LISTING, "failing", error=problem))
    return {
        "revision": asked.gateway.catalog.current.revision,
        "connections": [report.as_dict() for report in reports],
    }


async def put_connection(asked: Asked, arguments: Arguments) -> dict[str, Any]:
    _need_admin(asked)
    values = dict(arguments)
    name, dry_run = values.pop("name"), values.pop("dry_run", False)
    if dry_run:
        return await asked.gateway.catalog.preview(name, values)
    who = asked.context.principal
    report = await asked.gateway.catalog.put(name, values, by=who.name, within=who.organization)
    return await shown_put(asked, report)


async def shown_put(asked: Asked, report: Report) -> dict[str, Any]:
    """What became of a put; where someone has to sign in for it, that too."""
    shown = report.as_dict() | {"revision": report.revision}
    state = asked.gateway.snapshot.connections.get(report.name)
    link = await consent_link(asked.gateway, state) if state else None
    return shown | ({"consent_link": link} if link else {})


async def delete_connection(asked: Asked, arguments: Arguments) -> dict[str, Any]:
    _need_admin(asked)
    name = known_connection(asked, arguments["name"]).name
    revision = await asked.gateway.catalog.delete(name, by=asked.context.principal.name)
    return {"name": name, "deleted": True, "revision": revision}


async def mcp_list_tools(asked: Asked, arguments: Arguments) -> dict[str, Any]:
    tools = _reachable(asked, arguments["server_id"])
    page = _page(tools, arguments)
    return {"tools": [_brief(tool) for tool in page], "total": len(tools)}


async def mcp_search_tools(asked: Asked, arguments: Arguments) -> dict[str, Any]:
    tools = asked.view.tools
    limit = arguments.get("limit", SEARCH_LIMIT)
    names = await asked.gateway.search(asked.snapshot, arguments["query"], tools, limit)
    return {"tools": [_brief(tools[name]) for name in names]}


async def mcp_get_tool_schema(asked: Asked, arguments: Arguments) -> dict[str, Any]:
    tool = _reached(asked, arguments)
    bound = asked.snapshot.settings.limits.max_schema_bytes
    whole = without_constants(whole_schema(tool))
    schema = whole if len(whole) <= bound else tool.input_schema
    if len(schema) > bound:
        raise Fixable(
            "invalid_arguments",
            f"the schema of {tool.name} has {len(schema)} bytes, more than {bound}",
            "Raise limits.max_schema_bytes to read it.",
        )
    output = tool.output_schema
    return {
        **_brief(tool),
        "description": tool.description,
        "access": tool.access,
        "risk": tool.risk,
        "input_schema": orjson.loads(schema),
        "output_schema": orjson.loads(output) if output and len(output) <= bound else None,
        **({"cut": f"all of it takes {len(whole)} bytes"} if len(whole) > bound else {}),
    }


async def read_result(asked: Asked, arguments: Arguments) -> dict[str, Any]:
    id, owner = arguments["result_id"], asked.context.principal.name
    kept = await results.read_result(asked.gateway.db, id, owner, time.time())
    if kept is None:
        raise NotFound(
            "invalid_arguments",
            "there is no such result, or it has expired",
            "Make the call again; results are kept for an hour.",
        )
    part = await read_part(
        asked.gateway.work,
        kept.body,
        kept.media_type,
        pointer=arguments.get("pointer", ""),
        offset=arguments.get("offset", 0),
        limit=arguments.get("limit"),
    )
    return {"result_id": id, **part}


def _need_admin(asked: Asked) -> None:
    if not asked.context.principal.admin:
        raise Refused("access_denied", "only an admin may do this", "Ask an admin of the gateway.")


def _page(items: list[Any], arguments: Arguments) -> list[Any]:
    offset, limit = arguments.get("offset", 0), arguments.get("limit", DEFAULT_LIMIT)
    return items[offset : offset + limit]


def _reachable(asked: Asked, server_id: str) -> list[Tool]:
    tools = [tool for tool in asked.view.tools.values() if tool.connection == server_id]
    if not tools:
        raise NotFound(
            "invalid_arguments",
            f"there is no server {server_id!r}",
            "mcp_search_tools gives the server_id of each tool.",
        )
    return tools


def _reached(asked: Asked, arguments: Arguments) -> Tool:
    return reached_tool(asked.view, arguments["server_id"], arguments["tool_name"])


def reached_tool(view: View, server_id: str, name: str) -> Tool:
    """The tool a meta call names, by its full or its local name, within the caller's view."""
    tools = view.tools
    tool = tools.get(name)
    if tool is None or tool.connection != server_id:
        tool = next(
            (t for t in tools.values() if t.connection == server_id and t.local_name == name), None
        )
    if tool is None:
        raise NotFound(
            "invalid_arguments",
            f"there is no tool {name!r} on {server_id!r}",
            "mcp_list_tools names those you can call.",
        )
    return tool


def _brief(tool: Tool) -> dict[str, Any]:
    summary = tool.description
    if len(summary) > SUMMARY_CHARS:
        summary = summary[: SUMMARY_CHARS - 1] + "…"
    return {
        "server_id": tool.connection,
        "tool_name": tool.local_name,
        "name": tool.name,
        "title": tool.title,
        "summary": summary,
        "access": tool.access,
        "tokens": tool.tokens,
    }


HANDLERS: dict[str, Handler] = {
    handler.__name__: handler
    for handler in (
        list_dynamic_tools,
        list_connections,
        get_connection,
        refresh_tools,
        put_connection,
        delete_connection,
        mcp_list_tools,
        mcp_search_tools,
        mcp_get_tool_schema,
        read_result,
        list_executions,
        get_execution,
        find_execution,
        lookup_values,
        lookup_schema,
        list_managed_apis,
        get_managed_api,
    )
}
