"""Answers too large for a result: a preview, and the rest in parts for the one who called."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import web
from mcp.client.client import Client

from tests.conftest import Running, gateway_on
from tests.journeys.confirming import FREELY, TOKENS, client, config
from tests.peers import provider, until
from tests.peers_mcp import mcp_peer
from tests.report_peer import EXPECTED, ROWS, report_gateway

BOOKS = [{"id": n, "title": f"Bänd {n}", "a/b": {"~": [n]}} for n in range(9_000)]
JSON = orjson.dumps({"books": BOOKS, "by/id": {str(n): book for n, book in enumerate(BOOKS)}})
TEXT = "Käse und Brot. " * 30_000
BINARY = bytes(range(256)) * 2_000
ENDLESS = b"[" + b"1," * 2**23  # larger than what is read of an answer
ANSWERS = {
    "json": (JSON, "application/json"),
    "pretty": (orjson.dumps(orjson.loads(JSON), option=orjson.OPT_INDENT_2), "application/json"),
    "text": (TEXT.encode("iso-8859-1"), "text/plain; charset=iso-8859-1"),
    "binary": (BINARY, "application/pdf"),
}


async def answer(request: web.Request) -> web.StreamResponse:
    asked = request.path.rpartition("/")[2]
    body, kind = ANSWERS.get(asked, (ENDLESS, "application/json"))
    return web.Response(body=body, headers={"Content-Type": kind})


@pytest.fixture(scope="module")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A gateway before an API, and before an MCP server called `far`."""
    async with provider() as peer, mcp_peer() as far:
        peer.answer = answer
        text = config(peer, FREELY, f'[connections.far]\nkind = "mcp"\nurl = "{far.url}"\n')
        file = tmp_path_factory.mktemp("large") / "config.toml"
        async with gateway_on(file, text) as made:
            await until(lambda: "far_echo" in made.app.gateway.snapshot.tools)
            yield made


async def called(speaker: Client, tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    result = await speaker.call_tool(tool, arguments)
    assert result.structured_content is not None
    return dict(result.structured_content)


async def kept(speaker: Client, kind: str) -> str:
    """The id under which the large answer of this kind can be read."""
    found = await called(speaker, "shop_get_items", {"id": kind})
    assert found["truncated"] is True
    return str(found["result_id"])


PARTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "json",
        {"pointer": "/books", "offset": 8_998},
        {"total": 9_000, "offset": 8_998, "value": BOOKS[8_998:]},
    ),
    (
        "json",
        {"pointer": "/books", "offset": 4_000, "limit": 2},
        {"total": 9_000, "offset": 4_000, "value": BOOKS[4_000:4_002], "next_offset": 4_002},
    ),
    ("json", {"pointer": "/by~1id/8999/a~1b/~0"}, {"total": 1, "offset": 0, "value": [8_999]}),
    (
        "json",
        {"pointer": "/books/7", "offset": 2.0, "limit": 4.0},  # integers, says JSON Schema
        {"total": 41, "offset": 2, "value": 'id":', "next_offset": 6},
    ),
    ("pretty", {"pointer": "/books/5/title"}, {"total": 6, "offset": 0, "value": "Bänd 5"}),
    (
        "pretty",
        {"limit": 12},
        {
            "total": len(ANSWERS["pretty"][0].decode()),
            "offset": 0,
            "value": '{\n  "books":',
            "next_offset": 12,
        },
    ),
    (
        "text",
        {"offset": 400_001, "limit": 5},
        {
            "total": 450_000,
            "offset": 400_001,
            "value": TEXT[400_001:400_006],
            "next_offset": 400_006,
        },
    ),
    (
        "binary",
        {"offset": 600_000},
        {
            "total": 682_668,
            "offset": 600_000,
            "value": base64.b64encode(BINARY).decode()[600_000:620_000],
            "next_offset": 620_000,
        },
    ),
]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_large_answer_is_read_in_parts(shop: Running, mode: str) -> None:
    async with client(shop.url, "ann", mode) as ann:
        ids = {kind: await kept(ann, kind) for kind in ANSWERS}
        found = [
            await called(ann, "read_result", {"result_id": ids[kind], **asked})
            for kind, asked, _ in PARTS
        ]
    sizes = {kind: len(body) for kind, (body, _) in ANSWERS.items()}
    sizes["text"] = len(TEXT.encode())  # it is read in UTF-8
    assert found == [
        {"result_id": ids[kind], "bytes": sizes[kind], **part} for kind, _, part in PARTS
    ]


async def test_parts_put_together_are_the_answer(shop: Running) -> None:
    async with client(shop.url, "ann") as ann:
        id, books, offset = await kept(ann, "json"), [], 0
        for _ in range(100):
            page = {"result_id": id, "pointer": "/books", "offset": offset, "limit": 5_000}
            part = await called(ann, "read_result", page)
            books += part["value"]
            assert len(orjson.dumps(part["value"])) <= 65_536
            if "next_offset" not in part:
                break
            offset = part["next_offset"]
    assert books == BOOKS


