"""Keeping a large answer: laid out in another process, or as text where that takes too much."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest

from gateway.calls.large_results import keep_result, read_json, read_result
from gateway.errors import Fixable
from gateway.store.database import Database
from gateway.workers import Workers
from tests.databases import db, migrated_file, postgres, store_url

__all__ = ["db", "migrated_file", "postgres", "store_url"]

JSON = "application/json"
ITEMS = [{"id": n, "name": f"Nämé {n}", "text": "line\n" * 3} for n in range(20_000)]
BODY = orjson.dumps({"items": ITEMS})
BOMB = b"[" + b"{}," * 2_500_000 + b"{}]"
MAX_HELD_UP_SECONDS = 0.25  # a second, were it parsed here


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    async with Workers() as running:
        yield running


async def read(db: Database, pointer: str = "", offset: int = 0, limit: int = 2) -> Any:
    found = await read_result(db, "r1", "ann", pointer=pointer, offset=offset, limit=limit)
    assert found is not None
    return found["value"]


async def test_large_json_is_laid_out_in_another_process(db: Database, workers: Workers) -> None:
    await keep_result(db, workers.work, "r1", "ann", JSON, BODY)

    assert await read(db, "/items", 19_998) == ITEMS[19_998:]
    assert await read(db, "/items/777/name", limit=99) == "Nämé 777"
    assert await read(db, offset=2, limit=5) == "items"
    assert await read_json(db, "r1", "ann", most=len(BODY)) == BODY
    assert await read_json(db, "r1", "ann", most=len(BODY) - 1) is None


async def nobody(job: Callable[..., bytes], data: bytes, *arguments: str) -> None:
    """Another process that can't do it."""


@pytest.mark.parametrize("pointer", ["/items", "/items/0", "#"])
async def test_json_that_takes_too_much_is_read_as_text(db: Database, pointer: str) -> None:
    await keep_result(db, nobody, "r1", "ann", JSON, BODY)

    text = BODY.decode()
    assert await read(db, limit=9) == text[:9]
    assert await read(db, offset=len(text) - 9, limit=9) == text[-9:]
    with pytest.raises(Fixable) as refused:
        await read(db, pointer)
    assert [p["message"] for p in refused.value.details["problems"]] == [
        "can't be followed: this result is cut or too intricate; read its text"
    ]


async def test_an_answer_that_was_cut_is_not_parsed_and_is_read_as_text(db: Database) -> None:
    asked = list[bytes]()

    async def elsewhere(job: Callable[..., bytes], data: bytes, *arguments: str) -> None:
        asked.append(data)

    await keep_result(db, elsewhere, "r1", "ann", JSON, BODY[:-9], cut=True)

    text = BODY[:-9].decode()
    assert await read(db, offset=len(text) - 9, limit=99) == text[-9:]
    with pytest.raises(Fixable):
        await read(db, "/items")
    assert asked == []


async def test_a_bomb_holds_up_nobody_and_is_kept_as_text(db: Database, workers: Workers) -> None:
    keeping = asyncio.create_task(keep_result(db, workers.work, "r1", "ann", JSON, BOMB))
    held_up = await longest_pause(keeping)

    assert held_up < MAX_HELD_UP_SECONDS
    assert await read(db, offset=1, limit=6) == "{},{},"


async def longest_pause(task: asyncio.Task[Any]) -> float:
    """For how long the loop stood still while we, and not others on this machine, worked."""
    longest = 0.0
    while not task.done():
        wall, ours = time.monotonic(), time.process_time()
        await asyncio.sleep(0.001)
        longest = max(longest, min(time.monotonic() - wall, time.process_time() - ours))
    await task
    return longest
