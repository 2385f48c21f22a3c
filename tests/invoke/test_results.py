from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Fixable
from gateway.invoke.results import read_slice

JSON = "application/json"
DOCUMENT = {"items": [{"id": i} for i in range(250)], "note": "héllo", "a/b": {"~": [1]}, "n": None}
BODY = orjson.dumps(DOCUMENT)


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
    assert read_slice(BODY, JSON, **asked) == {"bytes": len(BODY), **part}


def test_array_is_read_a_hundred_items_at_a_time() -> None:
    part = read_slice(BODY, JSON, pointer="/items")
    assert (len(part["value"]), part["next_offset"]) == (100, 100)


def test_text_and_binary_are_read_by_characters() -> None:
    assert read_slice("café!".encode(), "text/plain; charset=utf-8", offset=3) == {
        "bytes": 6,
        "total": 5,
        "offset": 3,
        "value": "é!",
    }
    assert read_slice(b"\0\xff", "image/png")["value"] == "AP8="


@pytest.mark.parametrize(
    ("body", "asked", "argument"),
    [
        (BODY, {"offset": -1}, "/offset"),
        (BODY, {"limit": 0}, "/limit"),
        (BODY, {"pointer": "/nope"}, "/pointer"),
        (BODY, {"pointer": "/items/250"}, "/pointer"),
        (BODY, {"pointer": "/items/-1"}, "/pointer"),
        (BODY, {"pointer": "/note/x"}, "/pointer"),
        (b"text", {"pointer": "/a"}, "/pointer"),
    ],
)
def test_slice_that_does_not_exist_is_refused_by_name(
    body: bytes, asked: dict[str, Any], argument: str
) -> None:
    with pytest.raises(Fixable) as refusal:
        read_slice(body, JSON, **asked)
    assert [p["path"] for p in refusal.value.details["problems"]] == [argument]


def test_slice_is_bounded_whatever_the_limit() -> None:
    big = orjson.dumps(["x" * 600] * 1000)
    part = read_slice(big, JSON, limit=1000, max_bytes=1000)
    assert (len(part["value"]), part["next_offset"]) == (1, 1)
    text = read_slice("é".encode() * 5000, "text/plain", limit=5000, max_bytes=1000)
    assert (len(text["value"]), text["next_offset"]) == (500, 500)
    with pytest.raises(Fixable) as refusal:
        read_slice(big, JSON, max_bytes=100)
    assert refusal.value.hint == "Read it with the pointer /0."


@given(
    text=st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\ufeff"), max_size=60),
    limit=st.integers(1, 20),
)
def test_parts_put_together_are_the_whole(text: str, limit: int) -> None:
    parts, offset = [], 0
    for _ in range(100):
        part = read_slice(text.encode(), "text/plain; charset=utf-8", offset=offset, limit=limit)
        parts.append(part["value"] if isinstance(part["value"], str) else "")
        if "next_offset" not in part:
            break
        offset = part["next_offset"]
    if isinstance(part["value"], str):
        assert "".join(parts) == text
