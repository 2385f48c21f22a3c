"""Clients are sent what they can use, by the names they give themselves, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web
from mcp.client.client import Client
from mcp_types import CallToolResult, Implementation, Tool

from gateway.config.file import parse_settings
from gateway.config.profiles import shipped_profiles
from gateway.errors import ConfigInvalid
from tests.callers import api
from tests.conftest import OPEN, GatewayMaker, Running, gateway_on
from tests.definitions import an_object, openapi, operation
from tests.journeys.test_live_configuration import edit
from tests.peers import provider, until
from tests.peers_mcp import mcp_peer
from tests.plainness import not_plain
from tests.report_peer import ReportPeer

ERAS = ["legacy", "2026-07-28"]
SMALL = """
[clients.small]
match = "Small ?gent*"
schema = "plain"
results = "structured"
max_output_tokens = 200
page_tools = 4
"""
NODE = {"type": "object", "properties": {"name": {"type": ["string", "null"]}}}
NODE["properties"]["next"] = {"$ref": "#/components/schemas/Node"}  # type: ignore[index]
BODY = {
    **an_object({"node": {"$ref": "#/components/schemas/Node"}, "size": {}}, "size"),
    "anyOf": [{"required": ["node"]}, {"required": ["size"]}],
}
BODY["properties"]["size"] = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
LONG = {"rows": [{"number": number, "words": "some words"} for number in range(100)]}


def shop_api(url: str) -> dict[str, Any]:
    content = {"application/json": {"schema": BODY}}
    post = operation(operationId="put_node", requestBody={"content": content, "required": True})
    gets = {f"/{name}": {"get": operation(operationId=name)} for name in ("one", "list", "long")}
    paths = {**gets, "/missing": {"get": operation(operationId="missing")}, "/node": {"post": post}}
    schemas = {"schemas": {"Node": NODE}}
    return openapi(paths, servers=[{"url": url}], components=schemas)


async def answer(request: web.Request) -> web.Response:
    found = {"/one": {"a": 1}, "/list": [1, 2], "/long": LONG, "/node": {"made": True}}
    if request.path not in found:
        return web.json_response({"message": "no such thing"}, status=404)
    return web.json_response(found[request.path])


@asynccontextmanager
async def served(file: Any, text: str) -> AsyncIterator[Running]:
    async with provider() as peer, mcp_peer(peer=ReportPeer()) as far:
        peer.document, peer.answer = shop_api(peer.url), answer
        async with gateway_on(file, OPEN + peer.table() + far.table("far") + text) as made:
            await until(lambda: {"shop_one", "far_report"} <= set(made.app.gateway.snapshot.tools))
            yield made


@pytest.fixture(scope="module")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with served(tmp_path_factory.mktemp("profiles") / "config.toml", SMALL) as made:
        yield made


def called(shop: Running, name: str, mode: str, **more: Any) -> Client:
    """A client that calls itself so."""
    info = Implementation(name=name, version="1/2")
    return Client(shop.mcp, mode=mode, client_info=info, **more)


async def every_tool(client: Client) -> tuple[dict[str, Tool], int]:
    """What is listed, and on how many pages."""
    found: dict[str, Tool] = {}
    cursor, pages = None, 0
    while True:
        page = await client.list_tools(cursor=cursor)
        found |= {tool.name: tool for tool in page.tools}
        cursor, pages = page.next_cursor, pages + 1
        if cursor is None:
            return found, pages


def text_of(result: CallToolResult) -> list[str]:
    return [part.text for part in result.content if part.type == "text"]


@pytest.mark.parametrize("mode", ERAS)
@pytest.mark.parametrize(
    "name, plain, promises, several",
    [
        ("somebody", False, True, False),
        ("claude-code", True, False, False),
        ("Anthropic/ClaudeAI", True, False, False),
        ("Visual Studio Code", False, False, False),
        ("gemini-cli-mcp-client-shop", True, False, False),
        ("small agent of mine", True, False, True),
        ("not a small agent", False, True, False),
        ("x" * 5_000 + "\u202e<b>", False, True, False),
    ],
)
async def test_tools_are_listed_as_the_client_takes_them(
    shop: Running, mode: str, name: str, plain: bool, promises: bool, several: bool
) -> None:
    async with called(shop, name, mode) as client:
        tools, pages = await every_tool(client)
    wrong = [where for tool in tools.values() for where in not_plain(tool.input_schema)]
    assert bool(wrong) is not plain
    assert (tools["far_report"].output_schema is not None) is promises
    assert (pages > 1) is several
    size = tools["shop_put_node"].input_schema["properties"]["size"]
    assert ("anyOf" in size) is not plain
    if plain:
        assert size == {"type": "string", "description": "One of: integer; or string"}


@pytest.mark.parametrize("mode", ERAS)
async def test_the_data_comes_where_the_client_reads_it(shop: Running, mode: str) -> None:
    small = {"rows": [{"number": 0}], "error": None}
    async with called(shop, "claude-code", mode) as client:
        one = await client.call_tool("shop_one", {})
        rows = await client.call_tool("far_report", {"rows": 1})
        missing = await client.call_tool("shop_missing", {})
        own = await client.call_tool("list_connections", {})
        assert [r.structured_content for r in (one, rows, missing, own)] == [None] * 4
        assert text_of(one) == ['{"a": 1}']
        assert text_of(rows)[0] == "1 rows" and orjson.loads(text_of(rows)[1]) == small
        assert missing.is_error and text_of(missing)[-1] == "Error code: upstream_error"
        assert orjson.loads(text_of(own)[0])["connections"]
    async with called(shop, "openai-mcp (ChatGPT)", mode) as client:
        await client.list_tools()
        one = await client.call_tool("shop_one", {})
        several = await client.call_tool("shop_list", {})
        rows = await client.call_tool("far_report", {"rows": 1})
        missing = await client.call_tool("shop_missing", {})
        assert (one.structured_content, text_of(one)) == ({"a": 1}, [])
        assert (several.structured_content, text_of(several)) == ({"result": [1, 2]}, [])
        assert (rows.structured_content, text_of(rows)) == (small, ["1 rows"])
        assert missing.structured_content and missing.structured_content["error"]["code"]
        assert 0 < len("".join(text_of(missing))) <= 200
    async with called(shop, "somebody", mode) as client:
        one = await client.call_tool("shop_one", {})
        assert (one.structured_content, text_of(one)) == ({"a": 1}, ['{"a": 1}'])


@pytest.mark.parametrize("mode", ERAS)
async def test_a_result_over_the_clients_bound_is_read_in_parts(shop: Running, mode: str) -> None:
    most = int(200 * 4.6)
    async with called(shop, "small agent", mode) as client:
        for tool, arguments in (("shop_long", {}), ("far_report", {"rows": 100})):
            result = await client.call_tool(tool, arguments)
            shown = result.structured_content or {}
            assert shown["truncated"] is True
            assert len(orjson.dumps(shown)) <= most and len("".join(text_of(result))) <= most
            assert result.meta and result.meta["gateway/status"] == "completed"
            read: list[Any] = []
            while True:
                wanted = {"result_id": shown["result_id"], "pointer": "/rows", "offset": len(read)}
                part = await client.call_tool("read_result", wanted)
                assert (
                    part.structured_content and len(orjson.dumps(part.structured_content)) <= most
                )
                read += part.structured_content["value"]
                if "next_offset" not in part.structured_content:
                    break
            assert [row["number"] for row in read] == list(range(100))
    async with called(shop, "somebody", mode) as client:
        assert (await client.call_tool("shop_long", {})).structured_content == LONG


@pytest.mark.parametrize("mode", ERAS)
async def test_plain_arguments_are_taken_or_the_refusal_says_what_to_change(
    shop: Running, mode: str
) -> None:
    async with called(shop, "openai-mcp", mode) as client:
        fine = await client.call_tool("shop_put_node", {"size": "3", "node": {"next": {}}})
        assert fine.structured_content == {"made": True}
        wrong = await client.call_tool("shop_put_node", {"size": True})
        assert wrong.structured_content
        [problem] = wrong.structured_content["error"]["problems"]
        assert problem == {"path": "/size", "message": "true is not integer or string"}


async def test_the_same_call_is_the_same_for_every_client(shop: Running) -> None:
    token: Any = {"gateway/idempotency_token": "once-and-only"}
    answers = []
    for name in ("somebody", "claude-code", "small agent"):
        async with called(shop, name, "2026-07-28") as client:
            answers.append(await client.call_tool("shop_put_node", {"size": 1}, meta=token))
    ids = {(each.meta or {})["gateway/execution_id"] for each in answers}
    replayed = [(each.meta or {}).get("gateway/replayed", False) for each in answers]
    assert (len(ids), replayed) == (1, [False, True, True])
    assert answers[1].structured_content is None
    assert answers[2].structured_content == answers[0].structured_content == {"made": True}


async def test_an_edit_of_clients_tells_those_it_concerns(make_gateway: GatewayMaker) -> None:
    heard: dict[str, asyncio.Event] = {"mine": asyncio.Event(), "other": asyncio.Event()}

    def listener(name: str) -> Any:
        async def hear(message: Any) -> None:
            if "list_changed" in repr(message) or "ListChanged" in repr(message):
                heard[name].set()

        return hear

    async with provider() as peer:
        peer.document = shop_api(peer.url)
        gateway = await make_gateway(OPEN + peer.table())
        async with (
            called(gateway, "mine", "legacy", message_handler=listener("mine")) as mine,
            called(gateway, "other", "legacy", message_handler=listener("other")) as other,
            called(gateway, "mine", "2026-07-28") as modern,
            modern.listen(tools_list_changed=True) as told,
        ):
            before = (await other.list_tools()).tools
            assert (await mine.list_tools()).tools == before
            edit(
                gateway.config,
                OPEN + peer.table() + '[clients.mine]\nmatch = "mine"\nschema = "plain"\n',
            )
            async with asyncio.timeout(60):
                await heard["mine"].wait()
                await anext(aiter(told))
            listed = (await mine.list_tools()).tools
            assert not [where for tool in listed for where in not_plain(tool.input_schema)]
            assert (await other.list_tools()).tools == before
            assert not heard["other"].is_set()


async def test_what_lists_cost_is_what_the_client_is_sent(shop: Running) -> None:
    costs = []
    for name in ("somebody", "openai-mcp"):
        async with called(shop, name, "2026-07-28") as client:
            listed = await client.call_tool("list_dynamic_tools", {"connection": "far"})
            [row] = (listed.structured_content or {})["tools"]
            costs.append(row["tokens"])
    async with api(shop.url) as rest:
        _, whole = await rest("GET", "/tools?connection=far")
        _, plain = await rest("GET", "/tools?connection=far&client=openai-mcp")
    assert costs == [whole["tokens"], plain["tokens"]]
    assert costs[0] > costs[1]


def test_the_clients_that_people_use_are_known_with_reasons() -> None:
    found = shipped_profiles()
    assert len(found) >= 11
    assert all(profile.match and profile.why and profile.date for profile in found.values())


@pytest.mark.parametrize(
    "table, words",
    [
        ('schema = "plain"', "needs match"),
        ('match = "x"\nclient_secret = "s"', "needs client_id"),
        ('match = "x"\nresults = "none"', "results"),
        ('match = "x"\nmax_output_tokens = 0', "max_output_tokens"),
        ("", "needs client_id (to sign in), or match"),
    ],
)
def test_a_wrong_profile_is_named(table: str, words: str) -> None:
    with pytest.raises(ConfigInvalid, match="clients.x") as refused:
        parse_settings(f"{OPEN}\n[clients.x]\n{table}\n".encode(), "config.toml")
    assert words in str(refused.value)
