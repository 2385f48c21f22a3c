"""The parts of every page: the visit it answers, its navigation, its filters for text, its files.

A page's function takes a `Visit` and answers with `page`, `list_page`, `fragment`, `toast` or `go`.
Templates escape always, and a name that is missing is an error, not a blank. Lists are also given
as JSON and as CSV: the same rows behind the same filter.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import orjson
from cachetools import TTLCache
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway import __version__
from gateway.catalog.snapshot import Snapshot
from gateway.console.charts import VisibleFigures, duration, span_words
from gateway.errors import Fixable
from gateway.limits import (
    CODE_CHARS,
    FIGURES_SECONDS,
    HOUR_SECONDS,
    MAX_REMEMBERED,
    NAME_CHARS,
    PAGE_ENTRIES,
    PREVIEW_CHARS,
)
from gateway.model import Principal, json_bytes
from gateway.naming import cut, visible
from gateway.store import ledger
from gateway.store.approvals import count_waiting
from gateway.web.display import execution_event
from gateway.web.gateway import Gateway, Inquiry
from gateway.web.guard import Form
from gateway.web.identity import ConsoleSession, ConsoleSessions, Identity
from gateway.web.own_tools import connection_rows
from gateway.web.todo import Task
from gateway.web.watch import Health

RowValues = Mapping[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Backend:
    """The parts of the gateway that pages ask."""

    gateway: Gateway
    identity: Identity
    sessions: ConsoleSessions
    health: Health
    contacts: Mapping[str, tuple[float, bytes]]  # when a principal's clients last spoke MCP
    public_url: str
    # The last hour, by the principal whose calls it counts: many open pages show the same.
    hours: TTLCache[str | None, Any] = field(
        default_factory=lambda: TTLCache(MAX_REMEMBERED, HOUR_SECONDS)
    )
    # Charts, by the filter of their calls.
    figures: TTLCache[Any, Any] = field(
        default_factory=lambda: TTLCache(PAGE_ENTRIES, FIGURES_SECONDS)
    )


@dataclass(frozen=True, slots=True)
class Visit:
    """One request of a visitor who is signed in, on one snapshot."""

    backend: Backend
    session: ConsoleSession
    inquiry: Inquiry
    request: Request
    form: Form = field(default_factory=dict)

    @property
    def principal(self) -> Principal:
        return self.session.principal

    @property
    def gateway(self) -> Gateway:
        return self.backend.gateway

    @property
    def snapshot(self) -> Snapshot:
        return self.inquiry.snapshot

    @property
    def id(self) -> str:
        """The name or the id in the path of the address."""
        path_value: str = next(iter(self.request.path_params.values()))
        return path_value

    @property
    def only_principal(self) -> str | None:
        """The principal whose calls are shown; None, every call: an admin without organization."""
        sees_all = self.principal.admin and self.principal.organization is None
        return None if sees_all else self.principal.name

    @property
    def path(self) -> str:
        """The page's path below /console, for its stream too."""
        path: str = self.request.scope["path"]
        return path.removeprefix("/console").removeprefix("/events")

    def query(self, name: str, length: int = 200) -> str:
        """A value of the address, bounded."""
        return self.request.query_params.get(name, "")[:length].strip()

    def filter(self, *names: str) -> dict[str, str]:
        """The values of the address that narrow a list down."""
        return {name: self.query(name) for name in names}

    @property
    def figures(self) -> VisibleFigures:
        """The figures of the calls that the visitor may see."""
        return VisibleFigures(self.inquiry, self.backend.figures)

    def render(self, template: str, **values: Any) -> str:
        """A template with these values, the visitor's principal and the form token."""
        return render(template, me=self.principal, csrf=self.session.csrf, **values)


def is_partial(request: Request) -> bool:
    """Whether the script of an open page asks for a part of it."""
    return request.headers.get("hx-request") == "true"


# --- the navigation around a page -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Navigation:
    """The counts and lists of the console's navigation at one moment."""

    connections: list[dict[str, Any]]
    tools: int
    waiting: int
    tasks: list[Task]

    @property
    def side(self) -> list[dict[str, Any]]:
        """The connections; those that need attention come first."""
        order = {"failing": 0, "unauthenticated": 1, "pending": 2, "connected": 3, "disabled": 4}
        return sorted(self.connections, key=lambda row: (order[row["status"]], row["name"]))


async def navigation(visit: Visit) -> Navigation:
    """The navigation as this visitor sees it."""
    inquiry = visit.inquiry
    waiting = await count_waiting(visit.gateway.db, time.time(), inquiry.visible_rows())
    tasks = await visit.backend.health.tasks(visit.principal, waiting)
    return Navigation(connection_rows(inquiry), len(inquiry.view.tools), waiting, tasks)


