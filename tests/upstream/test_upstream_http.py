"""Calls to real MCP servers over HTTP, in both eras: what goes there and what comes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway.config.connection import McpConnection
from gateway.config.settings import Limits
from gateway.connectors.mcp import build_upstream
from gateway.errors import Refused, UpstreamFailed
from gateway.limits import MAX_MESSAGE_BYTES
from gateway.model import Skipped, Source
from gateway.outbound.client import Egress
from gateway.upstream.http import Event, Headers, HttpSession, read_events
from gateway.upstream.protocol import Hooks, RpcFailed
from tests.peers_mcp import PIXEL, Era, mcp_peer, scripted_peer, serving
from tests.raising import raises
from tests.upstream.upstream_doors import asking, both_eras, http, modern, upstreams


@both_eras
@pytest.mark.parametrize("json_response", [False, True])
async def test_tools_of_all_pages_are_listed(era: Era, json_response: bool) -> None:
    async with (
        mcp_peer(era, json_response=json_response) as peer,
        upstreams(http("up", peer.url)) as ups,
    ):
        tools = await ups.list_tools("up")
        assert [tool["name"] for tool in tools] == list(peer.tools)
        assert [tool["inputSchema"] for tool in tools] == list(peer.tools.values())
        assert peer.versions == {"2026-07-28" if era == "2026" else "2025-11-25"}


RESULTS: list[tuple[str, dict[str, Any]]] = [
    (
        "echo",
        {
            "content": [{"type": "text", "text": "hi"}],
            "structuredContent": {"text": "hi"},
            "isError": False,
        },
    ),
    ("fail", {"content": [{"type": "text", "text": "no room"}], "isError": True}),
    (
        "picture",
        {"content": [{"type": "image", "data": PIXEL, "mimeType": "image/png"}], "isError": False},
    ),
    (
        "link",
        {
            "content": [{"type": "resource_link", "uri": "file:///report", "name": "report"}],
            "isError": False,
        },
    ),
]


@both_eras
@pytest.mark.parametrize(("tool", "result"), RESULTS)
async def test_result_comes_back_as_the_upstream_sent_it(
    era: Era, tool: str, result: dict[str, Any]
) -> None:
    async with mcp_peer(era) as peer, upstreams(http("up", peer.url)) as ups:
        assert await ups.call("up", tool, {"text": "hi"}) == result


@both_eras
async def test_json_rpc_error_is_the_upstreams_error(era: Era) -> None:
    async with mcp_peer(era) as peer, upstreams(http("up", peer.url)) as ups:
        with raises(
            RpcFailed,
            code="upstream_error",
            message="up refused the request: not like this",
            details={"rpc_code": -32602},
            rpc_code=-32602,
            rpc_message="not like this",
            rpc_data={"why": "because"},
            sent=True,
        ):
            await ups.call("up", "refuse", {})


@both_eras
async def test_progress_reaches_the_caller_in_order(era: Era) -> None:
    seen: list[tuple[float, float | None, str | None]] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total, message))

    async with mcp_peer(era) as peer, upstreams(http("up", peer.url)) as ups:
        assert await ups.text("steps", hooks=Hooks(progress=progress)) == "done"
        assert await ups.text("steps") == "done"
    assert seen == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


@both_eras
async def test_time_a_person_takes_to_answer_is_not_the_upstreams(era: Era) -> None:
    async def slowly(params: Mapping[str, Any]) -> Mapping[str, Any]:
        await asyncio.sleep(1.4)
        return {"action": "accept", "content": {"name": "Ann"}}

    async with mcp_peer(era) as peer, upstreams(http("up", peer.url)) as ups:
        await ups.list_tools("up")  # it is met, however busy the machine is
        hooks = Hooks(ask=asking(slowly))
        assert await ups.text("ask", hooks=hooks, deadline=1.2) == "accept Ann"


async def test_request_that_ran_out_of_time_before_it_was_sent_says_so() -> None:
    """The name server does not answer in time."""

    def lookup(*_: Any) -> list[Any]:
        released.wait(5)
        return []

    async def authorize(*_: Any) -> Headers:
        return ()

    released = threading.Event()
    async with Egress(lookup=lookup) as egress:
        up = http("up", "http://slow.test/mcp")
        session = HttpSession(up, lambda *_: None, {}, egress, authorize, {})
        with raises(UpstreamFailed, code="upstream_timeout", sent=False):
            await session.request("tools/list", {}, seconds=0.1)
        released.set()
        await session.close()


@both_eras
async def test_call_over_its_deadline_and_one_given_up_are_cancelled_upstream(era: Era) -> None:
    async with (
        mcp_peer(era) as peer,
        upstreams(http("up", peer.url)) as ups,
        asyncio.timeout(60),
    ):
        await ups.list_tools("up")  # it is met, however busy the machine is
        with raises(UpstreamFailed, code="upstream_timeout", sent=True):
            await ups.call("up", "slow", {}, deadline=0.3)
        await peer.cancelled.wait()
        peer.entered.clear()
        peer.cancelled.clear()
        call = asyncio.create_task(ups.call("up", "slow", {}))
        await peer.entered.wait()
        call.cancel()
        await peer.cancelled.wait()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await ups.text("echo", text="still here") == "still here"


PROTOCOL = {"accept", "accept-encoding", "content-length", "content-type", "host", "user-agent"}
PROTOCOL |= {"mcp-protocol-version", "mcp-method", "mcp-name", "mcp-session-id"}


@both_eras
async def test_only_configured_headers_and_credentials_go_upstream(era: Era) -> None:
    async def authorize(name: str, *_: object) -> Headers:
        return [("Authorization", f"Bearer for-{name}")]

    configured = {"X-Team": "hr", "Accept": "text/html", "mcp-session-id": "mine"}
    async with mcp_peer(era) as peer, upstreams(authorize=authorize) as ups:
        settings = McpConnection(kind="mcp", url=peer.url, headers=configured)
        ups.follow({"up": settings}, Limits())
        meta = {"progressToken": 7, "io.modelcontextprotocol/clientInfo": {"name": "them"}, "a": 1}
        await ups.call("up", "echo", {"text": "hi"}, _meta=meta)
        sent = peer.headers[-1]
        assert set(sent) - PROTOCOL == {"x-team", "authorization"}
        assert (sent["x-team"], sent["authorization"]) == ("hr", "Bearer for-up")
        assert sent["accept"] == "application/json, text/event-stream"


async def test_credentials_that_were_refused_are_asked_for_anew_once() -> None:
    asked: list[bool] = []

    async def authorize(*whose: object) -> Headers:
        refused = whose[3]
        asked.append(refused is not None)
        return [("Authorization", "Bearer fresh" if refused is not None else "Bearer stale")]

    async def answer(message: dict[str, Any], request: Request) -> Response:
        if request.headers["authorization"] != "Bearer fresh":
            return Response(status_code=401)
        return modern(message)

    async with scripted_peer(answer) as url, upstreams(authorize=authorize) as ups:
        ups.follow({"up": McpConnection(kind="mcp", url=url)}, Limits())
        assert await ups.list_tools("up") == []
    assert asked[:2] == [False, True]


async def test_arguments_that_the_upstream_wants_in_headers_are_learnt_when_it_refuses() -> None:
    async with mcp_peer("2026") as peer, upstreams(http("up", peer.url)) as ups:
        assert await ups.text("region", region="eu") == "eu"
        assert peer.calls == ["region"]
        assert await ups.text("region", region="us") == "us"
        assert peer.methods.count("tools/list") == 3  # one listing of three pages


INTRICATE = "250000 lists and objects"
ENDLESS = "up has a list of tools that does not end within its bounds"


@pytest.mark.parametrize(
    ("listing", "what"),
    [
        ({"tools": {}}, "up sent a list of tools that is no list"),
        ({"tools": [], "nextCursor": "1"}, ENDLESS),
        ([], "up sent an answer without a result"),
    ],
)
async def test_list_that_is_none_or_never_ends_is_a_failure(listing: Any, what: str) -> None:
    async def answer(message: dict[str, Any], request: Request) -> Response:
        return modern(message, **{"tools/list": listing})

    async with scripted_peer(answer) as url, upstreams(http("up", url)) as ups:
        with raises(UpstreamFailed, code="upstream_error", message=what):
            await ups.list_tools("up")


async def test_tool_too_deep_to_be_written_again_does_not_fail_the_list() -> None:
    deep = b'{"type":"object","a":' + b"[" * 500 + b"]" * 500 + b"}"
    tools = b'[{"name":"deep","inputSchema":%s},{"name":"ok","inputSchema":{"type":"object"}}]'

    async def answer(message: dict[str, Any], request: Request) -> Response:
        if message["method"] != "tools/list":
            return modern(message)
        body = b'{"jsonrpc":"2.0","id":%d,"result":{"tools":%s}}' % (message["id"], tools % deep)
        return Response(body, media_type="application/json")

    async with scripted_peer(answer) as url, upstreams(http("up", url)) as ups:
        listing = await ups.list_tools("up")
    build = build_upstream(listing, Source("up", "mcp", "Up", ""))
    assert [tool.name for tool in build.tools] == ["ok"]
    assert build.skipped == (Skipped("deep", "", "", "its schema is nested too deeply"),)


async def test_upstream_at_a_forbidden_address_is_refused() -> None:
    async with upstreams(http("up", "http://127.0.0.2:9/mcp")) as ups:
        for _ in range(2):
            with raises(Refused, code="access_denied"):
                await ups.list_tools("up")


@pytest.mark.parametrize(
    ("reply", "details"),
    [
        (Response(b"[1]", media_type="application/json"), {}),
        (Response(b"<html>", media_type="text/html"), {}),
        (Response(b"data: nonsense\n\n", media_type="text/event-stream"), {}),
        (Response(status_code=202), {"status": 202}),
        (Response(status_code=307, headers={"location": "http://127.0.0.1:1/"}), {"status": 307}),
        (Response(b"{}", status_code=500, media_type="application/json"), {"status": 500}),
        (Response(b"no", status_code=403), {"status": 403}),
    ],
)
async def test_answer_that_is_not_the_protocols_is_an_upstream_error(
    reply: Response, details: dict[str, Any]
) -> None:
    async def answer(message: dict[str, Any], request: Request) -> Response:
        return reply if message["method"] == "tools/call" else modern(message)

    async with scripted_peer(answer) as url, upstreams(http("up", url)) as ups:
        with raises(UpstreamFailed, code="upstream_error", sent=True, details=details):
            await ups.call("up", "any", {})


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize(
    ("value", "bound"),
    [("x" * MAX_MESSAGE_BYTES, f"{MAX_MESSAGE_BYTES} bytes"), ([[]] * 250_000, INTRICATE)],
)
async def test_answer_over_its_bound_is_refused(kind: str, value: Any, bound: str) -> None:
    async def answer(message: dict[str, Any], request: Request) -> Response:
        if message["method"] != "tools/call":
            return modern(message)
        body = orjson.dumps({"jsonrpc": "2.0", "id": 1, "result": {"x": value}})
        return Response(b"data: " + body + b"\n\n" if "event" in kind else body, media_type=kind)

    async with scripted_peer(answer) as url, upstreams(http("up", url)) as ups:
        with raises(UpstreamFailed, message=f"up sent an answer of more than {bound}"):
            await ups.call("up", "any", {})


async def test_stream_that_breaks_off_is_taken_up_where_it_ended() -> None:
    """The handshake era lets a server close an answer's stream and go on with it on a GET."""
    resumed: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        response = Response(status_code=405)
        if request.method == "GET" and "last-event-id" in request.headers:
            resumed.append(request.headers["last-event-id"])
            response = events(b'data: {"jsonrpc":"2.0","id":1,"result":{"content":[]}}\n\n')
        elif request.method == "POST":
            response = handshake(orjson.loads(await request.body()))
        await response(scope, receive, send)

    def handshake(message: dict[str, Any]) -> Response:
        if message["method"] == "tools/call":
            return events(b"id: e1\nretry: 10\ndata: \n\n")
        if message["method"] != "initialize":
            return Response(status_code=202 if "id" not in message else 400)
        found = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {}}
        return JSONResponse({"jsonrpc": "2.0", "id": message["id"], "result": found})

    def events(body: bytes) -> Response:
        return Response(body, media_type="text/event-stream")

    async with serving(app) as url, upstreams(http("up", url)) as ups:
        assert await ups.call("up", "any", {}) == {"content": []}
    assert resumed == ["e1"]


