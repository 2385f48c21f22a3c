"""The first page: the picture, the hour, what is wrong and what to do about it.

The drawn picture: clients → access → connections → tools, as places and lines of an SVG.

Pure: counts come in, coordinates go out; the template only draws them. A line is as thick as the
calls that went along it.

The console's stream: what of an open page is not as it was last sent.

Nothing is queued. A stream is woken, renders the moving parts of its page and sends those that
differ; a slow reader simply sees fewer steps. Lists that have a filter are told by a named event
that there is something new, and ask again with the filter they have by then.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from gateway.catalog.snapshot import ConnectionState
from gateway.console.rendering import clip, clip_text, number, plural, render
from gateway.console.visit import (
    SPARK_HEIGHT,
    SPARK_WIDTH,
    Around,
    Figures,
    Hour,
    Visit,
    around,
    page,
    spark,
    surroundings,
)
from gateway.errors import GatewayError
from gateway.model import Problem, Tool
from gateway.policy.access import may_know
from gateway.store.catalog import list_changes
from gateway.store.cluster import last_event_id
from gateway.store.ledger import Filter, list_executions
from gateway.web.events import Feed
from gateway.web.gateway import Gateway
from gateway.web.guard import EventStream, Say, event_frame
from gateway.web.shown import execution_event

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


FEED = 14
MAX_WORRIES = 12
MAX_CONFIGURED = 6
LEVEL_WORDS = {
    "read_only": "Reads only",
    "execute_with_confirm": "Asks for writes",
    "full_access": "Allows all",
}
_figures = Figures()


@dataclass(frozen=True, slots=True)
class Worry:
    """Something that is not as it should be, and the next step."""

    tone: str
    what: str
    detail: str
    step: str
    href: str


async def overview(visit: Visit) -> Response:
    beside = await around(visit)
    return await page(
        visit, "overview.html", "Overview", "overview", around=beside, **await _shown(visit, beside)
    )


async def live(visit: Visit, beside: Around) -> dict[str, str]:
    """The parts of the page that move."""
    shown = await _shown(visit, beside)
    parts = ("stats", "picture", "worries", "feed", "health")
    return {name: render(f"_{name}.html", **shown) for name in parts}


async def _shown(visit: Visit, beside: Around) -> dict[str, Any]:
    hour = await hour_of(visit)
    line, area = spark(hour.by_minute)
    return {
        "hour": hour,
        "line": line,
        "area": area,
        "spark_box": f"0 0 {SPARK_WIDTH} {SPARK_HEIGHT}",
        "tools": len(visit.asked.view.tools),
        "tokens": sum(tool.tokens for tool in visit.asked.view.tools.values()),
        "picture": _picture(visit, hour, beside),
        "worries": await _worries(visit, beside),
        "feed": await feed(visit),
        "health": await _health(visit),
    }


async def _health(visit: Visit) -> dict[str, Any] | None:
    admin = visit.principal.admin
    return await visit.parts.health.report(visit.principal) if admin else None


async def hour_of(visit: Visit) -> Hour:
    """The last hour as this visitor may see it."""
    whose = visit.whose
    return await _figures.hour(visit.asked.gateway.db, whose)


async def feed(visit: Visit) -> list[dict[str, Any]]:
    """The newest calls this visitor may see."""
    whose = visit.whose
    found = await list_executions(visit.asked.gateway.db, Filter(principal=whose), limit=FEED)
    return [execution_event(each) | {"client": each.client} for each in found.executions]


def _picture(visit: Visit, hour: Hour, beside: Around) -> Picture:
    snapshot = visit.asked.snapshot
    states = [s for s in snapshot.connections.values() if may_know(visit.principal, s)]
    words = LEVEL_WORDS[snapshot.permissions.level]
    return drawn(hour, Gate(words, len(beside.waiting)), states, visit.asked.view.tools)


async def _worries(visit: Visit, beside: Around) -> list[Worry]:
    admin = visit.principal.admin
    worries = []
    if beside.waiting and admin:
        worries.append(
            Worry(
                "warn",
                f"{plural(len(beside.waiting), 'call')} waiting for a decision",
                "Without one they end by themselves, denied.",
                "Decide",
                "/console/approvals",
            )
        )
    if admin and (problem := visit.parts.health.config_problem):
        worries.append(
            Worry(
                "bad",
                "config.toml was edited and can't be used",
                f"{clip_text(problem, 300)} The last good one stays in force.",
                "",
                "",
            )
        )
    if admin:
        worries += [
            Worry("bad", f"{problem.where} can't be read", problem.message, "", "")
            for problem in visit.asked.snapshot.problems
        ]
        worries += _configured(visit.parts.health.problems)
    for row in beside.connections:
        worries += _of_connection(row)
        if admin:
            worries += _settings_of(visit.asked.snapshot.connections[row["name"]])
    if admin:
        worries += await _held(visit)
    return worries[:MAX_WORRIES]


def _configured(problems: Sequence[Problem]) -> list[Worry]:
    """What config.toml or the permissions say and what does not hold."""
    return [
        Worry(
            "bad" if problem.severity == "error" else "warn",
            f"{clip(problem.where, 100)} does not hold",
            clip_text(problem.message, 300),
            "Look at it",
            "/console/access",
        )
        for problem in problems[:MAX_CONFIGURED]
    ]


def _settings_of(state: ConnectionState) -> list[Worry]:
    """Settings of a connection that do nothing, such as a rule for an operation it has not."""
    found = [each for each in state.problems if each.configured and each.severity == "warning"]
    if not found:
        return []
    what = f"{plural(len(found), 'setting')} of {clip(state.display_name, 60)} to look at"
    detail = clip_text(f"{found[0].where}: {found[0].message}", 240)
    return [Worry("warn", what, detail, "Read", f"/console/connections/{state.name}")]


def _of_connection(row: dict[str, Any]) -> list[Worry]:
    href = f"/console/connections/{row['name']}"
    name = clip(row["display_name"], 60)
    errors = [each for each in row["problems"] if each["severity"] == "error"]
    if row["status"] == "failing":
        why = clip_text(errors[-1]["message"], 240) if errors else ""
        kept = f" Its last {plural(row['tools'], 'good tool')} are still served."
        return [Worry("bad", f"{name} can't be read", why + kept, "Look at it", href)]
    if row["status"] == "unauthenticated":
        words = "Calls will fail until someone signs in there."
        return [Worry("bad", f"{name} is not signed in", words, "Sign it in", href)]
    if errors:
        more = clip_text(errors[0]["message"], 240)
        return [Worry("warn", f"{name} has {plural(len(errors), 'problem')}", more, "Read", href)]
    return []


async def _held(visit: Visit) -> list[Worry]:
    held = await list_changes(visit.asked.gateway.db, status="held", limit=200)
    names = sorted({change.connection for change in held})
    return [
        Worry(
            "warn",
            f"{plural(sum(c.connection == name for c in held), 'change')} of {clip(name, 60)} held",
            "The last good version is served until you accept.",
            "Compare",
            f"/console/connections/{name}#changes",
        )
        for name in names
        if name in visit.asked.snapshot.connections
    ]


MIN_SECONDS = 0.25  # between two looks: a burst is one step
SIGNED_OUT = event_frame(b"", "signed-out")
# The words of a time change by themselves; that alone is no news.
_TIME_WORDS = re.compile(r"(<time[^>]*>)[^<]*(?=</time>)|data-left=\"\d+\"")

Live = Callable[[Visit, Around], Awaitable[dict[str, str]]]
Again = Callable[[], Awaitable[Visit | None]]


def page_stream(
    gateway: Gateway, feed: Feed, again: Again, live: Live | None, name: str
) -> EventStream:
    """The stream of one open page."""
    return feed.stream(gateway, name, _Page(feed, again, live).step, rest=MIN_SECONDS)


class _Page:
    """What of one open page was last sent."""

    def __init__(self, feed: Feed, again: Again, live: Live | None) -> None:
        self._feed = feed
        self._again = again
        self._live = live
        self._sent: dict[str, bytes] = {}
        self._ledger = -1
        self._revision = -1

    async def step(self, say: Say) -> bool:
        """Sends what is new; False: the session is over."""
        if self._feed.closing:
            return False
        try:
            visit = await self._again()
            if visit is None:
                await say(SIGNED_OUT)
                return False
            await self._feed.say_watched()
            await say(await self._news(visit))
        except GatewayError:
            pass  # the store is away, or what the page shows is gone; a later look may find it
        return True

    async def _news(self, visit: Visit) -> bytes:
        beside = await around(visit)
        shown = await surroundings(visit, beside)
        if self._live is not None:
            shown |= await self._live(visit, beside)
        return partials(self._changed(shown)) + await self._named(visit)

    async def _named(self, visit: Visit) -> bytes:
        ledger = await last_event_id(visit.asked.gateway.db)
        revision = visit.asked.snapshot.revision
        frames = b""
        if self._ledger not in (-1, ledger):
            frames += event_frame(b"", "ledger")
        if self._revision not in (-1, revision):
            frames += event_frame(b"", "catalog")
        self._ledger, self._revision = ledger, revision
        return frames

    def _changed(self, shown: dict[str, str]) -> dict[str, str]:
        changed = {}
        for id, html in shown.items():
            known = hashlib.blake2b(_TIME_WORDS.sub(r"\1", html).encode(), digest_size=16).digest()
            if self._sent.get(id) != known:
                self._sent[id] = known
                changed[id] = html
        return changed


def partials(shown: dict[str, str]) -> bytes:
    """The changed parts as one message, each for its own place."""
    if not shown:
        return b""
    html = "".join(
        f'<hx-partial hx-target="#{id}" hx-swap="innerMorph">{part}</hx-partial>'
        for id, part in shown.items()
    )
    return event_frame(html.encode())
