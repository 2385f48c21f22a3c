"""Events come out the same however the stream is cut into chunks, and never outgrow their bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.http import Event, EventReader, EventTooLarge

STREAM = (
    b": ping\r\n\r\n"
    b"id: 7\r\nretry: 1500\r\ndata: \r\n\r\n"
    b'event: message\ndata: {"a":\ndata:1}\n\n'
    b"data: \xc3\xa9\r\rid: 8\rdata: last\r\r"
    b"data: cut off"
)
EVENTS = [
    Event(b"", "7", 1500),
    Event(b'{"a":\n1}'),
    Event("é".encode()),
    Event(b"last", "8"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=30))
def test_events_do_not_depend_on_where_chunks_end(cuts: list[int]) -> None:
    reader = EventReader(1000)
    ends = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    assert [event for chunk in chunks for event in reader.feed(chunk)] == EVENTS


@pytest.mark.parametrize("stream", [b"data: " + b"x" * 300, b"data: 1234567890\n" * 30])
def test_event_over_its_bound_is_refused_before_it_is_whole(stream: bytes) -> None:
    reader = EventReader(200)
    with pytest.raises(EventTooLarge):
        for start in range(0, len(stream), 20):
            list(reader.feed(stream[start : start + 20]))


def test_long_stream_of_small_events_stays_within_bounds() -> None:
    reader = EventReader(200)
    events = [event for _ in range(1000) for event in reader.feed(b"data: 1234567890\n\n" * 3)]
    assert events == [Event(b"1234567890")] * 3000
