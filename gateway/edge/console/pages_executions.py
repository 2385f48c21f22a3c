"""Past and running calls: filters in the address, facets beside, one call in full."""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import Response

from gateway.edge.console.layout import Around, page
from gateway.edge.console.rendering import render
from gateway.edge.console.tables import download, file_links
from gateway.edge.console.visit import Visit, link, toast
from gateway.edge.history import known_execution, list_executions
from gateway.edge.rest_calls import GOING_ON, cancel_execution
from gateway.edge.shown_history import execution_record
from gateway.store.executions import Execution
from gateway.store.figures import values_of

PAGE = 50
DOWNLOADED = 200
FACETS = ("status", "connection", "tool", "principal")
SPANS = {"1h": 3600.0, "24h": 86_400.0, "7d": 604_800.0}
MAX_FACET = 8


async def executions(visit: Visit) -> Response:
    wanted = _wanted(visit)
    file = bool(visit.query("format"))
    limit = DOWNLOADED if file else PAGE
    found = await list_executions(visit.asked, {**wanted, "limit": limit})
    rows = found["executions"]
    if (answer := download(visit, "executions", rows, next=found["next"])) is not None:
        return answer
    filter = {key: visit.query(key) for key in (*FACETS, "token", "since")}
    return await page(
        visit,
        "executions.html",
        "Executions",
        "executions",
        rows=rows,
        filter=filter,
        spans=list(SPANS),
        facets=await _facets(visit, filter),
        first=not visit.query("cursor"),
        next=link("/executions", **filter, cursor=found["next"]) if found["next"] else None,
        newest=link("/executions", **filter),
        files=file_links("/executions", **filter),
    )


async def execution(visit: Visit) -> Response:
    found = await _known(visit)
    record = execution_record(found)
    if (answer := download(visit, "executions", [record])) is not None:
        return answer
    return await page(visit, "execution.html", "Execution", "executions", **_one(visit, found))


async def live_one(visit: Visit, beside: Around) -> dict[str, str]:
    """A call that is running, as it goes along."""
    shown = _one(visit, await _known(visit))
    return {"execution": render("_execution.html", csrf=visit.session.csrf, **shown)}


async def cancel(visit: Visit) -> Response:
    """Ends a call that runs or waits, where it can still be ended."""
    answer = await cancel_execution(visit.asked, visit.request, None)
    going_on = answer.status == 202
    return toast(visit, "It is being cancelled" if going_on else "The call has ended")


async def _known(visit: Visit) -> Execution:
    return await known_execution(visit.asked, visit.request.path_params["id"])


def _one(visit: Visit, found: Execution) -> dict[str, Any]:
    callable_now = found.tool in visit.asked.view.tools
    return {
        "one": execution_record(found) | {"client": found.client, "reason": found.reason},
        "going_on": found.status in GOING_ON,
        "replay": link("/tool", name=found.tool, like=found.id) if callable_now else None,
    }


def _wanted(visit: Visit) -> dict[str, Any]:
    names = (*FACETS, "token", "cursor")
    wanted: dict[str, Any] = {name: visit.query(name) or None for name in names}
    if span := SPANS.get(visit.query("since")):
        wanted["since"] = time.time() - span
    return wanted


async def _facets(visit: Visit, filter: dict[str, str]) -> list[dict[str, Any]]:
    """What there is to choose from, with how often it was seen."""
    since = time.time() - SPANS.get(filter["since"], SPANS["7d"])
    whose = visit.whose
    names = [name for name in FACETS if name != "principal" or visit.principal.admin]
    facets = []
    for name in names:
        values = await values_of(visit.asked.gateway.db, name, since, whose, MAX_FACET)
        choices = [
            {
                "value": value,
                "count": count,
                "chosen": filter[name] == value,
                "href": link(
                    "/executions", **{**filter, name: None if filter[name] == value else value}
                ),
            }
            for value, count in values
        ]
        facets.append({"name": name, "choices": choices})
    return facets
