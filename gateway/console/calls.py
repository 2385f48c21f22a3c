"""Calls: those that wait for a person, as cards, and all there were, with filters and facets.

Cards come oldest first, so that none is pushed down under a hand.
"""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import Response

from gateway.calls.questions import Decision, always_words
from gateway.console.pages import (
    Navigation,
    Visit,
    choose_rows,
    clip,
    download,
    file_links,
    link,
    list_page,
    navigation,
    page,
    toast,
)
from gateway.errors import Fixable
from gateway.limits import PAGE_ENTRIES
from gateway.store.approvals import Approval
from gateway.store.ledger import Execution, Filter, values_of
from gateway.store.ledger import list_executions as read_executions
from gateway.web.own_tools import list_executions
from gateway.web.shown import (
    GOING_ON,
    approval_row,
    execution_event,
    execution_record,
    grant_row,
)

WORDS: dict[Decision, str] = {
    "approve": "Approved {}",
    "deny": "Denied {}",
    "always_allow": "Approved {}, and from now on {}",
}
FACETS = ("status", "connection", "tool", "principal")
SPANS = {"1h": 3600.0, "24h": 86_400.0, "7d": 604_800.0}


async def newest_calls(visit: Visit) -> list[dict[str, Any]]:
    """The newest calls this visitor may see."""
    found = await read_executions(visit.gateway.db, Filter(principal=visit.whose), limit=14)
    return [execution_event(each) | {"client": each.client} for each in found.executions]


# --- calls that wait ------------------------------------------------------------------------------


async def approvals(visit: Visit) -> Response:
    nav = await navigation(visit)
    shown = await _shown_approvals(visit, nav)
    return await list_page(visit, "approvals.html", "Approvals", nav=nav, **shown)


async def live_approvals(visit: Visit, nav: Navigation) -> dict[str, str]:
    """The parts of the page that move."""
    shown = await _shown_approvals(visit, nav)
    return {name: visit.render(f"_{name}.html", **shown) for name in ("cards", "feed", "grants")}


async def _shown_approvals(visit: Visit, nav: Navigation) -> dict[str, Any]:
    filter = visit.filter("q", "connection", "risk")
    waiting = [approval_row(each) for each in nav.waiting]
    rows = choose_rows(waiting, filter, "tool", "connection", "principal", "client", "url")
    chosen = {row["id"] for row in rows[:PAGE_ENTRIES]}
    grants = await visit.inquiry.grants()
    return {
        "rows": rows,
        "filter": filter,
        "cards": [_card(visit, each) for each in nav.waiting if each.id in chosen],
        "more": len(rows) - len(chosen),
        "feed": await newest_calls(visit),
        "grants": [grant_row(each) for each in grants[:PAGE_ENTRIES]],
    }


def _card(visit: Visit, approval: Approval) -> dict[str, Any]:
    return approval_row(approval) | {
        "seconds": max(1, round(approval.expires_at - approval.created_at)),
        "left": max(0, round(approval.expires_at - time.time())),
        "always": _always(visit, approval),
    }


def _always(visit: Visit, approval: Approval) -> str:
    return clip(always_words(visit.snapshot, approval), 160)


async def decide(visit: Visit) -> Response:
    """Takes the decision of one card."""
    visit.inquiry.require_admin()
    decision = visit.form.get("decision", "deny")
    if visit.form.get("always") and decision == "approve":
        decision = "always_allow"
    if decision not in WORDS:
        raise Fixable("invalid_arguments", f"decision must be one of {', '.join(WORDS)}")
    waiting = await visit.inquiry.approval(visit.id)
    approval = await visit.gateway.approvals.decide(waiting, decision, visit.principal)
    words = WORDS[decision].format(clip(approval.tool, 60), _always(visit, approval))
    return toast(visit, words, good=decision != "deny")


async def revoke(visit: Visit) -> Response:
    """Ends one standing grant."""
    grant = await visit.inquiry.revoke_grant(visit.id)
    visit.gateway.feed.wake()
    return toast(visit, f"{clip(grant.tool, 60)} is asked about again")


# --- all calls ------------------------------------------------------------------------------------


async def executions(visit: Visit) -> Response:
    filter = visit.filter(*FACETS, "token", "since")
    wanted: dict[str, Any] = {name: value or None for name, value in filter.items()}
    span = SPANS.get(filter["since"])
    wanted["since"] = time.time() - span if span else None
    cursor = visit.query("cursor")
    found = await list_executions(visit.inquiry, cursor=cursor or None, **wanted)
    rows, after = found["executions"], found["next"]
    if (file := download(visit, "executions", rows, next=after)) is not None:
        return file
    return await page(
        visit,
        "executions.html",
        "Executions",
        rows=rows,
        filter=filter,
        spans=list(SPANS),
        facets=await _facets(visit, filter),
        first=not cursor,
        next=link("/executions", **filter, cursor=after) if after else None,
        newest=link("/executions", **filter),
        files=file_links(visit, filter),
    )


async def _facets(visit: Visit, filter: dict[str, str]) -> list[dict[str, Any]]:
    """What there is to choose from, with how often it was seen."""
    since = time.time() - SPANS.get(filter["since"], SPANS["7d"])
    facets = []
    for name in FACETS if visit.principal.admin else FACETS[:-1]:
        choices = []
        for value, count in await values_of(visit.gateway.db, name, since, visit.whose, 8):
            chosen = filter[name] == value
            href = link("/executions", **(filter | {name: "" if chosen else value}))
            choices.append({"value": value, "count": count, "chosen": chosen, "href": href})
        facets.append({"name": name, "choices": choices})
    return facets


async def execution(visit: Visit) -> Response:
    found = await visit.inquiry.execution(visit.id)
    if (file := download(visit, "executions", [execution_record(found)])) is not None:
        return file
    return await page(visit, "execution.html", "Execution", **_shown_execution(visit, found))


async def live_execution(visit: Visit, nav: Navigation) -> dict[str, str]:
    """A call that is running, as it goes along."""
    shown = _shown_execution(visit, await visit.inquiry.execution(visit.id))
    return {"execution": visit.render("_execution.html", **shown)}


def _shown_execution(visit: Visit, found: Execution) -> dict[str, Any]:
    callable_now = found.tool in visit.inquiry.view.tools
    return {
        "one": execution_record(found) | {"client": found.client, "reason": found.reason},
        "going_on": found.status in GOING_ON,
        "replay": link("/tool", name=found.tool, like=found.id) if callable_now else None,
    }


async def cancel(visit: Visit) -> Response:
    """Ends a call that runs or waits, where it can still be ended."""
    execution = await visit.inquiry.cancel(visit.id)
    going_on = execution.status in GOING_ON
    return toast(visit, "It is being cancelled" if going_on else "The call has ended")
