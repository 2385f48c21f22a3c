"""MCP servers behind the gateway: whose session a call goes over, what is shown of a dead one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

from tests.callers import api
from tests.configs import LOCAL, bearer, principal, stdio_table, table
from tests.conftest import OPEN, GatewayMaker, Running, gateway_on, two_gateways
from tests.library_peer import library_peer
from tests.mcp.speakers import Era, Speaker
from tests.peers import look_until, until
from tests.peers_mcp import mcp_peer, serving
from tests.upstream.upstream_doors import free_port, running

SLOW_START = 20.0

CONFIG = (
    LOCAL
    + table("permissions", level="full_access")
    + principal("ann", admin=True)
    + principal("bob")
)


@asynccontextmanager
async def speaker(gateway: Running, who: str, era: Era = "2026") -> AsyncIterator[Speaker]:
    async with aiohttp.ClientSession(headers=bearer(who)) as http:
        yield await Speaker(http, gateway.mcp, era).meet()


async def said(client: Speaker, tool: str, **arguments: Any) -> str:
    result = await client.call(tool, **arguments)
    assert not result.get("isError"), result
    return str(result["content"][0]["text"])


async def served(gateway: Running, tool: str) -> None:
    await until(lambda: tool in gateway.app.gateway.snapshot.tools, SLOW_START)


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_what_one_principal_has_open_no_other_one_reads(
    make_gateway: GatewayMaker, era: Era
) -> None:
    gateway = await make_gateway(CONFIG + stdio_table("pages"))
    await served(gateway, "pages_keep")
    async with speaker(gateway, "ann", era) as ann, speaker(gateway, "bob", era) as bob:
        await said(ann, "pages_keep", text="a page of ann")
        assert await said(bob, "pages_kept") == "nothing"
        async with speaker(gateway, "ann") as again:  # another client of hers
            assert await said(again, "pages_kept") == "a page of ann"
        rest = f"{gateway.url}/api/v1/tools/pages_kept/call"
        async with ann.http.post(rest, json={"arguments": {}}) as answer:
            assert (await answer.json())["output"] == "a page of ann"


async def test_more_principals_than_sessions_are_told_to_try_again_and_an_edit_makes_room(
    make_gateway: GatewayMaker,
) -> None:
    text = CONFIG + stdio_table("pages") + "[limits]\nupstream_sessions = 1\n"
    gateway = await make_gateway(text)
    await served(gateway, "pages_slow")
    async with speaker(gateway, "ann", "2025") as ann, speaker(gateway, "bob") as bob:
        await said(ann, "pages_pid")
        slow = asyncio.create_task(ann.call("pages_slow"))
        await look_until(lambda: said(ann, "pages_seen"), lambda seen: "slow" in seen)
        refused = await bob.call("pages_kept")
        assert refused["isError"]
        assert refused["structuredContent"]["error"]["code"] == "busy"
        more = text.replace("upstream_sessions = 1", "upstream_sessions = 2")
        await asyncio.to_thread(gateway.config.write_text, more, encoding="utf-8")

        def most() -> int:
            return gateway.app.gateway.snapshot.settings.limits.upstream_sessions

        await until(lambda: most() == 2)
        assert await said(bob, "pages_kept") == "nothing"
        slow.cancel()
        await asyncio.gather(slow, return_exceptions=True)


async def test_children_of_principals_end_with_the_connection_and_with_the_gateway(
    tmp_path: Path,
) -> None:
    async with AsyncExitStack() as stack:
        made = gateway_on(
            tmp_path / "config.toml", CONFIG + stdio_table("pages") + stdio_table("other")
        )
        gateway = await stack.enter_async_context(made)
        await served(gateway, "pages_pid")
        await served(gateway, "other_pid")
        async with speaker(gateway, "ann") as ann, speaker(gateway, "bob") as bob:
            pids = [int(await said(who, "pages_pid")) for who in (ann, bob)]
            kept = int(await said(bob, "other_pid"))
            text = CONFIG + stdio_table("other")
            await asyncio.to_thread(gateway.config.write_text, text, encoding="utf-8")
            await until(lambda: not any(map(running, pids)), 10)
            assert int(await said(bob, "other_pid")) == kept
        await stack.aclose()
        assert not running(kept)


async def test_updates_of_a_resource_reach_its_principal_and_no_other(
    make_gateway: GatewayMaker,
) -> None:
    uri = "fiction://news"
    async with library_peer("2025") as peer:
        gateway = await make_gateway(CONFIG + peer.table(prefix=""))
        await served(gateway, "ask")
        async with speaker(gateway, "ann", "2025") as ann, speaker(gateway, "bob", "2025") as bob:
            for client in (ann, bob):
                await client.request("resources/subscribe", {"uri": uri})
            async with ann.listening() as hers, bob.listening() as his:
                await peer.tell_updated(uri)
                assert (await hers.message())["params"] == {"uri": uri}
                assert (await his.message())["params"] == {"uri": uri}
                assert await hers.silent(0.1)  # once, though two sessions were told
                await bob.request("resources/unsubscribe", {"uri": uri})
                await peer.tell_updated(uri)
                assert (await hers.message())["params"] == {"uri": uri}
                assert await his.silent(0.1)


PREVIEWS: list[tuple[Any, dict[str, str], str]] = [
    ("2025", {}, "principal"),
    ("2025", {"session": "shared"}, "shared"),
    ("2026", {}, "shared"),  # it has no state
]


async def test_a_preview_says_whose_sessions_there_will_be(gateway: Running) -> None:
    async with api(gateway.url) as rest:
        for era, more, session in PREVIEWS:
            async with mcp_peer(era) as peer:
                values = {"name": "up", "kind": "mcp", "url": peer.url, **more}
                _, preview = await rest("POST", "/connections/preview", values)
                assert preview["session"] == session, era


class Name(BaseModel):
    name: str


@pytest.mark.parametrize(("protocol", "works"), [("auto", False), ("2025", True)])
async def test_a_server_whose_questions_need_the_older_era_is_spoken_to_in_it(
    make_gateway: GatewayMaker, protocol: str, works: bool
) -> None:
    asking: MCPServer[Any] = MCPServer("asking")

    @asking.tool()
    async def ask(ctx: Context[Any, Any]) -> str:
        return (await ctx.elicit("Who are you?", Name)).action

    async with serving(asking.streamable_http_app()) as base, aiohttp.ClientSession() as http:
        url = f"{base}/mcp"
        asks = table("connections.up", kind="mcp", url=url, protocol=protocol)
        gateway = await make_gateway(OPEN + asks)
        await served(gateway, "up_ask")
        answer = {"action": "accept", "content": {"name": "Ann"}}
        client = Speaker(http, gateway.mcp, "2025", {"elicitation": {}}, lambda question: answer)
        result = await (await client.meet()).call("up_ask")
        assert (result["content"][0]["text"] == "accept") is works


async def shown(client: Speaker, gateway: Running) -> tuple[str, str, str]:
    """What is said of the connection by get_connection and /health, and the first problem."""
    row = (await client.call("get_connection", name="up"))["structuredContent"]
    async with client.http.get(f"{gateway.url}/health") as answer:
        health = await answer.json()
    [status] = [each["status"] for each in health["connections"] if each["name"] == "up"]
    assert status == row["status"]
    errors = [each["message"] for each in row["problems"] if each["severity"] == "error"]
    return row["status"], health["status"], "".join(errors[:1])


@pytest.mark.parametrize(("era", "lazy"), [("2025", True), ("2026", False)])
async def test_a_dead_server_is_shown_at_once_and_so_is_that_it_is_back(
    make_gateway: GatewayMaker, era: Any, lazy: bool
) -> None:
    port = free_port()
    async with AsyncExitStack() as first:
        peer = await first.enter_async_context(mcp_peer(era, port=port))
        gateway = await make_gateway(OPEN + peer.table(lazy=lazy))
        async with aiohttp.ClientSession() as http:
            client = await Speaker(http, gateway.mcp, "2026").meet()
            await client.request("tools/list")
            await served(gateway, "up_echo")
            assert await said(client, "up_echo", text="hi") == "hi"
            assert await shown(client, gateway) == ("connected", "ok", "")
            await first.aclose()
            failed = await client.call("up_echo", text="hi")
            assert failed["structuredContent"]["error"]["code"] == "upstream_unreachable"

            def state() -> str:
                return gateway.app.gateway.snapshot.connections["up"].status

            await until(lambda: state() == "failing", 10)
            status, health, problem = await shown(client, gateway)
            assert (status, health) == ("failing", "degraded")
            assert "refused" in problem
            assert len((await client.request("tools/list"))["tools"]) > 10  # as before
            async with mcp_peer(era, port=port):
                await until(lambda: state() == "connected", 20)
                assert await shown(client, gateway) == ("connected", "ok", "")
                assert await said(client, "up_echo", text="hi") == "hi"


async def test_a_dead_server_is_shown_by_processes_that_have_not_called_it(tmp_path: Path) -> None:
    async with AsyncExitStack() as peers, aiohttp.ClientSession() as http:
        peer = await peers.enter_async_context(mcp_peer("2026"))
        text, store = OPEN + peer.table(lazy=True), f"sqlite:///{tmp_path}/gateway.db"
        async with two_gateways(tmp_path, text, store) as gateways:
            client = await Speaker(http, gateways[0].mcp, "2026").meet()
            await client.tools()
            for gateway in gateways:
                await served(gateway, "up_echo")
            await said(client, "up_echo", text="hi")
            await peers.aclose()
            assert (await client.call("up_echo", text="hi"))["isError"]

            def statuses() -> set[str]:
                return {one.app.gateway.snapshot.connections["up"].status for one in gateways}

            await until(lambda: statuses() == {"failing"})
