"""Events come out the same however the stream is cut into chunks, and never outgrow their bound."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import UpstreamFailed
from gateway.limits import MAX_MESSAGE_BYTES
from gateway.upstream.http import Event, read_events

STREAM = (
    b": ping\r\n\r\n"
    b"id: 7\r\nretry: 1500\r\ndata: \r\n\r\n"
    b'event: message\ndata: {"a":\ndata:1}\n\n'
    b"data: \xc3\xa9\r\n\r\nid: 8\ndata: last\n\n"
    b"data: cut off"
)
EVENTS = [
    Event(b"", "7", 1500),
    Event(b'{"a":\n1}', "7", 1500),
    Event("é".encode(), "7", 1500),
    Event(b"last", "8", 1500),
]


async def read(chunks: Iterable[bytes]) -> list[Event]:
    async def stream() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    return [event async for event in read_events(stream(), "up")]


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
async def test_events_do_not_depend_on_where_chunks_end(cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(STREAM)]
    assert await read(STREAM[a:b] for a, b in zip(ends, ends[1:], strict=False)) == EVENTS


@pytest.mark.parametrize("chunk", [b"x" * 65_536, b"data: " + b"x" * 65_536 + b"\n"])
async def test_event_over_its_bound_is_refused_before_it_is_whole(chunk: bytes) -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += len(chunk)
            yield chunk

    with pytest.raises(UpstreamFailed):
        await read(endless())
    assert taken <= MAX_MESSAGE_BYTES + 2 * len(chunk)


async def test_long_stream_of_small_events_stays_within_bounds() -> None:
    event = b"data: " + b"1234567890" * 1000 + b"\n\n"
    assert len(await read([event] * 2000)) == 2000
