"""What a definition's server is asked, and what is remembered of its answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from gateway.catalog.definitions import LARGE_BYTES, MAX_PACKED, MAX_TEXT_BYTES, Definition, Fetcher
from gateway.errors import DefinitionUnreadable
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
        fetcher = Fetcher(egress, Path())
        fetcher.remember(300, 1)
        for peer in (one, other, one, one):
            await fetch(fetcher, peer)
    assert (one.definition_status, other.definition_status) == ([200, 200, 304], [200])


async def test_what_does_not_pack_is_no_definition() -> None:
    async with provider() as peer, Egress(HERE) as egress:
        peer.raw = Random(1).randbytes(MAX_PACKED + 1_000)
        with pytest.raises(DefinitionUnreadable, match="even when packed"):
            await Fetcher(egress, Path()).fetch(peer.spec, None, max_bytes=2 * MAX_PACKED)


async def test_a_definition_given_as_text_is_bounded() -> None:
    async with Egress(HERE) as egress:
        fetcher, text = Fetcher(egress, Path()), "{" + " " * (MAX_TEXT_BYTES - 1)
        assert (await fetcher.fetch(text, None, max_bytes=2 * MAX_TEXT_BYTES)).raw == text.encode()
        with pytest.raises(DefinitionUnreadable, match="given as text"):
            await fetcher.fetch(text + " ", None, max_bytes=2 * MAX_TEXT_BYTES)


async def test_many_large_definitions_at_once_are_all_read_in_their_turn() -> None:
    async with provider() as peer, Egress(HERE) as egress:
        fetcher, peer.raw = Fetcher(egress, Path()), b"openapi: 3.0.0\n" * LARGE_BYTES
        asked = (
            fetcher.fetch(f"{peer.spec}?{n}", None, max_bytes=20 * LARGE_BYTES) for n in range(6)
        )
        found = await asyncio.gather(*asked)
    assert {definition.raw for definition in found} == {peer.raw}


async def fetch(fetcher: Fetcher, peer: Provider, known: Definition | None = None) -> Definition:
    return await fetcher.fetch(peer.spec, known, max_bytes=1_000_000)
