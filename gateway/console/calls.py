"""Calls: the last hour on the first page.

The first page shows the hour, a picture of how its calls flowed, what is wrong and what to do. The
picture is drawn as an SVG: clients → access → connections → tools. `draw` is pure: counts come in,
coordinates go out, and the template only draws them. A line is as thick as the calls that went
along it.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.responses import Response

from gateway.catalog.snapshot import ConnectionState
from gateway.console.charts import percentile, spark
from gateway.console.pages import Navigation, Visit, clip, navigation, newest_calls, page, plural
from gateway.limits import MAX_TOLD_ITEMS
from gateway.model import Tool
from gateway.store import figures

LEVEL_WORDS = {
    "read_only": "Reads only",
    "execute_with_confirm": "Asks for writes",
    "full_access": "Allows all",
}


async def overview(visit: Visit) -> Response:
    nav = await navigation(visit)
    return await page(visit, "overview.html", "Overview", nav, **await overview_values(visit, nav))


async def overview_values(visit: Visit, nav: Navigation) -> dict[str, Any]:
    """The values of the first page."""
    hour, tools = await _read_hour(visit), visit.inquiry.view.tools
    words, admin = LEVEL_WORDS[visit.snapshot.permissions.level], visit.principal.admin
    return {
        "hour": hour,
        "line": spark(hour.by_minute),
        "tools": len(tools),
        "tokens": sum(tool.tokens for tool in tools.values()),
        "picture": draw(hour, words, nav.waiting, visit.inquiry.connections(), tools),
        "tasks": nav.tasks[:MAX_TOLD_ITEMS],
        "more_tasks": len(nav.tasks[MAX_TOLD_ITEMS:]),
        "feed": await newest_calls(visit),
        "health": await visit.backend.health.report(visit.principal) if admin else None,
    }


# --- the last hour --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hour:
    """The calls of the last sixty minutes, as figures."""

    by_minute: tuple[int, ...]
    errors: int
    refused: int
    p95_ms: float | None
    by_connection: Counter[str]
    by_client: Counter[str]
    by_access: Counter[tuple[str, str]]  # connection, and access of the tool

    @property
    def calls(self) -> int:
        return sum(self.by_minute)

    @property
    def rate(self) -> int:
        """Calls in the minute that is ending."""
        return self.by_minute[-1]


async def _read_hour(visit: Visit) -> Hour:
    db, name, hours = visit.gateway.db, visit.only_principal, visit.backend.hours
    hour: Hour | None = hours.get(name)
    if hour is None:
        since = time.time() - 3600
        counts = await figures.count_calls(db, since, name)
        hour = hours[name] = sum_hour(counts, await figures.recent_seconds(db, since, name))
    return hour


def sum_hour(counts: Sequence[figures.Count], seconds: Sequence[float]) -> Hour:
    """The hour that these counts and seconds add up to."""
    minutes = [0] * 60
    by_connection, by_client = Counter[str](), Counter[str]()
    by_access, statuses = Counter[tuple[str, str]](), Counter[str]()
    for count in counts:
        minutes[min(max(count.minute, 0), 59)] += count.calls
        by_connection[count.connection] += count.calls
        by_client[client_name(count.client)] += count.calls
        by_access[count.connection, count.access] += count.calls
        statuses[count.status] += count.calls
    slowest = percentile(seconds, 0.95)
    errors = statuses["failed"] + statuses["unknown"]
    refused = statuses["denied"] + statuses["expired"]
    return Hour(tuple(minutes), errors, refused, slowest, by_connection, by_client, by_access)


def client_name(text: str) -> str:
    """The name that a client gives itself, without its version."""
    return text.rpartition("/")[0][:40] or text[:40] or "unnamed client"


# --- the picture ----------------------------------------------------------------------------------

COLUMNS = (
    (0, 190, "Clients"),
    (290, 170, "Access"),
    (560, 210, "Connections"),
    (860, 180, "Tools"),
)
TOOL_KINDS = {"read": "eye", "write": "pencil", "delete": "trash-2"}
TONES = {"failing": "bad", "unauthenticated": "bad", "pending": "warn", "disabled": "quiet"}


@dataclass(frozen=True, slots=True)
class Box:
    """One box in the picture."""

    label: str
    note: str
    icon: str
    tone: str = ""
    href: str = ""
    title: str = ""
    x: int = 0
    y: int = 0
    width: int = 0
    height: int = 46

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Curve:
    """One line between two boxes."""

    path: str
    width: float
    tone: str


@dataclass(frozen=True, slots=True)
class Picture:
    """The whole picture, with the height it needs."""

    height: int
    heads: tuple[tuple[int, str], ...]
    boxes: tuple[Box, ...]
    curves: tuple[Curve, ...]


def draw(
    hour: Hour,
    level: str,
    waiting: int,
    states: Sequence[ConnectionState],
    tools: Mapping[str, Tool],
) -> Picture:
    """The picture of this hour: the busiest clients and connections."""
    clients = hour.by_client.most_common(5)
    busiest = sorted(states, key=lambda s: (-hour.by_connection[s.name], -len(s.tools), s.name))
    chosen = sorted(busiest[:7], key=lambda state: state.name)
    rows = max(len(clients), len(chosen), len(TOOL_KINDS))
    first = _place(0, [_client_box(*each) for each in clients] or [_NO_CLIENT], rows)
    [gate] = _place(1, [_gate_box(level, waiting, hour.refused)], rows)
    names = Counter(_label(state) for state in states)
    connections = [_connection_box(each, hour, names[_label(each)] > 1) for each in chosen]
    third = _place(2, connections or [_NO_CONNECTION], rows)
    last = _place(3, [_kind_box(kind, tools) for kind in TOOL_KINDS], rows)
    calls = [count for _, count in clients] or [0]
    curves = [_curve(box, gate, count) for box, count in zip(first, calls, strict=True)]
    for state, box in zip(chosen, third, strict=False):
        tone, count = TONES.get(state.status, ""), hour.by_connection[state.name]
        curves.append(_curve(gate, box, count, tone))
        kinds = {tool.access for tool in state.tools}
        for kind, target in zip(TOOL_KINDS, last, strict=True):
            if kind in kinds:
                curves.append(_curve(box, target, hour.by_access[state.name, kind]))
    heads = tuple((x, word) for x, _, word in COLUMNS)
    return Picture(34 + rows * 58, heads, (*first, gate, *third, *last), tuple(curves))


def _place(column: int, boxes: Sequence[Box], rows: int) -> list[Box]:
    """The boxes under each other, in the middle of a column that has space for `rows` rows."""
    x, width, _ = COLUMNS[column]
    height = boxes[0].height
    y = 34 + (rows * 58 - len(boxes) * (height + 12)) // 2
    return [replace(box, x=x, y=y + i * (height + 12), width=width) for i, box in enumerate(boxes)]


def _curve(start: Box, end: Box, calls: int, tone: str = "") -> Curve:
    x1, y1, x2, y2 = start.x + start.width, start.middle, end.x, end.middle
    bend = (x1 + x2) / 2
    path = f"M{x1} {y1:.1f} C{bend:.1f} {y1:.1f} {bend:.1f} {y2:.1f} {x2} {y2:.1f}"
    width = 1.25 if not calls else min(1.5 + math.log10(calls + 1) * 2.2, 9)
    return Curve(path, round(width, 2), tone or ("busy" if calls else ""))


_NO_CLIENT = Box("No client yet", "connect one above", "cable", "quiet")
_NO_CONNECTION = Box("No connection yet", "add one", "plus", "quiet", "/console/connections/new")


def _client_box(name: str, calls: int) -> Box:
    return Box(clip(name, 22), plural(calls, "call"), "terminal", title=clip(name, 80))


def _gate_box(level: str, waiting: int, refused: int) -> Box:
    tone, href = ("warn", "/console/approvals") if waiting else ("", "/console/access")
    note = f"{waiting:,} wait · {refused:,} refused"
    return Box(level, note, "shield-check", tone, href, height=92)


def _connection_box(state: ConnectionState, hour: Hour, shares_its_name: bool) -> Box:
    first = state.name if shares_its_name else plural(len(state.tools), "tool")
    note = f"{first} · {plural(hour.by_connection[state.name], 'call')}"
    tone, href = TONES.get(state.status, ""), f"/console/connections/{state.name}"
    title = f"{clip(state.display_name, 80)} ({state.name}): {state.status}"
    return Box(_label(state), note, "plug", tone, href, title)


def _label(state: ConnectionState) -> str:
    return clip(state.display_name, 22)


def _kind_box(kind: str, tools: Mapping[str, Tool]) -> Box:
    tokens = [tool.tokens for tool in tools.values() if tool.access == kind]
    note = f"≈ {sum(tokens):,} tokens" if tokens else "none"
    href = f"/console/tools?access={kind}"
    return Box(f"{len(tokens):,} {kind}", note, TOOL_KINDS[kind], f"a-{kind}", href)
