"""Streams whose client reads slowly, or not at all: what waits is bounded, and nobody else does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from gateway.limits import MAX_QUEUED
from gateway.mcp.messages import Reply
from gateway.mcp.streams import ClientStream
from gateway.model import Principal, ViewAddress
from gateway.web.guard import EventStream, event_frame
from tests.peers import soon


class Wire:
    """A connection that passes on what is sent only while its gate is open."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.status: int | None = None
        self.done = asyncio.Event()
        self.arrived = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()

    async def send(self, message: Any) -> None:
        await self.gate.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.sent.append(message["body"])
        self.arrived.set()
        if not message.get("more_body"):
            self.done.set()

    async def receive(self) -> Any:
        await asyncio.Event().wait()

    async def until(self, count: int) -> list[bytes]:
        async with asyncio.timeout(60):
            while len(self.sent) < count:
                self.arrived.clear()
                await self.arrived.wait()
        return self.sent


@asynccontextmanager
async def running(wire: Wire) -> AsyncIterator[ClientStream]:
    stream = ClientStream(
        Principal("ann"),
        ViewAddress(),
        "",
        None,
        holder="one",
        kinds=("tools",),
        known_ids={"tools": "d0"},
        frame=lambda method, params, id: f"{method} {id}".encode(),
        first=b"first",
        last=b"last",
    )
    served = EventStream(stream.step, stream.wake_up, lambda: None)
    task = asyncio.create_task(served({}, wire.receive, wire.send))
    yield stream
    stream.end()
    await soon(task)


async def test_all_changes_a_client_has_not_read_are_one() -> None:
    wire = Wire()
    async with running(wire) as stream:
        await wire.until(2)
        wire.gate.clear()
        for number in range(100):
            stream.tell_changed("tools", f"d{number}")
            stream.tell_changed("prompts", f"d{number}")
            await asyncio.sleep(0)
        wire.gate.set()
        await wire.until(4)
    changed = "notifications/tools/list_changed"
    assert wire.sent[1:-1] == [b"first", *(f"{changed} d{n}".encode() for n in (0, 99)), b"last"]


async def test_change_before_the_first_frame_comes_after_it() -> None:
    wire = Wire()
    wire.gate.clear()
    async with running(wire) as stream:
        stream.tell_changed("tools", "d1")
        wire.gate.set()
        await wire.until(3)
    assert wire.sent[1:-1] == [b"first", b"notifications/tools/list_changed d1", b"last"]


async def test_words_before_the_answer_make_it_a_stream_in_their_order() -> None:
    wire = Wire()
    reply = Reply(wire.send, streaming=True)
    for word in (b"a", b"b"):
        reply.say(word)
    await reply.finish(404, b"{}")
    assert (wire.status, wire.sent) == (200, [b"a", b"b", event_frame(b"{}")])


async def test_progress_nobody_reads_is_dropped_but_not_the_answer() -> None:
    wire = Wire()
    wire.gate.clear()
    reply = Reply(wire.send, streaming=True)
    for number in range(10 * MAX_QUEUED):
        reply.say(b"%d" % number)
    reply.say(b"question", droppable=False)
    wire.gate.set()
    await reply.finish(200, b"{}")
    assert wire.sent == [*(b"%d" % n for n in range(MAX_QUEUED)), b"question", event_frame(b"{}")]
