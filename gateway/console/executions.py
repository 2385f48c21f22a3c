"""All calls there were: charts, a list below a histogram that chooses its time, and one call."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from gateway.console.charts import RANGES, Chart, Row, draw, draw_bars, last, spark, window_of
from gateway.console.pages import (
    Navigation,
    Visit,
    download,
    link,
    list_page,
    navigation,
    page,
    sort_rows,
    toast,
)
from gateway.limits import STORE_MANY_ROWS, TABLE_ROWS
from gateway.store import figures
from gateway.store.ledger import Filter
from gateway.web.own_tools import list_executions
from gateway.web.shown import GOING_ON

FACETS = ("status", "connection", "tool", "principal")
GROUPS = ("connection", "tool")
SORTS = ("name", "calls", "failed", "p50", "p95")
Filters = dict[str, str]


async def executions(visit: Visit) -> Response:
    filter = visit.filter(*FACETS, "token", "since", "from", "to")
    since, until = chosen_time(filter)
    wanted: dict[str, Any] = {name: filter[name] for name in (*FACETS, "token")}
    cursor = visit.query("cursor")
    wanted |= {"since": since or 0.0, "until": until or 0.0, "cursor": cursor}
    found = await list_executions(visit.inquiry, **wanted)
    rows, after = found["executions"], found["next"]
    if (file := download(visit, "executions", rows, next=after)) is not None:
        return file
    return await list_page(
        visit,
        "executions.html",
        "Executions",
        rows,
        filter,
        spans=list(RANGES),
        times={name: _written(filter[name]) for name in ("from", "to")},
        chart=await _histogram(visit, filter, since, until),
        facets=await _facets(visit, filter),
        most=TABLE_ROWS,
        first=not cursor,
        next=link("/executions", **filter, cursor=after) if after else None,
        newest=link("/executions", **filter),
        whole=link("/executions", **(filter | {"from": "", "to": ""})),
    )


def chosen_time(filter: Filters) -> tuple[float | None, float | None]:
    """The time an address chooses: from one time to another, or the last hour, day …"""
    since, until = _moment(filter["from"]), _moment(filter["to"])
    span = RANGES.get(filter["since"])
    return (time.time() - span, None) if since is until is None and span else (since, until)


def _moment(text: str) -> float | None:
    """A time in seconds, or as a field for a date gives it."""
    if text.isascii() and text.isdigit() and len(text) < 12:
        return float(text)
    try:
        return max(0.0, datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None


def _written(text: str) -> str:
    """The same, as a field for a date takes it."""
    at = _moment(text)
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


async def _histogram(
    visit: Visit, filter: Filters, since: float | None, until: float | None
) -> Chart:
    """The calls of the list over time; of all times, those of a month. A bar leads to its calls."""
    until = until or time.time()
    window = window_of(since or until - RANGES["30d"], until)
    columns = {name: filter[name] for name in ("status", "tool", "connection")}
    if visit.principal.admin:
        columns["principal"] = filter["principal"]
    wanted = visit.sight.filter(**columns, idempotency_token=filter["token"])
    wanted = replace(wanted, since=window.since, until=window.until)

    async def count() -> tuple[Counter[tuple[str, int]], Counter[tuple[str, int]]]:
        db, step = visit.gateway.db, window.step
        calls = await figures.count_by_time(db, wanted, step)
        return calls, await figures.count_by_time(db, wanted, step, failed=True)

    calls, failed = await visit.sight.remember((wanted, window), count)
    places = [("", place) for place in range(window.count)]
    series = {
        "calls": [calls[at] - failed[at] for at in places],
        "failed": [failed[at] for at in places],
    }
    chart = draw_bars("Calls over time", window, series, ("s0", "bad"))
    others = filter | {"since": ""}
    columns_with_links = tuple(
        replace(
            each,
            href=link(
                "/executions", **(others | {"from": f"{each.start:.0f}", "to": f"{each.end:.0f}"})
            ),
        )
        for each in chart.columns
    )
    return replace(chart, columns=columns_with_links)


async def _facets(visit: Visit, filter: Filters) -> list[dict[str, Any]]:
    """What there is to choose from, with how often it was seen among the newest calls."""
    since = time.time() - RANGES.get(filter["since"], RANGES["7d"])
    wanted = Filter(principal=visit.whose, since=since)
    columns = FACETS if visit.principal.admin else FACETS[:-1]
    known, key = visit.sight.remember, ("facets", columns, visit.whose, filter["since"])
    db = visit.gateway.db
    found = await known(key, lambda: figures.newest_values(db, columns, wanted, TABLE_ROWS))
    facets = []
    for name in columns:
        choices = []
        for value, count in found[name][:8]:
            chosen = filter[name] == value
            href = link("/executions", **(filter | {name: "" if chosen else value}))
            choices.append({"value": value, "count": count, "chosen": chosen, "href": href})
        facets.append({"name": name, "choices": choices})
    return facets


async def execution(visit: Visit) -> Response:
    nav = await navigation(visit)
    shown = await shown_execution(visit, nav)
    if (file := download(visit, "executions", [shown["one"]])) is not None:
        return file
    return await page(visit, "execution.html", "Execution", nav, **shown)


async def shown_execution(visit: Visit, nav: Navigation) -> dict[str, Any]:
    """What the page of one call shows, also while it is running."""
    found = await visit.inquiry.execution(visit.id)
    [record] = await visit.inquiry.records([found])
    callable_now = found.tool in visit.inquiry.view.tools
    return {
        "one": record | {"client": found.client, "reason": found.reason},
        "going_on": found.status in GOING_ON,
        "replay": link("/tool", name=found.tool, like=found.id) if callable_now else None,
    }


async def cancel(visit: Visit) -> Response:
    """Ends a call that runs or waits, where it can still be ended."""
    execution = await visit.inquiry.cancel(visit.id)
    going_on = execution.status in GOING_ON
    return toast(visit, "It is being cancelled" if going_on else "The call has ended")


# --- charts ---------------------------------------------------------------------------------------


async def charts(visit: Visit) -> Response:
    filter = visit.filter("range", "by", "connection")
    filter["range"] = filter["range"] if filter["range"] in RANGES else "24h"
    filter["by"] = filter["by"] if filter["by"] in GROUPS else GROUPS[0]
    wanted = visit.sight.filter(connection=filter["connection"])
    found = await visit.sight.read(last(filter["range"]), filter["by"], wanted)
    rows, sort = sort_rows(visit, [_shown(row, filter) for row in found.rows], filter, *SORTS)
    return await list_page(
        visit,
        "charts.html",
        "Charts",
        rows,
        filter,
        charts=draw(found),
        sort=sort,
        sampled=sum(found.calls) > STORE_MANY_ROWS,
        groups={name: link("/charts", **(filter | {"by": name})) for name in GROUPS},
    )


def _shown(row: Row, filter: Filters) -> dict[str, Any]:
    told = {name: getattr(row, name) for name in SORTS}
    calls = link("/executions", **{filter["by"]: row.name}, since=filter["range"])
    return told | {"line": spark(row.by_step), "href": calls}