NOWHERE: list[tuple[dict[str, Any], str]] = [
    ({"pointer": "/nope"}, "there are the keys 'books', 'by/id'"),
    ({"pointer": "/books/9000"}, "there is an array of 9000"),
    ({"pointer": "/books/" + "9" * 5_000}, "there is an array of 9000"),
    ({"pointer": "/books/0/title/x"}, "there is nothing further inside"),
    ({"pointer": "/by~1id/x"}, "there are the keys '0', '1'"),
    ({"offset": -1}, "minimum"),
    ({"limit": 0}, "minimum"),
    ({"result_id": "other"}, "there is no such result"),
]


async def test_part_that_is_not_there_is_refused_with_what_is(shop: Running) -> None:
    async with client(shop.url, "ann") as ann:
        id = await kept(ann, "json")
        errors = [
            (await called(ann, "read_result", {"result_id": id, **asked}))["error"]
            for asked, _ in NOWHERE
        ]
    assert [error["code"] for error in errors] == ["invalid_arguments"] * len(NOWHERE)
    assert [words in str(error) for error, (_, words) in zip(errors, NOWHERE, strict=True)] == [
        True
    ] * len(NOWHERE)


async def test_an_answer_cut_at_its_bound_is_read_as_text(shop: Running) -> None:
    async with client(shop.url, "ann") as ann:
        found = await called(ann, "shop_get_items", {"id": "endless"})
        assert (found["truncated"], found["incomplete"], found["bytes"]) == (True, True, 2**24)
        part = {"result_id": found["result_id"], "offset": 2**24 - 4}
        assert (await called(ann, "read_result", part))["value"] == ",1,1"


async def test_answer_belongs_to_who_called(shop: Running) -> None:
    async with client(shop.url, "ann") as ann, client(shop.url, "root") as root:
        id = await kept(ann, "text")
        of_another = await called(root, "read_result", {"result_id": id})
        of_nobody = await called(root, "read_result", {"result_id": "other"})
        mine = await called(ann, "read_result", {"result_id": id, "limit": 4})
    assert of_another == of_nobody
    assert of_another["error"]["message"] == "there is no such result, or it has expired"
    assert mine["value"] == "Käse"


async def test_large_answer_of_an_upstream_is_read_in_parts(shop: Running) -> None:
    async with client(shop.url, "ann") as ann:
        found = await called(ann, "far_echo", {"text": TEXT})
        asked = {"result_id": found["result_id"], "pointer": "/text"}  # structured content
        part = await called(ann, "read_result", {**asked, "offset": len(TEXT) - 5})
        plain = await called(ann, "far_huge", {"bytes": 100_000})  # with little structure
        asked = {"result_id": plain["result_id"], "pointer": "/content/0/text"}
        end = await called(ann, "read_result", {**asked, "offset": 99_990})
    assert (end["total"], end["value"]) == (100_000, "x" * 10)
    assert part == {
        "result_id": found["result_id"],
        "bytes": found["bytes"],
        "total": len(TEXT),
        "offset": len(TEXT) - 5,
        "value": TEXT[-5:],
    }


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_that_checks_what_a_tool_promised_takes_every_answer(mode: str) -> None:
    async with report_gateway() as url, Client(url, mode=mode) as made:
        tools = {tool.name: tool for tool in (await made.list_tools()).tools}
        small = await called(made, "far_report", {"rows": 2})
        cut = await called(made, "far_report", {"rows": ROWS})
        asked = {"result_id": cut["result_id"], "pointer": "/rows", "offset": ROWS - 1}
        last = await called(made, "read_result", asked)
        refused = await called(made, "far_report", {"rows": "many"})
        failed = await made.call_tool("far_report", {"rows": 1, "fail": True})
    promised = tools["far_report"].output_schema
    assert promised is not None and failed.is_error
    assert {
        "promised": sorted({*promised["properties"], *promised["anyOf"][0]["properties"]}),
        "small": small,
        "truncated": cut["truncated"],
        "last": last["value"],
        "refused": refused["error"]["code"],
        "failed": getattr(failed.content[0], "text", ""),
    } == EXPECTED


async def test_a_large_answer_over_rest_is_read_over_rest(shop: Running) -> None:
    headers = {"Authorization": f"Bearer {TOKENS['ann']}"}
    async with aiohttp.ClientSession(f"{shop.url}/api/v1/", headers=headers) as http:
        async with http.post("tools/shop_get_items/call", json={"arguments": {"id": "json"}}) as ok:
            id = (await ok.json())["output"]["result_id"]
        wanted = {"pointer": "/books", "offset": "8998", "limit": "1"}
        async with http.get(f"results/{id}", params=wanted) as ok:
            part = await ok.json()
        async with http.get("results/no-such-id") as gone:
            assert gone.status == 404
    assert (part["total"], part["offset"], part["value"]) == (9_000, 8_998, BOOKS[8_998:8_999])
