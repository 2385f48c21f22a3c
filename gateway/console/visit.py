"""One request to the console, with all a page needs, and the answers a page can give.

When each principal's clients last spoke MCP, for "Connect a client" to turn green.

What the console is built upon: the gateway's own functions, handed in once.

What stands around every page: navigation with its counts, the address, the connect dialog.

The figures of the last hour as pages show them, remembered for a moment.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from cachetools import TTLCache
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.console.rendering import render, snippets
from gateway.console.sessions import Session, Sessions
from gateway.errors import Refused
from gateway.limits import MAX_REMEMBERED
from gateway.model import Principal
from gateway.policy.access import oversees
from gateway.store.approvals import Approval, list_open
from gateway.store.database import Database
from gateway.store.ledger import Count, count_calls, recent_seconds
from gateway.web.events import Feed
from gateway.web.gateway import Gateway, Inquiry
from gateway.web.health import Health
from gateway.web.identity import Identity
from gateway.web.own_tools import connection_rows

MAX_PRINCIPALS = 4096
MAX_AGENT_CHARS = 80


class Contact(Struct, frozen=True):
    """The last request of a principal, and what sent it."""

    at: float
    sent_by: bytes

    @property
    def agent(self) -> str:
        return self.sent_by.decode("utf-8", "replace")


class Contacts:
    """Remembers the last contact with each principal in this process."""

    def __init__(self) -> None:
        self._last: dict[str, Contact] = {}  # who spoke last stands last
        self.on_first: Callable[[], None] = lambda: None

    def note(self, principal: str, agent: bytes) -> None:
        """A client of this principal has spoken."""
        known = self._last.pop(principal, None)
        self._last[principal] = Contact(time.time(), agent[:MAX_AGENT_CHARS])
        if known is None:
            if len(self._last) > MAX_PRINCIPALS:
                del self._last[next(iter(self._last))]
            self.on_first()

    def of(self, principal: str) -> Contact | None:
        """The last contact, if there was one."""
        return self._last.get(principal)


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a page may ask."""

    gateway: Gateway
    identity: Identity
    sessions: Sessions
    health: Health
    feed: Feed
    contacts: Contacts
    public_url: str


Form = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Visit:
    """Who asks for what, on which snapshot."""

    parts: Parts
    session: Session
    asked: Inquiry
    request: Request
    form: Form = field(default_factory=dict)

    @property
    def principal(self) -> Principal:
        return self.session.principal

    @property
    def whose(self) -> str | None:
        """Whose calls are shown: everyone's to an admin of no organization, else one's own."""
        everyone = self.principal.admin and self.principal.organization is None
        return None if everyone else self.principal.name

    @property
    def mcp_url(self) -> str:
        """Where clients reach MCP: at the name this page was reached by, which was checked."""
        public, host = self.parts.public_url, self.request.headers.get("host", "")
        return f"{public if urlsplit(public).netloc == host else f'http://{host}'}/mcp"

    @property
    def partial(self) -> bool:
        """Whether a part of a page is asked for, in a page that is there already."""
        return self.request.headers.get("hx-request") == "true"

    def query(self, name: str, length: int = 200) -> str:
        """A value of the address, bounded."""
        return self.request.query_params.get(name, "")[:length].strip()

    def need_admin(self) -> None:
        """Refuses whoever is not an admin."""
        if not self.principal.admin:
            raise Refused("access_denied", "Only an admin may do this.", "Ask one of yours.")


def fragment(template: str, visit: Visit, status: int = 200, **values: Any) -> Response:
    """A part of a page."""
    shown = render(template, me=visit.principal, csrf=visit.session.csrf, **values)
    return Response(shown, status, media_type="text/html")


def toast(visit: Visit, message: str, *, good: bool = True, status: int = 200) -> Response:
    """A short word in the corner of the page; without scripts, back to the page it came from."""
    if not visit.partial:
        came = urlsplit(visit.request.headers.get("referer", ""))
        ours = came.netloc == visit.request.headers.get("host") and came.path.startswith("/console")
        return RedirectResponse(came.path if ours else "/console", 303)
    return fragment("_toast.html", visit, status, message=message, good=good)


def go(visit: Visit, path: str) -> Response:
    """On to another page, from a form or from a part of a page."""
    if visit.partial:
        return Response(status_code=204, headers={"hx-redirect": path})
    return RedirectResponse(path, 303)


def link(path: str, **query: str | int | None) -> str:
    """An address of the console with a query; what is empty is left out."""
    kept = {key: value for key, value in query.items() if value not in (None, "")}
    return f"/console{path}" + (f"?{urlencode(kept)}" if kept else "")


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


MINUTES = 60
REMEMBER_SECONDS = 1.0
ERRORS = frozenset(("failed", "unknown"))
REFUSED = frozenset(("denied", "expired"))
SPARK_WIDTH, SPARK_HEIGHT = 240, 44


@dataclass(frozen=True, slots=True)
class Hour:
    """What happened in the last hour."""

    by_minute: tuple[int, ...]
    calls: int
    errors: int
    refused: int
    p95_ms: float | None
    by_connection: Counter[str]
    by_client: Counter[str]
    reached: Counter[tuple[str, str]]  # connection, and what was done there

    @property
    def rate(self) -> int:
        """Calls in the minute that is ending."""
        return self.by_minute[-1]


class Figures:
    """Reads the hour from the ledger, at most once a second for one reader."""

    def __init__(self) -> None:
        self._read: TTLCache[str | None, Hour] = TTLCache(MAX_REMEMBERED, REMEMBER_SECONDS)

    async def hour(self, db: Database, principal: str | None) -> Hour:
        """The last hour of one principal, or of all."""
        found = self._read.get(principal)
        if found is None:
            since = time.time() - MINUTES * 60
            counts = await count_calls(db, since, principal)
            seconds = await recent_seconds(db, since, principal)
            found = self._read[principal] = hour_of(counts, seconds)
        return found


def hour_of(counts: list[Count], seconds: list[float]) -> Hour:
    """The hour, of what was counted."""
    minutes = [0] * MINUTES
    by_connection, by_client = Counter[str](), Counter[str]()
    reached, statuses = Counter[tuple[str, str]](), Counter[str]()
    for count in counts:
        minutes[min(max(count.minute, 0), MINUTES - 1)] += count.calls
        by_connection[count.connection] += count.calls
        by_client[client_name(count.client)] += count.calls
        reached[count.connection, count.access] += count.calls
        statuses[count.status] += count.calls
    return Hour(
        tuple(minutes),
        sum(minutes),
        sum(statuses[status] for status in ERRORS),
        sum(statuses[status] for status in REFUSED),
        _p95(seconds),
        by_connection,
        by_client,
        reached,
    )


def client_name(text: str) -> str:
    """What a client calls itself, without its version."""
    return text.rpartition("/")[0][:40] or text[:40] or "unnamed client"


def spark(values: tuple[int, ...]) -> tuple[str, str]:
    """The line and the area under it, as points of an SVG."""
    top = max((*values, 1))
    step = SPARK_WIDTH / (len(values) - 1)
    room = SPARK_HEIGHT - 4
    points = [
        f"{i * step:.1f},{SPARK_HEIGHT - 2 - value / top * room:.1f}"
        for i, value in enumerate(values)
    ]
    line = " ".join(points)
    return line, f"0,{SPARK_HEIGHT} {line} {SPARK_WIDTH},{SPARK_HEIGHT}"


def _p95(seconds: list[float]) -> float | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    return ordered[math.ceil(len(ordered) * 0.95) - 1] * 1000
