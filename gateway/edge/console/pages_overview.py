"""The first page: the picture, the hour, what is wrong and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from gateway.catalog.snapshot import ConnectionState
from gateway.edge.console.figures import SPARK_HEIGHT, SPARK_WIDTH, Figures, Hour, spark
from gateway.edge.console.layout import Around, around, page
from gateway.edge.console.picture import Gate, Picture, drawn
from gateway.edge.console.rendering import render
from gateway.edge.console.visit import Visit
from gateway.edge.console.words import clip, clip_text, plural
from gateway.edge.shown_history import execution_event
from gateway.model import Problem
from gateway.policy.access import may_know
from gateway.store.changes import list_changes
from gateway.store.history import Filter, list_executions

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
