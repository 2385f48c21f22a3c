"""The picture and the figures it is drawn from."""

from __future__ import annotations

import re
from collections import Counter

from gateway.catalog.snapshot import ConnectionState
from gateway.config.connection import OpenApiConnection
from gateway.console.calls import client_name, draw, spark, sum_hour
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
    hour = sum_hour(COUNTS, [0.1] * 95 + [2.0] * 5)
    assert (hour.calls, hour.rate, hour.errors, hour.refused) == (100, 99, 9, 1)
    assert hour.by_client == Counter({"Claude Code": 99, "Cursor": 1})
    assert hour.reached == Counter(
        {("shop", "read"): 90, ("shop", "write"): 9, ("mail", "delete"): 1}
    )
    assert hour.p95_ms == 100.0
    assert sum_hour([], []).p95_ms is None


def test_clients_are_named_without_their_version() -> None:
    names = ["Claude Code/2.1", "a/b/1", "plain", "", "x" * 99]
    shown = [client_name(name) for name in names]
    assert shown == ["Claude Code", "a/b", "plain", "unnamed client", "x" * 40]


def test_the_line_of_an_hour_stays_in_its_box() -> None:
    line = spark((0,) * 59 + (1_000_000,))
    points = [tuple(map(float, point.split(","))) for point in line.split()]
    assert len(points) == 60
    assert all(0 <= x <= 240 and 0 <= y <= 44 for x, y in points)


def test_every_box_has_its_place_and_no_two_overlap() -> None:
    counts = [Count(0, f"c{i}", f"client {i}/1", "completed", "read", i) for i in range(40)]
    picture = draw(sum_hour(counts, []), "Asks", 3, [state(f"c{i}") for i in range(40)], {})
    assert len(picture.boxes) == 5 + 1 + 7 + 3
    for box in picture.boxes:
        assert box.x >= 0 and box.x + box.width <= 1040
        assert box.y >= 0 and box.y + box.height <= picture.height
    for one in picture.boxes:
        for other in picture.boxes:
            apart = one.x != other.x or abs(one.y - other.y) >= min(one.height, other.height)
            assert one is other or apart


def test_busy_ways_are_thicker_and_broken_ones_show() -> None:
    states = [state("mail", "failing"), state("shop")]
    picture = draw(sum_hour(COUNTS, []), "Asks", 0, states, {})
    ways = {curve.tone: curve.width for curve in picture.curves}
    assert ways["busy"] > ways["bad"] > 1
    assert all(re.fullmatch(r"M[\d. ]+C[\d. ]+", curve.path) for curve in picture.curves)


def test_an_empty_gateway_says_what_comes_next() -> None:
    picture = draw(sum_hour([], []), "Asks", 0, [], {})
    assert [box.label for box in picture.boxes] == [
        *("No client yet", "Asks", "No connection yet", "0 read", "0 write", "0 delete"),
    ]