# --- events of a stream: the same however it is cut into chunks, and never over their bound -------

STREAM = (
    b": ping\r\n\r\n"
    b"id: 7\r\nretry: 1500\r\ndata: \r\n\r\n"
    b'event: message\ndata: {"a":\ndata:1}\n\n'
    b"data: \xc3\xa9\r\n\r\nid: 8\ndata: last\n\n"
    b"data: cut off"
)
EVENTS = [
    Event(b"", "7", 1500),
    Event(b'{"a":\n1}', "7", 1500),
    Event("é".encode(), "7", 1500),
    Event(b"last", "8", 1500),
]


async def read(chunks: Iterable[bytes]) -> list[Event]:
    left = iter(chunks)

    async def stream() -> bytes:
        return next((chunk for chunk in left if chunk), b"")

    return [event async for event in read_events(stream, "up")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
async def test_events_do_not_depend_on_where_chunks_end(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(STREAM)]
    assert await read(STREAM[a:b] for a, b in zip(ends, ends[1:], strict=False)) == EVENTS


@pytest.mark.parametrize("chunk", [b"x" * 65_536, b"data: " + b"x" * 65_536 + b"\n"])
async def test_event_over_its_bound_is_refused_before_it_is_whole(chunk: bytes) -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += len(chunk)
            yield chunk

    with pytest.raises(UpstreamFailed):
        await read(endless())
    assert taken <= MAX_MESSAGE_BYTES + 2 * len(chunk)


async def test_long_stream_of_small_events_stays_within_bounds() -> None:
    event = b"data: " + b"1234567890" * 1000 + b"\n\n"
    assert len(await read([event] * 2000)) == 2000
