"""One MCP server behind the gateway, and nothing else: clients of both eras meet the server itself.

Each test runs for every pair of eras: the client's and the server's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.store.cluster import load_wishes
from tests.conftest import OPEN, Running, gateway_on, two_gateways
from tests.databases import eventually
from tests.library_peer import SECRET, LibraryPeer, library_peer
from tests.mcp.raw import Events
from tests.mcp.speakers import Era, Refusal, Speaker, plain
from tests.peers import soon
from tests.raising import raises

ONLY = """
[demo]
enabled = false
[connections.library]
kind = "mcp"
url = "{url}"
prefix = ""
headers = {{ "X-Api-Key" = "{secret}" }}
"""


@dataclass
class Pair:
    """A client at the gateway, one at the server itself, and the server."""

    through: Speaker
    direct: Speaker
    peer: LibraryPeer
    client: Era
    server: Era
    speak: Callable[..., Any]


@pytest.fixture(scope="module", params=("2025", "2026"))
async def behind(request: Any, tmp_path_factory: Any) -> AsyncIterator[tuple[LibraryPeer, str]]:
    """A server of each era, and the gateway's address with it behind."""
    config = tmp_path_factory.mktemp("gateway") / "config.toml"
    async with library_peer(request.param) as peer:
        text = OPEN + ONLY.format(url=peer.url, secret=SECRET)
        async with gateway_on(config, text) as gateway, asyncio.timeout(60):
            await peer.listening.wait()
            yield peer, gateway.mcp


@pytest.fixture(params=("2025", "2026"))
async def pair(request: Any, behind: tuple[LibraryPeer, str]) -> AsyncIterator[Pair]:
    (peer, url), client = behind, request.param
    peer.prompts = ["review"]
    peer.entered.clear()
    peer.cancelled.clear()
    peer.let_go.clear()
    async with aiohttp.ClientSession() as http:

        async def speak(**more: Any) -> Speaker:
            return await Speaker(http, url, client, **more).meet()

        direct = await Speaker(http, peer.url, peer.era).meet()
        yield Pair(await speak(), direct, peer, client, peer.era, speak)


async def test_the_server_says_what_it_offers_and_how_to_use_it(pair: Pair) -> None:
    assert pair.through.hello["capabilities"] == {
        "tools": {"listChanged": True},
        "prompts": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "completions": {},
        "logging": {},
    }
    assert pair.through.hello["instructions"] == "Read fiction quietly. [redacted]"


PROMPT = {"type": "ref/prompt", "name": "review"}
RESOURCE = {"type": "ref/resource", "uri": "fiction://books/{id}"}


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/list", {}),
        ("prompts/get", {"name": "review", "arguments": {"book": "Emma"}}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("resources/read", {"uri": "fiction://books/7"}),
        ("completion/complete", {"ref": PROMPT, "argument": {"name": "book", "value": "E"}}),
        ("completion/complete", {"ref": RESOURCE, "argument": {"name": "id", "value": "7"}}),
    ],
)
async def test_what_is_asked_is_answered_as_by_the_server(
    pair: Pair, method: str, params: dict[str, Any]
) -> None:
    through = await pair.through.request(method, params)
    assert plain(through) == plain(await pair.direct.request(method, params))
    if pair.client == "2026":
        assert through["resultType"] == "complete"
        assert through.get("cacheScope", "private") == "private"


MISSING = "fiction://missing/missing"
ERRORS: list[tuple[str, dict[str, Any], int, str, dict[str, str]]] = [
    ("resources/read", {"uri": MISSING}, -32002, "No such book, says [redacted]", {"uri": MISSING}),
    (
        "tools/call",
        {"name": "refuse", "arguments": {}},
        -32077,
        "No: [redacted]",
        {"shelf": "fiction", "token": "[redacted]"},
    ),
]


async def test_the_servers_own_errors_are_passed_on_without_secrets(pair: Pair) -> None:
    for method, params, code, message, data in ERRORS:
        with raises(Refusal, error={"code": code, "message": message, "data": data}):
            await pair.through.request(method, params)


async def test_updates_of_a_resource_reach_who_watches_it(pair: Pair) -> None:
    uri, other = "fiction://news", await pair.speak()
    if pair.client == "2025":
        assert await pair.through.request("resources/subscribe", {"uri": uri}) == {}
    wanted = {"resourceSubscriptions": [uri]}
    async with pair.through.listening(**wanted) as events, other.listening() as deaf:
        await pair.peer.tell_updated("fiction://else")
        await pair.peer.tell_updated(uri)
        said = await events.message()
        assert said["method"] == "notifications/resources/updated"
        assert said["params"]["uri"] == uri
        assert await deaf.silent(0.1)
    if pair.client == "2025":
        assert await pair.through.request("resources/unsubscribe", {"uri": uri}) == {}
    if pair.server == "2025":
        await soon(pair.peer.let_go.wait())
        assert pair.peer.subscribed == []


