"""Executions: charts, a list below a histogram that chooses its time, and the page of one call."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from starlette.responses import Response

from gateway.calls.record import GOING_ON
from gateway.console.charts import RANGES, Chart, Row, draw, draw_bars, spark, window_now, window_of
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

FACETS = ("status", "connection", "tool", "principal")
GROUPS = ("connection", "tool")
SORTS = ("name", "calls", "failed", "p50", "p95")
Filters = dict[str, str]


async def executions(visit: Visit) -> Response:
    filter = visit.filter(*FACETS, "token", "since", "from", "to")
    since, until = chosen_time(filter)
    query: dict[str, Any] = {name: filter[name] for name in (*FACETS, "token")}
    cursor = visit.query("cursor")
    query |= {"since": since or 0.0, "until": until or 0.0, "cursor": cursor}
    found = await list_executions(visit.inquiry, **query)
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
        times={name: _field_time(filter[name]) for name in ("from", "to")},
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
    since, until = _read_time(filter["from"]), _read_time(filter["to"])
    span = RANGES.get(filter["since"])
    return (time.time() - span, None) if since is until is None and span else (since, until)


def _read_time(text: str) -> float | None:
    """A time in seconds, or as a field for a date gives it."""
    if text.isascii() and text.isdigit() and len(text) < 12:
        return float(text)
    try:
        return max(0.0, datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())
    except ValueError:
        return None


def _field_time(text: str) -> str:
    """The time as a field for a date takes it; empty for none."""
    at = _read_time(text)
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%S")


async def _histogram(
    visit: Visit, filter: Filters, since: float | None, until: float | None
) -> Chart:
    """The calls of the list over time; without a start, of a month. A bar leads to its calls."""
    until = until or time.time()
    window = window_of(since or until - RANGES["30d"], until)
    columns = {name: filter[name] for name in FACETS}
    calls_filter = visit.figures.filter(**columns, idempotency_token=filter["token"])
    calls_filter = replace(calls_filter, since=window.since, until=window.until)

    async def count() -> tuple[Counter[tuple[str, int]], Counter[tuple[str, int]]]:
        db, step = visit.gateway.db, window.step
        calls = await figures.count_by_time(db, calls_filter, step)
        return calls, await figures.count_by_time(db, calls_filter, step, failed=True)

    calls, failed = await visit.figures.remember((calls_filter, window), count)
    places = [("", place) for place in range(window.count)]
    series = {
        "calls": [calls[at] - failed[at] for at in places],
        "failed": [failed[at] for at in places],
    }
    chart = draw_bars("Calls over time", window, series, ("s0", "bad"))
    base = filter | {"since": ""}
    columns_with_links = tuple(
        replace(
            column,
            href=link(
                "/executions", **(base | {"from": f"{column.start:.0f}", "to": f"{column.end:.0f}"})
            ),
        )
        for column in chart.columns
    )
    return replace(chart, columns=columns_with_links)


async def _facets(visit: Visit, filter: Filters) -> list[dict[str, Any]]:
    """The values to choose from, and how often each occurs among the newest calls."""
    since = time.time() - RANGES.get(filter["since"], RANGES["7d"])
    calls_filter = Filter(principal=visit.only_principal, since=since)
    columns = FACETS if visit.principal.admin else FACETS[:-1]
    cached, key = visit.figures.remember, ("facets", columns, visit.only_principal, filter["since"])
    db = visit.gateway.db
    found = await cached(key, lambda: figures.newest_values(db, columns, calls_filter, TABLE_ROWS))
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
    values = await execution_values(visit, nav)
    if (file := download(visit, "executions", [values["execution"]])) is not None:
        return file
    return await page(visit, "execution.html", "Execution", nav, **values)


async def execution_values(visit: Visit, nav: Navigation) -> dict[str, Any]:
    """The values of the page of one call, also while the call is running."""
    found = await visit.inquiry.execution(visit.id)
    [record] = await visit.inquiry.records([found])
    is_callable = found.tool in visit.inquiry.view.tools
    return {
        "execution": record | {"client": found.client, "reason": found.reason},
        "going_on": found.status in GOING_ON,
        "replay": link("/tool", name=found.tool, like=found.id) if is_callable else None,
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
    calls_filter = visit.figures.filter(connection=filter["connection"])
    found = await visit.figures.read(window_now(filter["range"]), filter["by"], calls_filter)
    rows, sort = sort_rows(visit, [_chart_row(row, filter) for row in found.rows], filter, *SORTS)
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


def _chart_row(row: Row, filter: Filters) -> dict[str, Any]:
    columns = {name: getattr(row, name) for name in SORTS}
    calls = link("/executions", **{filter["by"]: row.name}, since=filter["range"])
    return columns | {"line": spark(row.by_step), "href": calls}
