"""Answers too large for a result: a preview, and the rest in parts for the one who called."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web
from mcp.client.client import Client

from tests.callers import api, client, own_call
from tests.conftest import Running, gateway_on
from tests.journeys.confirming import FREELY, config
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
        text = config(peer, FREELY, far.table("far"))
        file = tmp_path_factory.mktemp("large") / "config.toml"
        async with gateway_on(file, text) as made:
            await until(lambda: "far_echo" in made.app.gateway.snapshot.tools)
            yield made


async def kept(speaker: Client, kind: str) -> str:
    """The id under which the large answer of this kind can be read."""
    found = await own_call(speaker, "shop_get_items", id=kind)
    assert found["truncated"] is True
    return str(found["result_id"])


def part(value: Any, offset: int, total: int, whole: bool = False) -> dict[str, Any]:
    after = {} if whole else {"next_offset": offset + len(value)}
    return {"total": total, "offset": offset, "value": value, **after}


PARTS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("json", {"pointer": "/books", "offset": 8_998}, part(BOOKS[8_998:], 8_998, 9_000, True)),
    (
        "json",
        {"pointer": "/books", "offset": 4_000.0, "limit": 2.0},  # integers, says JSON Schema
        part(BOOKS[4_000:4_002], 4_000, 9_000),
    ),
    ("json", {"pointer": "/by~1id/8999/a~1b/~0"}, part([8_999], 0, 1, True)),
    ("pretty", {"pointer": "/books/5/title"}, part("Bänd 5", 0, 6, True)),
    ("pretty", {"limit": 12}, part('{\n  "books":', 0, len(ANSWERS["pretty"][0].decode()))),
    ("text", {"offset": 400_001, "limit": 5}, part(TEXT[400_001:400_006], 400_001, 450_000)),
    (
        "binary",
        {"offset": 600_000},
        part(base64.b64encode(BINARY).decode()[600_000:620_000], 600_000, 682_668),
    ),
]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_large_answer_is_read_in_parts(shop: Running, mode: str) -> None:
    async with client(shop.url, "ann", mode) as ann:
        ids = {kind: await kept(ann, kind) for kind in ANSWERS}
        found = [
            await own_call(ann, "read_result", **{"result_id": ids[kind], **asked})
            for kind, asked, _ in PARTS
        ]
    sizes = {kind: len(body) for kind, (body, _) in ANSWERS.items()}
    sizes["text"] = len(TEXT.encode())  # it is read in UTF-8
    assert found == [
        {"result_id": ids[kind], "bytes": sizes[kind], **wanted} for kind, _, wanted in PARTS
    ]


async def test_part_that_is_not_there_is_refused_with_what_is(shop: Running) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "there are the keys 'books', 'by/id'": {"pointer": "/nope"},
        "minimum": {"offset": -1},
        "there is no such result": {"result_id": "other"},
    }
    async with client(shop.url, "ann") as ann:
        id = await kept(ann, "json")
        for words, asked in wrong.items():
            found = await own_call(ann, "read_result", **{"result_id": id, **asked})
            assert found["error"]["code"] == "invalid_arguments"
            assert words in str(found["error"])


async def test_an_answer_cut_at_its_bound_is_read_as_text(shop: Running) -> None:
    async with client(shop.url, "ann") as ann:
        found = await own_call(ann, "shop_get_items", id="endless")
        assert (found["truncated"], found["incomplete"], found["bytes"]) == (True, True, 2**24)
        end = {"result_id": found["result_id"], "offset": 2**24 - 4}
        assert (await own_call(ann, "read_result", **end))["value"] == ",1,1"


async def test_answer_belongs_to_who_called(shop: Running) -> None:
    async with client(shop.url, "ann") as ann, client(shop.url, "root") as root:
        id = await kept(ann, "text")
        of_another = await own_call(root, "read_result", result_id=id)
        of_nobody = await own_call(root, "read_result", result_id="other")
        mine = await own_call(ann, "read_result", result_id=id, limit=4)
    assert of_another == of_nobody
    assert of_another["error"]["message"] == "there is no such result, or it has expired"
    assert mine["value"] == "Käse"


async def test_large_answer_of_an_upstream_is_read_in_parts(shop: Running) -> None:
    async with client(shop.url, "ann") as ann:
        found = await own_call(ann, "far_echo", text=TEXT)
        asked = {"result_id": found["result_id"], "pointer": "/text"}  # structured content
        last = await own_call(ann, "read_result", **asked, offset=len(TEXT) - 5)
        plain = await own_call(ann, "far_huge", bytes=100_000)  # with little structure
        asked = {"result_id": plain["result_id"], "pointer": "/content/0/text"}
        end = await own_call(ann, "read_result", **asked, offset=99_990)
    assert last == last | part(TEXT[-5:], len(TEXT) - 5, len(TEXT), True)
    assert end == end | part("x" * 10, 99_990, 100_000, True)


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_client_that_checks_what_a_tool_promised_takes_every_answer(mode: str) -> None:
    async with report_gateway() as url, Client(url, mode=mode) as made:
        tools = {tool.name: tool for tool in (await made.list_tools()).tools}
        small = await own_call(made, "far_report", rows=2)
        cut = await own_call(made, "far_report", rows=ROWS)
        asked = {"result_id": cut["result_id"], "pointer": "/rows", "offset": ROWS - 1}
        last = await own_call(made, "read_result", **asked)
        refused = await own_call(made, "far_report", rows="many")
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
    async with api(shop.url, "ann") as ann:
        id = (await ann.call("shop_get_items", id="json"))[1]["output"]["result_id"]
        _, found = await ann("GET", f"/results/{id}?pointer=/books&offset=8998&limit=1")
        assert (await ann("GET", "/results/no-such-id"))[0] == 404
    assert found == found | part(BOOKS[8_998:8_999], 8_998, 9_000)
