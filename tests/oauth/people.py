"""People and their clients for the tests of the front door: a browser by plain HTTP, and the SDK's
own client, which knows nothing but an address."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import re
import secrets
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

import httpx2
from mcp.client.auth.oauth2 import OAuthClientProvider
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)

TOKENS = {name: f"{name}-token-0123456789" for name in ("root", "ann", "bob", "zoe")}
CALLBACK = "http://127.0.0.1:41999/callback"
OAUTH = (
    """
[auth]
mode = "oauth"
[network]
allow = ["127.0.0.1/32"]
[permissions]
level = "full_access"
[demo]
enabled = true
[bundles.books]
connections = ["demo"]
[bundles.other]
connections = ["demo"]
[roles.reader]
bundles = ["books"]
[routes.shop.reader]
look = ["books"]
"""
    + "".join(
        f'[principals.{name}]\ntoken = "{token}"\nadmin = {str(name == "root").lower()}\n'
        for name, token in TOKENS.items()
    )
    + 'role = "reader"\n'
)  # of zoe, who is the last


def browser(url: str = "", **more: Any) -> httpx2.AsyncClient:
    """An HTTP client for plain HTTP: reading certificates takes longer than most tests."""
    return httpx2.AsyncClient(base_url=url, **{"verify": False, "timeout": 60, **more})


def form_of(page: str, action: str) -> dict[str, str]:
    """The hidden fields of the form on a page that is sent there."""
    text = page.split(f'action="{action}"')[1].split("</form>")[0]
    found = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', text)
    return {name: html.unescape(value) for name, value in found}


@dataclass
class Person:
    """Someone with a browser: cookies, and a token to sign in with."""

    url: str
    token: str = TOKENS["ann"]
    decision: str = "allow"
    withhold: tuple[str, ...] = ()
    questions: int = 0  # how often this person was asked whether a client may come in
    pages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.http = browser(self.url)

    async def visit(self, address: str) -> httpx2.Response:
        """Opens an address and does what its pages ask, until the browser is sent elsewhere."""
        answer = await self.http.get(address)
        for _ in range(8):
            location = answer.headers.get("location")
            if location is not None:
                target = urljoin(str(answer.url), location)
                if not target.startswith(f"{self.url}/"):
                    return answer
                answer = await self.http.get(target)
            elif 'action="/oauth/sign-in"' in answer.text and answer.status_code == 200:
                fields = form_of(answer.text, "/oauth/sign-in")
                answer = await self.post("/oauth/sign-in", {**fields, "token": self.token})
            elif 'action="/oauth/consent"' in answer.text:
                self.pages.append(answer.text)
                self.questions += 1
                fields = form_of(answer.text, "/oauth/consent")
                ticked = {
                    name: "on" for name in ("tools:write", "admin") if name not in self.withhold
                }
                answer = await self.post(
                    "/oauth/consent", {**fields, **ticked, "decision": self.decision}
                )
            else:
                return answer
        return answer

    async def post(self, path: str, fields: dict[str, str], **more: Any) -> httpx2.Response:
        return await self.http.post(path, data=fields, **more)

    async def sent_back(self, address: str) -> dict[str, str]:
        """What the client's redirect address is told."""
        answer = await self.visit(address)
        assert answer.status_code == 302, (answer.status_code, answer.text)
        return dict(parse_qsl(urlsplit(answer.headers["location"]).query))


class Kept:
    """Where the SDK's client keeps what it was given."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def sdk_auth(
    address: str, person: Person, kept: Kept | None = None, document: str | None = None
) -> OAuthClientProvider:
    """The SDK's own way in, whose browser is this person's."""
    answers: list[dict[str, str]] = []

    async def open_browser(link: str) -> None:
        answers.append(await person.sent_back(link))

    async def answered() -> AuthorizationCodeResult:
        return AuthorizationCodeResult.model_validate(answers.pop())

    metadata = OAuthClientMetadata.model_validate(
        {"client_name": "Test client", "redirect_uris": [CALLBACK]}
    )
    return OAuthClientProvider(
        address, metadata, kept or Kept(), open_browser, answered, client_metadata_url=document
    )


def sdk_client(address: str, auth: httpx2.Auth, **more: Any) -> tuple[Client, httpx2.AsyncClient]:
    http = browser(auth=auth, follow_redirects=True)
    return Client(streamable_http_client(address, http_client=http), **more), http


@dataclass
class Program:
    """A client written by hand, so that it can do what no good client does."""

    url: str
    id: str = ""
    redirect: str = CALLBACK
    verifier: str = field(default_factory=lambda: secrets.token_urlsafe(40))

    def __post_init__(self) -> None:
        self.http = browser(self.url)

    async def register(self, **more: Any) -> dict[str, Any]:
        body = {"client_name": "By hand", "redirect_uris": [self.redirect], **more}
        answer = await self.http.post("/oauth/register", json=body)
        assert answer.status_code == 201, answer.text
        self.id = answer.json()["client_id"]
        return dict(answer.json())

    def link(self, **more: str | None) -> str:
        digest = hashlib.sha256(self.verifier.encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        asked: dict[str, str | None] = {
            "response_type": "code",
            "client_id": self.id,
            "redirect_uri": self.redirect,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "state": "s-1",
            "resource": f"{self.url}/mcp",
            **more,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        return f"/oauth/authorize?{urlencode(given)}"

    async def token(self, **fields: str) -> httpx2.Response:
        return await self.http.post("/oauth/token", data={"client_id": self.id, **fields})

    async def exchange(self, code: str, **more: str) -> httpx2.Response:
        return await self.token(
            **{
                "grant_type": "authorization_code",
                "code": code,
                "redirect_uri": self.redirect,
                "code_verifier": self.verifier,
                **more,
            }
        )

    async def refresh(self, token: str, **more: str) -> httpx2.Response:
        return await self.token(**{"grant_type": "refresh_token", "refresh_token": token, **more})

    async def sign_in(self, person: Person, **more: str | None) -> dict[str, Any]:
        """The tokens that a person gives this client."""
        if not self.id:
            await self.register()
        said = await person.sent_back(self.link(**more))
        answer = await self.exchange(said["code"])
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def status(self, token: str, path: str = "/mcp") -> int:
        """What a request with this token gets: 200 where it is let in."""
        headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
        if path.startswith("/mcp"):
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
            more = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
            answer = await self.http.post(path, json=body, headers=headers | more)
        else:
            answer = await self.http.get(path, headers=headers)
        return answer.status_code

    async def is_locked_out(self, token: str) -> bool:
        """Whether a token is refused soon: in less than a second, on a machine that is not busy."""
        for _ in range(200):
            if await self.status(token) == 401:
                return True
            await asyncio.sleep(0.05)
        return False


META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "by hand", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
