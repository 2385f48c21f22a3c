"""REST: capabilities, access, connections, tools, steps."""

from __future__ import annotations

from typing import Any, get_args

import orjson
from starlette.requests import Request

from gateway.catalog.definitions import kind_of
from gateway.errors import Fixable, UnknownTool
from gateway.model import Level, Tool, whole_schema, without_constants
from gateway.policy.access import admin_level, level, may_know, user_level
from gateway.policy.view import Scope
from gateway.web.meta_tools import (
    Asked,
    known_connection,
    shown_connection,
    shown_connections,
    shown_put,
)
from gateway.web.rest import Answered, Handler, need_admin, object_body, whole_number
from gateway.web.shown import tool_row

DEFAULT_LIMIT = 100
MAX_LIMIT = 1000


async def capabilities(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    principal, snapshot = asked.context.principal, asked.snapshot
    return {
        "principal": principal.name,
        "admin": principal.admin,
        "organization": principal.organization,
        "role": principal.role,
        "connections": {
            name: {
                "provider": kind_of(state.settings),
                "status": state.status,
                "admin_access": admin_level(state),
                "user_access": user_level(snapshot, principal, name),
                "effective_access": level(snapshot, principal, state),
            }
            for name, state in snapshot.connections.items()
            if may_know(principal, state)
        },
    }


async def choose_access(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    state = known_connection(asked, request.path_params["connection"])
    access = object_body(body, "access")["access"]
    if access not in get_args(Level):
        allowed = ", ".join(get_args(Level))
        raise Fixable("invalid_arguments", f"access must be one of {allowed}")
    principal = asked.context.principal
    await asked.gateway.catalog.choose(principal.name, state.name, access)
    snapshot = asked.gateway.snapshot
    return {
        "connection": state.name,
        "admin_access": admin_level(state),
        "user_access": access,
        "effective_access": level(snapshot, principal, snapshot.connections[state.name]),
    }


async def list_connections(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    return shown_connections(asked)


async def get_connection(asked: Asked, request: Request, body: Any) -> Answered:
    state = known_connection(asked, request.path_params["name"])
    return Answered(await shown_connection(asked, state), headers={"etag": f'"{state.revision}"'})


async def put_connection(asked: Asked, request: Request, body: Any) -> Answered:
    need_admin(asked)
    name, values = request.path_params["name"], dict(object_body(body))
    if values.pop("name", name) != name:
        raise Fixable("invalid_arguments", "the body names another connection than the address")
    catalog = asked.gateway.catalog
    if values.pop("dry_run", False):
        return Answered(await catalog.preview(name, values))
    who, expected = asked.context.principal, _expected(request)
    if request.headers.get("if-none-match", "").strip() == "*":
        expected = 0
    elif _any_match(request) and name not in catalog.current.connections:
        expected = -1
    report = await catalog.put(
        name, values, by=who.name, within=who.organization, expected=expected
    )
    etag = {"etag": f'"{asked.gateway.snapshot.connections[name].revision}"'}
    return Answered(await shown_put(asked, report), headers=etag)


async def delete_connection(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    need_admin(asked)
    name = known_connection(asked, request.path_params["name"]).name
    by = asked.context.principal.name
    revision = await asked.gateway.catalog.delete(name, by=by, expected=_expected(request))
    return {"name": name, "deleted": True, "revision": revision}


async def refresh_connection(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    need_admin(asked)
    name = known_connection(asked, request.path_params["name"]).name
    by = asked.context.principal.name
    reports = await asked.gateway.catalog.refresh([name], by=by, asked=True)
    return reports[0].as_dict() | {"revision": asked.gateway.snapshot.revision}


async def preview_connection(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    need_admin(asked)
    values = dict(object_body(body, "kind"))
    values.pop("dry_run", None)
    return await asked.gateway.catalog.preview(values.pop("name", "preview"), values)


async def list_tools(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    tools = asked.view.tools
    names = list(tools)
    if connection := request.query_params.get("connection"):
        names = [name for name in names if tools[name].connection == connection]
    if search := request.query_params.get("search"):
        names = await asked.gateway.search(asked.snapshot, search, set(names), len(names))
    offset = whole_number(request, "offset", 0, 1_000_000)
    limit = whole_number(request, "limit", DEFAULT_LIMIT, MAX_LIMIT)
    permissions = asked.snapshot.permissions
    page = names[offset : offset + limit]
    return {
        "tools": [tool_row(tools[name], permissions) for name in page],
        "total": len(names),
        "revision": asked.snapshot.revision,
    }


async def get_tool(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    tool = _tool(asked, request.path_params["name"])
    output = tool.output_schema
    return tool_row(tool, asked.snapshot.permissions) | {
        "title": tool.title,
        "trust": tool.trust,
        "fingerprint": tool.fingerprint,
        "input_schema": orjson.loads(without_constants(whole_schema(tool))),
        "output_schema": orjson.loads(output) if output else None,
    }


async def resolve_step(asked: Asked, request: Request, body: Any) -> dict[str, Any]:
    wanted = object_body(body, "workflow", "step")
    names = (wanted["workflow"], wanted["step"])
    if not all(isinstance(name, str) for name in names):
        raise Fixable("invalid_arguments", "workflow and step must be strings")
    seen = asked.gateway.view_of(asked.snapshot, asked.context.principal, Scope("step", names))
    tools = seen.tools
    return {
        "tools": [
            {"name": tool.name, "connection": tool.connection, "direct": name in seen.direct}
            for name, tool in tools.items()
        ],
        "bundle_ids": list(seen.bundle_ids),
        "servers": sorted({tool.connection for tool in tools.values()}),
    }


def _tool(asked: Asked, name: str) -> Tool:
    tool = asked.view.tools.get(name)
    if tool is None:
        raise UnknownTool(name)
    return tool


def _any_match(request: Request) -> bool:
    return request.headers.get("if-match", "").strip() == "*"


def _expected(request: Request) -> int | None:
    """The revision an If-Match names; one that is not ours can match nothing."""
    match = request.headers.get("if-match")
    if match is None or match.strip() == "*":
        return None
    text = match.strip().removeprefix("W/").strip('"')
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1


ROUTES: list[tuple[str, str, Handler]] = [
    ("GET", "/capabilities", capabilities),
    ("PUT", "/access/{connection}", choose_access),
    ("GET", "/connections", list_connections),
    ("POST", "/connections/preview", preview_connection),
    ("GET", "/connections/{name}", get_connection),
    ("PUT", "/connections/{name}", put_connection),
    ("DELETE", "/connections/{name}", delete_connection),
    ("POST", "/connections/{name}/refresh", refresh_connection),
    ("GET", "/tools", list_tools),
    ("GET", "/tools/{name}", get_tool),
    ("POST", "/steps/resolve", resolve_step),
]
