"""An MCP server whose tools ask before they do something, in either era, over HTTP and stdio.

Each asks who books, or has a page opened, and then writes a line into a file: what happened is
counted there, whoever served it. Run as a module it is the SDK's server over stdio.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
from anyio import create_memory_object_stream
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.shared.message import SessionMessage

from tests.definitions import an_object
from tests.peers_mcp import NAME_FORM, Context, McpPeer, mcp_peer, said, sdk_server

TEXT, YES_NO = {"type": "string"}, {"type": "boolean"}
FIELDS = {"title": TEXT, "page": YES_NO, "wait": YES_NO, "token": TEXT}
BOOK_SCHEMA = an_object({**FIELDS, "want": {"enum": ["sampling", "roots"]}}, "title")
TOOLS = ("look", "book", "buy", "keep", "keep_too", "hold")
PAGE = "https://pay.example/1"
TO_MODEL: dict[str, Any] = {
    "messages": [types.SamplingMessage(role="user", content=types.TextContent(text="Sum up"))],
    "max_tokens": 100,
    "system_prompt": "Be brief",
}


class AskingPeer(McpPeer):
    """Books for who says who they are; its tools do the same under several names."""

    def __init__(self, effects: Path) -> None:
        super().__init__(tools=dict.fromkeys(TOOLS, BOOK_SCHEMA))
        self.effects = effects

    def happened(self) -> list[str]:
        """A line for each effect."""
        return self.effects.read_text("utf-8").splitlines() if self.effects.exists() else []

    def __getattr__(self, name: str) -> Any:
        if name.removeprefix("_") in TOOLS:
            return self._do
        raise AttributeError(name)

    async def _do(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        arguments = params.arguments or {}
        if arguments.get("wait"):
            self.entered.set()
            await self.release.wait()
        if want := arguments.get("want"):
            return await self._want(ctx, params, want)
        answer = await self._answer(ctx, params, bool(arguments.get("page")))
        if answer is None:
            question = types.ElicitRequest(params=_question(bool(arguments.get("page"))))
            state = f"about {arguments['title']}"
            return types.InputRequiredResult(input_requests={"who": question}, request_state=state)
        name = (answer.content or {}).get("name")
        if answer.action == "accept":
            line = f"{arguments['title']} {name} {'token' in arguments}\n"
            with self.effects.open("a", encoding="utf-8") as file:
                file.write(line)
        return said(f"{answer.action} {name}")

    async def _want(self, ctx: Context, params: types.CallToolRequestParams, want: str) -> Any:
        """Says what the client's model says, or where the client works."""
        if ctx.protocol_version < "2026":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", MCPDeprecationWarning)
                try:
                    found: Any = await self._wanted_2025(ctx, want)
                except MCPError as error:
                    return said(f"refused {error.code} {error.message}")
        elif params.input_responses:
            found = params.input_responses[want]
        else:
            question = types.CreateMessageRequest(
                params=types.CreateMessageRequestParams(**TO_MODEL)
            )
            asked = question if want == "sampling" else types.ListRootsRequest()
            return types.InputRequiredResult(input_requests={want: asked}, request_state="w")
        if want == "sampling":
            return said(f"{found.model}: {found.content.text}")
        return said(" ".join(str(root.uri) for root in found.roots))

    async def _wanted_2025(self, ctx: Context, want: str) -> Any:
        if want == "roots":
            return await ctx.session.list_roots()
        return await ctx.session.create_message(**TO_MODEL, related_request_id=ctx.request_id)

    async def _answer(
        self, ctx: Context, params: types.CallToolRequestParams, page: bool
    ) -> types.ElicitResult | None:
        if ctx.protocol_version < "2026":
            if page:
                done = await ctx.session.elicit_url("Pay", PAGE, "pay-1", ctx.request_id)
                await ctx.session.send_elicit_complete("pay-1", ctx.request_id)
                return done
            return await ctx.session.elicit_form("Who are you?", NAME_FORM, ctx.request_id)
        if not params.input_responses:
            return None
        assert params.request_state == f"about {(params.arguments or {})['title']}"
        answer = params.input_responses["who"]
        assert isinstance(answer, types.ElicitResult)
        return answer


def _question(page: bool) -> types.ElicitRequestParams:
    if page:
        return types.ElicitRequestURLParams(message="Pay", url=PAGE)
    return types.ElicitRequestFormParams(message="Who are you?", requested_schema=NAME_FORM)


@asynccontextmanager
async def asking_peer(kind: str, effects: Path) -> AsyncIterator[str]:
    """The lines of a connection to a server of this kind: `http` or `stdio`, and an era."""
    transport, era = kind.split()
    if transport == "stdio":
        args = ["-m", "tests.asking_peer", str(effects), era]
        cwd = Path(__file__).parents[1]
        yield f'transport = "stdio"\ncommand = "{sys.executable}"\nargs = {args}\ncwd = "{cwd}"\n'
        return
    async with mcp_peer("2026" if era == "2026" else "2025", peer=AskingPeer(effects)) as peer:
        yield f'url = "{peer.url}"\n'


async def _over_stdio(effects: Path, era: str) -> None:
    server = sdk_server(AskingPeer(effects))
    async with stdio_server() as (read, write):
        known = await _knowing_only_2025(read, write) if era == "2025" else read
        await server.run(known, write, server.create_initialization_options())


SORTING: set[asyncio.Task[None]] = set()


async def _knowing_only_2025(read: Any, write: Any) -> Any:
    send, known = create_memory_object_stream[Any](64)

    async def sort() -> None:
        async with send:
            async for item in read:
                message = item.message
                if getattr(message, "method", "") == "server/discover":
                    error = types.ErrorData(code=-32601, message="Method not found")
                    refusal = types.JSONRPCError(jsonrpc="2.0", id=message.id, error=error)
                    await write.send(SessionMessage(refusal))
                else:
                    await send.send(item)

    SORTING.add(asyncio.create_task(sort()))
    return known


if __name__ == "__main__":
    asyncio.run(_over_stdio(Path(sys.argv[1]), sys.argv[2]))
