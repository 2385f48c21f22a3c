"""What clients do in a soak, one function an errand: calls, sessions, streams, and their faults."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import suppress

import aiohttp
import httpx2
from mcp import Client as SdkClient
from mcp.client.streamable_http import streamable_http_client

from bench.processes import token_of
from bench.soak.clients import UPSTREAM_DOWN, Client
from bench.soak.world import BIG_BYTES
from tests.mcp.speakers import Speaker

HOLD_SECONDS = 3.0
FAULTS = ("failing", "reset", "silent", "garbage")


async def reads(one: Client) -> None:
    """A session, some reads and a listing; ended, or left as it is."""
    speaker = await one.speaker().meet()
    await speaker.request("tools/list")
    for _ in range(one.chance.randrange(1, 8)):
        await one.call(speaker, "shop_get_items", id=str(one.chance.randrange(100)))
    if one.chance.random() < 0.5:
        await _end(one, speaker)


async def writes(one: Client) -> None:
    """Calls that are on disk before they are sent."""
    speaker = await one.speaker().meet()
    for _ in range(3):
        await one.call(speaker, "shop_add_order", number=one.chance.randrange(10**6))
    body = {"arguments": {"number": one.chance.randrange(10**6)}}
    await one.rest("POST", "/tools/shop_add_order/call", body)
    await _end(one, speaker)


async def wrapped(one: Client) -> None:
    """A wrapped tool, with one token twice at once, on a server that comes and goes."""
    speaker = await one.speaker().meet()
    token = str(uuid.uuid4())
    speaker.meta = {"gateway/idempotency_token": token}
    params = {"name": "far_book", "arguments": {}, "_meta": speaker.meta}
    await asyncio.gather(*(speaker.request("tools/call", dict(params)) for _ in range(2)))
    speaker.meta = {}
    await one.call(speaker, "far_echo", may_fail=UPSTREAM_DOWN, text="hello")
    await one.call(speaker, "find_execution", may_fail=("not_found",), token=token)


async def child(one: Client) -> None:
    """A server over standard streams, that is killed now and then."""
    speaker = await one.speaker().meet()
    await one.call(speaker, "child_echo", may_fail=UPSTREAM_DOWN, text="hello")
    await one.call(speaker, "child_huge", may_fail=UPSTREAM_DOWN, bytes=BIG_BYTES)
    one.tally.expect_result()
    if one.chance.random() < 0.1:
        await one.call(speaker, "child_die", may_fail=UPSTREAM_DOWN)


async def seeks(one: Client) -> None:
    """Meta tools: search, look at the schema, call."""
    speaker = await one.speaker("/mcp/bundles/found").meet()
    word = one.chance.choice(("items", "orders", "parcel", "echo", "slow"))
    await one.call(speaker, "mcp_search_tools", query=f"{word} {one.chance.randrange(1000)}")
    named = {"server_id": "shop", "tool_name": "get_items"}
    await one.call(speaker, "mcp_get_tool_schema", **named)
    await one.call(speaker, "mcp_call_tool", **named, args={"id": "7"})


async def large(one: Client) -> None:
    """An answer over the bound, and the rest of it in parts."""
    speaker = await one.speaker().meet()
    found = await one.call(speaker, "shop_get_big", id="1")
    one.tally.expect_result()
    for offset in (0, 200):
        part = {"result_id": found["result_id"], "offset": offset, "limit": 50}
        await one.call(speaker, "read_result", **part)


async def asks_a_person(one: Client) -> None:
    """A call that waits for a decision, which may not come."""
    speaker = await one.speaker().meet()
    number = one.chance.randrange(10**6)
    refused = ("approval_denied", "approval_expired", "busy")
    await one.call(speaker, "shop_add_parcel", may_fail=refused, number=number)
    body = {"arguments": {"number": number + 1}}
    await one.rest("POST", "/tools/shop_add_parcel/call", body, ok=(200, 202, 429, 503))


async def provokes(one: Client) -> None:
    """An API that answers in all the wrong ways."""
    speaker = await one.speaker().meet()
    tool = f"shaky_get_{one.chance.choice(FAULTS)}"
    await one.call(speaker, tool, may_fail=UPSTREAM_DOWN, id="1")


async def listens(one: Client) -> None:
    """A stream of changes, open for a while; then the connection is simply gone."""
    speaker = await one.speaker().meet()
    async with speaker.listening(**_wanted(one)) as events:
        with suppress(TimeoutError):
            async with asyncio.timeout(one.chance.uniform(0, HOLD_SECONDS)):
                await events.message()


async def cancels(one: Client) -> None:
    """A call that is called off: by a notice in the 2025 era, by hanging up in the 2026 one."""
    speaker = await one.speaker().meet()
    slow = {"name": one.chance.choice(("shop_get_slow", "far_slow")), "arguments": {"id": "1"}}
    if slow["name"] == "far_slow":
        slow["arguments"] = {}
    call = asyncio.create_task(speaker.request("tools/call", slow))
    await asyncio.sleep(one.chance.uniform(0, 0.3))
    if one.era == "2025":
        params = {"requestId": speaker._ids, "reason": "enough"}
        method = "notifications/cancelled"
        await speaker.notify({"jsonrpc": "2.0", "method": method, "params": params})
    await _hung_up(call)


async def hangs_up(one: Client) -> None:
    """Goes away in the middle of a call, of an answer, or of its own request."""
    speaker = await one.speaker().meet()
    tool = one.chance.choice(("shop_get_big", "shop_get_slow", "shop_get_items"))
    params = {"name": tool, "arguments": {"id": "1"}}
    call = asyncio.create_task(speaker.request("tools/call", params))
    await asyncio.sleep(one.chance.uniform(0, 0.05))
    await _hung_up(call)
    one.tally.expect_result()
    _, writer = await asyncio.open_connection("127.0.0.1", one.world.gateway.port)
    writer.write(b"POST /mcp HTTP/1.1\r\ncontent-length: 100\r\n\r\n{")
    await writer.drain()
    writer.transport.abort()


async def by_the_sdk(one: Client) -> None:
    """The official client: session, list, calls with progress, an orderly end."""
    mode = "legacy" if one.era == "2025" else "2026-07-28"
    headers = {"authorization": f"Bearer {token_of(one.principal)}"}
    url = one.world.url + "/mcp"
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        SdkClient(streamable_http_client(url, http_client=http), mode=mode) as sdk,
    ):
        await sdk.list_tools()
        for number in range(3):
            result = await sdk.call_tool("shop_get_items", {"id": str(number)})
            if result.is_error:
                one.tally.complain(f"SDK: {result.structured_content}")
        await sdk.call_tool("far_steps", {}, progress_callback=_progress)


async def looks_at_the_console(one: Client) -> None:
    """Signs in, looks at pages with their streams, and signs out or just closes the window."""
    base = f"{one.world.url}/console"
    token = {"token": token_of(one.principal)}
    one.tally.left["ended_sessions"] += 1
    async with one.http.post(f"{base}/sign-in", data=token, allow_redirects=False) as signed:
        if signed.status != 303:
            one.tally.complain(f"sign-in: {signed.status}")
            return
    page = one.chance.choice(("", "/approvals", "/executions", "/connections", "/tools"))
    async with one.http.get(base + page) as shown:
        text = await shown.text()
    at = {"at": f"/console{page}"}
    async with one.http.get(f"{base}/events", params=at) as stream:
        await _read_a_while(one, stream.content)
    if one.chance.random() < 0.5:
        csrf = text.split('{"X-CSRF-Token":"')[1].split('"')[0]
        async with one.http.post(f"{base}/sign-out", data={"csrf": csrf}):
            pass


async def follows_events(one: Client) -> None:
    """The feed of the REST API, and the history."""
    async with one.http.get(f"{one.world.url}/api/v1/events") as stream:
        await _read_a_while(one, stream.content)
    await one.rest("GET", "/executions?limit=20")


async def _read_a_while(one: Client, content: aiohttp.StreamReader) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(one.chance.uniform(0.2, HOLD_SECONDS)):
            while await content.read(4096):
                pass


async def _end(one: Client, speaker: Speaker) -> None:
    if one.era == "2025":
        one.tally.left["ended_sessions"] += 1
        async with one.http.delete(speaker.url, headers=speaker._headers) as response:
            if response.status not in (200, 204):
                one.tally.complain(f"DELETE: {response.status}")


async def _hung_up(call: asyncio.Task[object]) -> None:
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)


async def _progress(progress: float, total: float | None, message: str | None) -> None:
    return None


def _wanted(one: Client) -> dict[str, bool]:
    return {"toolsListChanged": True} if one.era == "2026" else {}