def navigation_parts(visit: Visit, nav: Navigation) -> dict[str, str]:
    """The live parts that every page has, by the id of their place."""
    contact = _last_contact(visit)
    return {
        "nav": visit.render("_nav.html", here=_section(visit), nav=nav),
        "side": visit.render("_side.html", nav=nav),
        "contact": visit.render("_contact.html", contact=contact),
    }


def _last_contact(visit: Visit) -> RowValues | None:
    """The last request of a client of the visitor: it turns "Connect a client" green."""
    contact = visit.backend.contacts.get(visit.principal.name)
    return contact and {"at": contact[0], "agent": contact[1].decode("utf-8", "replace")}


def _section(visit: Visit) -> str:
    """The entry of the navigation that a page belongs to."""
    first = visit.path.strip("/").partition("/")[0]
    return {"": "overview", "tool": "tools"}.get(first, first)


async def newest_calls(visit: Visit) -> list[dict[str, Any]]:
    """The newest calls this visitor may see."""
    found = await ledger.list_executions(
        visit.gateway.db, ledger.Filter(principal=visit.only_principal), limit=14
    )
    return [execution_event(each) | {"client": each.client} for each in found.executions]


# --- answers --------------------------------------------------------------------------------------


async def page(
    visit: Visit, template: str, title: str, nav: Navigation | None = None, **values: Any
) -> Response:
    """A whole page."""
    query = visit.request.url.query
    text = visit.render(
        template,
        title=title,
        here=_section(visit),
        stream=f"/console/events{quote(visit.path)}" + (f"?{query}" if query else ""),
        nav=nav or await navigation(visit),
        mcp_url=mcp_url(visit),
        with_token=visit.snapshot.settings.auth.mode in ("tokens", "jwt"),
        signs_in=visit.snapshot.settings.auth.mode == "oauth",
        contact=_last_contact(visit),
        **values,
    )
    return Response(text, media_type="text/html")


def mcp_url(visit: Visit) -> str:
    """The address of MCP for clients, at this page's own host name, which was checked."""
    public, host = visit.backend.public_url, visit.request.headers.get("host", "")
    return f"{public if urlsplit(public).netloc == host else f'http://{host}'}/mcp"


async def list_page(
    visit: Visit,
    template: str,
    title: str,
    rows: Sequence[RowValues],
    filter: Mapping[str, str],
    **values: Any,
) -> Response:
    """A page of rows behind their filter, or the rows as a file where the address asks for one."""
    if (file := download(visit, title.lower(), rows)) is not None:
        return file
    common = {"rows": rows, "filter": filter, "files": file_links(visit, filter)}
    return await page(visit, template, title, **(common | values))


def fragment(visit: Visit, template: str, **values: Any) -> Response:
    """A part of a page."""
    return Response(visit.render(template, **values), media_type="text/html")


def toast(visit: Visit, message: str, *, good: bool = True, removed_id: str = "") -> Response:
    """A short message in the corner of the page; without scripts, back to the page it came from.

    `removed_id` is the id of the row that is no longer there.
    """
    if not is_partial(visit.request):
        url = urlsplit(visit.request.headers.get("referer", ""))
        is_own = url.netloc == visit.request.headers.get("host") and url.path.startswith("/console")
        return RedirectResponse(url.path if is_own else "/console", 303)
    return fragment(visit, "_toast.html", message=message, good=good, removed_id=removed_id)


def go(visit: Visit, path: str) -> Response:
    """On to another page, from a form or from a part of a page."""
    if is_partial(visit.request):
        return Response(status_code=204, headers={"hx-redirect": path})
    return RedirectResponse(path, 303)


def link(path: str, **query: str | int | None) -> str:
    """An address of the console with a query; empty values are left out."""
    params = {key: value for key, value in query.items() if value not in (None, "")}
    return f"/console{path}" + (f"?{urlencode(params)}" if params else "")


# --- lists and files ------------------------------------------------------------------------------

FORMATS = ("json", "csv")
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")


def choose_rows(
    rows: Iterable[dict[str, Any]], filter: Mapping[str, str], *columns: str
) -> list[dict[str, Any]]:
    """The rows that have the filter's values, and each word of its `q` in one of these columns."""
    words = filter.get("q", "").lower().split()
    exact = {key: value for key, value in filter.items() if value and key != "q"}
    return [
        row
        for row in rows
        if all(str(row.get(key)) == value for key, value in exact.items())
        and all(any(word in str(row.get(key, "")).lower() for key in columns) for word in words)
    ]


@dataclass(frozen=True, slots=True)
class Sort:
    """The column that a table is sorted by, and the link in each column's heading."""

    chosen: str
    down: bool
    links: Mapping[str, str]


_RANKS = {"none": 0, "low": 1, "medium": 2, "high": 3}


