"""Signing in and out: by the link that was printed, or by a token in a form."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.edge.console.rendering import render
from gateway.edge.console.sessions import COOKIE, SESSION_SECONDS, Session, Sessions
from gateway.edge.console.visit import Form
from gateway.edge.identity import Identity
from gateway.edge.throttle import Throttle
from gateway.errors import Unauthenticated


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
