"""The picture and the figures it is drawn from."""

from __future__ import annotations

import re
from collections import Counter

from gateway.catalog.snapshot import ConnectionState
from gateway.config.connection import OpenApiConnection
from gateway.console.overview import MAX_CLIENTS, MAX_CONNECTIONS, WIDTH, Gate, drawn
from gateway.console.visit import MINUTES, client_name, hour_of, spark
from gateway.model import Status
from gateway.store.ledger import Count

COUNTS = [
    Count(59, "shop", "Claude Code/2.1", "completed", "read", 90),
    Count(59, "shop", "Claude Code/1.0", "failed", "write", 9),
    Count(0, "mail", "Cursor/1", "denied", "delete", 1),
]


def state(name: str, status: Status = "connected") -> ConnectionState:
    settings = OpenApiConnection(kind="openapi", spec="{}")
    return ConnectionState(name, settings, "stored", status=status)


def test_an_hour_is_summed_from_its_counts() -> None:
    hour = hour_of(COUNTS, [0.1] * 95 + [2.0] * 5)
    assert (hour.calls, hour.rate, hour.errors, hour.refused) == (100, 99, 9, 1)
    assert hour.by_client == Counter({"Claude Code": 99, "Cursor": 1})
    assert hour.reached == Counter(
        {("shop", "read"): 90, ("shop", "write"): 9, ("mail", "delete"): 1}
    )
    assert hour.p95_ms == 100.0
    assert hour_of([], []).p95_ms is None


def test_clients_are_named_without_their_version() -> None:
    names = ["Claude Code/2.1", "a/b/1", "plain", "", "x" * 99]
    shown = [client_name(name) for name in names]
    assert shown == ["Claude Code", "a/b", "plain", "unnamed client", "x" * 40]


def test_the_line_of_an_hour_stays_in_its_box() -> None:
    line, area = spark((0,) * (MINUTES - 1) + (1_000_000,))
    points = [tuple(map(float, point.split(","))) for point in line.split()]
    assert len(points) == MINUTES
    assert all(0 <= x <= 240 and 0 <= y <= 44 for x, y in points)
    assert area.startswith("0,44 ") and area.endswith(" 240,44")


def test_every_box_has_its_place_and_no_two_overlap() -> None:
    counts = [Count(0, f"c{i}", f"client {i}/1", "completed", "read", i) for i in range(40)]
    picture = drawn(hour_of(counts, []), Gate("Asks", 3), [state(f"c{i}") for i in range(40)], {})
    assert len(picture.boxes) == MAX_CLIENTS + 1 + MAX_CONNECTIONS + 3
    for box in picture.boxes:
        assert box.x >= 0 and box.x + box.width <= WIDTH
        assert box.y >= 0 and box.y + box.height <= picture.height
    for one in picture.boxes:
        for other in picture.boxes:
            apart = one.x != other.x or abs(one.y - other.y) >= min(one.height, other.height)
            assert one is other or apart


def test_busy_ways_are_thicker_and_broken_ones_show() -> None:
    states = [state("mail", "failing"), state("shop")]
    picture = drawn(hour_of(COUNTS, []), Gate("Asks", 0), states, {})
    ways = {line.tone: line.width for line in picture.lines}
    assert ways["busy"] > ways["bad"] > 1
    assert all(re.fullmatch(r"M[\d. ]+C[\d. ]+", line.path) for line in picture.lines)


def test_an_empty_gateway_says_what_comes_next() -> None:
    picture = drawn(hour_of([], []), Gate("Asks", 0), [], {})
    assert [box.label for box in picture.boxes] == [
        *("No client yet", "Asks", "No connection yet", "0 read", "0 write", "0 delete"),
    ]
