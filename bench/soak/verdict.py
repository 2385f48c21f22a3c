"""Whether a run was flat, as figures with their bounds. Pure.

Memory is looked at in the second half, when pools and caches are filled: a line through it, per
hour, and the medians of the last and the second quarter. Descriptors, tasks, threads and children
must be after the run what they were before it. Rows that are swept may not grow either; rows that
outlive a run by design are counted against what was done.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.rows import Row
from bench.soak.clients import Tally
from bench.soak.samples import Sample
from bench.soak.world import BIG_BYTES, KEEP_SECONDS

GAVE_UP_SHARE = 0.001  # after ten seconds, on a machine that may have other work
MEMORY_MB_AN_HOUR = 30.0  # in a long run; no growth below MEMORY_MB counts in a short one
MEMORY_SHARE, MEMORY_MB = 0.10, 4.0  # of the last quarter over the second
# SQLite keeps 2 MB of pages for each of six connections, and has them when there was so much.
PAGES_MB, PAGES_SECONDS = 12.0, 200.0
ROWS_SHARE, ROWS = 0.25, 100
PAGES = 1.1  # times as much as was put in is taken up by whole pages
STORE_SHARE, STORE_MB = 0.25, 2.0
SWEPT_SECONDS = KEEP_SECONDS * 1.1 + 5.0  # when the last row of a moment is gone
WARM_WORKERS = 2  # children that read definitions or large answers; each is kept for the next
FILES_A_WORKER = 2
POOL_THREADS = 8  # made when they are first needed, and kept
# Kept for an hour to weeks, by design: no more of them than there was reason for.
LASTING = ("ended_sessions", "validations", "results", "standing_grants", "windows")
# Kept for an hour to weeks as well, for every call and every client that lists: they may gather.
GATHERING = ("signals", "listed", "lists")
GATHERED = 0.875 / 0.375  # rows in the last quarter for one in the second, where none is swept
SIGNAL_BYTES = 150  # in the store, with its part of the index


@dataclass(frozen=True, slots=True)
class Course:
    """What was seen in one run."""

    before: Sample
    during: tuple[Sample, ...]
    after: Sample
    tally: Tally
    faults: tuple[str, ...]


def judged(course: Course) -> list[Row]:
    """Every figure with its bound."""
    return [*_answers(course), *_memory(course), *_left(course), *_rows(course)]


def _answers(course: Course) -> list[Row]:
    tally, first, last = course.tally, course.during[0], course.during[-1]
    seconds = last.at - first.at
    return [
        Row("calls made", last.calls - first.calls, note=f"{seconds:.0f} s"),
        Row("errands run", float(tally.done.total()), note=f"{len(tally.done)} kinds"),
        Row("answers nobody expected", float(tally.unexpected), most=0),
        Row(
            "errands whose client gave up waiting",
            float(tally.gave_up),
            most=round(tally.done.total() * GAVE_UP_SHARE, 1),
        ),
        Row("calls that failed inside the gateway", float(course.after.internal), most=0),
        Row("errors in the gateway's log", float(len(course.faults)), most=0),
    ]


def _memory(course: Course) -> list[Row]:
    half = course.during[len(course.during) // 2 :]
    hours = (half[-1].at - half[0].at) / 3600
    second, last = _quarters(course.during, lambda sample: sample.memory)
    filling = PAGES_MB if half[0].at - course.during[0].at < PAGES_SECONDS else 0.0
    allowed = max(MEMORY_MB_AN_HOUR, (MEMORY_MB + filling) / hours)
    return [
        Row("memory before, with nobody connected", course.before.memory, "MB"),
        Row("memory at the most", max(s.memory for s in course.during), "MB"),
        Row("memory afterwards", course.after.memory, "MB"),
        Row("memory, slope of the second half", slope(half) * 3600, "MB/h", allowed),
        Row(
            "memory, median of the last quarter over the second",
            last - second,
            "MB",
            second * MEMORY_SHARE + MEMORY_MB,
            note=f"{second:.1f} → {last:.1f} MB",
        ),
    ]


def slope(samples: Sequence[Sample]) -> float:
    """Memory against time, in MB a second."""
    line = statistics.linear_regression([s.at for s in samples], [s.memory for s in samples])
    return line.slope


def _left(course: Course) -> list[Row]:
    before, after = course.before, course.after
    spare_files = WARM_WORKERS * FILES_A_WORKER
    return [
        Row(
            "files open afterwards",
            after.files,
            "",
            before.files + spare_files,
            note=_was(before.files),
        ),
        Row("tasks afterwards", after.tasks, "", before.tasks, note=_was(before.tasks)),
        Row(
            "threads afterwards",
            after.threads,
            "",
            before.threads + POOL_THREADS,
            note=_was(before.threads),
        ),
        Row(
            "children afterwards",
            after.children,
            "",
            before.children + WARM_WORKERS,
            note=_was(before.children),
        ),
        Row("streams afterwards", after.streams, "", 0),
        Row("calls in flight afterwards", after.in_flight, "", 0),
    ]


def _was(before: float) -> str:
    return f"{before:.0f} before"


def _rows(course: Course) -> list[Row]:
    filling = _filling(course.during[-1].at - course.during[0].at)
    swept = [name for name in course.after.rows if name not in LASTING]
    store = _quarters(course.during, _store)
    return [
        _flat("store", store, filling * (1 + STORE_SHARE), STORE_MB, "MB"),
        *(
            _flat(
                f"rows of {name}",
                _quarters(course.during, _rows_of(name)),
                (GATHERED if name in GATHERING else filling) * (1 + ROWS_SHARE),
                ROWS,
            )
            for name in swept
        ),
        *(_lasting(course, name) for name in LASTING),
    ]


def _filling(seconds: float) -> float:
    """How many times more rows the last quarter may have: in a short run they only gather."""
    return min(seconds * 0.875, SWEPT_SECONDS) / min(seconds * 0.375, KEEP_SECONDS)


def _store(sample: Sample) -> float:
    """The store's size without large answers and signals, which stay for an hour, in MB."""
    lasting = sample.rows["results"] * BIG_BYTES * PAGES + sample.rows["signals"] * SIGNAL_BYTES
    return sample.store - lasting / 2**20


def _lasting(course: Course, table: str) -> Row:
    most = course.before.rows[table] + course.tally.left[table]
    return Row(f"rows of {table}, kept long", course.after.rows[table], "", most)


def _rows_of(table: str) -> Callable[[Sample], float]:
    return lambda sample: sample.rows[table]


def _flat(
    name: str, quarters: tuple[float, float], times: float, more: float, unit: str = ""
) -> Row:
    second, last = quarters
    note = f"{second:.1f} in the second"
    return Row(f"{name}, last quarter", last, unit, second * times + more, note=note)


def _quarters(samples: Sequence[Sample], value: Callable[[Sample], float]) -> tuple[float, float]:
    """The medians of the second and the last quarter."""
    quarter = max(1, len(samples) // 4)
    second, last = samples[quarter : 2 * quarter], samples[-quarter:]
    return statistics.median(map(value, second)), statistics.median(map(value, last))
