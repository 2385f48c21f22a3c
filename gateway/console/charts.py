"""Charts: calls, failures and how long calls took, over an hour to a month.

`draw_bars` and `draw_lines` are pure: figures come in, coordinates go out, and a template draws
them as SVG, with a table behind for those who can't see it. What they show is counted in the store
and kept for some seconds, since many open pages show the same charts.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from cachetools import TTLCache

from gateway.limits import PAGE_ENTRIES
from gateway.naming import cut, visible
from gateway.store import figures
from gateway.store.ledger import Filter
from gateway.web.gateway import Inquiry

RANGES = {"1h": 3600.0, "24h": 86_400.0, "7d": 604_800.0, "30d": 2_592_000.0}
BOX = (600, 120)  # the box of a drawing; the page stretches it
TONES = ("s0", "s1", "s2", "s3", "s4", "s5")  # colours that a person tells apart
NOTHING = ("0", "–")
STEPS = (1, 5, 15, 60, 300, 900, 1800, 3600, 10_800, 21_600, 43_200, 86_400)


# --- a time, in steps -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time: `count` steps of `step` seconds."""

    since: float
    step: float
    count: int

    @property
    def until(self) -> float:
        return self.since + self.step * self.count

    def starts(self) -> list[float]:
        return [self.since + place * self.step for place in range(self.count)]

    def words(self, at: float, *, short: bool = False) -> str:
        """A time as a chart writes it; with the day, where the window has several."""
        days, seconds = self.count * self.step > 2 * 86_400, self.step < 60
        clock = "%H:%M:%S" if seconds else "%H:%M"
        form = ("%d %b" if days else clock) if short else f"%d %b {clock}"
        return datetime.fromtimestamp(at, UTC).strftime(form)


def window_of(since: float, until: float) -> Window:
    """The window from one time to another, in at most 60 steps, which are round."""
    span = max(until - since, 1.0)
    step = next((step for step in STEPS if span / step <= 60), span / 60)
    start = since - since % step
    return Window(start, step, max(1, math.ceil((until - start) / step)))


# --- drawing --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """One step of a chart: where it is, what it says, and where it leads."""

    x: float
    start: float
    end: float
    label: str
    values: tuple[str, ...]
    summary: str  # label and values, line by line
    href: str = ""

    @property
    def has_values(self) -> bool:
        """Whether the table has a row for this step."""
        return any(value not in NOTHING for value in self.values)


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, as it is drawn and as its table says it."""

    title: str
    names: tuple[tuple[str, str], ...]  # of its series, each with its tone
    paths: tuple[tuple[str, str], ...]  # tone and outline
    top: str
    columns: tuple[Column, ...]
    ticks: tuple[str, ...]
    width: float
    kind: str
    ends: str

    @property
    def is_empty(self) -> bool:
        return not any(path for _, path in self.paths)


def draw_bars(
    title: str, window: Window, series: Mapping[str, Sequence[int]], tones: Sequence[str]
) -> Chart:
    """Bars upon each other, the first series at the bottom."""
    top = round_up(max(map(sum, zip(*series.values(), strict=True)), default=0))
    width, base, paths = BOX[0] / window.count, [0.0] * window.count, []
    for values in series.values():
        path = ""
        for place, value in enumerate(values):
            if value:
                base[place] += (high := value / top * BOX[1])
                x, y = place * width + width * 0.1, BOX[1] - base[place]
                path += f"M{x:.1f} {y:.1f}h{width * 0.8:.1f}v{high:.1f}h-{width * 0.8:.1f}z"
        paths.append(path)
    texts = [[f"{value:,}" for value in values] for values in series.values()]
    return _chart(title, window, f"{top:,.0f}", list(series), tones, paths, texts, "bar")


def draw_lines(
    window: Window, series: Mapping[str, Sequence[float | None]], tones: Sequence[str]
) -> Chart:
    """How long calls took, as lines in milliseconds; they end where nothing was called."""
    top = round_up(
        max((v for values in series.values() for v in values if v is not None), default=0)
    )
    width, paths = BOX[0] / window.count, []
    for values in series.values():
        path, before = "", None
        for place, value in enumerate(values):
            if value is not None:
                x, y = (place + 0.5) * width, BOX[1] - value / top * BOX[1]
                # A lone point is a short dash.
                path += (
                    f"M{x - width * 0.3:.1f} {y:.1f}H{x:.1f}"
                    if before is None
                    else f"L{x:.1f} {y:.1f}"
                )
            before = value
        paths.append(path)
    texts = [[duration(value) for value in values] for values in series.values()]
    names, title = list(series), "How long they took"
    return _chart(title, window, duration(top), names, tones, paths, texts, "line")


def _chart(
    title: str,
    window: Window,
    top: str,
    names: list[str],
    tones: Sequence[str],
    paths: list[str],
    texts: list[list[str]],
    kind: str,
) -> Chart:
    width, starts = BOX[0] / window.count, window.starts()
    short = [cut(visible(name), 40) for name in names]
    columns = []
    for place, at in enumerate(starts):
        label, values = window.words(at), tuple(t[place] for t in texts)
        pairs, crowded = zip(short, values, strict=True), len(short) > 2
        # Among many series, those without a value are not worth a line.
        lines = [f"{name}: {value}" for name, value in pairs if not crowded or value not in NOTHING]
        words = "\n".join([label, *lines])
        columns.append(Column(round(place * width, 1), at, at + window.step, label, values, words))
    ticks = tuple(window.words(starts[window.count * part // 4], short=True) for part in range(4))
    outlines = tuple(zip(tones, paths, strict=True))
    return Chart(
        title,
        tuple(zip(short, tones, strict=True)),
        outlines,
        top,
        tuple(columns),
        ticks,
        round(width, 1),
        kind,
        window.words(window.until),
    )


def round_up(value: float) -> float:
    """The next round number, for an axis."""
    power = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return next(power * part for part in (1, 2, 3, 4, 6, 8, 10) if power * part >= value)


def spark(values: Sequence[int]) -> str:
    """Values as the points of a line, in a box of 240 by 44."""
    step, top = 240 / (len(values) - 1), max((*values, 1))
    return " ".join(f"{i * step:.1f},{42 - value / top * 40:.1f}" for i, value in enumerate(values))


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that this share of the values does not exceed, in milliseconds."""
    return sorted(values)[math.ceil(len(values) * share) - 1] * 1000 if values else None


