"""The 2026 era on the wire: the ladder of checks, lone requests, and hanging up as cancelling."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from gateway.mcp.pass_through import INSTRUCTIONS
from tests.mcp.conftest import Edge
from tests.mcp.raw import SERVER, call, listening, modern, opened, post, request

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
STAMP = {"io.modelcontextprotocol/serverInfo": SERVER}
WHOLE = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", "_meta": STAMP}


async def test_discover_says_what_is_served(edge: Edge) -> None:
    answer = await post(edge, *modern(request("server/discover")))
    assert answer.body == {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {"listChanged": True}},
            "instructions": INSTRUCTIONS,
            **WHOLE,
        },
    }


async def test_list_is_complete_private_and_stamped(edge: Edge) -> None:
    answer = await post(edge, *modern(request("tools/list")))
    result = answer.body["result"]
    assert [one["name"] for one in result.pop("tools")] == list(edge.toolbox.tools)
    assert result == WHOLE
    assert "mcp-session-id" not in answer.headers


async def test_call_is_complete_and_stamped(edge: Edge) -> None:
    answer = await post(edge, *modern(call("echo", "x", a=1)))
    assert answer.body == {
        "jsonrpc": "2.0",
        "id": "x",
        "result": {
            "resultType": "complete",
            "content": [{"type": "text", "text": '{"a":1}'}],
            "structuredContent": {"a": 1},
            "_meta": STAMP,
        },
    }


async def test_unsupported_version_is_told_what_is_supported(edge: Edge) -> None:
    message, headers = modern(request("tools/list"), **{VERSION_KEY: "2027-01-01"})
    answer = await post(edge, message, {**headers, "mcp-protocol-version": "2027-01-01"})
    assert (answer.status, answer.code) == (400, -32022)
    assert answer.body["error"]["data"] == {"supported": ["2026-07-28"], "requested": "2027-01-01"}


async def test_routing_header_given_twice_is_refused(edge: Edge) -> None:
    message, headers = modern(call("echo"))
    doubled = [*headers.items(), ("mcp-name", "other"), ("accept", "*/*")]
    async with edge.http.post(edge.url, json=message, headers=doubled) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (400, -32020)


def wrapped(value: str) -> str:
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


@pytest.mark.parametrize(
    ("arguments", "header", "status"),
    [
        ({"region": "eu"}, "eu", 200),
        ({"region": "eu"}, " eu ", 200),
        ({"region": "süd"}, wrapped("süd"), 200),
        ({}, None, 200),
        ({"region": "eu"}, None, 400),
        ({"region": "eu"}, "us", 400),
        ({}, "eu", 400),
        ({"region": "eu"}, "=?base64?%%?=", 400),
    ],
)
async def test_parameter_headers_must_say_what_the_body_says(
    edge: Edge, arguments: dict[str, Any], header: str | None, status: int
) -> None:
    message, headers = modern(call("routed", **arguments))
    if header is not None:
        headers["mcp-param-region"] = header
    answer = await post(edge, message, headers)
    assert (answer.status, answer.code) == (status, None if status == 200 else -32020)


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_only_post_exists(edge: Edge, method: str) -> None:
    answer = await post(edge, b"", {"mcp-protocol-version": "2026-07-28"}, method)
    assert (answer.status, answer.headers["allow"]) == (405, "POST")


async def test_notification_is_accepted_and_dropped(edge: Edge) -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
    assert (await post(edge, note, {"mcp-protocol-version": "2026-07-28"})).status == 202
    answer = await post(edge, note, {"mcp-protocol-version": "2027-01-01"})
    assert (answer.status, answer.code) == (400, -32022)


async def test_listening_needs_a_filter_and_a_client_that_takes_streams(edge: Edge) -> None:
    wanted = {"notifications": {"toolsListChanged": True}}
    for params, accept, status in ((wanted, "application/json", 406), ({}, "*/*", 400)):
        message, headers = modern(request("subscriptions/listen", params))
        answer = await post(edge, message, {**headers, "accept": accept})
        assert answer.status == status


async def test_hanging_up_cancels_the_call(edge: Edge) -> None:
    waiting = asyncio.create_task(post(edge, *modern(call("wait"))))
    async with asyncio.timeout(60):
        await edge.toolbox.started.wait()
        waiting.cancel()
        await edge.toolbox.ended.wait()
    assert edge.toolbox.cancelled == 1


async def test_progress_comes_as_events_before_the_answer(edge: Edge) -> None:
    edge.toolbox.put("report")
    message, headers = modern(call("report"), progressToken="p")
    async with opened(edge, headers, message) as events:
        messages = [await events.message() for _ in range(4)]
    assert [one.get("params", {}).get("progress") for one in messages] == [1, 2, 3, None]
    assert messages[3]["result"]["resultType"] == "complete"


async def test_subscription_says_its_id_with_everything(edge: Edge) -> None:
    meta = {"io.modelcontextprotocol/subscriptionId": 7}
    async with listening(edge, request_id=7) as events:
        edge.toolbox.put("new")
        assert await events.message() == {
            "jsonrpc": "2.0",
            "method": "notifications/tools/list_changed",
            "params": {"_meta": meta},
        }
        edge.endpoint.streams.close()
        assert await events.message() == {
            "jsonrpc": "2.0",
            "id": 7,
            "result": {"resultType": "complete", "_meta": {**meta, **STAMP}},
        }
        assert await events.ended()


async def test_what_was_not_asked_for_is_not_sent(edge: Edge) -> None:
    message, headers = modern(request("subscriptions/listen", {"notifications": {}}))
    async with opened(edge, headers, message) as events:
        assert (await events.message())["params"]["notifications"] == {}
        edge.toolbox.put("new")
        assert await events.silent(0.4)
