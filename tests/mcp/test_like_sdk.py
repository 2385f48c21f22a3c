"""The same odd requests to the SDK's own server and to ours: same status, same error code.

Where we differ on purpose, the row says what ours answers and why. And the SDK's own client finds
what it expects where it expects it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import mcp_types as types
import orjson
import pytest
from mcp import Client
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import RequestParamsMeta

from gateway.calls.record import Caller
from gateway.errors import UnknownTool
from gateway.model import Principal, ViewAddress
from tests.callers import client as client_of
from tests.mcp.conftest import Edge, EdgeMaker, with_tokens
from tests.mcp.raw import META, call, hello, modern, post, request, session
from tests.mcp.toolbox import Toolbox
from tests.peers_mcp import serving


@asynccontextmanager
async def sdk_server() -> AsyncIterator[str]:
    """The SDK's low-level server over the same tools, stateless, answering JSON."""
    toolbox, local = Toolbox(), Principal("local")

    async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
        page = toolbox.view(local, ViewAddress()).page(params.cursor if params else None)
        if page is None:
            raise MCPError(types.INVALID_PARAMS, "Invalid cursor")
        return types.ListToolsResult.model_validate(orjson.loads(b"{%b}" % page))

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        known = Caller(local, ViewAddress(), "2026")
        try:
            inquiry = toolbox.inquiry(known)
            result = await toolbox.call(inquiry, params.name, params.arguments or {})
        except UnknownTool as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from error
        return types.CallToolResult.model_validate(result)

    async def ping(context: Any, params: types.RequestParams | None) -> types.EmptyResult:
        return types.EmptyResult()

    server: Server[Any] = Server(
        "sdk", on_list_tools=list_tools, on_call_tool=call_tool, on_ping=ping
    )
    manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await manager.handle_request(scope, receive, send)

    async with manager.run(), serving(app) as base:
        yield base


@dataclass(frozen=True)
class Row:
    """One odd request; `ours` where we answer otherwise, with the reason."""

    message: Any
    headers: Mapping[str, str]
    ours: tuple[int, int | None] | None = None
    why: str = ""
    method: str = "POST"


VERSION = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
INFO = "io.modelcontextprotocol/clientInfo"
STRICT = "the SDK answers -32602 where JSON-RPC has a code of its own for this"
NOT_DROPPED = "the SDK takes it for a notification and drops it; whoever sent an id waits"
TWICE = "the SDK takes the last of two values; the next reader may take the first"
UNSAID = "the SDK takes it for the handshake era; its message says which era it is of"
STATUS = "415 is the status for it"
VERSION_HEADER = "mcp-protocol-version"
LEGACY = {VERSION_HEADER: "2025-11-25"}
LISTED = modern(request("tools/list"))
CALLED = modern(call("echo", a=1))


def every(*values: Any) -> tuple[Any, ...]:
    return values


def modern_rows() -> Iterator[Row]:
    plain, headers = LISTED
    for method in "tools/list server/discover ping initialize prompts/list no/such/method".split():
        yield Row(*modern(request(method)))
    yield Row(*modern(request("logging/setLevel", {"level": "info"})))
    yield Row(*modern(request("prompts/get", {"name": 7})))
    for cursor in every(7, "nonsense", None):
        yield Row(*modern(request("tools/list", {"cursor": cursor})))
    for params in CALLS:
        yield Row(*modern(request("tools/call", params)))
    for message in every(call("echo", a=1), call("routed", region="eu")):
        yield Row(*modern(message))
    for key, values in ENVELOPE.items():
        for value in values:
            meta = {key: value} if value != "absent" else {}
            rest = {name: known for name, known in META.items() if name != key}
            yield Row({**plain, "params": {"_meta": rest | meta}}, headers)
    for params in every(None, {"_meta": []}, [], "x"):
        yield Row(request("tools/list", params), headers)
    yield Row(plain, {"mcp-method": "tools/list"}, (400, -32020), UNSAID)
    for changed in ({"mcp-method": "tools/call"}, *({VERSION_HEADER: v} for v in ("2030", "x"))):
        yield Row(plain, headers | changed)
    for name in every("other", "=?base64?ZWNobw==?=", "=?base64?%%?="):
        yield Row(CALLED[0], CALLED[1] | {"mcp-name": name})
    yield Row(CALLED[0], {name: CALLED[1][name] for name in every(VERSION_HEADER, "mcp-method")})
    for id in every(None, 1.5, True, {}, "", -1, 2**70):
        yield Row(plain | {"id": id}, headers)
    for changes in every({"jsonrpc": "1.0"}, {"method": 7}, {"extra": 7}):
        yield Row(plain | changes, headers)
    for message in every([plain], [], 7, None, b"", b"{", b"\xff", {"method": CANCELLED["method"]}):
        yield Row(message, headers)
    for message in every({"id": 1, "result": {}}, CANCELLED, {"method": 7}):
        yield Row({"jsonrpc": "2.0", **message}, headers)
    yield Row(b'{"jsonrpc":"2.0","method":"x","method":"y"}', headers, (400, -32700), TWICE)
    yield Row(plain, headers | {"accept": "text/html"}, (406, -32600), "ours has a body")
    for accept in ("application/json", "application/*;q=0.1"):
        yield Row(plain, headers | {"accept": accept})
    yield Row(plain, headers | {"content-type": "text/plain"}, (415, -32600), STATUS)
    for method in ("GET", "DELETE"):
        yield Row(b"", headers, (405, -32600), "ours has a body", method=method)


