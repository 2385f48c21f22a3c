"""Who hears that the list changed: exactly those whose own list did, once, whoever else listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from tests.configs import bearer
from tests.mcp.conftest import Edge, EdgeMaker, with_tokens
from tests.mcp.raw import Events, listening, modern, opened, post, request, session

Listen = Callable[[Edge, str], AbstractAsyncContextManager[Events]]


@asynccontextmanager
async def by_get(edge: Edge, name: str) -> AsyncIterator[Events]:
    own = await session(edge, headers=bearer(name))
    async with opened(edge, own) as events:
        await events.next()
        yield events


@asynccontextmanager
async def by_listen(edge: Edge, name: str) -> AsyncIterator[Events]:
    async with listening(edge, bearer(name)) as events:
        yield events


BOTH = pytest.mark.parametrize("listen", [by_get, by_listen])


@pytest.fixture
async def edge(make_edge: EdgeMaker) -> Edge:
    made: Edge = await make_edge(with_tokens("ann", "bob"))
    return made


async def changed(events: Events) -> bool:
    message = await events.message()
    return bool(message["method"] == "notifications/tools/list_changed")


@BOTH
async def test_change_of_ones_own_view_is_heard_by_that_one_only(
    edge: Edge, listen: Listen
) -> None:
    async with listen(edge, "ann") as ann, listen(edge, "bob") as bob:
        edge.toolbox.put("of_ann", "ann")
        assert await changed(ann)
        assert await bob.silent(0.3)
        edge.toolbox.put("of_all")
        assert await changed(ann) and await changed(bob)


@BOTH
async def test_burst_is_heard_once(edge: Edge, listen: Listen) -> None:
    async with listen(edge, "ann") as ann:
        for number in range(20):
            edge.toolbox.put(f"tool_{number}")
            await asyncio.sleep(0)
        assert await changed(ann)
        assert await ann.silent(0.4)


@BOTH
async def test_what_leaves_the_list_as_it_was_is_not_heard(edge: Edge, listen: Listen) -> None:
    async with listen(edge, "ann") as ann:
        edge.toolbox.changed()
        edge.toolbox.put("echo", description="other")
        edge.toolbox.put("echo")
        assert await ann.silent(0.4)


@BOTH
async def test_stream_ends_soon_after_its_token_is_revoked(edge: Edge, listen: Listen) -> None:
    async with listen(edge, "ann") as ann, listen(edge, "bob") as bob:
        edge.identity.follow(with_tokens("bob"), "")
        async with asyncio.timeout(60):
            with pytest.raises(EOFError):
                while True:
                    assert "result" in await ann.message()  # how 2026 says goodbye
        edge.toolbox.put("new")
        assert await changed(bob)


@BOTH
async def test_client_that_leaves_leaves_nothing_behind(edge: Edge, listen: Listen) -> None:
    for _ in range(3):
        async with listen(edge, "ann") as ann:
            assert edge.endpoint.figures()["streams"] == 1
            ann.response.close()
        async with asyncio.timeout(60):
            while edge.endpoint.figures()["streams"]:
                await post(edge, b"")  # any round trip gives the server its turn


@BOTH
async def test_client_that_does_not_read_delays_nobody(edge: Edge, listen: Listen) -> None:
    async with listen(edge, "bob"), listen(edge, "ann") as ann:  # bob is never read from here on
        for number in range(3):
            edge.toolbox.put(f"tool_{number}")
            assert await changed(ann)


async def test_streams_are_capped_for_each_principal_by_itself(make_edge: EdgeMaker) -> None:
    edge: Edge = await make_edge(with_tokens("ann", "bob"), max_streams=2)
    wanted = {"notifications": {"toolsListChanged": True}}
    message, headers = modern(request("subscriptions/listen", wanted))
    async with by_listen(edge, "ann"), by_get(edge, "ann"):
        refused = await post(edge, message, {**headers, **bearer("ann")})
        assert (refused.status, refused.headers["retry-after"]) == (429, "30")
        own = await session(edge, headers=bearer("ann"))
        assert (await post(edge, b"", own, "GET")).status == 429
        async with by_listen(edge, "bob"), by_get(edge, "bob"):
            assert edge.endpoint.figures()["streams"] == 4


@BOTH
async def test_other_rights_are_a_change_of_the_view(edge: Edge, listen: Listen) -> None:
    async with listen(edge, "ann") as ann:
        edge.toolbox.extra["ann"] = {"more": edge.toolbox.tools["echo"]}
        edge.identity.follow(with_tokens("ann", "bob"), "http://other")
        assert await changed(ann)


async def test_going_down_closes_streams_and_takes_no_new_ones(edge: Edge) -> None:
    async with by_get(edge, "ann") as ann:
        edge.endpoint.streams.close()
        assert await ann.ended()
    own = await session(edge, headers=bearer("ann"))
    assert (await post(edge, b"", own, "GET")).status == 503


async def test_without_tokens_everyone_listens_as_local(make_edge: EdgeMaker) -> None:
    edge: Edge = await make_edge()
    async with listening(edge) as events:
        edge.toolbox.put("of_local", "local")
        assert await changed(events)


async def test_session_with_several_streams_hears_on_the_newest(edge: Edge) -> None:
    own = await session(edge, headers=bearer("ann"))
    async with opened(edge, own) as older, opened(edge, own) as newer:
        edge.toolbox.put("new")
        assert await changed(newer)
        assert await older.silent(0.3)
        newer.response.close()
        async with asyncio.timeout(60):
            while edge.endpoint.figures()["streams"] > 1:
                await post(edge, b"")
        edge.toolbox.put("newer")
        assert await changed(older)


async def test_change_between_listing_and_opening_the_stream_is_heard_once(edge: Edge) -> None:
    own = await session(edge, headers=bearer("ann"))
    await post(edge, request("tools/list"), own)
    edge.toolbox.put("new")
    async with opened(edge, own) as events:
        assert await changed(events)
    async with opened(edge, own) as events:
        assert await events.silent(0.3)
