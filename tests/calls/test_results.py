from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.large_results import MAX_SLICE_BYTES, WEIGHTY_CHARS, laid_out, read_slice
from gateway.errors import Fixable
from gateway.store.results import LargeResult
from tests.calls import whole

JSON = "application/json"
DOCUMENT = {"items": [{"id": i} for i in range(250)], "note": "héllo", "a/b": {"~": [1]}, "n": None}
BODY = orjson.dumps(DOCUMENT)


@lru_cache(1)
def layout(body: bytes, media_type: str, weighty: int) -> tuple[LargeResult, str]:
    out = laid_out(body, media_type, b"r1", weighty=weighty)
    kept = LargeResult("r1", "ann", len(body), out.shown, out.root, 1.0)
    return kept, b"".join(out.parts).decode()


def read(
    body: bytes,
    media_type: str = JSON,
    *,
    weighty: int = WEIGHTY_CHARS,
    fetched: list[int] | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """A part of an answer that was laid out; `fetched` is told how much text that took."""
    kept, text = layout(body, media_type, weighty)

    def fetch(start: int, end: int) -> str:
        assert 0 <= start <= end <= len(text)
        if fetched is not None:
            fetched.append(end - start)
        return text[start:end]

    return read_slice(kept, fetch, **asked)


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
@pytest.mark.parametrize("weighty", [2, 40, WEIGHTY_CHARS])
def test_slice_counts_items_in_arrays_and_characters_elsewhere(
    asked: dict[str, Any], part: dict[str, Any], weighty: int
) -> None:
    assert read(BODY, weighty=weighty, **asked) == {"bytes": len(BODY), **part}


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
        (BODY, {"offset": -1}, "/offset"),
        (BODY, {"limit": 0}, "/limit"),
        (BODY, {"pointer": "/nope"}, "/pointer"),
        (BODY, {"pointer": "/items/250"}, "/pointer"),
        (BODY, {"pointer": "/items/-1"}, "/pointer"),
        (BODY, {"pointer": "/note/x"}, "/pointer"),
        (BODY, {"pointer": "/items/" + "9" * 5000}, "/pointer"),
        (BODY, {"pointer": "/\ud800"}, "/pointer"),
        (b"text", {"pointer": "/a"}, "/pointer"),
    ],
)
def test_slice_that_does_not_exist_is_refused_by_name(
    body: bytes, asked: dict[str, Any], argument: str
) -> None:
    with pytest.raises(Fixable) as refusal:
        read(body, **asked)
    assert [p["path"] for p in refusal.value.details["problems"]] == [argument]


def test_slice_is_bounded_whatever_the_limit() -> None:
    big = orjson.dumps(["x" * 600] * 1000)
    part = read(big, limit=1000, max_bytes=1000)
    assert (len(part["value"]), part["next_offset"]) == (1, 1)
    text = read("é".encode() * 5000, "text/plain", limit=5000, max_bytes=1000)
    assert (len(text["value"]), text["next_offset"]) == (500, 500)
    with pytest.raises(Fixable) as refusal:
        read(big, max_bytes=100)
    assert refusal.value.hint == "Read it with the pointer /0."


NAMES = st.text('ab~/é"\\\n', max_size=4)
VALUES = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(NAMES, inner, max_size=8),
    max_leaves=40,
)