# --- the figures to draw --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Row:
    """The calls of one connection or tool in a window."""

    name: str
    calls: int
    p50: float | None
    p95: float | None
    by_step: tuple[int, ...]
    failed_by_step: tuple[int, ...]

    @property
    def failed(self) -> int:
        return sum(self.failed_by_step)


@dataclass(frozen=True, slots=True)
class Figures:
    """Calls in a window, by name, and those of all names together."""

    window: Window
    rows: tuple[Row, ...]  # the busiest first
    calls: tuple[int, ...]
    failed: tuple[int, ...]
    p50: tuple[float | None, ...]
    p95: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class VisibleFigures:
    """The figures that one visitor may see; counts are cached for all visitors."""

    inquiry: Inquiry
    cache: TTLCache[Any, Any]

    def filter(self, **columns: Any) -> Filter:
        """A filter for those calls that the visitor may see and that have these values."""
        values = {key: value for key, value in columns.items() if value}
        return self.inquiry.calls_with(**values)

    async def read(self, window: Window, by: str, filter: Filter) -> Figures:
        """The figures of the filter's calls since the window's start, by connection or tool."""
        # Without an end, which is now: SQLite would then not count names by their index alone.
        filter = replace(filter, since=window.since)
        found: Figures = await self.remember(
            (filter, window, by), lambda: _count(self.inquiry, window, by, filter)
        )
        return found

    async def remember(self, key: object, count: Callable[[], Awaitable[Any]]) -> Any:
        """The result of `count`: the cached one, or a new one."""
        if key not in self.cache:
            self.cache[key] = await count()
        return self.cache[key]

    async def charts(self, span: str, **filter: str) -> dict[str, Any]:
        """The charts of one connection or tool, for its own page."""
        span = span if span in RANGES else "24h"
        found = await self.read(window_now(span), "tool", self.filter(**filter))
        return {"charts": draw(found), "range": span}

    async def lines(self, by: str, names: Sequence[str]) -> dict[str, tuple[int, str]]:
        """Calls of the last day, and a line of them by the hour, for each of these names."""
        filter, names = self.filter(since=time.time() - RANGES["24h"]), names[:PAGE_ENTRIES]
        counts = await figures.count_by_time(self.inquiry.gateway.db, filter, 3600, by, names)
        by_name = {}
        for name in {name for name, _ in counts}:
            hours = [counts[name, place] for place in range(24)]
            by_name[name] = sum(hours), spark(hours)
        return by_name


