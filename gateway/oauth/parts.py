"""The parts of the gateway that all of the front door works with, and its address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cachetools import TTLCache
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from gateway.config.settings import OAuthSettings, Settings
from gateway.model import Principal, json_bytes
from gateway.oauth.clients import Clients
from gateway.oauth.documents import resource_address
from gateway.oauth.grants import Grants, OAuthError
from gateway.outbound.client import Egress
from gateway.store.database import Database
from gateway.store.secrets import Seal
from gateway.web.identity import ConsoleSessions, Identity, view_address_of

Handler = Callable[[HttpRequest], Awaitable[Response]]

CORS = {
    "access-control-allow-origin": "*",
    "access-control-allow-methods": "GET, POST, OPTIONS",
    "access-control-allow-headers": "authorization, content-type, mcp-protocol-version",
    "access-control-max-age": "3600",
}


@dataclass(frozen=True, slots=True)
class FrontDoorParts:
    """The parts of the gateway that the front door works with, and its address."""

    db: Database
    seal: Seal
    egress: Egress
    identity: Identity
    sessions: ConsoleSessions
    settings: Callable[[], Settings]
    url: str
    clients: Clients
    grants: Grants
    rates: TTLCache[tuple[str, str], list[int]]

    @property
    def oauth(self) -> OAuthSettings:
        return self.settings().auth.oauth or OAuthSettings()

    def limit_rate(self, request: HttpRequest, action: str, most: int) -> None:
        """Refuses a request whose address has made too many of its kind."""
        address = request.client.host if request.client else ""
        counter = self.rates.setdefault((action, address), [0])
        counter[0] += 1
        if counter[0] > most:
            raise HTTPException(429, "Too many requests: try again in a minute.")

    def resource(self, address: str | None) -> str:
        """The address that a token is to be for. Raises OAuthError where it is not ours."""
        path = resource_address(address, self.url) if address else "/mcp"
        view_address = view_address_of(path) if path else None
        if view_address is None:
            raise OAuthError("invalid_target", "resource is no address of this gateway")
        return f"{self.url}{view_address.path}"

    def require_open(self) -> None:
        """Refuses every request where people don't sign in."""
        if self.settings().auth.mode != "oauth":
            raise OAuthError("access_denied", "this gateway does not sign people in", 404)


def claims_of(person: Principal, by: str, proof: str) -> dict[str, Any]:
    """The facts about a person that a grant keeps beside their name."""
    claims = {"role": person.role, "organization": person.organization, "admin": person.admin}
    return {"by": by, "proof": proof, **claims}


def json_answer(value: Mapping[str, Any], status: int = 200) -> Response:
    """An answer to a client."""
    return Response(json_bytes(value), status, media_type="application/json")
