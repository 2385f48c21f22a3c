"""One request to the console, with all a page needs, and the answers a page can give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.edge.console.parts import Parts
from gateway.edge.console.rendering import render
from gateway.edge.console.sessions import Session
from gateway.edge.meta_tools import Asked
from gateway.errors import Refused
from gateway.model import Principal

Form = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Visit:
    """Who asks for what, on which snapshot."""

    parts: Parts
    session: Session
    asked: Asked
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
