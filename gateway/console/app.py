"""The door of the console: who comes in, what a form must carry, what every answer says.

Only the cookie counts here; a bearer token does not. Every post carries the session's token, in a
header or a field, and comes from our own origin. Nothing on a page may come from elsewhere or run
inline: the policy in the headers says so, and templates escape whatever they are given.

Signing in and out: by the link that was printed, or by a token in a form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import structlog
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from gateway.calls.record import Caller
from gateway.console import connections as pages_connections
from gateway.console import executions as pages_approvals
from gateway.console import executions as pages_executions
from gateway.console import overview as pages_overview
from gateway.console import tools as pages_access
from gateway.console import tools as pages_tools
from gateway.console.overview import Live, page_stream
from gateway.console.rendering import KEPT, PREFIX, render, served
from gateway.console.sessions import COOKIE, SESSION_SECONDS, Session, Sessions
from gateway.console.visit import Contacts, Form, Parts, Visit
from gateway.errors import (
    STATUS_OF_CODE,
    Broken,
    GatewayError,
    NotFound,
    Refused,
    Unauthenticated,
)
from gateway.limits import MAX_BODY_BYTES
from gateway.store.secrets import Seal
from gateway.web.events import Feed
from gateway.web.gateway import Gateway
from gateway.web.guard import Fields, Refusal, Throttle, fold, read_body
from gateway.web.health import Health
from gateway.web.identity import Identity


class SignIn:
    """Answers /console/sign-in and /console/sign-out."""

    def __init__(self, sessions: Sessions, identity: Identity, public_url: str) -> None:
        self._sessions = sessions
        self._identity = identity
        self._secure = public_url.startswith("https://")
        self._throttle = Throttle()

    async def __call__(self, request: Request, form: Form) -> Response:
        if request.method not in ("GET", "HEAD", "POST"):
            return Response("Method Not Allowed", 405, {"allow": "GET, POST"})
        link = request.query_params.get("link") if _is_opened(request) else None
        if request.method != "POST" and not link:
            return self._page()
        address = request.client.host if request.client else ""
        if (wait := self._throttle.wait(address)) > 0:
            return self._later(wait)
        cookie = await (self._by_link(link) if link else self._by_token(form))
        if cookie is None:
            self._throttle.failed(address)
            return self._page(_wrong(by_link=bool(link)), 401)
        return self._signed_in(cookie, by_link=bool(link))

    async def out(self, session: Session) -> Response:
        """Ends the session on every process, and its cookie."""
        await self._sessions.end(session)
        response = RedirectResponse("/console/sign-in", 303)
        response.delete_cookie(
            COOKIE, "/console", secure=self._secure, httponly=True, samesite="strict"
        )
        return response

    async def _by_link(self, link: str) -> str | None:
        return await self._sessions.open_by_link(link)

    async def _by_token(self, form: Form) -> str | None:
        try:
            return await self._sessions.open_by_token(form.get("token", ""))
        except Unauthenticated:
            return None

    def _signed_in(self, cookie: str, *, by_link: bool) -> Response:
        # After a link the next step starts from our own page: a browser that came from elsewhere
        # would not send a strict cookie along with a redirect.
        if by_link:
            response = Response(render("signed_in.html"), media_type="text/html")
        else:
            response = RedirectResponse("/console", 303)
        response.set_cookie(
            COOKIE,
            cookie,
            max_age=int(SESSION_SECONDS),
            path="/console",
            secure=self._secure,
            httponly=True,
            samesite="strict",
        )
        return response

    def _later(self, wait: float) -> Response:
        seconds = max(1, round(wait))
        page = self._page(f"Too many attempts. Try again in {seconds} s.", 429)
        page.headers["retry-after"] = str(seconds)
        return page

    def _page(self, problem: str = "", status: int = 200) -> Response:
        mode = self._identity.settings.mode
        return Response(
            render("sign_in.html", problem=problem, mode=mode), status, media_type="text/html"
        )


def _is_opened(request: Request) -> bool:
    """Whether a person opens the address; a look ahead must not use their link up."""
    return request.method == "GET" and "prefetch" not in request.headers.get("sec-purpose", "")


def _wrong(*, by_link: bool) -> str:
    if by_link:
        return "That link was used already or is too old. Start the gateway again for a new one."
    return "That token is not known here."


log = structlog.get_logger("gateway.console")

MAX_FORM_BYTES = 3 * MAX_BODY_BYTES  # a pasted definition, encoded for a form
MAX_SIGN_IN_BYTES = 64 * 1024
MAX_FORM_FIELDS = 500
SLOW_BYTES = 256 * 1024  # parsed in a thread from here on
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; "
        "img-src 'self'; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
        "base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Nothing to other sites; "no-referrer" would make browsers hide the origin of our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}

Handler = Callable[[Visit], Awaitable[Response]]

PAGES: tuple[tuple[str, Handler, Live | None], ...] = (
    ("/console", pages_overview.overview, pages_overview.live),
    ("/console/connections", pages_connections.connections, None),
    ("/console/connections/new", pages_connections.new, None),
    ("/console/connections/{name}", pages_connections.connection, pages_connections.live_one),
    ("/console/tools", pages_tools.tools, None),
    ("/console/tool", pages_tools.tool, None),
    ("/console/approvals", pages_approvals.approvals, pages_approvals.live),
    ("/console/executions", pages_executions.executions, None),
    ("/console/executions/{id}", pages_executions.execution, pages_executions.live_one),
    ("/console/access", pages_access.access, None),
)
ACTIONS: tuple[tuple[str, Handler], ...] = (
    ("/console/connections", pages_connections.put),
    ("/console/connections/preview", pages_connections.preview),
    ("/console/connections/{name}/refresh", pages_connections.refresh),
    ("/console/connections/{name}/delete", pages_connections.delete),
    ("/console/changes/{id}", pages_connections.decide_change),
    ("/console/tool", pages_tools.call),
    ("/console/approvals/{id}", pages_approvals.decide),
    ("/console/standing-grants/{id}/revoke", pages_approvals.revoke),
    ("/console/executions/{id}/cancel", pages_executions.cancel),
    ("/console/access/{name}", pages_access.choose),
    ("/console/permissions", pages_access.permissions),
)


class Console:
    """The ASGI application under /console."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._sign_in = SignIn(parts.sessions, parts.identity, parts.public_url)
        self._pages = [(_route(path, "GET"), page, live) for path, page, live in PAGES]
        self._actions = [(_route(path, "POST"), action) for path, action in ACTIONS]

    def link(self, url: str) -> str:
        """The address to print at start: it signs in once, where there is an admin to be."""
        address = f"{url}/console/sign-in"
        link = self.parts.sessions.link()
        return f"{address}?link={link}" if link else address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            fields = fold(scope["headers"])
            response = await self._respond(scope, receive, fields)
        except Refusal as refusal:
            response = Response(refusal.message, refusal.status, media_type="text/plain")
        except ConnectionError:
            return
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive, fields: Fields) -> Response:
        path, method = scope["path"], scope["method"]
        if path.startswith(PREFIX):
            return _static(path, method)
        request = Request(scope, receive)
        if method == "POST":
            check_origin(fields)
        if path == "/console/sign-in":
            form = await _form(fields, receive, MAX_SIGN_IN_BYTES) if method == "POST" else {}
            return await self._sign_in(request, form)
        session = await self.parts.sessions.current(request.cookies.get(COOKIE))
        if session is None:
            return _to_sign_in(request)
        if path == "/console/":
            return RedirectResponse("/console", 303)
        if path == "/console/events":
            return self._events(request, session)
        return await self._page_or_action(request, session, fields, receive)

    async def _page_or_action(
        self, request: Request, session: Session, fields: Fields, receive: Receive
    ) -> Response:
        form: Form = {}
        if request.method == "POST":
            form = await _form(fields, receive)
            presented = request.headers.get("x-csrf-token") or form.get("csrf", "")
            if not session.owns(presented):
                raise Refusal(403, "This form is not from a page of your session: load it again.")
            if request.url.path == "/console/sign-out":
                return await self._sign_in.out(session)
        visit = self._visit(request, session, form)
        try:
            handler, params = self._handler(request)
            request.scope["path_params"] = params
            return await handler(visit)
        except GatewayError as error:
            return _failed(visit, error)
        except Exception:  # the boundary: a stack must never reach a browser
            log.exception("page failed", path=request.url.path)
            return _failed(visit, Broken("internal", "The console failed on this request."))

    def _handler(self, request: Request) -> tuple[Handler, dict[str, Any]]:
        for route, page, _ in self._pages:
            if (params := _matched(route, request.scope)) is not None:
                return page, params
        for route, action in self._actions:
            if (params := _matched(route, request.scope)) is not None:
                return action, params
        raise NotFound("invalid_arguments", "There is nothing at this address.")

    def _events(self, request: Request, session: Session) -> Response:
        """The stream of the page at `at`: rendered again and again as that page would be."""
        at = urlsplit(request.query_params.get("at", "/console")[:4096])
        scope = {
            **request.scope,
            "method": "GET",
            "path": at.path,
            "raw_path": at.path.encode(),
            "query_string": at.query.encode(),
        }
        live, params = self._live(scope)
        cookie = request.cookies.get(COOKIE)

        async def again() -> Visit | None:
            now = await self.parts.sessions.current(cookie)
            if now is None:
                return None
            return self._visit(Request({**scope, "path_params": params}), now, {})

        try:
            parts = self.parts
            return page_stream(parts.gateway, parts.feed, again, live, session.principal.name)
        except GatewayError as error:
            return Response(error.message, 503, {"retry-after": "5"}, "text/plain")

    def _live(self, scope: Mapping[str, Any]) -> tuple[Live | None, dict[str, Any]]:
        for route, _, live in self._pages:
            if (params := _matched(route, scope)) is not None:
                return live, params
        return None, {}

    def _visit(self, request: Request, session: Session, form: Form) -> Visit:
        inquiry = self.parts.gateway.inquiry(Caller(session.principal, client="console"))
        return Visit(self.parts, session, inquiry, request, form)


