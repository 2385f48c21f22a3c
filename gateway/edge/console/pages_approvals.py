"""Calls that wait for a person: cards, oldest first, so that none is pushed down under a hand."""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import Response

from gateway.edge import history
from gateway.edge.console.layout import Around, around, page
from gateway.edge.console.pages_overview import feed
from gateway.edge.console.rendering import render
from gateway.edge.console.tables import containing, download, file_links, matching
from gateway.edge.console.visit import Visit, toast
from gateway.edge.console.words import clip
from gateway.edge.shown_history import approval_row, grant_row
from gateway.errors import Fixable, NotFound
from gateway.invoke.asking import Decision
from gateway.invoke.validity import always_words
from gateway.policy.access import oversees
from gateway.store.approvals import Approval, get_approval

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
    return [grant_row(each) for each in (await history.known_grants(visit.asked))[:MAX_GRANTS]]


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
    grant = await history.revoke_grant(visit.asked, visit.request.path_params["id"])
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