CANCELLED = {"method": "notifications/cancelled"}
CALLS: list[dict[str, Any]] = [
    *({"name": "echo", "arguments": arguments} for arguments in every(None, [], "x")),
    {"arguments": {}},
    *({"name": name} for name in every(None, 7, "nothing", "fail")),
    *({"name": "echo", "inputResponses": given} for given in every(7, {"a": 1})),
    {"name": "echo", "requestState": 7},
]
ENVELOPE: dict[str, list[Any]] = {
    VERSION: ["absent", None, 7, "2025-11-25"],
    CAPABILITIES: ["absent", None, [], {"sampling": 7}, {"other": {}}],
    INFO: ["absent", None, {"name": "x"}, {"name": 7, "version": "1"}],
    "progressToken": [1.5, True],
    "io.modelcontextprotocol/logLevel": ["loud"],
}

HELLO = hello("2025-11-25")


def handshake_rows() -> Iterator[Row]:
    for changes in every(
        {},
        *({"protocolVersion": version} for version in ("1999-01-01", 7)),
        {"capabilities": None},
        {"clientInfo": {"name": "c"}},
    ):
        yield Row(request("initialize", {**HELLO, **changes}), {})
    yield Row(request("initialize"), {})


def session_rows() -> Iterator[Row]:
    for params in every(None, {"_meta": {"progressToken": 1}}, {"_meta": 7}):
        yield Row(request("ping", params), LEGACY)
    for params in every(None, {}, {"cursor": 7}, {"cursor": "nonsense"}):
        yield Row(request("tools/list", params), LEGACY)
    for call_params in every(
        None,
        *({"name": name} for name in every("echo", 7, "nothing")),
        *({"name": "echo", "arguments": arguments} for arguments in every({"a": 1}, None, [])),
        {"name": "echo", "task": 7},
        {"name": "echo", "_meta": {"progressToken": {}}},
    ):
        yield Row(request("tools/call", call_params), LEGACY)
    for method, params in OTHERS.items():
        yield Row(request(method, params), LEGACY)
    for message in every(
        *({"method": f"notifications/{kind}"} for kind in ("initialized", "nothing")),
        {**CANCELLED, "params": {}},
        {"id": 9, "result": {}},
        {"id": 9, "error": {"code": 1, "message": "x"}},
    ):
        yield Row({"jsonrpc": "2.0", **message}, LEGACY)
    yield Row(request("ping", request_id=""), LEGACY)
    for id in every(None, 1.5, True):
        yield Row(request("ping", request_id=id), LEGACY, (400, -32600), NOT_DROPPED)
    ping = request("ping")
    bare = {"jsonrpc": "2.0", "id": 1}
    for odd in every(request("ping", []), ping | {"jsonrpc": "1.0"}, [ping], 7, bare):
        yield Row(odd, LEGACY, (400, -32600), STRICT)
    for body in (b"{", b""):
        yield Row(body, LEGACY)
    yield Row(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', LEGACY, (400, -32700), TWICE)
    yield Row(
        call("fail"), LEGACY, (200, -32603), "the SDK shows the exception's text, with code 0"
    )
    for accept in ("text/html", "application/json"):
        yield Row(ping, LEGACY | {"accept": accept})
    yield Row(ping, LEGACY | {"content-type": "text/plain"}, (415, -32600), STATUS)
    yield Row(ping, LEGACY, method="PUT")


OTHERS: dict[str, Any] = {
    "server/discover": None,
    "subscriptions/listen": {"notifications": {}},
    "prompts/list": None,
    "prompts/get": {},
    "resources/read": {"uri": "x:y"},
    "completion/complete": {},
    "logging/setLevel": {"level": "info"},
    "no/such/method": None,
}


@pytest.mark.parametrize(
    ("rows", "in_session"),
    [(modern_rows, False), (handshake_rows, False), (session_rows, True)],
)
async def test_odd_requests_are_answered_as_the_sdk_does(
    edge: Edge, rows: Callable[[], Iterator[Row]], in_session: bool
) -> None:
    own = await session(edge) if in_session else {}
    wrong: list[tuple[Any, ...]] = []
    async with sdk_server() as base:
        reference = Edge(edge.toolbox, edge.identity, edge.endpoint, base, edge.http)
        for number, row in enumerate(rows()):
            theirs = await post(reference, row.message, row.headers, row.method)
            ours = await post(edge, row.message, {**own, **row.headers}, row.method)
            expected = row.ours or (theirs.status, theirs.code)
            if (ours.status, ours.code) != expected or "hunter2" in str(ours.body):
                wrong.append((number, row.message, ours, theirs))
            if row.ours is not None and (theirs.status, theirs.code) == row.ours:
                wrong.append((number, "no difference any more", row.why, theirs))
    assert wrong == []


Mode = Literal["legacy", "2026-07-28"]
both_modes = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])


async def test_client_that_negotiates_finds_the_newest_era(edge: Edge) -> None:
    async with Client(edge.url, mode="auto") as client:
        assert client.protocol_version == "2026-07-28"
        assert client.server_capabilities.tools is not None
        assert client.server_capabilities.tools.list_changed is True


@both_modes
async def test_call_knows_its_client(make_edge: EdgeMaker, mode: Mode) -> None:
    edge: Edge = await make_edge(with_tokens("ann"))
    meta = cast(RequestParamsMeta, {"gateway/idempotency_token": "t"})
    async with client_of(edge.base, "ann", mode) as client:
        await client.call_tool("echo", {}, meta=meta)
    [(_, _, context)] = edge.toolbox.calls
    assert context.principal.name == "ann"
    assert context.client.startswith("mcp/")
    assert context.meta["gateway/idempotency_token"] == "t"
    assert context.era == ("2025" if mode == "legacy" else "2026")
    assert (context.session is not None) == (mode == "legacy")
