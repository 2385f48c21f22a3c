"""An API with an authorization server of its own, which does what a test tells it to: it takes
long, fails, forgets, rotates refresh tokens and punishes who uses one twice."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlencode

from aiohttp import web
from mcp.server import MCPServer
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import Context

from tests.peers import items_api, listening
from tests.peers_mcp import serving


@dataclass
class Notes:
    """The API, its tokens, and what it was asked."""

    port: int = 0
    life: float | None = 3600  # of an access token
    rotates: bool = True
    fails: list[int] = field(default_factory=list)  # statuses of the next answers to /token
    walled: int = 0  # the status that something in front of /token answers with
    refuses: str = ""  # the error of all answers to /token
    slow: float = 0.0  # seconds before /token answers
    iss: str | None = ""  # "": its own; None: it says none
    login: str = "ann"  # who signs in there
    giant: bool = False
    serves: str = ""  # where its definition says that the API is; "": here
    broken_for: str = ""  # whose calls the API answers with 500
    documents: bool = False  # it takes clients by the address of their document
    new_clients: bool = True
    clients: dict[str, str] = field(default_factory=lambda: {"gw": "gw-secret-0123456789"})
    owners: dict[str, str] = field(default_factory=dict)  # of access tokens
    refreshable: dict[str, str] = field(default_factory=dict)  # whose, by refresh token
    used: set[str] = field(default_factory=set)
    reused: list[str] = field(default_factory=list)
    codes: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    forms: list[dict[str, str]] = field(default_factory=list)
    asked: list[tuple[str, str]] = field(default_factory=list)  # who called, and which path
    revoked: list[str] = field(default_factory=list)
    registered: list[dict[str, Any]] = field(default_factory=list)
    odd: dict[str, Any] = field(default_factory=dict)  # what its documents say besides
    sessions: list[str] = field(default_factory=list)  # in which its MCP server was called

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def refreshes(self) -> int:
        return sum(form.get("grant_type") == "refresh_token" for form in self.forms)

    def expire(self) -> None:
        """Takes no access token any more that it has given."""
        self.owners.clear()

    # --- the authorization server -----------------------------------------------------------------

    async def metadata(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "revocation_endpoint": f"{self.url}/revoke",
                **({"registration_endpoint": f"{self.url}/register"} if self.new_clients else {}),
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none", "client_secret_post"],
                "authorization_response_iss_parameter_supported": self.iss is not None,
                "client_id_metadata_document_supported": self.documents,
                **self.odd,
            }
        )

    async def register(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        self.registered.append(wanted)
        id = f"client-{len(self.registered)}"
        self.clients[id] = ""
        return web.json_response({**wanted, "client_id": id}, status=201)

    async def authorize(self, request: web.Request) -> web.Response:
        """The person signs in and allows it; no page is needed for that here."""
        asked = dict(request.query)
        code = secrets.token_urlsafe(16)
        self.codes[code] = (self.login, asked)
        said = {"code": code, "state": asked["state"]}
        if self.iss is not None:
            said["iss"] = self.iss or self.url
        raise web.HTTPFound(f"{asked['redirect_uri']}?{urlencode(said)}")

    async def token(self, request: web.Request) -> web.Response:
        form = {name: str(value) for name, value in (await request.post()).items()}
        self.forms.append(form)
        await asyncio.sleep(self.slow)
        if self.fails:
            return web.json_response({"error": "server_error"}, status=self.fails.pop(0))
        if self.walled:
            return web.Response(status=self.walled, text="<h1>No way</h1>")
        if self.refuses:
            return web.json_response({"error": self.refuses}, status=400)
        if self.giant:
            return web.Response(body=b'{"access_token": "' + b"x" * 1_000_000 + b'"}')
        if not self._is_client(request, form):
            return web.json_response({"error": "invalid_client"}, status=401)
        if form["grant_type"] == "refresh_token":
            return self._refresh(form["refresh_token"])
        if form["grant_type"].endswith("token-exchange"):
            return self._give(f"exchanged {form['subject_token'][:20]}", "")
        login, asked = self.codes.pop(form.get("code", ""), ("", {}))
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        if not login or asked["code_challenge"] != challenge:
            return web.json_response({"error": "invalid_grant"}, status=400)
        return self._give(login, self._new_refresh(login))

    def _is_client(self, request: web.Request, form: dict[str, str]) -> bool:
        id, secret = form.get("client_id", ""), form.get("client_secret", "")
        if request.headers.get("authorization", "").startswith("Basic "):
            pair = base64.b64decode(request.headers["authorization"][6:]).decode()
            id, _, secret = (unquote(part) for part in pair.partition(":"))
        if self.documents and id.endswith("/oauth/client.json"):
            return True
        return self.clients.get(id) == secret

    def _new_refresh(self, login: str) -> str:
        token = f"refresh-{secrets.token_hex(8)}"
        self.refreshable[token] = login
        return token

    def _refresh(self, token: str) -> web.Response:
        if token in self.used:  # somebody has a copy: everything of theirs ends
            self.reused.append(token)
            self.refreshable.clear()
        login = self.refreshable.get(token)
        if login is None:
            return web.json_response({"error": "invalid_grant"}, status=400)
        if not self.rotates:
            return self._give(login, "")
        self.used.add(token)
        del self.refreshable[token]
        return self._give(login, self._new_refresh(login))

    def _give(self, login: str, refresh: str) -> web.Response:
        token = f"access-{secrets.token_hex(8)}"
        self.owners[token] = login
        answer: dict[str, Any] = {"access_token": token, "token_type": "Bearer"}
        answer |= {"expires_in": self.life} if self.life is not None else {}
        answer |= {"refresh_token": refresh} if refresh else {}
        return web.json_response(answer)

    async def revoke(self, request: web.Request) -> web.Response:
        form = await request.post()
        self.revoked.append(str(form["token"]))
        return web.Response()

    # --- the API ----------------------------------------------------------------------------------

    async def definition(self, request: web.Request) -> web.Response:
        write = {
            "post": {
                "operationId": "add_note",
                "requestBody": {
                    "content": {
                        "application/json": {
                            "schema": {"type": "object", "properties": {"text": {"type": "string"}}}
                        }
                    }
                },
                "responses": {"200": {"description": "ok"}},
            }
        }
        return web.json_response(items_api(self.serves or self.url, "notes", **{"/notes": write}))

    async def any(self, request: web.Request) -> web.Response:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        who = self.owners.get(token) or self.owners.get(request.headers.get("x-api-key", ""))
        if scheme == "Basic":
            who = base64.b64decode(token).decode().partition(":")[0]
        self.asked.append((who or "", request.path))
        if who is not None and who == self.broken_for:
            return web.json_response({}, status=500)
        if who is None:
            return web.json_response({"error": f"no such token {token}"}, status=401)
        return web.json_response({"who": who, "path": request.path, "token": token})


@asynccontextmanager
async def notes_api() -> AsyncIterator[Notes]:
    """The API and its authorization server on a free port."""
    peer = Notes()
    app = web.Application()
    for place in ("oauth-authorization-server", "openid-configuration"):
        app.router.add_get(f"/.well-known/{place}", peer.metadata)
    app.router.add_get("/openapi.json", peer.definition)
    app.router.add_get("/authorize", peer.authorize)
    app.router.add_post("/token", peer.token)
    app.router.add_post("/register", peer.register)
    app.router.add_post("/revoke", peer.revoke)
    app.router.add_route("*", "/{rest:.*}", peer.any)
    async with listening(app) as peer.port:
        yield peer


class _Verifier:
    def __init__(self, peer: Notes) -> None:
        self._peer = peer

    async def verify_token(self, token: str) -> AccessToken | None:
        who = self._peer.owners.get(token)
        if who is None:
            return None
        return AccessToken(token=token, client_id="gw", scopes=["notes"], subject=who)


@asynccontextmanager
async def notes_mcp(peer: Notes, scope: str = "notes") -> AsyncIterator[str]:
    """The SDK's own MCP server, which takes tokens of the API's authorization server only."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()
    url = f"http://127.0.0.1:{port}/mcp"
    auth = AuthSettings.model_validate(
        {
            "issuer_url": peer.url,
            "resource_server_url": url,
            "required_scopes": [scope],
            "validate_token_resource": False,
        }
    )
    server: MCPServer[Any] = MCPServer("notes", token_verifier=_Verifier(peer), auth=auth)

    @server.tool()
    def who_am_i(context: Context[Any, Any]) -> str:
        request: Any = context.request_context.request
        peer.sessions.append(request.headers.get("mcp-session-id", ""))
        token = get_access_token()
        peer.asked.append((str(token and token.subject), "who_am_i"))
        return f"you are {token and token.subject} with {token and token.token}"

    async with serving(server.streamable_http_app(), port):
        yield url