async def test_other_prompts_are_told_to_who_listens(pair: Pair) -> None:
    async with pair.through.listening(promptsListChanged=True) as events:
        pair.peer.prompts.append("summary")
        await pair.peer.tell_prompts_changed()
        said = await events.message()
    assert said["method"] == "notifications/prompts/list_changed"
    found = await pair.through.request("prompts/list")
    assert [prompt["name"] for prompt in found["prompts"]] == ["review", "summary"]


async def test_logs_of_a_call_reach_its_caller_from_the_level_it_wants(pair: Pair) -> None:
    if pair.client == "2025":
        assert await pair.through.request("logging/setLevel", {"level": "warning"}) == {}
    else:
        pair.through.meta["io.modelcontextprotocol/logLevel"] = "warning"
    await pair.through.request("tools/call", {"name": "log", "arguments": {}})
    assert [said["params"] for said in pair.through.heard] == [
        {"level": "warning", "data": "warning of fiction"}
    ]


async def test_what_is_no_longer_wanted_is_cancelled_at_the_server(pair: Pair) -> None:
    slow = asyncio.create_task(pair.through.request("resources/read", {"uri": "fiction://slow"}))
    async with asyncio.timeout(60):
        await pair.peer.entered.wait()
        if pair.client == "2025":
            cancelled = {"method": "notifications/cancelled", "params": {"requestId": 2}}
            await pair.through.notify({"jsonrpc": "2.0", **cancelled})
        else:
            slow.cancel()
        await pair.peer.cancelled.wait()
        await asyncio.gather(slow, return_exceptions=True)


@pytest.mark.parametrize("server", ["2025", "2026"])
async def test_what_one_process_was_asked_to_watch_is_told_by_the_other(
    tmp_path: Path, server: Era
) -> None:
    uri, store = "fiction://news", f"sqlite:///{tmp_path}/gateway.db"
    async with library_peer(server) as peer, aiohttp.ClientSession() as http:
        text = OPEN + ONLY.format(url=peer.url, secret=SECRET)
        async with two_gateways(tmp_path, text, store) as (one, two):
            client = await Speaker(http, one.mcp, "2025").meet()
            await client.request("resources/subscribe", {"uri": uri})
            await client.request("logging/setLevel", {"level": "warning"})
            client.url = two.mcp
            async with client.listening() as events:
                said = await _heard(events, lambda: peer.tell_updated(uri))
                assert said["params"] == {"uri": uri}
            await eventually(lambda: _levels(client), ["warning"])


@pytest.mark.parametrize("server", ["2025", "2026"])
async def test_what_a_session_wants_outlives_a_restart(tmp_path: Path, server: Era) -> None:
    uri, other = "fiction://news", "library://index"
    async with library_peer(server) as peer, aiohttp.ClientSession() as http:
        text = OPEN + ONLY.format(url=peer.url, secret=SECRET)
        async with gateway_on(tmp_path / "config.toml", text) as gateway:
            client = await Speaker(http, gateway.mcp, "2025").meet()
            for wanted in (uri, other):
                await client.request("resources/subscribe", {"uri": wanted})
            await client.request("resources/unsubscribe", {"uri": other})
            await client.request("logging/setLevel", {"level": "warning"})
            await until_kept(gateway, 2)
        async with gateway_on(tmp_path / "config.toml", text) as gateway:
            client.url = gateway.mcp
            async with client.listening() as events:
                said = await _heard(events, lambda: peer.tell_updated(uri))
                assert said["params"] == {"uri": uri}
                await peer.tell_updated(other)
                await peer.tell_updated(uri)
                assert (await events.message())["params"] == {"uri": uri}
            await eventually(lambda: _levels(client), ["warning"])
            async with http.delete(gateway.mcp, headers=client._headers) as ended:
                assert ended.status == 200
            await until_kept(gateway, 0)


async def until_kept(gateway: Running, count: int) -> None:
    """Waits until the store holds so many wishes."""

    async def kept() -> int:
        return len(await load_wishes(gateway.app.gateway.db, 0.0))

    await eventually(kept, count)


async def _heard(events: Events, tell: Callable[[], Awaitable[None]]) -> Any:
    """What is heard once the wish has come round."""
    async with asyncio.timeout(60):
        while True:
            await tell()
            with suppress(TimeoutError):
                return await events.message(0.1)


async def _levels(client: Speaker) -> list[str]:
    """What a call logs to its caller."""
    client.heard.clear()
    await client.call("log")
    return [said["params"]["level"] for said in client.heard]
