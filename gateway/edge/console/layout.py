"""What stands around every page: navigation with its counts, the address, the connect dialog."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from gateway.edge.console.clients import snippets
from gateway.edge.console.rendering import render
from gateway.edge.console.visit import Visit
from gateway.edge.meta_tools import connection_rows
from gateway.policy.access import oversees
from gateway.store.approvals import Approval, list_open

MAX_SIDE = 8


@dataclass(frozen=True, slots=True)
class Around:
    """The page's surroundings, as of one moment."""

    connections: list[dict[str, Any]]
    tools: int
    waiting: list[Approval]

    @property
    def side(self) -> list[dict[str, Any]]:
        order = {"failing": 0, "unauthenticated": 1, "pending": 2, "connected": 3, "disabled": 4}
        return sorted(self.connections, key=lambda row: (order[row["status"]], row["name"]))[
            :MAX_SIDE
        ]


async def around(visit: Visit) -> Around:
    """What the surroundings show to this visitor."""
    waiting = await list_open(visit.asked.gateway.db, time.time())
    snapshot, me = visit.asked.snapshot, visit.principal
    waiting = [
        each
        for each in waiting
        if each.principal == me.name or oversees(snapshot, me, each.connection)
    ]
    return Around(connection_rows(visit.asked), len(visit.asked.view.tools), waiting)


async def page(visit: Visit, template: str, title: str, here: str, **values: Any) -> Response:
    """A whole page."""
    beside = values.pop("around", None) or await around(visit)
    path = visit.request.url.path
    query = visit.request.url.query
    text = render(
        template,
        title=title,
        here=here,
        at=f"{path}?{query}" if query else path,
        me=visit.principal,
        csrf=visit.session.csrf,
        around=beside,
        mcp_url=visit.mcp_url,
        snippets=snippets(visit.mcp_url, with_token=needs_token(visit)),
        contact=visit.parts.contacts.of(visit.principal.name),
        **values,
    )
    return Response(text, media_type="text/html")


def needs_token(visit: Visit) -> bool:
    """Whether a client has to bring a token."""
    return visit.asked.snapshot.settings.auth.mode != "none"


async def surroundings(visit: Visit, beside: Around) -> dict[str, str]:
    """The live parts that every page has, by the id of their place."""
    return {
        "nav": render("_nav.html", here=here_of(visit), around=beside, me=visit.principal),
        "side": render("_side.html", around=beside),
        "contact": render("_contact.html", contact=visit.parts.contacts.of(visit.principal.name)),
    }


def here_of(visit: Visit) -> str:
    """The entry of the navigation that a page belongs to."""
    parts = visit.request.url.path.split("/")
    first = parts[2] if len(parts) > 2 else "overview"
    return {"tool": "tools"}.get(first, first)
