"""Prompts and resources that changed while nobody could be told: noticed once, and only if so."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal

import pytest

from tests.library_peer import library_peer
from tests.upstream.test_upstream_life import free_port
from tests.upstream.upstream_doors import CalledUpstreams, http, upstreams

both_eras = pytest.mark.parametrize("era", ["2025", "2026"])
PROMPTS = "notifications/prompts/list_changed"


class Heard:
    """The notices of all upstreams."""

    def __init__(self, ups: CalledUpstreams) -> None:
        self.methods: asyncio.Queue[str] = asyncio.Queue()
        ups.on_notification = self._hear

    def _hear(
        self, name: str, principal: str | None, method: str, params: Mapping[str, Any]
    ) -> None:
        self.methods.put_nowait(method)

    async def next(self) -> str:
        async with asyncio.timeout(10):
            return await self.methods.get()


@both_eras
async def test_what_changed_during_an_outage_is_told_when_it_is_over(
    era: Literal["2025", "2026"],
) -> None:
    port = free_port()
    async with upstreams(http("up", f"http://127.0.0.1:{port}/mcp")) as ups:
        heard = Heard(ups)
        async with library_peer(era, port=port) as peer, asyncio.timeout(10):
            await peer.looked.wait()
        async with library_peer(era, port=port) as peer, asyncio.timeout(10):
            await peer.looked.wait()
        assert heard.methods.empty()  # it was as before
        async with library_peer(era, port=port) as peer:
            peer.prompts = ["review", "summary"]
            assert await heard.next() == PROMPTS
            peer.prompts = ["review"]
            await peer.tell_prompts_changed()
            assert await heard.next() == PROMPTS
