"""The OpenID provider that knows the people: it tells us who a browser belongs to.

The gateway is an ordinary client there, registered once by an operator, so the provider needs no
dynamic registration. Discovery gives its endpoints; the code comes back to `/oauth/callback` and is
exchanged with PKCE; the ID token is verified against the provider's keys, with our client id as its
audience and the nonce that we sent. A claim that it lacks is read from userinfo.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jwt

from gateway.config.settings import OAuthSettings, is_safe_address
from gateway.errors import GatewayError, Unauthenticated
from gateway.limits import DISCOVERY_SECONDS, FETCH_SECONDS, MAX_BODY_BYTES
from gateway.model import Principal
from gateway.outbound.client import Answer, Egress, Request
from gateway.sign_in.client import (
    JSON,
    AuthorizationServer,
    authorize_address,
    code_form,
    json_object,
    token_request,
)
from gateway.web.identity import ALGORITHMS, SigningKeys, claimed_principal

ClaimValues = dict[str, Any]


class NoSignIn(Exception):
    """Signing in did not work, in words for the person who tried."""


class Provider:
    """One OpenID provider, as it is configured."""

    def __init__(
        self,
        settings: OAuthSettings,
        egress: Egress,
        callback: str,
        allow: Callable[[], Sequence[str]],
    ) -> None:
        self.settings = settings
        self._egress = egress
        self._callback = callback
        self._allow = allow
        self._document: Mapping[str, Any] = {}
        self._read_at = float("-inf")
        self._keys: SigningKeys | None = None

    async def address(self, state: str, nonce: str, verifier: str) -> str:
        """The address where a browser goes to sign in."""
        server = self._server(await self._discover())
        return f"{authorize_address(server, self._callback, state, verifier)}&nonce={nonce}"

    async def claims(self, code: str, iss: str | None, nonce: str, verifier: str) -> ClaimValues:
        """The claims of the person who came back with a code. Raises NoSignIn."""
        document = await self._discover()
        if iss is not None and iss != document["issuer"]:
            raise NoSignIn("The answer comes from another provider than the one that was asked.")
        tokens = await self._exchange(document, code, verifier)
        claims = await self._verify_token(tokens.get("id_token"), nonce)
        names = (self.settings.principal_claim, *self.settings.by_field.values())
        if any(name not in claims for name in names) and "userinfo_endpoint" in document:
            claims = {**await self._read_userinfo(document, tokens, claims), **claims}
        return claims

    async def _discover(self) -> Mapping[str, Any]:
        """The provider's own document, read again now and then; an old one is better than none."""
        if time.time() - self._read_at < DISCOVERY_SECONDS:
            return self._document
        issuer = (self.settings.issuer or "").rstrip("/")
        try:
            document = await self._get(f"{issuer}/.well-known/openid-configuration")
            if str(document.get("issuer", "")).rstrip("/") != issuer:
                raise NoSignIn("The provider's document names another issuer.")
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                self._check_address(str(document.get(name, "")))
        except NoSignIn:
            if not self._document:
                raise
            return self._document
        self._document, self._read_at = document, time.time()
        self._keys = SigningKeys(None, document["jwks_uri"], self._fetch_keys, time.time)
        return document

    def _server(self, document: Mapping[str, Any]) -> AuthorizationServer:
        """The provider, with our client id and secret there."""
        secret = self.settings.client_secret
        return AuthorizationServer(
            document["authorization_endpoint"],
            document["token_endpoint"],
            self.settings.client_id or "",
            secret.get_secret_value() if secret else "",
            self.settings.scopes,
        )

    async def _exchange(self, document: Mapping[str, Any], code: str, verifier: str) -> ClaimValues:
        server, form = self._server(document), code_form(code, verifier, self._callback)
        methods = document.get("token_endpoint_auth_methods_supported", ["client_secret_basic"])
        in_header = bool(server.client_secret) and "client_secret_basic" in methods
        return await self._ask(token_request(server, form, in_header=in_header))

    async def _verify_token(self, token: object, nonce: str) -> ClaimValues:
        settings, keys = self.settings, self._keys
        if not isinstance(token, str) or keys is None:
            raise NoSignIn("The provider gave no ID token.")
        try:
            raw = token.encode()
            claims: ClaimValues = jwt.decode(
                raw,
                await keys.key_of(raw),
                algorithms=ALGORITHMS,
                issuer=self._document["issuer"],
                audience=settings.client_id,
                leeway=60,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise NoSignIn("The provider's ID token could not be verified.") from error
        has_several = isinstance(claims["aud"], list) and len(claims["aud"]) > 1
        if claims.get("azp", settings.client_id if not has_several else None) != settings.client_id:
            raise NoSignIn("The provider's ID token is for another client.")
        if claims.get("nonce") != nonce:
            raise NoSignIn("The provider's ID token is not the answer to this sign-in.")
        return claims

    async def _read_userinfo(
        self, document: Mapping[str, Any], tokens: ClaimValues, claims: ClaimValues
    ) -> ClaimValues:
        login = ("Authorization", f"Bearer {tokens.get('access_token', '')}")
        userinfo = await self._get(str(document["userinfo_endpoint"]), login)
        if userinfo.get("sub") != claims["sub"]:
            raise NoSignIn("The provider told of another person than it signed in.")
        return userinfo

    async def _get(self, address: str, *headers: tuple[str, str]) -> ClaimValues:
        return await self._ask(Request("GET", address, (("Accept", JSON), *headers)))

    async def _ask(self, request: Request) -> ClaimValues:
        """A JSON object of the provider. Raises NoSignIn."""
        self._check_address(request.url)
        answer = await self._send(request)
        value = json_object(answer)
        if answer.status != 200 or not value:
            code = value.get("error")
            reason = f"{answer.status} {code}" if isinstance(code, str) else str(answer.status)
            raise NoSignIn(f"The provider answered {reason[:100]}.")
        return value

    async def _send(self, request: Request) -> Answer:
        seconds, most = FETCH_SECONDS, MAX_BODY_BYTES
        try:
            return await self._egress.send(request, deadline=seconds, max_bytes=most)
        except GatewayError as error:
            raise NoSignIn(f"The provider can't be reached: {error.message}") from error

    async def _fetch_keys(self, url: str) -> bytes:
        answer = await self._send(Request("GET", url))
        if answer.status != 200 or answer.truncated:
            raise NoSignIn("The provider's keys can't be read.")
        return answer.body

    def _check_address(self, address: str) -> None:
        if not is_safe_address(address, self._allow()):
            raise NoSignIn("An address of the provider is not https.")


def person_of(
    claims: Mapping[str, Any], settings: OAuthSettings, by_name: Mapping[str, Principal]
) -> Principal:
    """The person in the claims. Raises Unauthenticated where an email may not be theirs."""
    if settings.principal_claim == "email" and claims.get("email_verified") is False:
        raise Unauthenticated("the provider has not verified this email address")
    return claimed_principal(claims, settings, by_name)