def window_now(span: str) -> Window:
    """The window that ends now."""
    now = time.time()
    return window_of(now - RANGES[span], now)


async def _count(inquiry: Inquiry, window: Window, by: str, filter: Filter) -> Figures:
    db, step, places = inquiry.gateway.db, window.step, range(window.count)
    names, name_filter = await _find_names(inquiry, by, filter)
    by_name = await figures.count_by_time(db, name_filter, step, by, names)
    failed_by_name = await figures.count_by_time(db, name_filter, step, by, names, failed=True)
    calls, failed = _sum_by_step(by_name), _sum_by_step(failed_by_name)
    totals = _sum_by_name(by_name).most_common(PAGE_ENTRIES)
    if len(totals) == PAGE_ENTRIES:  # there may be more
        calls = await figures.count_by_time(db, filter, step)
        failed = await figures.count_by_time(db, filter, step, failed=True)
    of_name, of_step = defaultdict[str, list[float]](list), defaultdict[int, list[float]](list)
    all_calls = sum(calls.values())
    for name, place, seconds in await figures.sample_seconds(db, filter, step, by, all_calls):
        of_name[name].append(seconds)
        of_step[place].append(seconds)

    def over_time(counts: Mapping[tuple[str, int], int], name: str = "") -> tuple[int, ...]:
        return tuple(counts[name, place] for place in places)

    rows = [
        Row(
            name,
            count,
            percentile(of_name[name], 0.5),
            percentile(of_name[name], 0.95),
            over_time(by_name, name),
            over_time(failed_by_name, name),
        )
        for name, count in totals
    ]
    p50, p95 = (
        tuple(percentile(of_step[place], share) for place in places) for share in (0.5, 0.95)
    )
    return Figures(window, tuple(rows), over_time(calls), over_time(failed), p50, p95)


async def _find_names(inquiry: Inquiry, by: str, filter: Filter) -> tuple[Sequence[str], Filter]:
    """The names to count by, and the filter that lets their calls through.

    A tool's name says which connection it is of, so that the index of tools is enough to count by.
    """
    state = inquiry.snapshot.connections.get(filter.connection or "")
    if by == "tool" and state is not None:
        return [tool.name for tool in state.tools], replace(filter, connection=None)
    found = await figures.values_of(inquiry.gateway.db, by, filter, PAGE_ENTRIES)
    return [name for name, _ in found], filter


def _sum_by_name(counts: Mapping[tuple[str, int], int]) -> Counter[str]:
    total = Counter[str]()
    for (name, _), count in counts.items():
        total[name] += count
    return total


def _sum_by_step(counts: Mapping[tuple[str, int], int]) -> Counter[tuple[str, int]]:
    total = Counter[tuple[str, int]]()
    for (_, place), count in counts.items():
        total["", place] += count
    return total


def draw(found: Figures) -> list[Chart]:
    """Charts of calls, failures and durations: the busiest names, and the rest together."""
    chosen = found.rows[: len(TONES)]
    tones = [*TONES[: len(chosen)], "other"]
    calls = {row.name: row.by_step for row in chosen}
    failed = {row.name: row.failed_by_step for row in chosen}
    return [
        draw_bars("Calls", found.window, *_add_rest(calls, found.calls, tones)),
        draw_bars("Failed", found.window, *_add_rest(failed, found.failed, tones)),
        draw_lines(found.window, {"p50": found.p50, "p95": found.p95}, ("s0", "s1")),
    ]


def _add_rest(
    series: Mapping[str, Sequence[int]], total: Sequence[int], tones: Sequence[str]
) -> tuple[Mapping[str, Sequence[int]], Sequence[str]]:
    parts = zip(total, *series.values(), strict=True)
    rest = [max(0, whole - sum(values)) for whole, *values in parts]
    return ({**series, "others": rest}, tones) if any(rest) else (series, tones[:-1])


def duration(milliseconds: float | None) -> str:
    """A number of seconds in words."""
    if milliseconds is None:
        return "–"
    if milliseconds < 1000:
        return f"{milliseconds:.0f} ms" if milliseconds >= 1 else "<1 ms"
    seconds = milliseconds / 1000
    return f"{seconds:.1f} s" if seconds < 60 else span_words(seconds)


def span_words(seconds: float) -> str:
    """A duration in its largest unit."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"
