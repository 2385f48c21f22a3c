"""Parts of a large answer: which items or characters of it, and in words where there are none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.answer import part_of, read_part
from gateway.errors import Fixable
from gateway.limits import STEP_BYTES
from gateway.workers import Workers
from tests.raising import raises

JSON = "application/json"
DOCUMENT = {"items": [{"id": i} for i in range(250)], "note": "héllo", "a/b": {"~": [1]}, "n": None}
BODY = orjson.dumps(DOCUMENT)
ITEMS = [{"id": n, "name": f"Nämé {n}", "text": "line\n" * 3} for n in range(20_000)]
LARGE = orjson.dumps({"items": ITEMS})


def read(body: bytes, media_type: str = JSON, **asked: Any) -> dict[str, Any]:
    return asyncio.run(read_all(body, media_type, **asked))


async def nobody(job: Callable[..., bytes], data: bytes, *arguments: str) -> None:
    """Another process that can't do it."""


async def read_all(
    body: bytes, media_type: str = JSON, work: Any = nobody, **asked: Any
) -> dict[str, Any]:
    wanted = {"pointer": "", "offset": 0, "limit": 0, **asked}
    return await read_part(work, body, media_type, **wanted)


@pytest.mark.parametrize(
    ("asked", "part"),
    [
        (
            {"pointer": "/items", "offset": 0, "limit": 2},
            {"total": 250, "offset": 0, "value": [{"id": 0}, {"id": 1}], "next_offset": 2},
        ),
        (
            {"pointer": "/items", "offset": 248},
            {"total": 250, "offset": 248, "value": [{"id": 248}, {"id": 249}]},
        ),
        ({"pointer": "/items", "offset": 900}, {"total": 250, "offset": 900, "value": []}),
        ({"pointer": "/items", "offset": 2**63}, {"total": 250, "offset": 2**63, "value": []}),
        ({"pointer": "/items/7"}, {"total": 8, "offset": 0, "value": '{"id":7}'}),
        ({"pointer": "items/7/id"}, {"total": 1, "offset": 0, "value": "7"}),
        (
            {"pointer": "/note", "offset": 1, "limit": 2},
            {"total": 5, "offset": 1, "value": "él", "next_offset": 3},
        ),
        ({"pointer": "/a~1b/~0"}, {"total": 1, "offset": 0, "value": [1]}),
        ({"pointer": "/n"}, {"total": 4, "offset": 0, "value": "null"}),
        (
            {"limit": 9},
            {"total": len(BODY.decode()), "offset": 0, "value": '{"items":', "next_offset": 9},
        ),
    ],
)
def test_slice_counts_items_in_arrays_and_characters_elsewhere(
    asked: dict[str, Any], part: dict[str, Any]
) -> None:
    assert read(BODY, **asked) == {"bytes": len(BODY), **part}


def test_array_is_read_a_hundred_items_at_a_time() -> None:
    part = read(BODY, pointer="/items")
    assert (len(part["value"]), part["next_offset"]) == (100, 100)


def test_text_and_binary_are_read_by_characters() -> None:
    assert read("café!".encode(), "text/plain; charset=utf-8", offset=3) == {
        "bytes": 6,
        "total": 5,
        "offset": 3,
        "value": "é!",
    }
    assert read(b"\0\xff", "image/png")["value"] == "AP8="


@pytest.mark.parametrize(
    ("body", "asked", "argument"),
    [
        (BODY, {"pointer": "/nope"}, "/pointer"),
        (BODY, {"pointer": "/items/250"}, "/pointer"),
        (BODY, {"pointer": "/items/-1"}, "/pointer"),
        (BODY, {"pointer": "/note/x"}, "/pointer"),
        (BODY, {"pointer": "/items/" + "9" * 5000}, "/pointer"),
        (BODY, {"pointer": "/\ud800"}, "/pointer"),
        (b"text", {"pointer": "/a"}, "/pointer"),
        (BODY[:-9], {"pointer": "/items"}, "/pointer"),  # it was cut
        (LARGE, {"pointer": "/items"}, "/pointer"),  # no worker process could read it
    ],
)
def test_slice_that_does_not_exist_is_refused_by_name(
    body: bytes, asked: dict[str, Any], argument: str
) -> None:
    with raises(Fixable, problems=[argument]):
        read(body, **asked)


def test_slice_is_bounded_whatever_the_limit() -> None:
    part = part_of(orjson.dumps(["x" * 60_000] * 10), JSON, "", 0, 10)
    assert (len(part["value"]), part["next_offset"]) == (1, 1)
    text = part_of("é".encode() * 50_000, "text/plain", "", 0, 50_000)
    assert (len(text["value"]), text["next_offset"]) == (STEP_BYTES // 2, STEP_BYTES // 2)
    assert len(read(b"x" * 200_000, "text/plain", limit=200_000)["value"]) == STEP_BYTES
    with raises(Fixable, hint="Read it with the pointer /0."):
        part_of(orjson.dumps(["x" * STEP_BYTES] * 2), JSON, "", 0, 0)


@given(
    text=st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\ufeff"), max_size=60),
    limit=st.integers(1, 20),
)
def test_parts_put_together_are_the_whole(text: str, limit: int) -> None:
    parts, offset = [], 0
    for _ in range(100):
        part = part_of(text.encode(), "text/x; charset=utf-8", "", offset, limit)
        parts.append(part["value"])
        if "next_offset" not in part:
            break
        offset = part["next_offset"]
    assert "".join(parts) == text


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    async with Workers() as running:
        yield running


async def test_large_json_is_read_in_another_process(workers: Workers) -> None:
    work = workers.work
    last = await read_all(LARGE, work=work, pointer="/items", offset=19_998)
    assert last["value"] == ITEMS[19_998:]
    assert (await read_all(LARGE, work=work, pointer="/items/777/name"))["value"] == "Nämé 777"
    assert (await read_all(LARGE, work=work, offset=2, limit=5))["value"] == "items"
    with pytest.raises(Fixable) as refusal:
        await read_all(LARGE, work=work, pointer="/nobody")
    assert "there are the keys 'items'" in str(refusal.value.details["problems"])


async def test_json_that_takes_too_much_is_read_as_text() -> None:
    text = LARGE.decode()
    assert (await read_all(LARGE, limit=9))["value"] == text[:9]
    assert (await read_all(LARGE, offset=len(text) - 9))["value"] == text[-9:]