@given(
    value=VALUES,
    written=st.sampled_from(
        [
            lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(),
            lambda value: b"\xef\xbb\xbf" + json.dumps(value, indent=2).encode(),
            lambda value: b'{"a": 1, "b": 2, "a": %s}' % json.dumps(value).encode(),
        ]
    ),
    media_type=st.sampled_from([JSON, "text/plain", "image/png"]),
    weighty=st.integers(2, 60),
    data=st.data(),
)
def test_part_is_that_of_the_whole_answer(
    value: Any,
    written: Callable[[Any], bytes],
    media_type: str,
    weighty: int,
    data: st.DataObject,
) -> None:
    body = written(value)
    try:
        parsed = orjson.loads(body.decode("utf-8-sig"))
    except orjson.JSONDecodeError:  # a number too large for it, or half a character
        parsed = None
    asked = {
        "pointer": data.draw(st.sampled_from(["#", "/nowhere", *pointers(parsed)])),
        "offset": data.draw(st.integers(0, 9)),
        "limit": data.draw(st.none() | st.integers(1, 9)),
        "max_bytes": data.draw(st.integers(1, 90)),
    }

    assert outcome(partial(read, weighty=weighty), body, media_type, asked) == outcome(
        whole.read_slice, body, media_type, asked
    )


def pointers(value: Any, so_far: str = "") -> list[str]:
    """Where in a value one can go, and a step further."""
    inner = list(enumerate(value)) if isinstance(value, list) else []
    if isinstance(value, dict):
        inner = [(name.replace("~", "~0").replace("/", "~1"), v) for name, v in value.items()]
    deeper = [found for name, v in inner for found in pointers(v, f"{so_far}/{name}")]
    return [so_far, f"{so_far}/a", f"{so_far}/3", *deeper]


def outcome(
    reading: Callable[..., Any], body: bytes, media_type: str, asked: dict[str, Any]
) -> bytes:
    """What comes of it, to the byte."""
    try:
        return orjson.dumps(reading(body, media_type, **asked))
    except Fixable as error:
        return orjson.dumps([error.code, error.message, error.hint, error.details])


NUMBERS = [{"id": n, "name": f"Number {n}", "tags": ["é", "\n"] * 5} for n in range(5_000)]
HUGE: dict[str, Any] = {
    "items": NUMBERS,
    "by name": {f"{n}/~": item for n, item in enumerate(NUMBERS)},
    "text": "line\n" * 100_000,
    "deep": orjson.loads(b'[{"in":' * 40 + b'{"x":"%s"}' % (b"y" * 100_000) + b"}]" * 40),
    "uneven": ["z" * 100_000, *range(100_000), "z" * 100_000],
}


HUGE_BODY = orjson.dumps(HUGE)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"offset": 700_000},
        {"pointer": "#", "offset": 900_000},
        {"pointer": "/items"},
        {"pointer": "/items", "offset": 2_500},
        {"pointer": "/items", "offset": 2_500, "limit": 100_000},
        {"pointer": "/items/4999/tags"},
        {"pointer": "/by name", "offset": 300_000},
        {"pointer": "/by name/1234~1~0/name"},
        {"pointer": "/by name/nobody"},
        {"pointer": "/text", "offset": 499_990},
        {"pointer": "/deep" + "/0/in" * 40 + "/x", "offset": 99_000},
        {"pointer": "/uneven", "offset": 50_000, "limit": 2**63},
        {"pointer": "/uneven", "offset": 2**63},
        {"pointer": "/text", "offset": 2**63, "limit": 2**63},
        {"pointer": "/uneven", "offset": 100_001},
    ],
)
def test_little_more_is_fetched_than_is_read(asked: dict[str, Any]) -> None:
    fetched: list[int] = []

    part = outcome(partial(read, fetched=fetched), HUGE_BODY, JSON, asked)

    assert part == outcome(whole.read_slice, HUGE_BODY, JSON, asked)
    assert sum(fetched) < MAX_SLICE_BYTES + 4 * WEIGHTY_CHARS


@given(
    text=st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\ufeff"), max_size=60),
    limit=st.integers(1, 20),
)
def test_parts_put_together_are_the_whole(text: str, limit: int) -> None:
    parts, offset = [], 0
    for _ in range(100):
        part = read(text.encode(), "text/plain; charset=utf-8", offset=offset, limit=limit)
        parts.append(part["value"] if isinstance(part["value"], str) else "")
        if "next_offset" not in part:
            break
        offset = part["next_offset"]
    if isinstance(part["value"], str):
        assert "".join(parts) == text