def console_of(
    gateway: Gateway, identity: Identity, seal: Seal, health: Health, feed: Feed, public_url: str
) -> Console:
    """The console on these parts of the gateway."""
    contacts = Contacts()
    contacts.on_first = feed.wake
    sessions = Sessions(identity, seal, gateway.db)
    return Console(Parts(gateway, identity, sessions, health, feed, contacts, public_url))


def check_origin(fields: Fields) -> None:
    """Refuses a post that another site's page makes; `allowed_origins` are for MCP, not for us."""
    origin, host = fields.get(b"origin"), fields.get(b"host", b"")
    if origin is not None and origin.lower().partition(b"://")[2] != host.lower():
        raise Refusal(403, "This form comes from another site.")
    if fields.get(b"sec-fetch-site", b"same-origin") not in (b"same-origin", b"none"):
        raise Refusal(403, "This form comes from another site.")


def _route(path: str, method: str) -> Route:
    return Route(path, lambda request: Response(), methods=[method])


def _matched(route: Route, scope: Mapping[str, Any]) -> dict[str, Any] | None:
    match, child = route.matches(dict(scope))
    return child["path_params"] if match is Match.FULL else None


def _static(path: str, method: str) -> Response:
    found = served().get(path)
    if found is None or method not in ("GET", "HEAD"):
        return Response("Not Found", 404, media_type="text/plain")
    return Response(found.body, 200, {"cache-control": KEPT}, found.media_type)


