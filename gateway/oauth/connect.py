"""Signing in to an API as oneself: the page behind a link that a call, the console or a CLI gave.

    link opened      by the browser of the very person it was made for; any other person is told so,
                     and nothing is taken from them
    OAuth            on to the API's own authorization server, with a state that only this browser
                     has, and back to `/oauth/callback` with a code
    a key            a form of ours takes it
    kept             sealed, for that person and connection; a call that waits for it goes on

The link works once: the credential it brought in uses it up. The owner of the credential is in the
sealed link, and is compared with the session of the browser, before it leaves and when it is back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from gateway.calls.credentials import account_of
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import OAuth2Auth, people_sign_in
from gateway.console.pages import html
from gateway.errors import Fixable
from gateway.oauth.provider import NoSignIn
from gateway.oauth.sign_in_pages import SignInPages
from gateway.policy.access import looks_after, may_know
from gateway.sign_in.client import (
    AuthorizationServer,
    Secret,
    TokenRefused,
    authorize_address,
    exchange_code,
    is_answer_of,
    new_secret,
)
from gateway.sign_in.credentials import CONNECT_PATH, Account, PeopleCredentials, SignInLink, key_of
from gateway.sign_in.discovery import CALLBACK, CLIENT_DOCUMENT, Discovery, own_document
from gateway.store.cluster import first_use, is_ended
from gateway.store.credentials import forget_registration
from gateway.web.identity import ConsoleSession

log = structlog.get_logger("gateway.oauth")

CHANGED = "The connection has changed since: ask for another link."


@dataclass(frozen=True, slots=True)
class Guest:
    """A person who has opened their own link."""

    link: SignInLink
    session: ConsoleSession
    state: ConnectionState

    @property
    def account(self) -> Account:
        """The owner of this credential, and the connection it is for."""
        account = account_of(self.state, self.link.principal)
        if account.owner != self.link.owner:  # the connection's settings have changed
            raise HTTPException(409, CHANGED)
        return account


@dataclass(frozen=True, slots=True)
class Connect:
    """Takes what people prove themselves with to the APIs behind us."""

    pages: SignInPages
    people: PeopleCredentials
    snapshot: Callable[[], Snapshot]

    def routes(self) -> list[Route]:
        """The addresses that a browser opens, and the document about us that servers read."""
        self.pages.take_back = self.take_back
        endpoint = self.pages.page_endpoint
        return [
            Route(f"{CONNECT_PATH}{{link}}", endpoint(self._open), methods=["GET"]),
            Route(f"{CONNECT_PATH}{{link}}", endpoint(self._take_key), methods=["POST"]),
            Route(CLIENT_DOCUMENT, self._document, methods=["GET"]),
        ]

    async def _document(self, request: HttpRequest) -> Response:
        text = msgspec.json.encode(own_document(self.pages.at.url))
        return Response(text, media_type="application/json")

    async def _open(self, request: HttpRequest) -> Response:
        """Sends the person on to the provider, or asks for their key."""
        sealed = request.path_params["link"]
        link = await self._link(sealed)
        session = await self.pages.session(request)
        if session is None:
            return await self.pages.to_sign_in(f"{CONNECT_PATH}{sealed}")
        guest = self._guest(link, session)
        if not isinstance(guest.state.settings.auth, OAuth2Auth):
            return self._key_page(guest, sealed)
        server = await self._server(guest)
        state, verifier = new_secret(), new_secret()
        address = authorize_address(server, self._callback, state, verifier)
        values = {"link": sealed, "verifier": verifier, "place": _place(server, guest.account)}
        return self.pages.leave(address, "connect", state, **values)

    async def take_back(self, request: HttpRequest, values: dict[str, Any]) -> Response:
        """Takes the code that a person brought back from the provider, in the same browser."""
        link = await self._link(values["link"])
        guest, query = await self._returning_guest(request, link), request.query_params
        server, account = await self._server(guest), guest.account
        if _place(server, account) != values["place"]:
            raise HTTPException(409, CHANGED)
        if not is_answer_of(server, query.get("iss")):
            raise NoSignIn("The answer comes from another provider than the one that was asked.")
        if "code" not in query:
            raise NoSignIn(f"The provider said: {query.get('error', 'nothing')[:100]}.")
        await self._use_up(link)
        try:
            tokens, server = await exchange_code(
                self.pages.at.egress, server, query["code"], values["verifier"], self._callback
            )
        except TokenRefused as error:
            if error.code == "invalid_client":  # it forgot us: the next sign-in registers
                await forget_registration(self.pages.at.db, account.connection, server.issuer)
            raise NoSignIn(f"The provider did not take its own code ({error}).") from error
        if (await self._returning_guest(request, link)).account.binding != account.binding:
            raise HTTPException(409, CHANGED)
        organization = guest.session.principal.organization
        await self.people.save(account, Secret(tokens, server), organization)
        return self._done_page(guest)

    async def _take_key(self, request: HttpRequest) -> Response:
        """Takes a key that a person has typed in."""
        session, form = await self.pages.own_form(request)
        sealed = request.path_params["link"]
        link = await self._link(sealed)
        guest = self._guest(link, session)
        if form.get("binding") != guest.account.binding:
            raise HTTPException(409, CHANGED)
        try:
            secret = key_of(guest.state.settings.auth, form)
        except Fixable as error:
            return self._key_page(guest, sealed, error.message)
        await self._use_up(link)
        await self.people.save(guest.account, secret, session.principal.organization)
        return self._done_page(guest)

    async def _link(self, sealed: str) -> SignInLink:
        link = self.people.open_link(sealed)
        if link is None or await is_ended(self.pages.at.db, link.id):
            words = "This link is too old, or was used already. Call again to get another one."
            raise HTTPException(410, words)
        return link

    async def _use_up(self, link: SignInLink) -> None:
        if not await first_use(self.pages.at.db, link.id, link.expires):
            raise HTTPException(410, "This link was used already. Call again to get another one.")

    async def _returning_guest(self, request: HttpRequest, link: SignInLink) -> Guest:
        """The person whose link it is, back from the provider."""
        session = await self.pages.session(request)
        if session is None:
            raise NoSignIn("You are signed out here: open the link again.")
        return self._guest(link, session)

    def _guest(self, link: SignInLink, session: ConsoleSession) -> Guest:
        """The person whose link it is. Raises HTTPException for everybody else."""
        person, snapshot = session.principal, self.snapshot()
        state = snapshot.connections.get(link.connection)
        if person.name != link.principal:
            log.warning("link of somebody else opened", of=link.principal, by=person.name)
            raise HTTPException(
                403,
                "This link was made for somebody else, and signs nobody in."
                " If it is yours, sign out in the console and open it again as yourself.",
            )
        if state is None or not may_know(person, state) or not people_sign_in(state.settings.auth):
            raise HTTPException(404, "The connection is no longer there, or needs no sign-in.")
        if not link.owner and not looks_after(person, state):
            raise HTTPException(403, "Only an admin of the connection signs in for everybody.")
        return Guest(link, session, state)

    async def _server(self, guest: Guest) -> AuthorizationServer:
        state = guest.state
        azure = self.snapshot().settings.azure
        at = self.pages.at
        means = (at.db, at.seal, at.egress, lambda: at.settings().network.allow, at.url)
        target = (state.name, state.settings, state.build, azure)
        return await Discovery(*means).server_of(*target)

    @property
    def _callback(self) -> str:
        return f"{self.pages.at.url}{CALLBACK}"

    def _key_page(self, guest: Guest, sealed: str, problem: str = "") -> Response:
        auth = guest.state.settings.auth
        kinds = {"basic": ("username", "password"), "api-key": ("value",)}
        return html(
            "connect_key.html",
            422 if problem else 200,
            connection=guest.state.display_name,
            action=f"{CONNECT_PATH}{sealed}",
            csrf=guest.session.csrf,
            binding=guest.account.binding,
            me=guest.session.principal,
            fields=kinds.get(auth.type, ("token",)),
            problem=problem,
        )

    def _done_page(self, guest: Guest) -> Response:
        name, everybody = guest.state.display_name, not guest.link.owner
        return html("connected.html", connection=name, everybody=everybody)


def _place(server: AuthorizationServer, account: Account) -> list[str]:
    """The addresses and settings that must not change while a person is at the provider."""
    parts = [server.issuer, server.authorize_url, server.token_url, server.client_id]
    return [*parts, account.binding]
