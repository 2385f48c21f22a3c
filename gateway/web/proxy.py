"""A raw request to a connection's API, under the same rules as its tools. Pure.

The request goes to the connection's own base URL and nowhere else. Its path is made plain first:
dot segments are resolved, and a path that leaves the base path in any spelling is refused. Where it
is the path of an operation, the rules for that operation hold here too, whether or not it is a
tool; an operation that a manifest or the operator calls dangerous can't be reached; and a caller
whose role narrows its view reaches only the tools in that view.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import parse_qs, urlsplit

import orjson

from gateway.blocklist import has_dot_segments, may_mean, may_reroute
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.errors import Fixable, NotFound, Refused
from gateway.limits import PATH_CHARS
from gateway.model import (
    ACCESS_OF_METHOD,
    RISK_OF_ACCESS,
    Access,
    Body,
    HttpOperation,
    Parameter,
    Principal,
    Skipped,
    Tool,
)
from gateway.model import digest as sha256
from gateway.policy.access import decide, level, may_know, strictness
from gateway.policy.view import View, bundles_of

NAME = "proxy"
DANGER: Mapping[Access, int] = {"read": 0, "write": 1, "delete": 2, "dangerous": 3}
_SCALAR = {"type": ["string", "number", "boolean", "null"]}
_QUERY_VALUE = {"anyOf": [_SCALAR, {"type": "array", "items": _SCALAR}]}
_QUERY = {"type": "object", "additionalProperties": _QUERY_VALUE}
_SCHEMA = orjson.dumps({"type": "object", "properties": {"query": _QUERY}})
_END = re.compile(r"[?#]")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\#]")


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """The raw request that a caller wants to be sent."""

    connection: str
    method: str
    path: str
    query: Mapping[str, Any] = field(default_factory=dict)
    body: Any = None

    def as_dict(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in self.__dataclass_fields__}  # no deep copy

    @property
    def arguments(self) -> dict[str, Any]:
        """The same as a tool's arguments, for the ledger and for people."""
        target = {"method": self.method, "path": self.path}
        content = {"query": dict(self.query), "body": self.body}
        return target | {name: value for name, value in content.items() if value not in (None, {})}


def proxy_request(connection: object, method: object, path: object, **parts: Any) -> ProxyRequest:
    """The request in a body, with its path made plain; raises where it can't be sent."""
    if not isinstance(connection, str) or not isinstance(path, str) or not isinstance(method, str):
        raise Fixable("invalid_arguments", "connection, method and path must be strings")
    if method.upper() not in ACCESS_OF_METHOD:
        raise Fixable("invalid_arguments", f"method must be one of {', '.join(ACCESS_OF_METHOD)}")
    query = parts.get("query") or {}
    if not isinstance(query, Mapping):
        raise Fixable("invalid_arguments", "query must be an object")
    plain, inline = plain_path(path)
    return ProxyRequest(connection, method.upper(), plain, {**inline, **query}, parts.get("body"))


def plain_path(path: str) -> tuple[str, dict[str, Any]]:
    """The path with its dot segments resolved, and the query that was written into it."""
    if len(path) > PATH_CHARS or _FORBIDDEN.search(path) or "://" in path.partition("?")[0]:
        raise Fixable(
            "invalid_arguments",
            "path must be a path of the connection's API, such as /candidates/7",
            "Percent-encode blanks and other special characters; give no host.",
        )
    path, _, query = path.partition("?")
    resolved: list[str] = []
    for segment in path.removeprefix("/").split("/"):
        if segment == ".." and not resolved:
            raise _not_allowed("The path leaves the connection's base URL.")
        if segment == "..":
            resolved.pop()
        elif segment != ".":
            resolved.append(segment)
    plain = "/" + "/".join(resolved)
    if has_dot_segments(plain):
        raise _not_allowed("The path hides dot segments.")
    inline: dict[str, Any] = {}
    for name, values in parse_qs(query, keep_blank_values=True).items():
        inline[name] = values if len(values) > 1 else values[0]
    return plain.replace("{", "%7B").replace("}", "%7D"), inline


def resolve_request(
    snapshot: Snapshot, principal: Principal, view: View, request: ProxyRequest
) -> tuple[Tool, Tool]:
    """The request as a tool, and the tool whose permissions it falls under.

    Raises the error that the caller is told where the request may not be made.
    """
    state = _connection(snapshot, principal, request.connection)
    _check_names(request)
    assert state.build is not None  # `_connection` refuses what is not connected
    fits = partial(_may_mean, request, _base_url(state))
    skipped = [e for e in state.build.skipped if fits(e.method, e.path, e.base_url)]
    tools = [t for t in state.tools if t.http and fits(t.method, t.http.path, t.http.base_url)]
    tools.sort(key=lambda tool: -DANGER[tool.access])
    if any(each.access == "dangerous" for each in skipped):
        raise _not_allowed("It is marked dangerous and can't be reached through the gateway.")
    if bundles_of(snapshot, principal, view.address) is not None:
        tools = [tool for tool in tools if tool.name in view.tools]
        if not tools:
            raise Refused(
                "access_denied", "your role has no tool for this request", "Use a tool you see."
            )
    injections = _injected_parameters(state, request, tools)
    tool = _tool(state, request, tools, injections, [e.access for e in skipped if e.access])
    if level(snapshot, principal, state) == "read-only" and tool.access != "read":
        raise Refused("read_only", f"You have read-only access to {state.display_name}")
    return tool, _strictest_tool(snapshot, tool, [t.name for t in tools], skipped)


