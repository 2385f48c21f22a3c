"""A short soak: the whole course of `make soak`, its judgement included, in little more than a
minute. What only shows after minutes, a slow growth of memory, is for the long one to find."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from bench.soak.clients import Tally
from bench.soak.run import soak
from bench.soak.samples import Sample
from bench.soak.verdict import Course, judged

SECONDS = float(os.environ.get("GATEWAY_SOAK_SECONDS", "75"))
TABLES = """executions results ended_sessions validations standing_grants windows
signals"""
ROWS = dict.fromkeys(TABLES.split(), 50)
IDLE = Sample(0.0, 130.0, 40, 15, 2, 20, 0, 0, 0, 0, 0, 5.0, ROWS)


@pytest.mark.slow
async def test_nothing_grows_under_fifty_clients_with_refreshes_and_faults(tmp_path: Path) -> None:
    course = await soak(tmp_path, "sqlite:///state/gateway.db", SECONDS)
    not_met = [row for row in judged(course) if row.met is False]
    assert (not_met, course.tally.problems, course.faults) == ([], [], ())


def _run(memory: float = 0.0, rows: int = 0) -> Course:
    """Ten minutes; memory and executions grow by so much every five seconds."""
    during = tuple(
        replace(
            IDLE,
            at=5.0 * n,
            memory=140.0 + memory * n,
            rows={**ROWS, "executions": 50 + rows * n},
        )
        for n in range(120)
    )
    return Course(IDLE, during, replace(IDLE, at=600.0), Tally(), ())


LEFT = replace(IDLE, at=600.0, files=60, tasks=21, streams=1)
KEPT = replace(IDLE, at=600.0, rows={**ROWS, "ended_sessions": 51})
SLOPE = "memory, slope of the second half"
MEDIAN = "memory, median of the last quarter over the second"


@pytest.mark.parametrize(
    ("course", "found"),
    [
        (_run(), []),
        (_run(memory=0.5), [SLOPE, MEDIAN]),
        (
            replace(_run(), after=LEFT),
            [f"{w} afterwards" for w in ("files open", "tasks", "streams")],
        ),
        (_run(rows=10), ["rows of executions, last quarter"]),
        (replace(_run(), after=KEPT), ["rows of ended_sessions, kept long"]),
    ],
    ids=["flat", "memory that grows", "left open", "not swept", "rows nobody asked for"],
)
def test_what_grows_or_is_left_is_found(course: Course, found: list[str]) -> None:
    assert [row.name for row in judged(course) if row.met is False] == found
