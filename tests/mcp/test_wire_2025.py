"""The 2025 era on the wire: handshake, sessions, streams, and everything that can be wrong."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.limits import MAX_BODY_BYTES
from gateway.mcp.pass_through import INSTRUCTIONS
from gateway.model import elicitation_modes
from tests.configs import bearer
from tests.mcp.conftest import Edge, EdgeMaker, with_tokens
from tests.mcp.raw import SERVER, Answer, call, hello, opened, post, request, session
from tests.mcp.toolbox import SNAPSHOT, Toolbox
from tests.peers import soon, until

VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
LISTED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [*((v, v) for v in VERSIONS), ("2099-01-01", "2025-11-25"), ("x", VERSIONS[-1])],
)
async def test_handshake_agrees_on_a_version(edge: Edge, asked: str, agreed: str) -> None:
    answer = await post(edge, request("initialize", hello(asked), "hi"))
    assert answer.body == {
        "jsonrpc": "2.0",
        "id": "hi",
        "result": {
            "protocolVersion": agreed,
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": SERVER,
            "instructions": INSTRUCTIONS,
        },
    }


@pytest.mark.parametrize("version", VERSIONS)
async def test_session_lists_calls_and_pings_in_every_version(edge: Edge, version: str) -> None:
    own = await session(edge, version)
    initialized = await post(edge, {"jsonrpc": "2.0", "method": "notifications/initialized"}, own)
    assert (initialized.status, initialized.body) == (202, "")
    assert (await post(edge, request("ping"), own)).body["result"] == {}
    listed = await post(edge, request("tools/list"), own)
    assert [one["name"] for one in listed.body["result"]["tools"]] == list(edge.toolbox.tools)
    assert set(listed.body["result"]) == {"tools"}
    called = await post(edge, call("echo", a=1), own)
    assert called.body == {
        "jsonrpc": "2.0",
        "id": 1,
        "result": {"content": [{"type": "text", "text": '{"a":1}'}], "structuredContent": {"a": 1}},
    }


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {"accept": "text/event-stream"}, 406),
        ("POST", {"mcp-protocol-version": "1999-01-01"}, 400),
        ("POST", {"mcp-session-id": "made-up"}, 404),
        ("POST", {"host": "evil.example"}, 421),
        ("POST", {"origin": "https://evil.example"}, 403),
        ("GET", {"accept": "application/json"}, 406),
        ("GET", {"mcp-session-id": "made-up"}, 404),
        ("GET", {"mcp-protocol-version": "1999-01-01"}, 400),
        ("DELETE", {"mcp-session-id": "made-up"}, 404),
        ("DELETE", {"mcp-protocol-version": "1999-01-01"}, 400),
        ("PATCH", {}, 405),
        ("HEAD", {}, 405),
    ],
)
async def test_odd_request_gets_its_status(
    edge: Edge, method: str, headers: dict[str, str], status: int
) -> None:
    own = await session(edge)
    answer = await post(edge, request("ping"), {**own, **headers}, method)
    assert answer.status == status
    if status == 405:
        assert answer.headers["allow"] == "GET, POST, DELETE"
    if method != "HEAD":
        assert answer.code in (-32600, -32602)


@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
async def test_request_without_a_session_is_400(edge: Edge, method: str) -> None:
    assert (await post(edge, request("ping"), method=method)).status == 400


@pytest.mark.parametrize(
    "path",
    ["/x", "/bundles", "/bundles/", "/bundles/a+", "/steps/a", "/steps/a/b/c", "/bundles/a%2Fb"],
)
async def test_nothing_is_at_other_addresses(edge: Edge, path: str) -> None:
    assert (await post(edge, request("ping"), path=path)).status == 404


async def test_body_too_large_is_413_declared_or_not(make_edge: EdgeMaker) -> None:
    edge: Edge = await make_edge()

    async def chunked(*parts: bytes) -> Any:
        for part in parts:
            yield part

    async def status(sent: Any) -> tuple[int, str | None]:
        headers = {"accept": "application/json", "content-type": "application/json"}
        async with edge.http.post(edge.url, data=sent, headers=headers) as answer:
            return answer.status, answer.headers.get("connection")

    half, hi = bytes(MAX_BODY_BYTES // 2), orjson.dumps(request("initialize", hello(VERSIONS[0])))
    assert await status(io.BytesIO(bytes(MAX_BODY_BYTES + 1))) == (413, "close")
    assert await status(chunked(half, half, half)) == (413, "close")
    assert await status(chunked(hi[:9], hi[9:])) == (200, None)


async def test_body_that_does_not_come_is_cut_off(make_edge: EdgeMaker) -> None:
    limits = SNAPSHOT.settings.limits.model_copy(update={"request_seconds": 0.05})
    settings = SNAPSHOT.settings.model_copy(update={"limits": limits})
    edge: Edge = await make_edge(toolbox=Toolbox(snapshot=replace(SNAPSHOT, settings=settings)))
    host, _, port = edge.base.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /mcp HTTP/1.1\r\nhost: {host}:{port}\r\naccept: */*\r\n"
    writer.write(f"{head}content-type: application/json\r\ncontent-length: 9\r\n\r\n".encode())
    answer = await soon(reader.read())
    assert answer.startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_batches_are_answered_where_the_version_has_them(edge: Edge) -> None:
    own = await session(edge, "2025-03-26")
    notification = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    batch = [request("ping", request_id="a"), notification, call("echo", "b", n=1), {"x": 1}]
    answer = await post(edge, [*batch, request("initialize", {}, "c")], own)
    assert answer.status == 200
    outcomes = {
        one["id"]: one.get("result", one.get("error", {}).get("code")) for one in answer.body
    }
    assert outcomes == {
        "a": {},
        "b": {"content": [{"type": "text", "text": '{"n":1}'}], "structuredContent": {"n": 1}},
        None: -32600,
        "c": -32600,
    }
    assert (await post(edge, [notification], own)).status == 202
    assert (await post(edge, [request("ping")] * 51, own)).status == 400


async def test_two_calls_with_one_id_are_answered_each_on_its_own(edge: Edge) -> None:
    own = await session(edge)
    first = await waiting_call(edge, own, call("wait", 7, which="first"))
    second = await post(edge, call("echo", 7, which="second"), own)
    edge.toolbox.release.set()
    assert second.body["result"]["structuredContent"] == {"which": "second"}
    assert (await first).body["result"]["structuredContent"] == {"which": "first"}


async def waiting_call(edge: Edge, own: dict[str, str], message: Any) -> asyncio.Task[Answer]:
    """A call that is under way."""
    task = asyncio.create_task(post(edge, message, own))
    await soon(edge.toolbox.started.wait())
    return task


def cancelled(request_id: object) -> dict[str, Any]:
    params = {"requestId": request_id, "reason": "no longer wanted"}
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}


async def test_cancelled_call_ends_and_is_answered_so(edge: Edge) -> None:
    own = await session(edge)
    waiting = await waiting_call(edge, own, call("wait", "7"))
    assert (await post(edge, cancelled(7), own)).status == 202
    assert (await waiting).code == -32800
    assert edge.toolbox.cancelled == 1
    assert edge.endpoint.figures()["calls_in_flight"] == 0


async def test_session_can_not_cancel_what_another_session_runs(edge: Edge) -> None:
    own, other = await session(edge), await session(edge)
    waiting = await waiting_call(edge, own, call("wait", 7))
    assert (await post(edge, cancelled(7), other)).status == 202
    edge.toolbox.release.set()
    assert (await waiting).status == 200
    assert edge.toolbox.cancelled == 0


async def test_hanging_up_does_not_cancel_in_this_era(edge: Edge) -> None:
    own = await session(edge)
    waiting = await waiting_call(edge, own, call("wait"))
    async with asyncio.timeout(60):
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await asyncio.sleep(0.15)  # longer than it takes to notice
        edge.toolbox.release.set()
        await edge.toolbox.ended.wait()
    assert edge.toolbox.cancelled == 0


async def test_progress_comes_as_events_before_the_answer(edge: Edge) -> None:
    edge.toolbox.put("report")
    own = await session(edge)
    params = {"name": "report", "arguments": {}, "_meta": {"progressToken": 5}}
    async with opened(edge, own, request("tools/call", params)) as events:
        messages = [await events.message() for _ in range(4)]
    assert [one["params"]["progress"] for one in messages[:3]] == [1, 2, 3]
    assert messages[0] == {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {"progressToken": 5, "progress": 1, "total": 3, "message": "step 1"},
    }
    assert messages[3]["id"] == 1
    whole = await post(edge, request("tools/call", params), {**own, "accept": "application/json"})
    assert whole.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("version", "capabilities", "asked"),
    [
        ("2025-11-25", {"elicitation": {}}, True),
        ("2025-06-18", {"elicitation": {"form": {}}}, True),
        ("2025-11-25", {"elicitation": {"url": {}}}, True),
        ("2025-03-26", {"elicitation": {}}, False),
        ("2025-11-25", {}, False),
    ],
)
async def test_only_clients_that_can_be_asked_are(
    edge: Edge, version: str, capabilities: dict[str, Any], asked: bool
) -> None:
    own = await session(edge, version, capabilities=capabilities)
    await post(edge, call("echo"), own)
    context = edge.toolbox.calls[0][2]
    assert (context.ask is not None and bool(elicitation_modes(context.capabilities))) == asked


ANSWERS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"result": {"action": "accept", "content": {"a": 1}}},
        {"action": "accept", "content": {"a": 1}},
    ),
    ({"result": {"action": "decline"}}, {"action": "decline"}),
    ({"error": {"code": -1, "message": "no"}}, {"action": "cancel"}),
]


@pytest.mark.parametrize(("said", "heard"), ANSWERS)
async def test_answer_of_a_client_reaches_the_call_that_asked(
    edge: Edge, said: dict[str, Any], heard: dict[str, Any]
) -> None:
    edge.toolbox.put("ask")
    own = await session(edge, capabilities={"elicitation": {}})
    stranger = await session(edge, capabilities={"elicitation": {}})
    async with opened(edge, own, call("ask")) as events:
        question = await events.message()
        asked = (question["method"], question["params"]["message"])
        assert asked == ("elicitation/create", "Go on?")
        answer = {"jsonrpc": "2.0", "id": question["id"]}
        forged = {**answer, "result": {"action": "accept", "content": {"forged": True}}}
        assert (await post(edge, forged, stranger)).status == 202
        assert (await post(edge, {**answer, **said}, own)).status == 202
        assert (await events.message())["result"]["structuredContent"] == heard


async def test_question_to_a_client_that_left_counts_as_cancel(edge: Edge) -> None:
    edge.toolbox.put("ask")
    own = await session(edge, capabilities={"elicitation": {}})
    async with opened(edge, own, call("ask")) as events:
        await events.message()
        events.response.close()
    await until(lambda: edge.endpoint.figures()["calls_in_flight"] == 0)


async def test_delete_ends_a_session_and_its_streams(edge: Edge) -> None:
    own = await session(edge)
    async with opened(edge, own) as events:
        assert (await post(edge, b"", own, "DELETE")).status == 200
        assert await events.ended()
    assert (await post(edge, request("ping"), own)).status == 404
    assert (await post(edge, b"", own, "DELETE")).status == 404


async def test_session_belongs_to_the_principal_that_opened_it(make_edge: EdgeMaker) -> None:
    edge: Edge = await make_edge(with_tokens("ann", "bob"))
    ann, bob = bearer("ann"), bearer("bob")
    own = await session(edge, headers=ann)
    for method in ("POST", "GET", "DELETE"):
        assert (await post(edge, request("ping"), {**own, **bob}, method)).status == 404
    assert (await post(edge, request("ping"), own)).status == 200


async def test_without_a_known_token_it_is_401_with_a_challenge(make_edge: EdgeMaker) -> None:
    edge: Edge = await make_edge(with_tokens("ann"))
    challenges = {"": "Bearer", "Bearer nonsense": 'Bearer error="invalid_token"'}
    for token, challenge in challenges.items():
        answer = await post(edge, request("ping"), {"authorization": token} if token else {})
        assert (answer.status, answer.headers["www-authenticate"]) == (401, challenge)
    assert answer.body == {
        "error": "invalid_token",
        "error_description": "Unauthorized: The token is not known",
    }


async def test_stream_begins_with_an_id_to_come_back_with(edge: Edge) -> None:
    own = await session(edge)
    async with opened(edge, own) as events:
        assert await events.next() == {"retry": "2000"}
        first = await events.next()
        assert first["data"] == ""
        edge.toolbox.put("new")
        second = await events.next()
    assert first["id"] != second["id"]
    async with opened(edge, {**own, "last-event-id": first["id"]}) as events:
        assert await events.message() == LISTED  # missed while away
    for known in (second["id"], "someone-else's"):
        async with opened(edge, {**own, "last-event-id": known}) as events:
            assert await events.silent(0.3)


async def test_older_client_gets_no_event_without_data(edge: Edge) -> None:
    own = await session(edge, "2025-06-18")
    async with opened(edge, own) as events:
        edge.toolbox.put("new")
        assert await events.next() == {"retry": "2000"}
        assert await events.message() == LISTED


async def test_page_of_an_allowed_origin_may_call_and_read(make_edge: EdgeMaker) -> None:
    page = {"origin": "https://app.example"}
    edge: Edge = await make_edge(with_tokens("ann"), allowed_origins=("https://app.example",))
    asked = {**page, "access-control-request-method": "POST"}
    preflight = await post(edge, b"", asked, "OPTIONS")
    assert preflight.status == 204
    assert {
        name: value
        for name, value in preflight.headers.items()
        if name.startswith("access-control-")
    } == {
        "access-control-allow-origin": "https://app.example",
        "access-control-expose-headers": "mcp-session-id, www-authenticate, retry-after",
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-allow-headers": "*, authorization",
        "access-control-max-age": "600",
    }
    refused = await post(edge, request("ping"), page)
    assert (refused.status, refused.headers["access-control-allow-origin"]) == (
        401,
        "https://app.example",
    )
    stranger = {**asked, "origin": "https://evil.example"}
    answer = await post(edge, b"", stranger, "OPTIONS")
    assert (answer.status, "access-control-allow-origin" in answer.headers) == (403, False)


async def test_cancellation_and_answer_reach_the_replica_that_runs_the_call(
    make_edge: EdgeMaker, tmp_path: Path
) -> None:
    here: Edge = await make_edge(store=tmp_path / "shared.db")
    there: Edge = await make_edge(store=tmp_path / "shared.db")
    here.toolbox.put("ask")
    own = await session(there, capabilities={"elicitation": {}})
    async with opened(here, own, call("ask")) as events:
        question = await events.message()
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}
        assert (await post(there, answer, own)).status == 202
        assert (await events.message())["result"]["structuredContent"] == {"action": "decline"}
    waiting = await waiting_call(here, own, call("wait", 7))
    await post(there, cancelled(7), own)
    assert (await waiting).code == -32800
