"""What was called and what became of it: the history, and tokens that are used once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from aiohttp import web
from mcp.shared.exceptions import MCPError
from mcp_types import RequestParamsMeta
from structlog.testing import capture_logs

from gateway.limits import FAILURES_A_MINUTE, MAX_QUOTE_CHARS
from tests.conftest import Running, gateway_on
from tests.journeys.confirming import (
    CALL,
    FREELY,
    IDEMPOTENT,
    ORDER,
    Api,
    Gate,
    api,
    call_to_be_cut_off,
    client,
    config,
    error_code,
    orders_api,
    sent,
    serving,
)
from tests.peers import Provider, provider, until


@pytest.fixture(scope="module")
async def shop(
    module_peer: Provider, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    file = tmp_path_factory.mktemp("executions") / "config.toml"
    text = config(module_peer, FREELY, connection=IDEMPOTENT)
    async with gateway_on(file, text) as gateway:
        yield gateway


@pytest.fixture
def peer(fresh_peer: Provider) -> Provider:
    return fresh_peer


@pytest.fixture
async def ann(shop: Running) -> AsyncIterator[Api]:
    async with api(shop.url, "ann") as made:
        yield made


@pytest.fixture
async def own_shop(peer: Provider, tmp_path: Path) -> AsyncIterator[Running]:
    """A gateway without a history, which no other test sees."""
    text = config(peer, FREELY, connection=IDEMPOTENT)
    async with gateway_on(tmp_path / "config.toml", text) as gateway:
        yield gateway


@pytest.fixture
async def own_ann(own_shop: Running) -> AsyncIterator[Api]:
    async with api(own_shop.url, "ann") as made:
        yield made


@pytest.fixture
def token() -> str:
    """A token that no other test uses."""
    return uuid4().hex


def token_meta(token: Any) -> RequestParamsMeta:
    return cast(RequestParamsMeta, {"gateway/idempotency_token": token})


async def test_call_is_recorded_whole(shop: Running, peer: Provider, ann: Api) -> None:
    status, answer = await ann("POST", CALL, {"arguments": {**ORDER, "notes": []}})
    token = answer["idempotency_token"]
    assert (status, answer) == (
        200,
        {
            "success": True,
            "output": {"path": "/orders", "method": "POST"},
            "error": None,
            "duration_ms": answer["duration_ms"],
            "execution_id": answer["execution_id"],
            "idempotency_token": token,
        },
    )
    record = await ann.execution(answer["execution_id"])
    assert record == {
        "id": answer["execution_id"],
        "tool": "shop_place_order",
        "connection": "shop",
        "principal": "ann",
        "status": "completed",
        "access": "write",
        "risk": "medium",
        "arguments": {"book": "Emma", "notes": []},
        "result": {
            "success": True,
            "output": {"path": "/orders", "method": "POST"},
            "error": None,
            "duration_ms": record["result"]["duration_ms"],
        },
        "error_code": None,
        "upstream_status": 200,
        "idempotency_token": token,
        "recorded": None,
        "bundle_ids": [],
        "created_at": record["created_at"],
        "finished_at": record["finished_at"],
        "revision": record["revision"],
    }
    assert peer.headers[-1]["Idempotency-Key"] == token
    async with client(shop.url, "ann") as agent:
        found = await agent.call_tool("find_execution", {"token": token})
        got = await agent.call_tool("get_execution", {"id": record["id"]})
        listed = await agent.call_tool("list_executions", {"tool": record["tool"], "limit": 1})
    assert found.structured_content == {**record, "executions": [record]}
    assert got.structured_content == record
    assert (listed.structured_content or {})["executions"] == [record]


async def test_refused_and_invalid_calls_are_recorded_too(shop: Running, ann: Api) -> None:
    status, wrong = await ann("POST", CALL, {"arguments": {"book": 7}})
    assert (status, wrong["success"], wrong["error"]["code"]) == (422, False, "invalid_arguments")
    record = await ann.execution(wrong["execution_id"])
    assert (record["status"], record["error_code"]) == ("failed", "invalid_arguments")


async def test_own_executions_only_and_everyones_for_an_admin(
    own_shop: Running, own_ann: Api
) -> None:
    async with api(own_shop.url, "bob") as bob, api(own_shop.url, "root") as root:
        _, hers = await own_ann("POST", CALL, {"arguments": ORDER})
        _, his = await bob("POST", CALL, {"arguments": ORDER})
        ids = [hers["execution_id"], his["execution_id"]]
        for one, seen in ((own_ann, ids[:1]), (bob, ids[1:]), (root, ids)):
            _, page = await one("GET", "/executions?principal=")
            listed = [each["id"] for each in (await one("GET", "/executions"))[1]["executions"]]
            assert (sorted(listed), page["next"]) == (seen, None)
        assert (await bob("GET", f"/executions/{ids[0]}"))[0] == 404
        _, filtered = await root("GET", "/executions?principal=ann&status=completed&limit=1")
        assert [each["id"] for each in filtered["executions"]] == ids[:1]
        _, first = await root("GET", "/executions?limit=1")
        _, second = await root("GET", f"/executions?limit=1&cursor={first['next']}")
        pages = [page["executions"][0]["id"] for page in (first, second)]
        assert (sorted(pages), second["next"]) == (ids, None)
        assert (await root("GET", "/executions?status=finished"))[0] == 422


async def test_fifty_equal_calls_at_once_are_one_upstream_request(
    shop: Running, peer: Provider, ann: Api, token: str
) -> None:
    gate = Gate(peer)
    calls = [
        asyncio.create_task(ann("POST", CALL, {"arguments": ORDER, "idempotency_token": token}))
        for _ in range(50)
    ]
    await asyncio.wait_for(gate.entered.wait(), 5)
    gate.release.set()
    answers = await asyncio.gather(*calls)
    later = await ann("POST", CALL, {"arguments": ORDER, "idempotency_token": token})
    assert sent(peer) == 1
    assert [answer for answer in answers if answer != later] == []
    assert later[1]["output"] == {"placed": True}


async def test_token_is_in_the_result_and_its_last_line(
    shop: Running, peer: Provider, token: str
) -> None:
    async with client(shop.url, "ann") as agent:
        first = await agent.call_tool("shop_place_order", ORDER, meta=token_meta(token))
        again = await agent.call_tool("shop_place_order", ORDER, meta=token_meta(token))
        fresh = await agent.call_tool("shop_place_order", ORDER)
    assert (first.meta or {})["gateway/idempotency_token"] == token
    assert first.content[-1].model_dump()["text"] == f"Idempotency token: {token}"
    assert again.meta == {**(first.meta or {}), "gateway/replayed": True}
    assert (again.content, again.structured_content) == (first.content, first.structured_content)
    assert len((fresh.meta or {})["gateway/idempotency_token"]) == 36
    assert sent(peer) == 2


async def test_token_with_other_arguments_is_a_conflict(
    shop: Running, peer: Provider, ann: Api, token: str
) -> None:
    await ann("POST", CALL, {"arguments": ORDER, "idempotency_token": token})
    other = {"arguments": {"book": "Persuasion"}, "idempotency_token": token}
    status, answer = await ann("POST", CALL, other)
    assert (status, answer["error"]["code"]) == (409, "idempotency_conflict")
    async with api(shop.url, "bob") as bob:
        assert (await bob("POST", CALL, other))[0] == 200  # a token is its principal's own
    assert sent(peer) == 2


async def test_token_must_be_visible_ascii(shop: Running, peer: Provider) -> None:
    async with client(shop.url, "ann") as agent:
        result = await agent.call_tool("shop_place_order", ORDER, meta=token_meta("a b"))
    assert (error_code(result), sent(peer)) == ("invalid_arguments", 0)


async def test_upstream_error_is_replayed(peer: Provider, ann: Api, token: str) -> None:
    async def full(request: web.Request) -> web.StreamResponse:
        return web.json_response({"message": "no stock"}, status=409)

    peer.answer = full
    body = {"arguments": ORDER, "idempotency_token": token}
    first, again = await ann("POST", CALL, body), await ann("POST", CALL, body)
    assert first == again
    assert (first[0], first[1]["error"]["code"], first[1]["error"]["status"]) == (
        200,
        "upstream_error",
        409,
    )
    assert sent(peer) == 1


async def test_failure_before_sending_frees_the_token_and_one_after_does_not(
    tmp_path: Path, peer: Provider
) -> None:
    text = config(peer, FREELY, connection=f"{IDEMPOTENT}\ntimeout_seconds = 1")
    async with (
        gateway_on(tmp_path / "config.toml", text) as shop,
        api(shop.url, "ann") as ann,
    ):
        body = {"arguments": ORDER, "idempotency_token": "t-1"}
        Gate(peer)
        status, unknown = await ann("POST", CALL, body)
        assert (status, unknown["error"]["code"]) == (200, "outcome_unknown")
        peer.answer = None
        again = await ann("POST", CALL, body)
        assert (again[1]["error"]["code"], sent(peer)) == ("outcome_unknown", 1)
        record = await ann.execution(unknown["execution_id"])
        assert (record["status"], record["error_code"]) == ("unknown", "outcome_unknown")


async def test_call_that_never_left_may_be_made_again_with_its_token(
    shop: Running, peer: Provider, ann: Api, token: str
) -> None:
    port = peer.port
    body = {"arguments": ORDER, "idempotency_token": token}
    async with provider() as gone:
        closed = gone.url
    peer.document = orders_api(closed)
    async with api(shop.url, "root") as root:
        await root("POST", "/connections/shop/refresh")
        _, failed = await ann("POST", CALL, body)
        assert failed["error"]["code"] == "upstream_unreachable"
        peer.document = orders_api(f"http://127.0.0.1:{port}")
        await root("POST", "/connections/shop/refresh")
        _, made = await ann("POST", CALL, body)
    assert (made["success"], sent(peer)) == (True, 1)
    async with client(shop.url, "ann") as agent:
        found = (await agent.call_tool("find_execution", {"token": token})).structured_content
    assert found is not None and found["id"] == made["execution_id"]
    assert [each["status"] for each in found["executions"]] == ["completed", "failed"]


async def test_a_call_under_way_is_told_of_and_none_is_begun_once_nothing_can_be_recorded(
    own_shop: Running, peer: Provider, own_ann: Api
) -> None:
    gate = Gate(peer)
    call = asyncio.create_task(own_ann("POST", CALL, {"arguments": ORDER}))
    await asyncio.wait_for(gate.entered.wait(), 5)
    await own_shop.app.gateway.db.close()
    status, answer = await own_ann("POST", CALL, {"arguments": {"book": "Persuasion"}})
    assert (status, answer["error"]["code"], sent(peer)) == (503, "store_unavailable", 1)
    gate.release.set()
    status, answer = await call
    assert (status, answer["output"], sent(peer)) == (200, {"placed": True}, 1)


@pytest.mark.parametrize(
    ("tool", "arguments", "status"),
    [("shop_place_order", ORDER, "completed"), ("shop_get_order", {"id": "7"}, "failed")],
)
async def test_write_is_finished_without_its_caller_and_a_read_ends_with_it(
    shop: Running, peer: Provider, tool: str, arguments: dict[str, Any], status: str
) -> None:
    gate = Gate(peer)
    async with call_to_be_cut_off(shop.url, "eve", tool, arguments, "2026-07-28"):
        await asyncio.wait_for(gate.entered.wait(), 5)
        await asyncio.sleep(0.1)  # a call is attended to once it takes its time
    await until(lambda: not shop.app.mcp.figures()["calls_in_flight"])
    gate.release.set()
    async with asyncio.timeout(15), api(shop.url, "root") as root:
        while True:
            _, page = await root("GET", f"/executions?principal=eve&tool={tool}")
            if page["executions"] and page["executions"][0]["status"] != "executing":
                break
            await asyncio.sleep(0.02)
    assert [each["status"] for each in page["executions"]] == [status]


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
async def test_killed_between_sending_and_recording_is_unknown_and_never_sent_again(
    tmp_path: Path, peer: Provider, store: str, request: pytest.FixtureRequest
) -> None:
    more = ""
    if store == "postgresql":
        database = request.getfixturevalue("postgres").new_database()
        more = f'[store]\nurl = "{request.getfixturevalue("postgres").url(database)}"'
    text = config(peer, FREELY, more, IDEMPOTENT)
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    body = {"arguments": ORDER, "idempotency_token": "t-1"}
    gate = Gate(peer)
    async with serving(tmp_path, "ann") as (process, ann):
        call = asyncio.create_task(ann("POST", CALL, body))
        await asyncio.wait_for(gate.entered.wait(), 10)
        process.kill()
        await process.wait()
        await asyncio.gather(call, return_exceptions=True)
    gate.release.set()
    async with gateway_on(file, text) as shop, api(shop.url, "ann") as ann:
        _, again = await ann("POST", CALL, body)
        _, found = await ann("GET", "/executions?token=t-1")
    assert again["error"]["code"] == "outcome_unknown"
    assert [(each["status"], each["tool"]) for each in found["executions"]] == [
        ("unknown", "shop_place_order")
    ]
    assert sent(peer) == 1


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_call_of_a_tool_that_is_hidden_or_not_there_leaves_the_same_trace(
    own_shop: Running, peer: Provider, own_ann: Api, mode: str
) -> None:
    await own_ann("PUT", "/access/shop", {"access": "read-only"})
    names = ["shop_place_order", "shop_place_nothing"]
    refusals = []
    with capture_logs() as logged:
        async with client(own_shop.url, "ann", mode) as agent:
            for name in names:
                with pytest.raises(MCPError) as refused:
                    await agent.call_tool(name, ORDER)
                refusals.append((refused.value.error.code, refused.value.error.message))
    assert refusals == [(-32602, f"Unknown tool: {name}") for name in names]
    async with api(own_shop.url, "root") as root:
        _, listed = await root("GET", "/executions?status=denied")
        async with root.http.get(f"{own_shop.url}/metrics") as answer:
            metrics = await answer.text()
    newest = listed["executions"]
    assert [record["tool"] for record in newest] == names[::-1]
    told = [
        {key: value for key, value in record.items() if not key.endswith(("id", "_at", "tool"))}
        for record in newest
    ]
    assert told[0] == told[1]
    assert told[0]["principal"] == "ann"
    assert (told[0]["error_code"], told[0]["arguments"]) == ("access_denied", {})
    lines = [line for line in logged if line["event"] == "call ended"]
    assert [(line["tool"], line["principal"]) for line in lines] == [(n, "ann") for n in names]
    assert "gateway_unknown_tool_calls_total 2.0" in metrics
    assert peer.requests == []


async def test_the_trace_of_unknown_tools_is_bounded_and_all_are_counted(
    own_shop: Running, own_ann: Api
) -> None:
    for number in range(FAILURES_A_MINUTE + 5):
        status, _ = await own_ann("POST", f"/tools/{'x' * 3000}{number}/call", {"arguments": ORDER})
        assert status == 404
    async with api(own_shop.url, "bob") as bob, api(own_shop.url, "root") as root:
        await bob("POST", "/tools/nothing/call", {})
        _, listed = await root("GET", "/executions?limit=100")
        async with root.http.get(f"{own_shop.url}/metrics") as answer:
            metrics = await answer.text()
    records = listed["executions"]
    assert len(records) == FAILURES_A_MINUTE + 1
    assert max(len(record["tool"]) for record in records) == MAX_QUOTE_CHARS
    assert f"gateway_unknown_tool_calls_total {FAILURES_A_MINUTE + 6}.0" in metrics


async def test_raw_requests_that_are_refused_leave_a_trace(tmp_path: Path, peer: Provider) -> None:
    rules = 'operations = { cancelOrder = { access = "dangerous" } }'
    requests = [
        {"connection": "shop", "method": "DELETE", "path": "/orders/7"},
        {"connection": "hidden", "method": "GET", "path": "/orders/7"},
    ]
    async with (
        gateway_on(tmp_path / "config.toml", config(peer, FREELY, connection=rules)) as shop,
        api(shop.url, "ann") as ann,
        api(shop.url, "root") as root,
    ):
        for request in requests:
            await ann("POST", "/proxy", request)
        _, listed = await root("GET", "/executions")
    assert [
        (record["tool"], record["connection"], record["error_code"], record["arguments"])
        for record in listed["executions"]
    ] == [
        ("proxy hidden", "", "access_denied", {}),
        ("proxy", "shop", "blocked_path", {"method": "DELETE", "path": "/orders/7"}),
    ]
