"""What was called and what became of it: the history, and tokens that are used once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest
from aiohttp import web
from mcp.shared.exceptions import MCPError
from mcp_types import RequestParamsMeta
from starlette.requests import Request
from starlette.responses import JSONResponse
from structlog.testing import capture_logs

from gateway.limits import FAILURES_A_MINUTE, MAX_QUOTE_CHARS
from tests.callers import api, call_to_be_cut_off, own_call
from tests.configs import table
from tests.conftest import OPEN, GatewayMaker, gateway_on
from tests.journeys.confirming import (
    CALL,
    FREELY,
    IDEMPOTENT,
    ORDER,
    Gate,
    Shop,
    config,
    orders_api,
    serving,
)
from tests.journeys.conftest import ShopMaker
from tests.peers import Provider, look_until, provider, soon, until
from tests.peers_mcp import mcp_peer, scripted_peer


@pytest.fixture
def order() -> dict[str, Any]:
    """An order with a token that no other test uses."""
    return {"arguments": ORDER, "idempotency_token": uuid4().hex}


async def test_call_is_recorded_whole(shop: Shop) -> None:
    status, answer = await shop.ann.call("shop_place_order", **ORDER, notes=[])
    token = answer["idempotency_token"]
    ended = {"success": True, "output": {"path": "/orders", "method": "POST"}, "error": None}
    assert (status, answer) == (
        200,
        {
            **ended,
            "duration_ms": answer["duration_ms"],
            "execution_id": answer["execution_id"],
            "idempotency_token": token,
        },
    )
    record = await shop.ann.execution(answer["execution_id"])
    assert record == {
        "id": answer["execution_id"],
        "tool": "shop_place_order",
        "connection": "shop",
        "principal": "ann",
        "status": "completed",
        "access": "write",
        "risk": "medium",
        "arguments": {"book": "Emma", "notes": []},
        "result": {**ended, "duration_ms": record["result"]["duration_ms"]},
        "error_code": None,
        "upstream_status": 200,
        "idempotency_token": token,
        "recorded": None,
        "bundle_ids": [],
        "created_at": record["created_at"],
        "finished_at": record["finished_at"],
        "revision": record["revision"],
        "timeline": record["timeline"],
    }
    steps = [(each["event"], each["by"]) for each in record["timeline"]]
    assert steps == [("sent", "ann"), ("answered", "shop"), ("recorded", None)]
    times = [each["at"] for each in record["timeline"]]
    assert [record["created_at"], *times, record["finished_at"]] == sorted(
        [*times, record["created_at"], record["finished_at"]]
    )
    assert shop.peer.headers[-1]["Idempotency-Key"] == token
    async with shop.agent() as agent:
        found = await own_call(agent, "find_execution", token=token)
        got = await own_call(agent, "get_execution", id=record["id"])
        listed = await own_call(agent, "list_executions", tool=record["tool"], limit=1)
    assert (found, got) == ({**record, "executions": [record]}, record)
    assert listed["executions"] == [record]


async def test_refused_and_invalid_calls_are_recorded_too(shop: Shop) -> None:
    status, wrong = await shop.ann.call("shop_place_order", book=7)
    assert (status, wrong["success"], wrong["error"]["code"]) == (422, False, "invalid_arguments")
    record = await shop.ann.execution(wrong["execution_id"])
    assert (record["status"], record["error_code"]) == ("failed", "invalid_arguments")
    assert [each["event"] for each in record["timeline"]] == ["refused", "recorded"]


async def test_own_executions_only_and_everyones_for_an_admin(own_shop: Shop) -> None:
    ann, bob, root = own_shop.ann, own_shop.bob, own_shop.root
    made = [await one.call("shop_place_order", **ORDER) for one in (ann, bob)]
    ids = [answer["execution_id"] for _, answer in made]
    for one, seen in ((ann, ids[:1]), (bob, ids[1:]), (root, ids)):
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
    shop: Shop, order: dict[str, Any]
) -> None:
    gate = Gate(shop.peer)
    calls = [asyncio.create_task(shop.ann("POST", CALL, order)) for _ in range(50)]
    await soon(gate.entered.wait())
    gate.release.set()
    answers = await asyncio.gather(*calls)
    later = await shop.ann("POST", CALL, order)
    assert shop.peer.sent() == 1
    assert [answer for answer in answers if answer != later] == []
    assert later[1]["output"] == {"placed": True}


async def test_token_is_in_the_result_and_its_last_line(shop: Shop, order: dict[str, Any]) -> None:
    token = order["idempotency_token"]
    meta = cast(RequestParamsMeta, {"gateway/idempotency_token": token})
    async with shop.agent() as agent:
        first = await agent.call_tool("shop_place_order", ORDER, meta=meta)
        again = await agent.call_tool("shop_place_order", ORDER, meta=meta)
        fresh = await agent.call_tool("shop_place_order", ORDER)
    assert (first.meta or {})["gateway/idempotency_token"] == token
    assert first.content[-1].model_dump()["text"] == f"Idempotency token: {token}"
    assert again.meta == {**(first.meta or {}), "gateway/replayed": True}
    assert (again.content, again.structured_content) == (first.content, first.structured_content)
    assert len((fresh.meta or {})["gateway/idempotency_token"]) == 36
    assert shop.peer.sent() == 2


async def test_token_with_other_arguments_is_a_conflict(shop: Shop, order: dict[str, Any]) -> None:
    await shop.ann("POST", CALL, order)
    other = {**order, "arguments": {"book": "Persuasion"}}
    status, answer = await shop.ann("POST", CALL, other)
    assert (status, answer["error"]["code"]) == (409, "idempotency_conflict")
    assert (await shop.bob("POST", CALL, other))[0] == 200  # a token is its principal's own
    assert shop.peer.sent() == 2


async def test_call_that_never_left_may_be_made_again_with_its_token(
    shop: Shop, order: dict[str, Any]
) -> None:
    async with provider() as gone:
        closed = gone.url
    shop.peer.document = orders_api(closed)
    await shop.refresh()
    _, failed = await shop.ann("POST", CALL, order)
    assert failed["error"]["code"] == "upstream_unreachable"
    shop.peer.document = orders_api(shop.peer.url)
    await shop.refresh()
    _, made = await shop.ann("POST", CALL, order)
    assert (made["success"], shop.peer.sent()) == (True, 1)
    async with shop.agent() as agent:
        found = await own_call(agent, "find_execution", token=order["idempotency_token"])
    assert found["id"] == made["execution_id"]
    assert [each["status"] for each in found["executions"]] == ["completed", "failed"]


async def test_a_call_under_way_is_told_of_and_none_is_begun_once_nothing_can_be_recorded(
    own_shop: Shop,
) -> None:
    ann, peer = own_shop.ann, own_shop.peer
    gate = Gate(peer)
    call = asyncio.create_task(ann.call("shop_place_order", **ORDER))
    await soon(gate.entered.wait())
    await own_shop.app.gateway.db.close()
    status, answer = await ann.call("shop_place_order", book="Persuasion")
    assert (status, answer["error"]["code"], peer.sent()) == (503, "store_unavailable", 1)
    gate.release.set()
    status, answer = await call
    assert (status, answer["output"], peer.sent()) == (200, {"placed": True}, 1)


@pytest.mark.parametrize(
    ("tool", "arguments", "status"),
    [("shop_place_order", ORDER, "completed"), ("shop_get_order", {"id": "7"}, "failed")],
)
async def test_write_is_finished_without_its_caller_and_a_read_ends_with_it(
    shop: Shop, tool: str, arguments: dict[str, Any], status: str
) -> None:
    gate = Gate(shop.peer)
    async with call_to_be_cut_off(shop.eve, tool, arguments, "2026-07-28"):
        await soon(gate.entered.wait())
        await asyncio.sleep(0.1)  # a call is attended to once it takes its time
    await until(lambda: not shop.app.mcp.figures()["calls_in_flight"])
    gate.release.set()

    async def statuses() -> list[str]:
        _, page = await shop.root("GET", f"/executions?principal=eve&tool={tool}")
        return [each["status"] for each in page["executions"] if each["status"] != "executing"]

    assert await look_until(statuses) == [status]


async def test_what_a_server_says_in_an_error_is_recorded_without_secrets(
    make_gateway: GatewayMaker,
) -> None:
    secret = {"type": "bearer", "token": "not like this"}  # which is what it says
    async with mcp_peer("both") as up:
        gateway = await make_gateway(OPEN + up.table(auth=secret))
        async with api(gateway.url, "ann") as ann:
            _, refused = await ann.call("up_refuse")
            record = await ann.execution(refused["execution_id"])
    shown = [refused["error"]["message"], record["result"]["error"]["message"]]
    assert [("[redacted]" in each, "not like" in each) for each in shown] == [(True, False)] * 2


async def test_what_a_server_says_when_it_is_looked_at_is_shown_without_secrets(
    make_gateway: GatewayMaker,
) -> None:
    async def answer(message: dict[str, Any], request: Request) -> JSONResponse:
        error = {"code": -32000, "message": f"no {request.headers['authorization']}"}
        return JSONResponse({"jsonrpc": "2.0", "id": message.get("id"), "error": error})

    auth = {"type": "bearer", "token": "very-secret-token"}
    async with mcp_peer("both") as up, scripted_peer(answer) as url:
        up.tools["echo"] = {**up.tools["echo"], "description": "not very-secret-token"}
        gateway = await make_gateway(OPEN + up.table(auth=auth))
        async with api(gateway.url, "ann") as ann:
            put = await ann("PUT", "/connections/far", {"kind": "mcp", "url": url, "auth": auth})
            told = [str(put), str(await ann("GET", "/tools/up_echo"))]
    assert [("[redacted]" in each, "very-secret" in each) for each in told] == [(True, False)] * 2


async def test_a_write_that_may_have_arrived_is_unknown_whether_or_not_it_has_a_token(
    make_shop: ShopMaker,
) -> None:
    shop = await make_shop(FREELY)

    async def hang_up(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    shop.peer.answer = hang_up
    _, answer = await shop.ann.call("shop_place_order", **ORDER)
    error = answer["error"]
    assert (error["code"], error["outcome"]) == ("upstream_unreachable", "unknown")
    assert "may have been carried out" in error["hint"]
    assert (await shop.ann.execution(answer["execution_id"]))["status"] == "unknown"


async def test_killed_between_sending_and_recording_is_unknown_and_never_sent_again(
    tmp_path: Path, peer: Provider, store_url: str, order: dict[str, Any]
) -> None:
    text = config(peer, FREELY, table("store", url=store_url), IDEMPOTENT)
    file = tmp_path / "config.toml"
    file.write_text(text, encoding="utf-8")
    gate = Gate(peer)
    async with serving(tmp_path, "ann") as (process, ann):
        call = asyncio.create_task(ann("POST", CALL, order))
        await soon(gate.entered.wait())
        process.kill()
        await process.wait()
        await asyncio.gather(call, return_exceptions=True)
    gate.release.set()
    async with gateway_on(file, text) as shop, api(shop.url, "ann") as ann:
        _, again = await ann("POST", CALL, order)
        _, found = await ann("GET", f"/executions?token={order['idempotency_token']}")
    assert again["error"]["code"] == "outcome_unknown"
    assert [(each["status"], each["tool"]) for each in found["executions"]] == [
        ("unknown", "shop_place_order")
    ]
    assert peer.sent() == 1


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_a_call_of_a_tool_that_is_hidden_or_not_there_leaves_the_same_trace(
    own_shop: Shop, mode: str
) -> None:
    await own_shop.ann("PUT", "/access/shop", {"access": "read-only"})
    names = ["shop_place_order", "shop_place_nothing"]
    refusals = []
    with capture_logs() as logged:
        async with own_shop.agent("ann", mode) as agent:
            for name in names:
                with pytest.raises(MCPError) as refused:
                    await agent.call_tool(name, ORDER)
                refusals.append((refused.value.error.code, refused.value.error.message))
    assert refusals == [(-32602, f"Unknown tool: {name}") for name in names]
    newest = (await own_shop.root("GET", "/executions?status=denied"))[1]["executions"]
    assert [record["tool"] for record in newest] == names[::-1]
    told = [
        {
            key: value
            for key, value in record.items()
            if not key.endswith(("id", "_at", "tool", "line"))
        }
        for record in newest
    ]
    assert told[0] == told[1]
    wanted = {"principal": "ann", "error_code": "access_denied", "arguments": {}}
    assert told[0] == told[0] | wanted
    lines = [line for line in logged if line["event"] == "call ended"]
    assert [(line["tool"], line["principal"]) for line in lines] == [(n, "ann") for n in names]
    _, metrics = await own_shop.root("GET", "//metrics")
    assert "gateway_unknown_tool_calls_total 2.0" in metrics
    assert own_shop.peer.requests == []


async def test_the_trace_of_unknown_tools_is_bounded_and_all_are_counted(own_shop: Shop) -> None:
    for number in range(FAILURES_A_MINUTE + 5):
        assert (await own_shop.ann.call(f"{'x' * 3000}{number}"))[0] == 404
    await own_shop.bob.call("nothing")
    records = (await own_shop.root("GET", "/executions?limit=100"))[1]["executions"]
    assert len(records) == FAILURES_A_MINUTE + 1
    assert max(len(record["tool"]) for record in records) == MAX_QUOTE_CHARS
    _, metrics = await own_shop.root("GET", "//metrics")
    assert f"gateway_unknown_tool_calls_total {FAILURES_A_MINUTE + 6}.0" in metrics


async def test_raw_requests_that_are_refused_leave_a_trace(make_shop: ShopMaker) -> None:
    dangerous = 'operations = { cancelOrder = { access = "dangerous" } }'
    shop = await make_shop(FREELY, connection=dangerous)
    for connection, method in (("shop", "DELETE"), ("hidden", "GET")):
        request = {"connection": connection, "method": method, "path": "/orders/7"}
        await shop.ann("POST", "/proxy", request)
    _, listed = await shop.root("GET", "/executions")
    assert [
        (record["tool"], record["connection"], record["error_code"], record["arguments"])
        for record in listed["executions"]
    ] == [
        ("proxy hidden", "", "access_denied", {}),
        ("proxy", "shop", "blocked_path", {"method": "DELETE", "path": "/orders/7"}),
    ]
