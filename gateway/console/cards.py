"""Calls that wait for a person, each on a card.

A card whose call was decided stays for a moment and says to every visitor how it ended:
decided here, over REST, by the client that asked, by nobody in time, or withdrawn. It keeps its
place and its height meanwhile, so that no button slides under a finger that is about to press.
"""

from __future__ import annotations

import time
from typing import Any

from starlette.responses import Response

from gateway.calls.questions import always_words
from gateway.console.pages import (
    Navigation,
    Visit,
    choose_rows,
    clip,
    list_page,
    navigation,
    newest_calls,
    toast,
)
from gateway.limits import MAX_TOLD_ITEMS, MOMENT_SECONDS, PAGE_ENTRIES
from gateway.store.approvals import list_ended, list_open
from gateway.store.tables import Approval
from gateway.web import rest
from gateway.web.display import approval_row

WORDS = {
    "approve": "Approved {}",
    "deny": "Denied {}",
    "always_allow": "Approved {}, and from now on {}",
}
EDGES = {"console": "here", "rest": "over REST", "client": "in the client", "mcp": "over MCP"}
COLUMNS = ("tool", "connection", "principal", "client", "url")


async def approvals(visit: Visit) -> Response:
    nav = await navigation(visit)
    values = await approvals_values(visit, nav)
    return await list_page(visit, "approvals.html", "Approvals", nav=nav, **values)


async def approvals_values(visit: Visit, nav: Navigation) -> dict[str, Any]:
    """The values of the page of calls that wait."""
    filter = visit.filter("q", "connection", "risk")
    relevant = await list_open(visit.gateway.db, time.time(), visit.inquiry.visible_rows())
    rows = choose_rows((approval_row(visit.snapshot, each) for each in relevant), filter, *COLUMNS)
    chosen = {row["id"] for row in rows[:MAX_TOLD_ITEMS]}
    cards = [_card(visit, each) for each in relevant if each.id in chosen]
    cards += choose_rows(await _ended_cards(visit), filter, *COLUMNS)
    grants = await rest.list_grants(visit.inquiry)
    return {
        "rows": rows,
        "filter": filter,
        "cards": sorted(cards, key=lambda card: str(card["id"])),
        "more": len(rows) - len(chosen),
        "waiting": nav.waiting,
        "feed": await newest_calls(visit),
        "grants": grants["standing_grants"][:PAGE_ENTRIES],
    }


async def _ended_cards(visit: Visit) -> list[dict[str, Any]]:
    """The cards of calls that waited until a moment ago."""
    now, visible = time.time(), visit.inquiry.visible_rows()
    ended = await list_ended(visit.gateway.db, now - 3 * MOMENT_SECONDS, now, visible)
    return [_card(visit, each) | {"ended": _ending(each)} for each in ended[:MAX_TOLD_ITEMS]]


def _card(visit: Visit, approval: Approval) -> dict[str, Any]:
    return approval_row(visit.snapshot, approval) | {
        "seconds": max(1, round(approval.expires_at - approval.created_at)),
        "left": max(0, round(approval.expires_at - time.time())),
        "always": _always_words(visit, approval),
        "ended": "",
    }


def _ending(approval: Approval) -> str:
    """The words for how the wait of a call ended, and by whose decision."""
    if approval.decided_by is None:
        withdrawn = "Withdrawn: the tool or its caller changed"
        return withdrawn if approval.status == "void" else "Nobody answered in time"
    word = "Denied" if approval.status == "denied" else "Approved"
    for_good = ", and always from now on" if approval.grant_id else ""
    edge = EDGES.get(approval.decided_from or "", "")
    return f"{word} by {clip(approval.decided_by, 48)} {edge}".rstrip() + for_good


def _always_words(visit: Visit, approval: Approval) -> str:
    return clip(always_words(visit.snapshot, approval), 160)


async def decide(visit: Visit) -> Response:
    """Takes the decision of one card."""
    decision = visit.form.get("decision", "deny")
    if visit.form.get("always") and decision == "approve":
        decision = "always_allow"
    approval = await visit.inquiry.approval(visit.id)
    await rest.decide_approval(visit.inquiry, visit.id, decision)
    words = WORDS[decision].format(clip(approval.tool, 60), _always_words(visit, approval))
    return toast(visit, words, good=decision != "deny")


async def revoke(visit: Visit) -> Response:
    """Ends one standing grant."""
    grant = await rest.delete_grant(visit.inquiry, visit.id)
    visit.gateway.feed.wake()
    words = f"{clip(grant['tool'], 60)} is asked about again"
    return toast(visit, words, removed_id=f"grant-{visit.id}")
