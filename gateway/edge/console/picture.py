"""The drawn picture: clients → access → connections → tools, as places and lines of an SVG.

Pure: counts come in, coordinates go out; the template only draws them. A line is as thick as the
calls that went along it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.catalog.snapshot import ConnectionState
from gateway.edge.console.figures import Hour
from gateway.edge.console.words import clip, number, plural
from gateway.model import Tool

WIDTH = 1040
ROW, GAP = 46, 12
TOP = 34
MAX_CLIENTS, MAX_CONNECTIONS = 5, 7
COLUMNS = (0, 290, 560, 860)
WIDTHS = (190, 170, 210, 180)
LABEL_CHARS = 22
TOOL_KINDS = {"read": "eye", "write": "pencil", "delete": "trash-2"}


@dataclass(frozen=True, slots=True)
class Box:
    """One place in the picture."""

    x: int
    y: int
    width: int
    height: int
    label: str
    note: str
    icon: str
    tone: str = ""
    href: str = ""
    title: str = ""

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


@dataclass(frozen=True, slots=True)
class Line:
    """One way between two places."""

    path: str
    width: float
    tone: str


@dataclass(frozen=True, slots=True)
class Picture:
    """All of it, with the height it needs."""

    height: int
    heads: tuple[tuple[int, str], ...]
    boxes: tuple[Box, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Gate:
    """What stands between clients and connections."""

    words: str
    waiting: int


def drawn(
    hour: Hour,
    gate: Gate,
    states: Sequence[ConnectionState],
    tools: Mapping[str, Tool],
) -> Picture:
    """The picture of this hour."""
    clients = hour.by_client.most_common(MAX_CLIENTS)
    chosen = _chosen(states, hour)
    rows = max(len(clients), len(chosen), len(TOOL_KINDS), 2)
    height = TOP + rows * (ROW + GAP)
    first = _column(0, [_client(name, calls) for name, calls in clients] or [_nobody()], height)
    access = _access(hour, gate, height)
    third = _column(2, [_connection(state, hour) for state in chosen] or [_none()], height)
    last = _column(3, _kinds(tools), height)
    heads = tuple(zip(COLUMNS, ("Clients", "Access", "Connections", "Tools"), strict=True))
    return Picture(
        height,
        heads,
        (*first, access, *third, *last),
        tuple(_lines(hour, clients, chosen, first, access, third, last)),
    )


def _chosen(states: Sequence[ConnectionState], hour: Hour) -> list[ConnectionState]:
    busiest = sorted(states, key=lambda s: (-hour.by_connection[s.name], -len(s.tools), s.name))
    return sorted(busiest[:MAX_CONNECTIONS], key=lambda state: state.name)


def _lines(
    hour: Hour,
    clients: Sequence[tuple[str, int]],
    chosen: Sequence[ConnectionState],
    first: Sequence[Box],
    access: Box,
    third: Sequence[Box],
    last: Sequence[Box],
) -> list[Line]:
    calls = [count for _, count in clients] or [0]
    lines = [_line(box, access, count) for box, count in zip(first, calls, strict=True)]
    if not chosen:
        return lines
    for state, box in zip(chosen, third, strict=True):
        lines.append(_line(access, box, hour.by_connection[state.name], _tone(state)))
        has = {tool.access for tool in state.tools}
        for kind, target in zip(TOOL_KINDS, last, strict=True):
            if kind in has:
                lines.append(_line(box, target, hour.reached[state.name, kind]))
    return lines


def _line(start: Box, end: Box, calls: int, tone: str = "") -> Line:
    x1, y1, x2, y2 = start.x + start.width, start.middle, end.x, end.middle
    bend = (x2 - x1) * 0.5
    path = f"M{x1} {y1:.1f} C{x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} {x2} {y2:.1f}"
    width = 1.25 if not calls else min(1.5 + math.log10(calls + 1) * 2.2, 9)
    return Line(path, round(width, 2), tone or ("busy" if calls else ""))


def _column(index: int, parts: Sequence[tuple[str, ...]], height: int) -> list[Box]:
    used = len(parts) * (ROW + GAP) - GAP
    y = TOP + (height - TOP - GAP - used) // 2
    return [
        Box(COLUMNS[index], y + i * (ROW + GAP), WIDTHS[index], ROW, *part)
        for i, part in enumerate(parts)
    ]


def _access(hour: Hour, gate: Gate, height: int) -> Box:
    tall = 92
    y = TOP + (height - TOP - GAP - tall) // 2
    tone = "warn" if gate.waiting else ""
    href = "/console/approvals" if gate.waiting else "/console/access"
    note = f"{number(gate.waiting)} wait · {number(hour.refused)} refused"
    return Box(COLUMNS[1], y, WIDTHS[1], tall, gate.words, note, "shield-check", tone, href)


def _client(name: str, calls: int) -> tuple[str, ...]:
    shown = clip(name, LABEL_CHARS)
    return (shown, plural(calls, "call"), "terminal", "", "", clip(name, 80))


def _nobody() -> tuple[str, ...]:
    return ("No client yet", "connect one above", "cable", "quiet")


def _none() -> tuple[str, ...]:
    return ("No connection yet", "add one", "plus", "quiet", "/console/connections/new")


def _connection(state: ConnectionState, hour: Hour) -> tuple[str, ...]:
    calls = hour.by_connection[state.name]
    note = f"{plural(len(state.tools), 'tool')} · {plural(calls, 'call')}"
    href = f"/console/connections/{state.name}"
    title = f"{clip(state.display_name, 80)}: {state.status}"
    return (clip(state.display_name, LABEL_CHARS), note, "plug", _tone(state), href, title)


def _tone(state: ConnectionState) -> str:
    match state.status:
        case "failing" | "unauthenticated":
            return "bad"
        case "pending":
            return "warn"
        case "disabled":
            return "quiet"
    return ""


def _kinds(tools: Mapping[str, Tool]) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for kind, icon in TOOL_KINDS.items():
        ours = [tool for tool in tools.values() if tool.access == kind]
        tokens = sum(tool.tokens for tool in ours)
        note = f"≈ {number(tokens)} tokens" if ours else "none"
        href = f"/console/tools?access={kind}"
        found.append((f"{number(len(ours))} {kind}", note, icon, f"a-{kind}", href))
    return found