def _check_names(request: ProxyRequest) -> None:
    """Refuses parameters that override the method: some servers take them before the method."""
    body = request.body if isinstance(request.body, Mapping) else {}
    for place, names in (("query", request.query), ("body", body)):
        if name := next((name for name in names if may_reroute(name, place)), None):
            raise _not_allowed(f"{name[:64]!r} in the {place} could make it another request.")


def _injected_parameters(
    state: ConnectionState, request: ProxyRequest, tools: Sequence[Tool]
) -> list[Parameter]:
    """The parameters that the connection fills in, as far as the requested operation has them.

    A caller can't give them. A parameter in the path or the body can be filled in by the tool only.
    """
    inject, body = state.settings.inject, request.body
    sent_names = [*request.query, *(body if isinstance(body, Mapping) else ())]
    operations = [tool.http for tool in tools if tool.http]
    parameters = [p for each in operations for p in each.parameters if p.argument in inject]
    names = {name.casefold() for name in (*inject, *(each.name for each in parameters))}
    if any(re.split(r"[.\[]", name)[0].strip().casefold() in names for name in sent_names):
        raise _not_allowed("The connection fills in a parameter that the request names.")
    bodies = [each.body for each in operations if each.body]
    places = {
        place for each in bodies for place in (each.whole, *(f.argument for f in each.fields))
    }
    if not places.isdisjoint(inject) or any(each.place == "path" for each in parameters):
        raise _not_allowed("The connection fills in a part of its path or body: call its tool.")
    return list({(each.place, each.name): each for each in parameters}.values())


def _strictest_tool(
    snapshot: Snapshot, tool: Tool, tool_names: Sequence[str], skipped: Sequence[Skipped]
) -> Tool:
    """The request's tool, under that of its possible names with the strictest permission."""
    names = [*tool_names, *(each.tool for each in skipped)] or [NAME]
    candidates = [replace(tool, name=name) for name in names]
    return max(candidates, key=lambda each: strictness(decide(each, snapshot.permissions)))


def _connection(snapshot: Snapshot, principal: Principal, name: str) -> ConnectionState:
    state = snapshot.connections.get(name)
    if state is None or not may_know(principal, state):
        raise NotFound("connection_invalid", f"there is no connection {name!r}")
    if state.settings.kind == "mcp":
        raise Refused(
            "unsupported_provider", f"{state.display_name} is an MCP server: it has no HTTP API"
        )
    if level(snapshot, principal, state) == "disabled":
        raise Refused("access_denied", f"you have no access to {state.display_name}")
    if state.status in ("pending", "disabled") or state.build is None:
        raise Refused("not_connected", f"{state.display_name} is not connected")
    return state


def _base_url(state: ConnectionState) -> str:
    """The base URL of the served tools: a definition that points elsewhere may be held back."""
    assert state.build is not None
    served = Counter(tool.http.base_url for tool in state.tools if tool.http is not None)
    if not served or state.build.base_url in served:
        return state.build.base_url
    return served.most_common(1)[0][0]


def _may_mean(request: ProxyRequest, base_url: str, method: str, path: str, home: str) -> bool:
    """Whether the request may mean the operation at this path of the URL `home`.

    The operation may have a server of its own, whose path can be reached from the connection's. A
    query in its path is ignored: some servers would find it elsewhere in the request.
    """
    reads = ("GET", "HEAD")
    if method.upper() != request.method and not {method.upper(), request.method} <= {*reads}:
        return False
    plain = _END.split(path, maxsplit=1)[0]
    spellings = {plain, plain.replace("/{connectionId}", "", 1)}
    spellings |= {urlsplit(home).path + each for each in spellings}
    return any(may_mean(each, base_url, request.path) for each in spellings)


def _tool(
    state: ConnectionState,
    request: ProxyRequest,
    tools: list[Tool],
    injections: Sequence[Parameter],
    skipped: list[Access],
) -> Tool:
    accesses = [ACCESS_OF_METHOD[request.method], *skipped, *(tool.access for tool in tools)]
    access = max(accesses, key=lambda kind: DANGER[kind])
    operation = HttpOperation(
        method=request.method,
        base_url=_base_url(state),
        path=request.path,
        parameters=(
            *injections,
            *(
                Parameter(name, "query", None, style="form", explode=True, constant=value)
                for name, value in request.query.items()
            ),
        ),
        body=Body("application/json", whole="body") if request.body is not None else None,
        accept="*/*",
        headers_out=tuple(name for tool in tools if tool.http for name in tool.http.headers_out),
    )
    # With its path: a standing grant for one raw request does not cover another.
    identity = [request.method, operation.base_url, request.path, state.settings.auth.type, access]
    identity += [tool.fingerprint for tool in tools]
    return Tool(
        name=NAME,
        local_name=NAME,
        connection=state.name,
        operation=None,
        method=request.method,
        path=request.path,
        access=access,
        risk=tools[0].risk if tools else RISK_OF_ACCESS[access],
        trust=state.settings.trust,
        title="Raw request",
        description="",
        input_schema=_SCHEMA,
        fingerprint=sha256(orjson.dumps([NAME, *identity])),
        http=operation,
    )


def _not_allowed(hint: str) -> Refused:
    return Refused("blocked_path", "Access to this endpoint is not allowed", hint)
