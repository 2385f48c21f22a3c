"""The front door: a client that knows only our address is let in by the person it works for.

    401 on /mcp…              names the document of that address (RFC 9728), which names us
    /.well-known/…            how to go on: our endpoints (RFC 8414)
    sign_in_pages             the person: sign-in and consent, which give a code
    token_endpoint            the client: the code for tokens, later a refresh token for new ones

A token is then proof like any other (`web.identity`), for its one address, until it expires or
its grant is revoked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from cachetools import TTLCache
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from gateway.config.settings import Settings
from gateway.limits import MAX_REMEMBERED
from gateway.oauth.clients import Clients
from gateway.oauth.documents import authorization_server
from gateway.oauth.grants import Grants, Lifetimes
from gateway.oauth.parts import CORS, FrontDoorParts, json_answer
from gateway.oauth.sign_in_pages import SignInPages
from gateway.oauth.token_endpoint import TokenEndpoint
from gateway.outbound.client import Egress
from gateway.store.cluster import Signals
from gateway.store.database import Database
from gateway.store.oauth import GRANT_REVOKED, note_grant_used
from gateway.store.secrets import Seal
from gateway.web.identity import METADATA_PATH, ConsoleSessions, Identity, view_address_of

SERVER_METADATA = ("/.well-known/oauth-authorization-server", "/.well-known/openid-configuration")


def is_open_to_all(path: str) -> bool:
    """Whether pages of any site may send requests here: they need no proof, or take their own."""
    name = path.removeprefix("/oauth")
    return path.startswith("/.well-known/") or name in ("/token", "/register", "/revoke")


class FrontDoor:
    """Lets in people who come with a client, and clients that come with a code."""

    def __init__(
        self,
        db: Database,
        seal: Seal,
        egress: Egress,
        identity: Identity,
        sessions: ConsoleSessions,
        settings: Callable[[], Settings],
        public_url: str,
    ) -> None:
        def lifetimes() -> Lifetimes:
            oauth = self._at.oauth
            return Lifetimes(oauth.access_minutes * 60.0, oauth.refresh_days * 86_400.0)

        self.grants = Grants(db, seal, lifetimes, identity.person)
        clients = Clients(
            db, egress, lambda: settings().clients.values(), lambda: self._at.oauth.registration
        )
        self._at = FrontDoorParts(
            *(db, seal, egress, identity, sessions, settings, public_url),
            *(clients, self.grants, TTLCache(MAX_REMEMBERED, 60)),
        )
        self.pages = SignInPages(self._at)

    def accept_tokens(self, signals: Signals) -> None:
        """Has the gateway accept our tokens as proof, until their grant is revoked."""
        self._at.identity.open_token = self._open_access_token
        self._at.identity.revoked_grants = self.grants.revoked_ids
        signals.on(GRANT_REVOKED, self.grants.refuse_tokens)

    def _open_access_token(self, token: str) -> Mapping[str, Any] | None:
        body = self.grants.open_access_token(token)
        if body is not None:  # seldom: the holder of a token is remembered for a minute
            note_grant_used(self._at.db, body["grant"], time.time())
        return body

    def routes(self) -> list[Route]:
        """Every address of the front door."""
        documents = Route("/.well-known/{path:path}", self._document, methods=["GET", "OPTIONS"])
        return [*TokenEndpoint(self._at).routes(), *self.pages.routes(), documents]

    async def _document(self, request: HttpRequest) -> Response:
        """Serves the documents by which clients find the front door, wherever they look."""
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=CORS)
        path, settings = request.url.path, self._at.settings()
        document = self._resource_document(path)
        if path.startswith(SERVER_METADATA) and settings.auth.mode == "oauth":
            machines = any(client.principal for client in settings.clients.values())
            document = authorization_server(self._at.url, self._at.oauth, machines)
        words = {"error": "there is nothing at this address"}
        response = json_answer(document or words, 200 if document else 404)
        response.headers.update(CORS)
        return response

    def _resource_document(self, path: str) -> Mapping[str, Any] | None:
        if path != METADATA_PATH and not path.startswith(f"{METADATA_PATH}/"):
            return None
        address = view_address_of(path.removeprefix(METADATA_PATH) or "/mcp")
        return self._at.identity.resource_metadata(address.path) if address else None
