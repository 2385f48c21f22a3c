"""The stream of a page: what has changed, for as long as the session holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.console.app import partials
from gateway.limits import STREAMS_A_PRINCIPAL
from gateway.web.guard import Say
from tests.conftest import Running
from tests.console.conftest import Visitor
from tests.peers import provider


@asynccontextmanager
async def stream(someone: Visitor, at: str) -> AsyncIterator[Any]:
    """The stream's messages as they come, each as one text."""
    async with someone.http.stream("GET", f"/console/events{at}", timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-content-type-options"] == "nosniff"
        lines = answer.aiter_lines()

        async def following() -> str:
            message: list[str] = []
            async with asyncio.timeout(60):
                async for line in lines:
                    if line and not line.startswith(":"):
                        message.append(line)
                    elif message:
                        return "\n".join(message)
            return ""

        assert (await following()).startswith("retry:")
        yield following


async def test_only_the_parts_that_changed_are_sent(shop: Running, someone: Visitor) -> None:
    async with provider() as peer, stream(someone, "/approvals") as following:
        first = await following()
        assert all(f'hx-target="#{id}"' in first for id in ("nav", "side", "cards", "feed"))
        values = {"kind": "openapi", "spec": peer.spec}
        await shop.app.gateway.catalog.put("items", values, by="test")
        second = await following()
        assert "#side-" not in second and 'id="side-items"' in second
        assert 'hx-target="#cards"' not in second and 'hx-target="#feed"' not in second
        assert await following() == "event: catalog\ndata: "


async def test_a_session_that_ends_ends_its_streams(shop: Running, someone: Visitor) -> None:
    async with stream(someone, "") as following:
        await following()
        await someone.post("/console/sign-out")
        shop.app.gateway.feed.wake()
        assert await following() == "event: signed-out\ndata: "
        assert await following() == ""


async def test_draining_ends_the_streams(shop: Running, someone: Visitor) -> None:
    async with stream(someone, "/tools") as following:
        await following()
        shop.app.gateway.feed.close()
        assert await following() == ""
    assert (await someone.get("/console/events")).status_code == 503


async def test_one_visitor_has_a_bounded_number_of_streams(shop: Running, someone: Visitor) -> None:
    async def step(say: Say) -> bool:
        return True

    for _ in range(STREAMS_A_PRINCIPAL):
        shop.app.gateway.feed.stream("local", step)
    answer = await someone.get("/console/events")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")


async def test_a_page_that_is_none_has_only_what_all_pages_have(someone: Visitor) -> None:
    for at in ("/nowhere", "//evil.example/", "?x", "/tools"):
        async with stream(someone, at) as following:
            first = await following()
        assert 'hx-target="#nav"' in first
        assert 'hx-target="#cards"' not in first


def test_a_message_is_one_event_however_many_lines_it_has() -> None:
    sent = partials({"a": "one\r\ntwo\n\nthree"})
    assert sent.endswith(b"\n\n") and sent.count(b"\n\n") == 1
    assert all(line.startswith(b"data: ") for line in sent.strip().split(b"\n"))
    assert partials({}) == b""
