"""What a definition's server is asked, and what is remembered of its answers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gateway.catalog.discover import Fetcher
from gateway.config.settings import Cache
from gateway.model import RawDefinition
from gateway.outbound.client import Egress
from tests.peers import Provider, provider

HERE = ("127.0.0.1/32",)


async def test_a_definition_that_someone_else_let_go_of_is_whole_for_the_next_one() -> None:
    async with provider() as peer, Egress(HERE) as egress:
        fetcher = Fetcher(egress, Path())
        first = await fetch(fetcher, peer)
        await fetch(fetcher, peer, replace(first, packed=b""))
        assert await fetch(fetcher, peer) == first
    assert peer.definition_status == [200, 304, 304]


async def test_no_more_definitions_are_remembered_than_configured() -> None:
    async with provider() as one, provider() as other, Egress(HERE) as egress:
        fetcher = Fetcher(egress, Path(), Cache(max_entries=1))
        for peer in (one, other, one, one):
            await fetch(fetcher, peer)
    assert (one.definition_status, other.definition_status) == ([200, 200, 304], [200])


async def fetch(
    fetcher: Fetcher, peer: Provider, known: RawDefinition | None = None
) -> RawDefinition:
    return await fetcher.fetch(peer.spec, known, max_bytes=1_000_000)
