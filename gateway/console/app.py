"""The console as an ASGI application: sign-in, checks of forms, routes, errors, live streams.

Only the cookie counts here; a bearer token does not. Every post carries the session's token, in a
header or a field, and comes from our own origin. Nothing on a page may come from elsewhere or run
inline: the policy in the headers says so, and templates escape whatever they are given.

An open page has a stream at its address under /console/events. Nothing is queued there: a stream
is woken, renders the moving parts of its page and sends those that differ, so that a slow reader
simply sees fewer steps. A named event tells lists with a filter that there is something new.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from gateway.calls.admission import Throttle
from gateway.calls.record import Caller
from gateway.console import access, calls, cards, connections, executions, rights, tools
from gateway.console.pages import (
    Backend,
    Navigation,
    Visit,
    html,
    is_partial,
    navigation,
    navigation_parts,
)
from gateway.errors import Broken, GatewayError, NotFound, Unauthenticated
from gateway.limits import FORM_BYTES, LIVE_SECONDS, MAX_BODY_BYTES, MOMENT_SECONDS, PING_SECONDS
from gateway.store.cluster import newest_ids
from gateway.store.secrets import Seal
from gateway.web.gateway import Feed, Gateway
from gateway.web.guard import PAGE_HEADERS, Form, Say, check_origin, event_frame, read_form
from gateway.web.identity import (
    COOKIE,
    ConsoleSession,
    ConsoleSessions,
    Identity,
    set_session_cookie,
)
from gateway.web.rest import error_status, retry_header
from gateway.web.watch import Health

log = structlog.get_logger("gateway.console")

STATIC = Path(__file__).parent / "static"

PageHandler = Callable[[Visit], Awaitable[Response]]
# What an open page depends on: the newest of the ledger and of the catalog first.
Inputs = tuple[int, int, int, int, str | None, float]
# The function with the values of a page, and the ids of its moving parts; each has a template.
Live = tuple[Callable[[Visit, Navigation], Awaitable[dict[str, Any]]], str]


async def _sign_out(visit: Visit) -> Response:
    """Ends the session on every process, and its cookie."""
    await visit.backend.sessions.end(visit.session)
    response = RedirectResponse("/console/sign-in", 303)
    response.delete_cookie(COOKIE, "/")
    return response


PAGES: Mapping[str, PageHandler] = {
    "": calls.overview,
    "/connections": connections.connections,
    "/connections/new": connections.new,
    "/connections/{name}": connections.connection,
    "/connections/{name}/edit": connections.edit,
    "/tools": tools.tools,
    "/tool": tools.tool,
    "/approvals": cards.approvals,
    "/charts": executions.charts,
    "/executions": executions.executions,
    "/executions/{id}": executions.execution,
    "/access": access.access,
    "/access/view": access.view,
    "/access/rights/{kind}": rights.rights,
}
LIVE: Mapping[str, Live] = {
    "": (calls.overview_values, "stats picture tasks feed health"),
    "/connections/{name}": (connections.connection_values, "state changes connection-tools"),
    "/approvals": (cards.approvals_values, "cards feed grants"),
    "/executions/{id}": (executions.execution_values, "execution"),
}
ACTIONS: Mapping[str, PageHandler] = {
    "/connections": connections.put,
    "/connections/preview": connections.preview,
    "/connections/{name}/refresh": connections.refresh,
    "/connections/{name}/delete": connections.delete,
    "/changes/{id}": connections.decide_change,
    "/tool": tools.call,
    "/tool/copy": tools.copy,
    "/approvals/{id}": cards.decide,
    "/standing-grants/{id}/revoke": cards.revoke,
    "/executions/{id}/cancel": executions.cancel,
    "/access/{name}": access.choose,
    "/grants/{id}/revoke": access.revoke_client,
    "/sign-ins/{name}/revoke": access.revoke_sign_in,
    "/credentials/{name}/sign-in": access.sign_in,
    "/credentials/{name}/sign-out": access.sign_out,
    "/permissions": access.permissions,
    "/permissions/tools": access.rule,
    "/access/rights/{kind}": rights.put,
    "/access/rights/{kind}/plan": rights.plan,
    "/access/rights/{kind}/delete": rights.delete,
    "/sign-out": _sign_out,
}


class Console:
    """The ASGI application under /console."""

    def __init__(
        self,
        gateway: Gateway,
        identity: Identity,
        seal: Seal,
        health: Health,
        contacts: Mapping[str, tuple[float, bytes]],
        public_url: str,
    ) -> None:
        sessions = ConsoleSessions(identity, seal, gateway.db)
        self.backend = Backend(gateway, identity, sessions, health, contacts, public_url)
        self._throttle = Throttle()
        router = Router(self._routes(), default=self._answer_unknown_path)
        errors = (GatewayError, Unauthenticated, HTTPException, ConnectionError, Exception)
        self._app = ExceptionMiddleware(router, dict.fromkeys(errors, _answer_error))

    def link(self, url: str) -> str:
        """The address to print at start: it signs in an admin once, where there is one."""
        address = f"{url}/console/sign-in"
        link = self.backend.sessions.link()
        return f"{address}?link={link}" if link else address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_file = scope["path"].startswith("/console/static/")

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if is_file:
                    headers["cache-control"] = "no-cache"  # kept, and asked about by its ETag
                for name, value in PAGE_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_guarded)

    def _routes(self) -> list[BaseRoute]:
        routes = [
            Mount("/console/static", StaticFiles(directory=STATIC)),
            Route("/console/sign-in", self._sign_in, methods=["GET", "POST"]),
        ]
        for path, page in PAGES.items():
            routes.append(Route(f"/console{path}", partial(self._answer_page, page)))
            stream = partial(self._open_stream, LIVE.get(path))
            routes.append(Route(f"/console/events{path}", stream))
        for path, action in ACTIONS.items():
            take = partial(self._take_form, action)
            routes.append(Route(f"/console{path}", take, methods=["POST"]))
        # A page that failed is open too, and wants to know when its gateway is back.
        return [*routes, Route("/console/events{path:path}", partial(self._open_stream, None))]

    async def _answer_page(self, answer: PageHandler, request: Request) -> Response:
        return await answer(await self._visit(request))

    async def _take_form(self, answer: PageHandler, request: Request) -> Response:
        check_origin(request)
        session = await self._session(request)
        form = await read_form(request, FORM_BYTES)
        if not session.owns(request.headers.get("x-csrf-token") or form.get("csrf", "")):
            raise HTTPException(403, "This form is not from a page of your session: load it again.")
        return await answer(await self._visit(request, form))

    async def _open_stream(self, live: Live | None, request: Request) -> Response:
        feed = self.backend.gateway.feed
        name = (await self._session(request)).principal.name
        step = _OpenPage(feed, lambda: self._visit(request), live).step
        return feed.stream(name, step, rest=LIVE_SECONDS)

    async def _answer_unknown_path(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._session(Request(scope))  # a stranger is asked to sign in first
        raise NotFound("invalid_arguments", "There is nothing at this address.")

    async def _session(self, request: Request) -> ConsoleSession:
        return await self.backend.sessions.current(request.cookies.get(COOKIE))

    async def _visit(self, request: Request, form: Form | None = None) -> Visit:
        session = await self._session(request)
        caller = Caller(session.principal, era="console", client="console")
        inquiry = self.backend.gateway.inquiry(caller)
        return Visit(self.backend, session, inquiry, request, form or {})

    # --- signing in: by the link that was printed, or by a token in a form ------------------------

    async def _sign_in(self, request: Request) -> Response:
        link = request.query_params.get("link") if _is_opened(request) else None
        if request.method != "POST" and not link:
            return self._sign_in_page()
        address, sessions = request.client.host if request.client else "", self.backend.sessions
        if (wait := self._throttle.failure_wait(address)) > 0:
            seconds = math.ceil(wait)
            page = self._sign_in_page(f"Too many attempts. Try again in {seconds} s.", 429)
            page.headers["retry-after"] = str(seconds)
            return page
        try:
            if link:
                return self._enter_console(await sessions.open_by_link(link), by_link=True)
            check_origin(request)
            form = await read_form(request, MAX_BODY_BYTES)
            return self._enter_console(await sessions.open_by_token(form.get("token", "")))
        except Unauthenticated:
            self._throttle.count_failure(address)
            old = "That link was used already or is too old. Start the gateway again for a new one."
            return self._sign_in_page(old if link else "That token is not known here.", 401)

    def _sign_in_page(self, problem: str = "", status: int = 200) -> Response:
        auth = self.backend.identity.auth
        oidc = auth.mode == "oauth" and auth.oauth is not None and auth.oauth.sign_in == "oidc"
        return html("sign_in.html", status, problem=problem, mode=auth.mode, by_provider=oidc)

    def _enter_console(self, cookie: str, *, by_link: bool = False) -> Response:
        # After a link the next step starts from our own page: a browser that came from elsewhere
        # would not send a strict cookie along with a redirect.
        response = html("signed_in.html") if by_link else RedirectResponse("/console", 303)
        set_session_cookie(response, cookie, self.backend.public_url)
        return response


def _is_opened(request: Request) -> bool:
    """Whether a person opens the address; a prefetch by the browser must not use the link up."""
    return request.method == "GET" and "prefetch" not in request.headers.get("sec-purpose", "")


# --- errors ---------------------------------------------------------------------------------------


async def _answer_error(request: Request, error: Exception) -> Response:
    match error:
        case Unauthenticated():
            return _ask_to_sign_in(request)
        case HTTPException():
            return Response(error.detail, error.status_code, media_type="text/plain")
        case ConnectionError():
            return Response(status_code=400)  # the client has gone: nobody reads the answer
        case GatewayError():
            return _answer_failure(request, error)
    # The boundary: a stack must never reach a browser.
    log.error("page failed", path=request.url.path, exc_info=error)
    return _answer_failure(request, Broken("internal", "The console failed on this request."))


def _ask_to_sign_in(request: Request) -> Response:
    if is_partial(request):
        return Response(status_code=401, headers={"hx-redirect": "/console/sign-in"})
    is_stream = request.url.path.startswith("/console/events")
    if request.method in ("GET", "HEAD") and not is_stream:
        return RedirectResponse("/console/sign-in", 303)
    return Response("Sign in first.", 401, media_type="text/plain")


def _answer_failure(request: Request, error: GatewayError) -> Response:
    status, headers = error_status(error), retry_header(error.details)
    if not is_partial(request):
        return html("failed.html", status, headers, error=error)
    to_corner = {"hx-retarget": "#toasts", "hx-reswap": "beforeend"}
    words = f"{error.message} {error.hint}".strip()
    place = {**headers, **to_corner}
    return html("_toast.html", status, place, message=words, good=False, removed_id="")


# --- the stream of an open page -------------------------------------------------------------------

# The words of a time change by themselves; that alone is no news.
_TIME_WORDS = re.compile(r"(<time[^>]*>)[^<]*(?=</time>)|data-left=\"\d+\"")


@dataclass
class _OpenPage:
    """One open page, and the hashes of the parts that were last sent to it."""

    feed: Feed
    visit: Callable[[], Awaitable[Visit]]
    live: Live | None
    sent_sums: dict[str, bytes] = field(default_factory=dict)
    inputs: Inputs | None = None
    next_look: float = 0.0

    async def step(self, say: Say) -> bool:
        """Sends the parts that are new; False: the session is over."""
        try:
            async with self.feed.turn:
                if self.feed.closing:
                    return False
                visit = await self.visit()
                await self.feed.announce_reader()
                inputs, news = await self._read_inputs(visit), b""
                if inputs != self.inputs or time.monotonic() > self.next_look:
                    news = partials(self._drop_sent(await self._parts(visit))) + self._news(inputs)
                    self.inputs, self.next_look = inputs, time.monotonic() + PING_SECONDS
            await say(news)  # after the turn: other streams don't wait for a slow reader
        except Unauthenticated:
            await say(event_frame(b"", "signed-out"))
            return False
        except GatewayError:
            pass  # the store is away, or the thing on the page is gone; a later step may find it
        return True

    async def _read_inputs(self, visit: Visit) -> Inputs:
        """The values a page depends on: while they are the same, the page is rarely rendered."""
        backend, problem = visit.backend, visit.backend.health.config_problem
        db, (contact, _) = visit.gateway.db, backend.contacts.get(visit.principal.name, (0.0, b""))
        (ledger, stored), news = await newest_ids(db), self.feed.news
        return ledger, visit.snapshot.revision, stored, news, problem, contact // MOMENT_SECONDS

    async def _parts(self, visit: Visit) -> dict[str, str]:
        nav = await navigation(visit)
        parts = navigation_parts(visit, nav)
        if self.live is not None:
            values = await self.live[0](visit, nav)
            parts |= {id: visit.render(f"_{id}.html", **values) for id in self.live[1].split()}
        return parts

    def _news(self, inputs: Inputs) -> bytes:
        """The events that lists wait for: there is more in the ledger, or another catalog."""
        if self.inputs is None:
            return b""
        news = zip(("ledger", "catalog"), self.inputs, inputs, strict=False)
        return b"".join(event_frame(b"", name) for name, last, now in news if now != last)

    def _drop_sent(self, parts: dict[str, str]) -> dict[str, str]:
        sums = {
            id: hashlib.sha256(_TIME_WORDS.sub(r"\1", html).encode()).digest()
            for id, html in parts.items()
        }
        changed = {id: html for id, html in parts.items() if self.sent_sums.get(id) != sums[id]}
        self.sent_sums = sums
        return changed


def partials(parts: Mapping[str, str]) -> bytes:
    """The changed parts as one message, each for its own place; htmx swaps in unnamed events."""
    if not parts:
        return b""
    html = "".join(
        f'<hx-partial hx-target="#{id}" hx-swap="innerMorph">{part}</hx-partial>'
        for id, part in parts.items()
    )
    return event_frame(html.encode(), kind="")
