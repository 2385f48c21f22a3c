"""Small real MCP servers for tests: the SDK's low-level server over HTTP, in either era.

`mcp_peer` serves one on a free port of this process. Its tools do what upstreams do: answer, fail,
take long, report progress, ask back, send pictures, grow. `scripted_peer` answers each JSON-RPC
message with what a function says, for what no decent server would do. Over stdio,
`tests/asking_peer.py` is the SDK's server, and `tests/stdio_peer.py` a quicker child with more
faults.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import mcp_types as types
import orjson
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler, ToolsListChanged
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.configs import table
from tests.definitions import an_object
from tests.peers import soon, stop_accepting

Era = Literal["2025", "2026", "both"]
Context = ServerRequestContext[dict[str, Any], Any]
PIXEL = "iVBORw0KGgo="
PLAIN_SCHEMA: dict[str, Any] = {"type": "object"}
PLAIN_TOOLS = ("slow", "steps", "fail", "refuse", "picture", "link", "ask", "huge")
TEXT_SCHEMA = an_object({"text": {"type": "string"}}, "text")
NAME_FORM = an_object({"name": {"type": "string"}})
REGION_SCHEMA = an_object({"region": {"type": "string", "x-mcp-header": "Region"}})


@dataclass
class McpPeer:
    """A server's tools, what it saw, and what the test may do to it."""

    url: str = ""
    tools: dict[str, dict[str, Any]] = field(
        default_factory=lambda: {
            "echo": TEXT_SCHEMA,
            "region": REGION_SCHEMA,
            **dict.fromkeys(PLAIN_TOOLS, PLAIN_SCHEMA),
        }
    )
    calls: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    versions: set[str] = field(default_factory=set)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    release: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    bus: InMemorySubscriptionBus = field(default_factory=InMemorySubscriptionBus)
    sessions: dict[int, ServerSession] = field(default_factory=dict)
    frozen: bool = False  # it takes requests and answers none

    def table(self, name: str = "up", **more: Any) -> str:
        """The connection that leads here."""
        return table(f"connections.{name}", kind="mcp", url=self.url, **more)

    def more(self) -> dict[str, Any]:
        """What its server has beside tools."""
        return {}

    async def announce(self) -> None:
        """Tells every client, of either era, that the tools changed."""
        await self.bus.publish(ToolsListChanged())
        for session in self.sessions.values():
            await session.send_tool_list_changed()

    async def list_tools(self, ctx: Context, params: Any) -> types.ListToolsResult:
        self.note(ctx)
        names = list(self.tools)
        start = int(params.cursor) if params and params.cursor else 0
        page = [types.Tool(name=n, input_schema=self.tools[n]) for n in names[start : start + 4]]
        more = str(start + 4) if start + 4 < len(names) else None
        return types.ListToolsResult(tools=page, next_cursor=more)

    async def call_tool(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        self.note(ctx)
        self.calls.append(params.name)
        if params.name not in self.tools:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        return await getattr(self, f"_{params.name}")(ctx, params)

    def note(self, ctx: Context) -> None:
        """Remembers a session, to tell it of changes."""
        self.versions.add(ctx.protocol_version)
        if ctx.protocol_version < "2026":
            self.sessions[id(ctx.session._connection)] = ctx.session
        if isinstance(ctx.request, Request):
            self.headers.append(dict(ctx.request.headers))

    async def _echo(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        text = str((params.arguments or {}).get("text"))
        return types.CallToolResult(
            content=[types.TextContent(text=text)], structured_content={"text": text}
        )

    async def _region(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        return said(self.headers[-1].get("mcp-param-region", "none"))

    async def _slow(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        self.entered.set()
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return said("done")

    async def _steps(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        asked = params.arguments or {}
        for step in range(1, asked.get("steps", 3) + 1):
            await ctx.session.report_progress(step, 3, f"step {step}")
            await asyncio.sleep(asked.get("pause", 0))
        return said("done")

    async def _fail(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        return types.CallToolResult(content=[types.TextContent(text="no room")], is_error=True)

    async def _refuse(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        raise MCPError(types.INVALID_PARAMS, "not like this", {"why": "because"})

    async def _picture(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        return types.CallToolResult(content=[types.ImageContent(data=PIXEL, mime_type="image/png")])

    async def _link(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        link = types.ResourceLink(uri="file:///report", name="report")
        return types.CallToolResult(content=[link])

    async def _huge(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        return said("x" * int((params.arguments or {})["bytes"]))

    async def _ask(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        if ctx.protocol_version < "2026":
            answer = await ctx.session.elicit_form("Who are you?", NAME_FORM, ctx.request_id)
            return said(f"{answer.action} {(answer.content or {}).get('name')}")
        if params.input_responses:
            response = params.input_responses["who"]
            assert isinstance(response, types.ElicitResult)
            return said(f"{response.action} {(response.content or {}).get('name')}")
        question = types.ElicitRequest(
            params=types.ElicitRequestFormParams(message="Who are you?", requested_schema=NAME_FORM)
        )
        return types.InputRequiredResult(input_requests={"who": question}, request_state="s1")


def said(text: str) -> types.CallToolResult:
    """A result that is this text."""
    return types.CallToolResult(content=[types.TextContent(text=text)])


class TellingServer(Server[dict[str, Any]]):
    """One that says at the handshake that it will tell of changes."""

    def create_initialization_options(self, *args: Any, **kwargs: Any) -> InitializationOptions:
        return super().create_initialization_options(NotificationOptions(True, True, True))


def sdk_server(peer: McpPeer) -> Server[dict[str, Any]]:
    """The SDK's server over a peer's tools, and what else it has."""
    listen = ListenHandler(peer.bus)

    async def listening(ctx: Context, params: types.SubscriptionsListenRequestParams) -> Any:
        peer.listening.set()
        return await listen(ctx, params)

    handlers: dict[str, Any] = {
        "name": "peer",
        "instructions": "Be kind.",
        "on_list_tools": peer.list_tools,
        "on_call_tool": peer.call_tool,
        "on_subscriptions_listen": listening,
        "get_tool_input_schema": peer.tools.get,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        return TellingServer(version="1", **{**handlers, **peer.more()})


@asynccontextmanager
async def mcp_peer(
    era: Era = "both",
    *,
    port: int = 0,
    json_response: bool = False,
    peer: McpPeer | None = None,
    stateless: bool = False,
) -> AsyncIterator[McpPeer]:
    """A served McpPeer; one of 2025 knows nothing of 2026."""
    peer = peer or McpPeer()
    server = sdk_server(peer)
    app = server.streamable_http_app(json_response=json_response, stateless_http=stateless)
    async with serving(_Watched(app, peer, era), port) as base:
        peer.url = f"{base}/mcp"
        yield peer


@dataclass
class _Watched:
    """Notes the methods that come in, and refuses what its era does not know."""

    app: ASGIApp
    peer: McpPeer
    era: Era

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {k.decode(): v.decode() for k, v in scope["headers"]}
        modern = headers.get("mcp-protocol-version") == "2026-07-28"
        self.peer.methods.append(headers.get("mcp-method") or scope["method"])
        if self.peer.frozen:
            await asyncio.Event().wait()
        if self.era != "both" and modern != (self.era == "2026"):
            await JSONResponse(_refusal(modern), 400)(scope, receive, send)
            return
        if scope["method"] == "GET":
            self.peer.listening.set()
        await self.app(scope, receive, send)


def _refusal(modern: bool) -> dict[str, Any]:
    code = -32000 if modern else types.UNSUPPORTED_PROTOCOL_VERSION
    data = {"supported": ["2026-07-28"], "requested": "?"}
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": "No", "data": data}}


Scripted = Callable[[dict[str, Any], Request], Awaitable[Response]]


@asynccontextmanager
async def scripted_peer(answer: Scripted) -> AsyncIterator[str]:
    """The URL of a server that answers every POST as the function says, and has no stream."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        if scope["method"] != "POST":
            response: Response = Response(status_code=405)
        else:
            response = await answer(orjson.loads(await request.body()), request)
        await response(scope, receive, send)

    async with serving(app) as base:
        yield f"{base}/mcp"


class _Quiet(uvicorn.Server):
    """One that leaves the process's signals alone, says when it is up, and ends at once."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()
        self.enough = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.enough.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await stop_accepting(*self.servers)
        for connection in tuple(self.server_state.connections):
            connection.transport.close()
        await asyncio.sleep(0)  # until they are closed
        await self.lifespan.shutdown()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@asynccontextmanager
async def serving(app: ASGIApp, port: int = 0, **options: Any) -> AsyncIterator[str]:
    """The base URL of an ASGI app served in this event loop; gone at the end, streams and all."""
    # asyncio sends small packets at once only on sockets that say they are TCP.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    config = uvicorn.Config(
        app,
        log_level="critical",
        lifespan="auto",
        timeout_graceful_shutdown=0,
        ws="none",
        **options,
    )
    server = _Quiet(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        await soon(server.up.wait())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.enough.set()
        await soon(asyncio.gather(task, return_exceptions=True))
