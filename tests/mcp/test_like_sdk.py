"""The same odd requests to the SDK's own server and to ours: same status, same error code.

Where we differ on purpose, the row says what ours answers and why. And the SDK's own client finds
what it expects where it expects it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import httpx2
import mcp_types as types
import orjson
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import RequestParamsMeta

from gateway.calls.record import Caller
from gateway.errors import UnknownTool
from gateway.model import Principal, Scope
from tests.mcp.conftest import TOKENS, Edge, EdgeMaker, with_tokens
from tests.mcp.raw import META, call, modern, post, request, session
from tests.mcp.toolbox import Toolbox
from tests.peers_mcp import serving


@asynccontextmanager
async def sdk_server() -> AsyncIterator[str]:
    """The SDK's low-level server over the same tools, stateless, answering JSON."""
    toolbox, local = Toolbox(), Principal("local")

    async def list_tools(
        context: Any, params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        page = toolbox.view(local, Scope()).page(params.cursor if params else None)
        if page is None:
            raise MCPError(types.INVALID_PARAMS, "Invalid cursor")
        return types.ListToolsResult.model_validate(orjson.loads(b"{%b}" % page))

    async def call_tool(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        known = Caller(local, Scope(), "2026")
        try:
            result = await toolbox.call(params.name, params.arguments or {}, known)
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
LEGACY = {"mcp-protocol-version": "2025-11-25"}
LISTED = modern(request("tools/list"))
CALLED = modern(call("echo", a=1))


def envelope(**changes: Any) -> tuple[Any, dict[str, str]]:
    """A listing of 2026 with a changed envelope."""
    meta = {**META, **{globals()[name.upper()]: value for name, value in changes.items()}}
    meta = {key: value for key, value in meta.items() if value != "absent"}
    message, headers = LISTED
    return {**message, "params": {"_meta": meta}}, dict(headers)


def modern_params(method: str, **params: Any) -> tuple[Any, dict[str, str]]:
    return modern(request(method, params))


MODERN = [
    Row(*LISTED),
    Row(*CALLED),
    Row(*modern(request("server/discover"))),
    Row(*modern(request("ping"))),
    Row(*modern(request("initialize"))),
    Row(*modern(request("logging/setLevel", {"level": "info"}))),
    Row(*modern(request("prompts/list"))),
    Row(*modern(request("prompts/get", {"name": 7}))),
    Row(*modern(request("no/such/method"))),
    Row(*modern_params("tools/list", cursor=7)),
    Row(*modern_params("tools/list", cursor="nonsense")),
    Row(*modern_params("tools/list", cursor=None)),
    Row(*modern_params("tools/call", name="echo", arguments=None)),
    Row(*modern_params("tools/call", name="echo", arguments=[])),
    Row(*modern_params("tools/call", name="echo", arguments="x")),
    Row(*modern_params("tools/call", arguments={})),
    Row(*modern_params("tools/call", name=None)),
    Row(*modern_params("tools/call", name=7)),
    Row(*modern_params("tools/call", name="nothing")),
    Row(*modern_params("tools/call", name="echo", inputResponses=7)),
    Row(*modern_params("tools/call", name="echo", inputResponses={"a": 1})),
    Row(*modern_params("tools/call", name="echo", requestState=7)),
    Row(*modern_params("tools/call", name="fail")),
    Row(*envelope(version="absent")),
    Row(*envelope(version=None)),
    Row(*envelope(version=7)),
    Row(*envelope(version="2025-11-25")),
    Row(*envelope(capabilities="absent")),
    Row(*envelope(capabilities=None)),
    Row(*envelope(capabilities=[])),
    Row(*envelope(capabilities={"sampling": 7})),
    Row(*envelope(capabilities={"other": {}})),
    Row(*envelope(info="absent")),
    Row(*envelope(info=None)),
    Row(*envelope(info={"name": "x"})),
    Row(*envelope(info={"name": 7, "version": "1"})),
    Row(*modern(request("tools/list"), progressToken=1.5)),
    Row(*modern(request("tools/list"), progressToken=True)),
    Row(*modern(request("tools/list"), **{"io.modelcontextprotocol/logLevel": "loud"})),
    Row(request("tools/list"), LISTED[1]),
    Row(request("tools/list", {"_meta": []}), LISTED[1]),
    Row(request("tools/list", []), LISTED[1]),
    Row(request("tools/list", "x"), LISTED[1]),
    Row(LISTED[0], {**LISTED[1], "mcp-method": "tools/call"}),
    Row(LISTED[0], {"mcp-method": "tools/list"}, (400, -32020), UNSAID),
    Row(LISTED[0], {**LISTED[1], "mcp-protocol-version": "2030-01-01"}),
    Row(LISTED[0], {**LISTED[1], "mcp-protocol-version": "nonsense"}),
    Row(CALLED[0], {**CALLED[1], "mcp-name": "other"}),
    Row(CALLED[0], {**CALLED[1], "mcp-name": "=?base64?ZWNobw==?="}),
    Row(CALLED[0], {**CALLED[1], "mcp-name": "=?base64?%%?="}),
    Row(CALLED[0], {name: CALLED[1][name] for name in ("mcp-protocol-version", "mcp-method")}),
    Row(*modern(call("routed", region="eu"))),
    Row({**LISTED[0], "id": None}, LISTED[1]),
    Row({**LISTED[0], "id": 1.5}, LISTED[1]),
    Row({**LISTED[0], "id": True}, LISTED[1]),
    Row({**LISTED[0], "id": {}}, LISTED[1]),
    Row({**LISTED[0], "id": ""}, LISTED[1]),
    Row({**LISTED[0], "id": -1}, LISTED[1]),
    Row({**LISTED[0], "id": 2**70}, LISTED[1]),
    Row({**LISTED[0], "jsonrpc": "1.0"}, LISTED[1]),
    Row({**LISTED[0], "method": 7}, LISTED[1]),
    Row({**LISTED[0], "extra": 7}, LISTED[1]),
    Row([LISTED[0]], LISTED[1]),
    Row([], LISTED[1]),
    Row(7, LISTED[1]),
    Row(None, LISTED[1]),
    Row({"jsonrpc": "2.0", "id": 1, "result": {}}, LISTED[1]),
    Row({"jsonrpc": "2.0", "method": "notifications/cancelled"}, LISTED[1]),
    Row({"jsonrpc": "2.0", "method": 7}, LISTED[1]),
    Row({"method": "notifications/cancelled"}, LISTED[1]),
    Row(b"", LISTED[1]),
    Row(b"{", LISTED[1]),
    Row(b"\xff", LISTED[1]),
    Row(b'{"jsonrpc":"2.0","method":"x","method":"y"}', LISTED[1], (400, -32700), TWICE),
    Row(LISTED[0], {**LISTED[1], "accept": "text/html"}, (406, -32600), "ours has a body"),
    Row(LISTED[0], {**LISTED[1], "accept": "application/json"}),
    Row(LISTED[0], {**LISTED[1], "accept": "application/*;q=0.1"}),
    Row(
        LISTED[0],
        {**LISTED[1], "content-type": "text/plain"},
        (415, -32600),
        "415 is the status for it",
    ),
    Row(b"", LISTED[1], (405, -32600), "ours has a body", method="GET"),
    Row(b"", LISTED[1], (405, -32600), "ours has a body", method="DELETE"),
]

HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "c", "version": "1"},
}
HANDSHAKE = [
    Row(request("initialize", HELLO), {}),
    Row(request("initialize", {**HELLO, "protocolVersion": "1999-01-01"}), {}),
    Row(request("initialize", {**HELLO, "protocolVersion": 7}), {}),
    Row(request("initialize", {**HELLO, "capabilities": None}), {}),
    Row(request("initialize", {**HELLO, "clientInfo": {"name": "c"}}), {}),
    Row(request("initialize"), {}),
]

