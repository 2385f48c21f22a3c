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
from mcp.server.subscriptions import PromptsListChanged, ResourceUpdated
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from tests.peers_mcp import PLAIN_SCHEMA, Context, McpPeer, mcp_peer, said

Era = Literal["2025", "2026"]
SECRET = "s3cret-of-the-library"


@dataclass
class LibraryPeer(McpPeer):
    """What the server has, what it saw, and how it is made to change."""

    shelf: str = "fiction"
    era: Era = "2026"
    prompts: list[str] = field(default_factory=lambda: ["review"])
    subscribed: list[str] = field(default_factory=list)
    levels: list[str] = field(default_factory=list)
    looked: asyncio.Event = field(default_factory=asyncio.Event)  # at all of its lists
    let_go: asyncio.Event = field(default_factory=asyncio.Event)  # of a resource, in 2025

    def more(self) -> dict[str, Any]:
        return {
            "name": "library",
            "instructions": f"Read {self.shelf} quietly. {SECRET}",
            "on_list_prompts": self.list_prompts,
            "on_get_prompt": self.get_prompt,
            "on_list_resources": self.list_resources,
            "on_list_resource_templates": self.list_templates,
            "on_read_resource": self.read_resource,
            "on_subscribe_resource": self.subscribe,
            "on_unsubscribe_resource": self.unsubscribe,
            "on_completion": self.complete,
            "on_set_logging_level": self.set_level,
        }

    async def tell_prompts_changed(self) -> None:
        await self.bus.publish(PromptsListChanged())
        for session in self.sessions.values():
            await session.send_prompt_list_changed()

    async def tell_updated(self, uri: str) -> None:
        await self.bus.publish(ResourceUpdated(uri))
        for session in list(self.sessions.values()):
            await session.send_resource_updated(uri)

    async def list_tools(self, ctx: Context, params: Any) -> types.ListToolsResult:
        self.note(ctx)
        hints = types.ToolAnnotations(read_only_hint=True)
        tools = [types.Tool(name=n, input_schema=s, annotations=hints) for n, s in TOOLS.items()]
        return types.ListToolsResult(tools=tools)

    async def _log(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            for level in ("debug", "warning"):
                words = f"{level} of {self.shelf}"
                about = {"related_request_id": ctx.request_id}
                await ctx.session.send_log_message(level, words, **about)  # type: ignore[arg-type]
        return said("logged")

    async def _refuse(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        raise MCPError(-32077, f"No: {SECRET}", {"shelf": self.shelf, "token": SECRET})

    async def list_prompts(self, ctx: Context, params: Any) -> types.ListPromptsResult:
        book = [types.PromptArgument(name="book", required=True)]
        titled = ((name, f"{name} of {self.shelf}") for name in self.prompts)
        prompts = [types.Prompt(name=n, title=title, arguments=book) for n, title in titled]
        return types.ListPromptsResult(prompts=prompts)

    async def get_prompt(self, ctx: Context, params: Any) -> types.GetPromptResult:
        if params.name not in self.prompts:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
        words = f"{params.name} {(params.arguments or {}).get('book')} from {self.shelf}"
        message = types.PromptMessage(role="user", content=types.TextContent(text=words))
        return types.GetPromptResult(description=self.shelf, messages=[message])

    async def list_resources(self, ctx: Context, params: Any) -> types.ListResourcesResult:
        self.note(ctx)
        uris = {"news": f"{self.shelf}://news", "index": "library://index"}
        resources = [types.Resource(uri=uri, name=name) for name, uri in uris.items()]
        return types.ListResourcesResult(resources=resources)

    async def list_templates(self, ctx: Context, params: Any) -> types.ListResourceTemplatesResult:
        self.looked.set()
        template = types.ResourceTemplate(uri_template=f"{self.shelf}://books/{{id}}", name="book")
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(self, ctx: Context, params: Any) -> types.ReadResourceResult:
        self.note(ctx)
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

    async def subscribe(self, ctx: Context, params: Any) -> types.EmptyResult:
        self.note(ctx)
        if params.uri.endswith("/missing"):
            raise MCPError(-32002, "No such book", {"uri": params.uri})
        if params.uri not in self.subscribed:
            self.subscribed.append(params.uri)
        return types.EmptyResult()

    async def unsubscribe(self, ctx: Context, params: Any) -> types.EmptyResult:
        self.subscribed.remove(params.uri)
        self.let_go.set()
        return types.EmptyResult()

    async def complete(self, ctx: Context, params: Any) -> types.CompleteResult:
        values = [f"{self.shelf} {params.argument.value}"]
        return types.CompleteResult(completion=types.Completion(values=values, total=1))

    async def set_level(self, ctx: Context, params: Any) -> types.EmptyResult:
        self.levels.append(params.level)
        return types.EmptyResult()


TOOLS = dict.fromkeys(("ask", "log", "refuse"), PLAIN_SCHEMA)


@asynccontextmanager
async def library_peer(
    era: Era, shelf: str = "fiction", port: int = 0
) -> AsyncIterator[LibraryPeer]:
    """A served library that speaks one era only."""
    peer = LibraryPeer(tools=TOOLS, shelf=shelf, era=era)
    async with mcp_peer(era, port=port, peer=peer):
        yield peer
