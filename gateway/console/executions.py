"""Calls that wait for a person: cards, oldest first, so that none is pushed down under a hand.

Past and running calls: filters in the address, facets beside, one call in full.
"""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import Response

from gateway.calls.questions import Decision, always_words
from gateway.console.forms import containing, download, file_links, matching
from gateway.console.overview import feed
from gateway.console.rendering import clip, render
from gateway.console.visit import Around, Visit, around, link, page, toast
from gateway.errors import Fixable, NotFound
from gateway.policy.access import oversees
from gateway.store.approvals import Approval, get_approval
from gateway.store.ledger import Execution, values_of
from gateway.web.own_tools import list_executions
from gateway.web.shown import (
    GOING_ON,
    approval_row,
    execution_record,
    grant_row,
)

MAX_CARDS = 50
MAX_GRANTS = 100
MAX_ARGUMENTS = 40
WORDS: dict[Decision, str] = {
    "approve": "Approved {}",
    "deny": "Denied {}",
    "always_allow": "Approved {}, and from now on {}",
}


async def approvals(visit: Visit) -> Response:
    beside = await around(visit)
    chosen = _filtered(visit, beside.waiting)
    rows = [approval_row(each) for each in chosen]
    if (file := download(visit, "approvals", rows)) is not None:
        return file
    filter = {key: visit.query(key) for key in ("q", "connection", "risk")}
    return await page(
        visit,
        "approvals.html",
        "Approvals",
        "approvals",
        around=beside,
        feed=await feed(visit),
        grants=await _grants(visit),
        filter=filter,
        files=file_links("/approvals", **filter),
        **_shown(visit, chosen),
    )


async def live(visit: Visit, beside: Around) -> dict[str, str]:
    """The parts of the page that move."""
    shown = _shown(visit, _filtered(visit, beside.waiting))
    return {
        "cards": render("_cards.html", me=visit.principal, csrf=visit.session.csrf, **shown),
        "feed": render("_feed.html", feed=await feed(visit)),
        "grants": render("_grants.html", csrf=visit.session.csrf, grants=await _grants(visit)),
    }


async def _grants(visit: Visit) -> list[dict[str, Any]]:
    return [grant_row(each) for each in (await visit.asked.grants())[:MAX_GRANTS]]


async def decide(visit: Visit) -> Response:
    """Takes the decision of one card."""
    visit.need_admin()
    decision = visit.form.get("decision", "deny")
    if visit.form.get("always") and decision == "approve":
        decision = "always_allow"
    if decision not in WORDS:
        raise Fixable("invalid_arguments", f"decision must be one of {', '.join(WORDS)}")
    id = visit.request.path_params["id"]
    asked = await get_approval(visit.asked.gateway.db, id)
    if asked is None or not oversees(visit.asked.snapshot, visit.principal, asked.connection):
        raise NotFound("invalid_arguments", "there is no such approval")
    approval = await visit.asked.gateway.approvals.decide(id, decision, visit.principal)
    words = WORDS[decision].format(clip(approval.tool, 60), _always(visit, approval))
    return toast(visit, words, good=decision != "deny")


async def revoke(visit: Visit) -> Response:
    """Ends one standing grant."""
    grant = await visit.asked.revoke_grant(visit.request.path_params["id"])
    visit.parts.feed.wake()
    return toast(visit, f"{clip(grant.tool, 60)} is asked about again")


def _always(visit: Visit, approval: Approval) -> str:
    return clip(always_words(visit.asked.snapshot, approval), 160)


def _filtered(visit: Visit, waiting: list[Approval]) -> list[Approval]:
    rows = [approval_row(each) for each in waiting]
    kept = matching(rows, connection=visit.query("connection"), risk=visit.query("risk"))
    kept = containing(kept, visit.query("q"), "tool", "connection", "principal", "client", "url")
    ids = {row["id"] for row in kept}
    return [each for each in waiting if each.id in ids]


def _shown(visit: Visit, waiting: list[Approval]) -> dict[str, Any]:
    return {
        "cards": [_card(each, _always(visit, each)) for each in waiting[:MAX_CARDS]],
        "more": max(0, len(waiting) - MAX_CARDS),
    }


def _card(approval: Approval, always: str) -> dict[str, Any]:
    values = list(approval.arguments.items())
    return approval_row(approval) | {
        "shown": values[:MAX_ARGUMENTS],
        "hidden": max(0, len(values) - MAX_ARGUMENTS),
        "seconds": max(1, round(approval.expires_at - approval.created_at)),
        "left": max(0, round(approval.expires_at - time.time())),
        "always": always,
    }


PAGE = 50
DOWNLOADED = 200
FACETS = ("status", "connection", "tool", "principal")
SPANS = {"1h": 3600.0, "24h": 86_400.0, "7d": 604_800.0}
MAX_FACET = 8


async def executions(visit: Visit) -> Response:
    wanted = _wanted(visit)
    file = bool(visit.query("format"))
    limit = DOWNLOADED if file else PAGE
    found = await list_executions(visit.asked, limit=limit, **wanted)
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
    execution = await visit.asked.cancel(visit.request.path_params["id"])
    going_on = execution.status in GOING_ON
    return toast(visit, "It is being cancelled" if going_on else "The call has ended")


async def _known(visit: Visit) -> Execution:
    return await visit.asked.execution(visit.request.path_params["id"])


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