SESSION = [
    Row(request("ping"), LEGACY),
    Row(request("ping", {"_meta": {"progressToken": 1}}), LEGACY),
    Row(request("ping", {"_meta": 7}), LEGACY),
    Row(request("tools/list"), LEGACY),
    Row(request("tools/list", {}), LEGACY),
    Row(request("tools/list", {"cursor": 7}), LEGACY),
    Row(request("tools/list", {"cursor": "nonsense"}), LEGACY),
    Row(call("echo", a=1), LEGACY),
    Row(request("tools/call", {"name": "echo"}), LEGACY),
    Row(request("tools/call", {"name": "echo", "arguments": None}), LEGACY),
    Row(request("tools/call", {"name": "echo", "arguments": []}), LEGACY),
    Row(request("tools/call", {"name": 7}), LEGACY),
    Row(request("tools/call", {"name": "echo", "task": 7}), LEGACY),
    Row(request("tools/call", {"name": "echo", "_meta": {"progressToken": {}}}), LEGACY),
    Row(request("tools/call"), LEGACY),
    Row(call("nothing"), LEGACY),
    Row(request("server/discover"), LEGACY),
    Row(request("subscriptions/listen", {"notifications": {}}), LEGACY),
    Row(request("prompts/list"), LEGACY),
    Row(request("prompts/get", {}), LEGACY),
    Row(request("resources/read", {"uri": "x:y"}), LEGACY),
    Row(request("completion/complete", {}), LEGACY),
    Row(request("logging/setLevel", {"level": "info"}), LEGACY),
    Row(request("no/such/method"), LEGACY),
    Row({"jsonrpc": "2.0", "method": "notifications/initialized"}, LEGACY),
    Row({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}}, LEGACY),
    Row({"jsonrpc": "2.0", "method": "no/such/notification"}, LEGACY),
    Row({"jsonrpc": "2.0", "id": 9, "result": {}}, LEGACY),
    Row({"jsonrpc": "2.0", "id": 9, "error": {"code": 1, "message": "x"}}, LEGACY),
    Row(request("ping", request_id=""), LEGACY),
    Row(request("ping", request_id=None), LEGACY, (400, -32600), NOT_DROPPED),
    Row(request("ping", request_id=1.5), LEGACY, (400, -32600), NOT_DROPPED),
    Row(request("ping", request_id=True), LEGACY, (400, -32600), NOT_DROPPED),
    Row(request("ping", []), LEGACY, (400, -32600), STRICT),
    Row({**request("ping"), "jsonrpc": "1.0"}, LEGACY, (400, -32600), STRICT),
    Row([request("ping")], LEGACY, (400, -32600), STRICT),
    Row(7, LEGACY, (400, -32600), STRICT),
    Row({"jsonrpc": "2.0", "id": 1}, LEGACY, (400, -32600), STRICT),
    Row(b"{", LEGACY),
    Row(b"", LEGACY),
    Row(b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}', LEGACY, (400, -32700), TWICE),
    Row(call("fail"), LEGACY, (200, -32603), "the SDK shows the exception's text, with code 0"),
    Row(request("ping"), {**LEGACY, "accept": "text/html"}),
    Row(request("ping"), {**LEGACY, "accept": "application/json"}),
    Row(
        request("ping"),
        {**LEGACY, "content-type": "text/plain"},
        (415, -32600),
        "415 is the status for it",
    ),
    Row(request("ping"), LEGACY, method="PUT"),
]