async def _form(fields: Fields, receive: Receive, limit: int = MAX_FORM_BYTES) -> Form:
    kind = fields.get(b"content-type", b"").split(b";")[0].strip().lower()
    body = await read_body(fields, receive, limit)
    if not body:
        return {}
    if kind != b"application/x-www-form-urlencoded":
        raise Refusal(415, "A form is expected here.")
    return await asyncio.to_thread(_parsed, body) if len(body) > SLOW_BYTES else _parsed(body)


def _parsed(body: bytes) -> Form:
    try:
        text = body.decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS))
    except ValueError:
        raise Refusal(400, "The form can't be read.") from None


def _to_sign_in(request: Request) -> Response:
    if request.headers.get("hx-request") == "true":
        return Response(status_code=401, headers={"hx-redirect": "/console/sign-in"})
    if request.method in ("GET", "HEAD") and request.url.path != "/console/events":
        return RedirectResponse("/console/sign-in", 303)
    return Response("Sign in first.", 401, media_type="text/plain")


def _failed(visit: Visit, error: GatewayError) -> Response:
    status = 404 if isinstance(error, NotFound) else STATUS_OF_CODE.get(error.code, 500)
    if isinstance(error, Refused):
        status = 403
    values = {"me": visit.principal, "csrf": visit.session.csrf, "error": error}
    if visit.partial:
        to_corner = {"hx-retarget": "#toasts", "hx-reswap": "beforeend"}
        words = f"{error.message} {error.hint}".strip()
        text = render("_toast.html", message=words, good=False)
        return Response(text, status, to_corner, "text/html")
    return Response(render("failed.html", **values), status, media_type="text/html")
