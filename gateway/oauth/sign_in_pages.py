"""The pages of the front door: who a browser belongs to, and whether they allow its client.

    client sends the browser    GET /oauth/authorize   which client is it, where is its redirect
    person signs in             at the OpenID provider, or by a token in our own form
    person decides              once for each client, again when it describes itself anew
    browser goes back           with a code, or with an error, and `iss` (RFC 9207)

Nothing is kept between these steps but in sealed values that the browser carries, so any process
can go on with a sign-in that another began. A client or redirect that is not known is shown to the
person on a page of ours; any other mistake goes back to the client.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.calls.admission import Throttle
from gateway.console.pages import html
from gateway.errors import GatewayError, Unauthenticated
from gateway.limits import AUTHORIZATIONS_A_MINUTE, CLIENT_DOCUMENT_BYTES, SIGN_IN_SECONDS
from gateway.oauth.clients import Client
from gateway.oauth.documents import SCOPE_WORDS, granted_scope
from gateway.oauth.grants import AuthorizationRequest, OAuthError
from gateway.oauth.parts import FrontDoorParts, Handler, claims_of
from gateway.oauth.provider import NoSignIn, Provider, person_of
from gateway.sign_in.client import new_secret
from gateway.sign_in.credentials import CONNECT_PATH
from gateway.sign_in.discovery import CALLBACK
from gateway.store.oauth import Consent, get_consent, save_consent
from gateway.web.guard import PAGE_HEADERS, Form, check_origin, read_form
from gateway.web.identity import COOKIE, ConsoleSession, set_session_cookie

log = structlog.get_logger("gateway.oauth")

_CHALLENGE = 43  # characters of a SHA-256 in base64url

TakeBack = Callable[[HttpRequest, dict[str, Any]], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class AskedConsent:
    """An authorization request that may be granted, and the client that makes it."""

    client: Client
    request: AuthorizationRequest
    query: str


class SignInPages:
    """Serves the pages for people who come with a client."""

    def __init__(self, parts: FrontDoorParts) -> None:
        self.at = parts
        self.take_back: TakeBack | None = None  # for people back from an API's own provider
        self._provider: Provider | None = None
        self._throttle = Throttle()

    def routes(self) -> list[Route]:
        """The addresses that a browser opens, and one that some clients guess."""
        pages: dict[tuple[str, str], Handler] = {
            ("GET", "/oauth/authorize"): self._authorize,
            ("GET", "/authorize"): self._authorize,
            ("GET", CALLBACK): self._callback,
            ("GET", "/oauth/sign-in"): self._begin_sign_in,
            ("POST", "/oauth/sign-in"): self._sign_in_by_token,
            ("POST", "/oauth/consent"): self._consent,
            ("POST", "/oauth/sign-out"): self._sign_out,
        }
        return [
            Route(path, self.page_endpoint(handler), methods=[method])
            for (method, path), handler in pages.items()
        ]

    def page_endpoint(self, answer: Handler) -> Handler:
        """The handler as an endpoint whose errors are pages, too."""

        async def endpoint(request: HttpRequest) -> Response:
            try:
                response = await answer(request)
            except OAuthError as error:
                title = "That client can't be let in"
                response = _error_page(title, error.description, error.status)
            except NoSignIn as error:
                response = _error_page("Signing in did not work", str(error), 400)
            except HTTPException as refusal:
                response = _error_page("That did not work", refusal.detail, refusal.status_code)
            except GatewayError as error:
                response = _error_page("That did not work", error.sentence, 503)
            for name, value in PAGE_HEADERS.items():
                response.headers.setdefault(name, value)
            return response

        return endpoint

    # --- authorize --------------------------------------------------------------------------------

    async def _authorize(self, request: HttpRequest) -> Response:
        self.at.require_open()
        self.at.limit_rate(request, "authorize", AUTHORIZATIONS_A_MINUTE)
        query = request.scope["query_string"].decode("latin-1")
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=50)
        params = dict(pairs)
        client = await self.at.clients.find(params.get("client_id", ""))
        if client is None:
            words = "The client is not known here. Remove the gateway from it and add it again."
            raise OAuthError("invalid_client", words)
        uri = client.redirect(params.get("redirect_uri"))
        if uri is None:
            words = f"{client.name} asks to be answered at an address that is not its own."
            raise OAuthError("invalid_request", words)
        try:
            proposal = AskedConsent(client, self._read_request(client, uri, pairs, params), query)
        except OAuthError as error:
            return self._send_back(uri, params.get("state"), error)
        session = await self.session(request)
        if session is None:
            return await self.to_sign_in(f"/oauth/authorize?{query}")
        return await self._check_consent(proposal, session)

    def _read_request(
        self,
        client: Client,
        redirect: str,
        pairs: Sequence[tuple[str, str]],
        params: Mapping[str, str],
    ) -> AuthorizationRequest:
        """The request of the client, if it is a valid one. Raises OAuthError for the client."""
        if len(params) != len(pairs):
            raise OAuthError("invalid_request", "a parameter is given twice")
        if params.get("response_type") != "code":
            raise OAuthError("unsupported_response_type", "response_type must be code")
        challenge = params.get("code_challenge", "")
        if params.get("code_challenge_method") != "S256" or len(challenge) != _CHALLENGE:
            raise OAuthError("invalid_request", "PKCE with S256 is required")
        return AuthorizationRequest(
            client.id,
            client.name,
            redirect,
            params.get("state", ""),
            challenge,
            self.at.resource(params.get("resource")),
            params.get("scope", ""),
        )

    async def _check_consent(self, proposal: AskedConsent, session: ConsoleSession) -> Response:
        """A code where the person has allowed this client before; else the question."""
        person, request = session.principal, proposal.request
        scope = granted_scope(request.scope, admin=person.admin)
        consent = await get_consent(self.at.db, person.name, proposal.client.id)
        if (
            consent is not None
            and consent.digest == _consent_digest(proposal.client.digest, session)
            and set(scope) <= set(consent.scope.split())
        ):
            return self._send_code(request, " ".join(scope), session)
        return self._consent_page(proposal, session, scope)

    def _consent_page(
        self, proposal: AskedConsent, session: ConsoleSession, scope: Sequence[str]
    ) -> Response:
        client, request = proposal.client, proposal.request
        sealed = self._seal_values(
            "consent",
            request=asdict(request),
            digest=client.digest,
            session=session.id,
            again=proposal.query,
        )
        target = urlsplit(request.redirect_uri)
        host = target.netloc if target.scheme in ("https", "http") else ""
        response = html(
            "consent.html",
            client=client,
            me=session.principal,
            csrf=session.csrf,
            request=sealed,
            redirect=request.redirect_uri,
            redirect_host=host,
            redirect_scheme=target.scheme,
            resource=request.resource,
            scopes=[(name, SCOPE_WORDS[name]) for name in scope],
        )
        # The form's answer is a redirect to the client, which browsers hold against `form-action`.
        origin = f"{target.scheme}://{host}" if host else f"{target.scheme}:"
        policy = PAGE_HEADERS["content-security-policy"]
        own_policy = policy.replace("form-action 'self'", f"form-action 'self' {origin}")
        response.headers["content-security-policy"] = own_policy
        return response

    async def _consent(self, request: HttpRequest) -> Response:
        """Takes a person's decision."""
        self.at.require_open()
        session, form = await self.own_form(request)
        values = self._open_values("consent", form.get("request", ""))
        if values is None or values["session"] != session.id:
            raise HTTPException(400, "This page is too old: go back to the client and try again.")
        authorization = AuthorizationRequest(**values["request"])
        if form.get("decision") != "allow":
            denied = OAuthError("access_denied", "the person did not allow it")
            return self._send_back(authorization.redirect_uri, authorization.state, denied)
        offered = granted_scope(authorization.scope, admin=session.principal.admin)
        # A scope includes those before it: who holds one back gives none of those after it.
        scope = " ".join(takewhile(lambda each: each == "tools:read" or form.get(each), offered))
        name, digest = session.principal.name, _consent_digest(values["digest"], session)
        consent = Consent(name, authorization.client_id, digest, scope, time.time())
        await save_consent(self.at.db, consent)
        client = authorization.client_name
        log.info("client allowed", principal=name, client=client, resource=authorization.resource)
        return self._send_code(authorization, scope, session)

    def _send_code(
        self, authorization: AuthorizationRequest, scope: str, session: ConsoleSession
    ) -> Response:
        person = session.principal
        request = AuthorizationRequest(**{**asdict(authorization), "scope": scope})
        claims = claims_of(person, session.by, session.proof)
        code = self.at.grants.code(request, person.name, claims)
        return self._send_back(authorization.redirect_uri, authorization.state, code)

    def _send_back(self, redirect: str, state: str | None, outcome: str | OAuthError) -> Response:
        """Sends the browser back to its client, with a code or with an error."""
        if isinstance(outcome, OAuthError):
            answer = {"error": outcome.code, "error_description": outcome.description}
        else:
            answer = {"code": outcome}
        answer |= {"state": state} if state else {}
        answer["iss"] = self.at.url
        address = f"{redirect}{'&' if '?' in redirect else '?'}{urlencode(answer)}"
        return Response(status_code=302, headers={"location": address})

    # --- signing in -------------------------------------------------------------------------------

    async def session(self, request: HttpRequest) -> ConsoleSession | None:
        """The session of the browser; None: nobody has signed in there."""
        try:
            return await self.at.sessions.current(request.cookies.get(COOKIE))
        except Unauthenticated:
            return None

    async def own_form(self, request: HttpRequest) -> tuple[ConsoleSession, Form]:
        """A form of a page that we showed in this session. Raises HTTPException for any other."""
        check_origin(request)
        form = await read_form(request, CLIENT_DOCUMENT_BYTES)
        session = await self.session(request)  # after the body, which a client can send slowly
        if session is None or not session.owns(form.get("csrf", "")):
            words = "This form is not from a page of your session: go back and load it again."
            raise HTTPException(403, words)
        return session, form

    async def to_sign_in(self, onward: str) -> Response:
        """Has the person at a browser sign in, and come back to an address of ours."""
        auth = self.at.identity.auth
        if auth.mode == "none":  # every caller is the same person
            cookie = self.at.sessions.open_for(self.at.identity.local)
            return self._end_sign_in(cookie, onward)
        if auth.mode != "oauth" or self.at.oauth.sign_in == "token":
            return self._token_page(onward)
        state, nonce, verifier = (new_secret() for _ in range(3))
        address = await self._provider_now().address(state, nonce, verifier)
        return self.leave(address, "sign-in", state, nonce=nonce, verifier=verifier, onward=onward)

    def leave(self, address: str, kind: str, state: str, **values: Any) -> Response:
        """Sends the browser to a provider, with a cookie of the values for when it is back."""
        sealed = self._seal_values(kind, state=state, **values)
        if len(sealed) > 3800:  # a browser keeps no larger cookie
            raise OAuthError("invalid_request", "The client's request is too long.")
        response = RedirectResponse(address, 302)
        response.set_cookie(
            _cookie_of(state),
            sealed,
            max_age=int(SIGN_IN_SECONDS),
            path="/oauth",
            secure=self.at.url.startswith("https://"),
            httponly=True,
            samesite="lax",
        )
        return response

    async def _begin_sign_in(self, request: HttpRequest) -> Response:
        """Signs a person in to the console."""
        return await self.to_sign_in("/console")

    def _provider_now(self) -> Provider:
        """The provider as it is configured now."""
        oauth = self.at.oauth
        if self._provider is None or self._provider.settings != oauth:
            callback = f"{self.at.url}{CALLBACK}"
            self._provider = Provider(oauth, self.at.egress, callback, self._allowed_addresses)
        return self._provider

    def _allowed_addresses(self) -> Sequence[str]:
        return self.at.settings().network.allow

    async def _callback(self, request: HttpRequest) -> Response:
        """Takes back a person from the provider, in the browser that went there."""
        query = request.query_params
        state = query.get("state", "")
        cookie = request.cookies.get(_cookie_of(state), "")
        connecting = self._open_values("connect", cookie)
        if connecting is not None and connecting["state"] == state and self.take_back is not None:
            response = await self.take_back(request, connecting)
            response.delete_cookie(_cookie_of(state), "/oauth")
            return response
        values = self._open_values("sign-in", cookie)
        if values is None or values["state"] != state:
            words = "It was begun in another browser, or too long ago: start again from the client."
            raise NoSignIn(words)
        if "code" not in query:
            raise NoSignIn(f"The provider said: {query.get('error', 'nothing')[:100]}.")
        nonce, verifier = values["nonce"], values["verifier"]
        claims = await self._provider_now().claims(query["code"], query.get("iss"), nonce, verifier)
        oauth = self.at.oauth
        try:
            person = person_of(claims, oauth, self.at.identity.principals)
        except Unauthenticated as error:
            raise NoSignIn(f"You are not let in: {error}.") from error
        log.info("signed in", principal=person.name)
        return self._end_sign_in(self.at.sessions.open_for(person), values["onward"], state)

    async def _sign_in_by_token(self, request: HttpRequest) -> Response:
        check_origin(request)
        form = await read_form(request, CLIENT_DOCUMENT_BYTES)
        onward = form.get("onward", "")
        if not onward.startswith(("/oauth/authorize?", CONNECT_PATH)):
            onward = "/console"
        address = request.client.host if request.client else ""
        if self._throttle.failure_wait(address) > 0:
            return self._token_page(onward, "Too many attempts. Try again in a minute.", 429)
        try:
            cookie = await self.at.sessions.open_by_token(form.get("token", ""))
        except Unauthenticated:
            self._throttle.count_failure(address)
            return self._token_page(onward, "That token is not known here.", 401)
        return self._end_sign_in(cookie, onward)

    def _token_page(self, onward: str, problem: str = "", status: int = 200) -> Response:
        for_client = onward.startswith("/oauth/authorize?")
        template = "oauth_sign_in.html"
        return html(template, status, onward=onward, problem=problem, for_client=for_client)

    def _end_sign_in(self, cookie: str, onward: str, state: str = "") -> Response:
        response = RedirectResponse(onward, 303)
        set_session_cookie(response, cookie, self.at.url)
        if state:
            response.delete_cookie(_cookie_of(state), "/oauth")
        return response

    async def _sign_out(self, request: HttpRequest) -> Response:
        """Signs a person out, so that another one can sign in to answer the same client."""
        session, form = await self.own_form(request)
        await self.at.sessions.end(session)
        values = self._open_values("consent", form.get("request", ""))
        onward = f"/oauth/authorize?{values['again']}" if values else "/console"
        response = RedirectResponse(onward, 303)
        response.delete_cookie(COOKIE, "/")
        return response

    # --- sealed values ----------------------------------------------------------------------------

    def _seal_values(self, kind: str, **values: Any) -> str:
        return self.at.seal.seal_values(kind, time.time() + SIGN_IN_SECONDS, values)

    def _open_values(self, kind: str, text: str) -> dict[str, Any] | None:
        expires, values = self.at.seal.open_values(kind, text) or (0.0, None)
        return values if expires > time.time() else None


def _consent_digest(digest: str, session: ConsoleSession) -> str:
    """The digest a consent holds for: this client as it is, and the proof of this session."""
    return hashlib.sha256(f"{digest} {session.proof}".encode()).hexdigest()


def _cookie_of(state: str) -> str:
    """The cookie of one sign-in: a browser may have several under way."""
    return f"gateway_sign_in_{''.join(c for c in state[:16] if c.isalnum())}"


def _error_page(title: str, words: str, status: int) -> Response:
    return html("oauth_failed.html", status, title=title, words=words)