@pytest.mark.parametrize(
    ("rows", "in_session"), [(MODERN, False), (HANDSHAKE, False), (SESSION, True)]
)
async def test_odd_requests_are_answered_as_the_sdk_does(
    edge: Edge, rows: list[Row], in_session: bool
) -> None:
    own = await session(edge) if in_session else {}
    wrong: list[tuple[Any, ...]] = []
    async with sdk_server() as base:
        reference = Edge(edge.toolbox, edge.identity, edge.endpoint, base, edge.http)
        for number, row in enumerate(rows):
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
    headers = {"authorization": f"Bearer {TOKENS['ann']}"}
    async with httpx2.AsyncClient(headers=headers) as http:
        transport = streamable_http_client(edge.url, http_client=http)
        async with Client(transport, mode=mode) as client:
            await client.call_tool("echo", {}, meta=meta)
    [(_, _, context)] = edge.toolbox.calls
    assert context.principal.name == "ann"
    assert context.client.startswith("mcp/")
    assert context.meta["gateway/idempotency_token"] == "t"
    assert context.era == ("2025" if mode == "legacy" else "2026")
    assert (context.session is not None) == (mode == "legacy")


@both_modes
async def test_bundle_and_step_addresses_are_views_of_their_own(edge: Edge, mode: Mode) -> None:
    for path in ("/bundles/a+b", "/steps/flow/step"):
        async with Client(edge.url + path, mode=mode) as client:
            assert (await client.list_tools()).tools == []