def sort_rows(
    visit: Visit, rows: Iterable[T], filter: Mapping[str, str], *columns: str
) -> tuple[list[T], Sort]:
    """The rows by the column that the address names; with a minus before it, from the top down."""
    order = visit.query("sort")
    chosen, down = order.removeprefix("-"), order.startswith("-")

    def value(row: Any, name: str) -> Any:
        found = row[name] if isinstance(row, Mapping) else getattr(row, name)
        return _RANKS[found] if name == "risk" else found

    rows = list(rows)
    if chosen in columns:
        filled = [row for row in rows if value(row, chosen) is not None]
        empty = [row for row in rows if value(row, chosen) is None]
        rows = [*sorted(filled, key=lambda row: value(row, chosen), reverse=down), *empty]
    links = {}
    for name in columns:
        is_text = bool(rows) and isinstance(value(rows[0], name), str)
        descends = not down if name == chosen else not is_text  # numbers, the largest first
        links[name] = link(visit.path, **filter, sort=f"-{name}" if descends else name)
    return rows, Sort(chosen, down, links)


def file_links(visit: Visit, filter: Mapping[str, str]) -> dict[str, str]:
    """The links to a page's rows in each format, behind the page's filter."""
    return {name: link(visit.path, **filter, format=name) for name in FORMATS}


def download(visit: Visit, name: str, rows: Sequence[RowValues], **extras: Any) -> Response | None:
    """The rows in the format the address asks for; None: it asks for a page."""
    file_format = visit.query("format")
    if not file_format:
        return None
    if file_format not in FORMATS:
        raise Fixable("invalid_arguments", f"format must be one of {', '.join(FORMATS)}")
    if file_format == "csv":
        file = {"content-disposition": f'attachment; filename="{name}.csv"'}
        return Response(as_csv(rows), 200, file, "text/csv; charset=utf-8")
    body = orjson.dumps({name: list(rows), **extras}, option=orjson.OPT_INDENT_2)
    return Response(body, 200, {"content-disposition": "inline"}, "application/json")


def as_csv(rows: Sequence[RowValues]) -> str:
    """Rows as CSV; the first row names the columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    names = list(rows[0]) if rows else []
    writer.writerow(csv_cell(name) for name in names)
    for row in rows:
        writer.writerow(csv_cell(row.get(name)) for name in names)
    return out.getvalue()


def csv_cell(value: Any) -> str:
    """A value as text that no spreadsheet runs as a formula."""
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return str(value)
    text = value if isinstance(value, str) else json_bytes(value).decode("utf-8", "replace")
    text = text.replace("\0", "\ufffd")
    return f"'{text}" if text.lstrip(" ").startswith(FORMULA) else text


# --- templates and their filters ------------------------------------------------------------------


def render(template: str, **values: Any) -> str:
    """A template with these values."""
    return _environment().get_template(template).render(values)


def html(
    template: str, status: int = 200, headers: Mapping[str, str] | None = None, **values: Any
) -> Response:
    """A template with these values, as an answer."""
    return Response(render(template, **values), status, headers, "text/html")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    filters = (clip, clip_text, pretty, compact, ago, full_time, iso_time, clock, duration, plural)
    environment.filters.update({each.__name__: each for each in filters}, number="{:,.0f}".format)
    environment.globals.update(version=__version__, now=time.time)
    return environment


def clip(value: object, length: int = NAME_CHARS) -> str:
    """Text on one line, with characters that hide or turn their neighbours shown, cut."""
    return cut(" ".join(_make_visible(value, length).split()), length)


def clip_text(value: object, length: int = PREVIEW_CHARS) -> str:
    """Running text, treated as `clip` does; it keeps its lines."""
    return cut(_make_visible(value, length), length)


def _make_visible(value: object, length: int) -> str:
    return visible(str(value)[: length * 4], instead="\ufffd")


def pretty(value: Any, length: int = CODE_CHARS) -> str:
    """A JSON value as people read it."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS)
    except TypeError:
        text = json_bytes(value)
    return clip_text(text.decode("utf-8", "replace"), length)


def compact(value: Any, length: int = NAME_CHARS) -> str:
    """A JSON value on one line."""
    return clip(json_bytes(value).decode("utf-8", "replace"), length)


def ago(at: float | None, now: float | None = None) -> str:
    """How long ago, or in how long."""
    if at is None:
        return "never"
    seconds = (time.time() if now is None else now) - at
    if abs(seconds) < 5:
        return "just now"
    return f"{span_words(seconds)} ago" if seconds >= 0 else f"in {span_words(-seconds)}"


def full_time(at: float) -> str:
    """The date and time, for readers who point at a short form."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso_time(at: float) -> str:
    """The time as machines read it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def clock(at: float) -> str:
    """The time of day."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def plural(count: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
