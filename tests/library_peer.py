"""A real MCP server with books to read: prompts, changing resources, completion, logs, questions.

It stands behind the gateway in tests of what is passed through, in either era. What a test may do
to it is on `LibraryPeer`; what it saw is there too.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourceUpdated,
)
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.peers_mcp import serving

Era = Literal["2025", "2026"]
Context = ServerRequestContext[dict[str, Any], Any]
SECRET = "s3cret-of-the-library"
NAME_FORM: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}


@dataclass
class LibraryPeer:
    """What the server has, what it saw, and how it is made to change."""

    shelf: str = "fiction"
    era: Era = "2026"
    url: str = ""
    prompts: list[str] = field(default_factory=lambda: ["review"])
    subscribed: list[str] = field(default_factory=list)
    levels: list[str] = field(default_factory=list)
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    listening: asyncio.Event = field(default_factory=asyncio.Event)
    looked: asyncio.Event = field(default_factory=asyncio.Event)  # at all of its lists
    let_go: asyncio.Event = field(default_factory=asyncio.Event)  # of a resource, in 2025
    bus: InMemorySubscriptionBus = field(default_factory=InMemorySubscriptionBus)
    sessions: dict[int, ServerSession] = field(default_factory=dict)

    async def tell_prompts_changed(self) -> None:
        await self.bus.publish(PromptsListChanged())
        for session in self.sessions.values():
            await session.send_prompt_list_changed()

    async def tell_updated(self, uri: str) -> None:
        await self.bus.publish(ResourceUpdated(uri))
        for session in self.sessions.values():
            await session.send_resource_updated(uri)

    async def list_tools(self, ctx: Context, params: Any) -> types.ListToolsResult:
        self._note(ctx)
        names = ("ask", "log", "refuse")
        hints = types.ToolAnnotations(read_only_hint=True)
        plain: dict[str, Any] = {"type": "object"}
        tools = [types.Tool(name=n, input_schema=plain, annotations=hints) for n in names]
        return types.ListToolsResult(tools=tools)

    async def call_tool(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        match params.name:
            case "ask":
                return await _ask(ctx, params)
            case "log":
                for level in ("debug", "warning"):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore", MCPDeprecationWarning)
                        await ctx.session.send_log_message(
                            level,
                            f"{level} of {self.shelf}",
                            related_request_id=ctx.request_id,
                        )
                return _text("logged")
        raise MCPError(-32077, f"No: {SECRET}", {"shelf": self.shelf, "token": SECRET})

    async def list_prompts(self, ctx: Context, params: Any) -> types.ListPromptsResult:
        prompts = [
            types.Prompt(
                name=name,
                title=f"{name} of {self.shelf}",
                arguments=[types.PromptArgument(name="book", required=True)],
            )
            for name in self.prompts
        ]
        return types.ListPromptsResult(prompts=prompts)

    async def get_prompt(
        self, ctx: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        if params.name not in self.prompts:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
        words = f"{params.name} {(params.arguments or {}).get('book')} from {self.shelf}"
        message = types.PromptMessage(role="user", content=types.TextContent(text=words))
        return types.GetPromptResult(description=self.shelf, messages=[message])

    async def list_resources(self, ctx: Context, params: Any) -> types.ListResourcesResult:
        self._note(ctx)
        uris = {"news": f"{self.shelf}://news", "index": "library://index"}
        resources = [types.Resource(uri=uri, name=name) for name, uri in uris.items()]
        return types.ListResourcesResult(resources=resources)

    async def list_templates(self, ctx: Context, params: Any) -> types.ListResourceTemplatesResult:
        self.looked.set()
        template = types.ResourceTemplate(uri_template=f"{self.shelf}://books/{{id}}", name="book")
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        self, ctx: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        self._note(ctx)
        if params.uri == f"{self.shelf}://slow":
            await self._until_cancelled()
        if params.uri.endswith("/missing"):
            raise MCPError(-32002, f"No such book, says {SECRET}", {"uri": params.uri})
        content = types.TextResourceContents(
            uri=params.uri, mime_type="text/plain", text=f"{params.uri} of {self.shelf}"
        )
        return types.ReadResourceResult(contents=[content])

    async def _until_cancelled(self) -> None:
        self.entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()

    async def subscribe(
        self, ctx: Context, params: types.SubscribeRequestParams
    ) -> types.EmptyResult:
        self._note(ctx)
        if params.uri.endswith("/missing"):
            raise MCPError(-32002, "No such book", {"uri": params.uri})
        if params.uri not in self.subscribed:
            self.subscribed.append(params.uri)
        return types.EmptyResult()

    async def unsubscribe(self, ctx: Context, params: Any) -> types.EmptyResult:
        self.subscribed.remove(params.uri)
        self.let_go.set()
        return types.EmptyResult()

    async def complete(
        self, ctx: Context, params: types.CompleteRequestParams
    ) -> types.CompleteResult:
        values = [f"{self.shelf} {params.argument.value}"]
        return types.CompleteResult(completion=types.Completion(values=values, total=1))

    async def set_level(
        self, ctx: Context, params: types.SetLevelRequestParams
    ) -> types.EmptyResult:
        self.levels.append(params.level)
        return types.EmptyResult()

    def _note(self, ctx: Context) -> None:
        if ctx.protocol_version < "2026":
            self.sessions[id(ctx.session._connection)] = ctx.session


async def _ask(
    ctx: Context, params: types.CallToolRequestParams
) -> types.CallToolResult | types.InputRequiredResult:
    if ctx.protocol_version < "2026":
        said = await ctx.session.elicit_form("Who are you?", NAME_FORM, ctx.request_id)
        return _text(f"{said.action} {(said.content or {}).get('name')}")
    if params.input_responses:
        answer = params.input_responses["who"]
        assert isinstance(answer, types.ElicitResult)
        name = (answer.content or {}).get("name")
        return _text(f"{answer.action} {name} {params.request_state}")
    question = types.ElicitRequest(
        params=types.ElicitRequestFormParams(message="Who are you?", requested_schema=NAME_FORM)
    )
    return types.InputRequiredResult(input_requests={"who": question}, request_state="s1")


def _text(words: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=words)])


class _Telling(Server[dict[str, Any]]):
    def create_initialization_options(self, *args: Any, **kwargs: Any) -> InitializationOptions:
        return super().create_initialization_options(NotificationOptions(True, True, True))


def library(peer: LibraryPeer) -> Server[dict[str, Any]]:
    """The SDK's server over a library."""
    listen = ListenHandler(peer.bus)

    async def listening(ctx: Context, params: types.SubscriptionsListenRequestParams) -> Any:
        peer.listening.set()
        return await listen(ctx, params)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        return _Telling(
            "library",
            version="1",
            instructions=f"Read {peer.shelf} quietly. {SECRET}",
            on_list_tools=peer.list_tools,
            on_call_tool=peer.call_tool,
            on_list_prompts=peer.list_prompts,
            on_get_prompt=peer.get_prompt,
            on_list_resources=peer.list_resources,
            on_list_resource_templates=peer.list_templates,
            on_read_resource=peer.read_resource,
            on_subscribe_resource=peer.subscribe,
            on_unsubscribe_resource=peer.unsubscribe,
            on_completion=peer.complete,
            on_set_logging_level=peer.set_level,
            on_subscriptions_listen=listening,
            get_tool_input_schema=lambda name: {"type": "object"},
        )


@asynccontextmanager
async def library_peer(
    era: Era, shelf: str = "fiction", port: int = 0
) -> AsyncIterator[LibraryPeer]:
    """A served library that speaks one era only."""
    peer = LibraryPeer(shelf, era)
    async with serving(_OneEra(library(peer).streamable_http_app(), era, peer), port) as base:
        peer.url = f"{base}/mcp"
        yield peer


@dataclass
class _OneEra:
    app: ASGIApp
    era: Era
    peer: LibraryPeer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        modern = headers.get(b"mcp-protocol-version") == b"2026-07-28"
        if scope["type"] == "http" and modern != (self.era == "2026"):
            code = -32000 if modern else types.UNSUPPORTED_PROTOCOL_VERSION
            error = {"code": code, "message": "No", "data": {"supported": [], "requested": "?"}}
            answer = JSONResponse({"jsonrpc": "2.0", "id": None, "error": error}, 400)
            await answer(scope, receive, send)
            return
        if scope.get("method") == "GET":
            self.peer.listening.set()
        await self.app(scope, receive, send)
