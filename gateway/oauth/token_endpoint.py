"""Answers what clients ask without a browser: tokens, registration, revocation.

Answers and errors are OAuth's own (RFC 6749, 7009, 7591), open to pages of every site, since each
request carries proof of its own.
"""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import jwt
import orjson
from mcp.shared.auth import JWT_BEARER_GRANT_TYPE
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from gateway.errors import GatewayError, Unauthenticated
from gateway.limits import CLIENT_DOCUMENT_BYTES, REGISTRATIONS_A_MINUTE
from gateway.model import Principal
from gateway.oauth.clients import Client
from gateway.oauth.documents import granted_scope
from gateway.oauth.grants import AuthorizationRequest, OAuthError
from gateway.oauth.parts import CORS, FrontDoorParts, Handler, claims_of, json_answer
from gateway.oauth.provider import person_of
from gateway.store.cluster import first_use
from gateway.web.guard import Form, read_body, read_form
from gateway.web.identity import ALGORITHMS, SigningKeys


class TokenEndpoint:
    """Answers clients."""

    def __init__(self, parts: FrontDoorParts) -> None:
        self._at = parts
        self._assertion_keys: tuple[object, SigningKeys] | None = None

    def routes(self) -> list[Route]:
        """The addresses that clients ask, and those that some clients guess."""
        handlers = {"/token": self._token, "/register": self._register, "/revoke": self._revoke}
        return [
            Route(f"{folder}{path}", self._json_endpoint(handler), methods=["POST", "OPTIONS"])
            for path, handler in handlers.items()
            for folder in ("/oauth", "")
        ]

    def _json_endpoint(self, answer: Handler) -> Handler:
        """The handler as an endpoint whose errors are JSON, too, open to every origin."""

        async def endpoint(request: HttpRequest) -> Response:
            if request.method == "OPTIONS":
                return Response(status_code=204, headers=CORS)
            try:
                self._at.require_open()
                response = await answer(request)
            except OAuthError as error:
                response = _error_response(error)
            except HTTPException as refusal:
                problem = OAuthError("invalid_request", refusal.detail, refusal.status_code)
                response = _error_response(problem)
            except GatewayError as error:
                problem = OAuthError("temporarily_unavailable", error.message, 503)
                response = _error_response(problem)
            response.headers.update({**CORS, "cache-control": "no-store", "pragma": "no-cache"})
            return response

        return endpoint

    # --- clients: tokens, registration, revocation ------------------------------------------------

    async def _token(self, request: HttpRequest) -> Response:
        form, basic = await _client_form(request)
        audiences = (self._at.url, f"{self._at.url}/oauth/token")
        client = await self._at.clients.authenticate(form, basic, audiences)
        kind = form.get("grant_type", "")
        resource = self._at.resource(form["resource"]) if form.get("resource") else None
        match kind:
            case "authorization_code":
                answer = await self._at.grants.exchange(
                    form.get("code", ""),
                    client.id,
                    form.get("redirect_uri", ""),
                    form.get("code_verifier", ""),
                    resource,
                )
            case "refresh_token":
                token = form.get("refresh_token", "")
                answer = await self._at.grants.refresh(token, client.id, resource)
            case "client_credentials":
                answer = await self._machine_token(client, form.get("scope"), resource)
            case _ if kind == JWT_BEARER_GRANT_TYPE and self._at.oauth.enterprise is not None:
                answer = await self._assertion_token(client, form, resource)
            case _:
                raise OAuthError("unsupported_grant_type", "that grant_type is not known here")
        return json_answer(answer)

    async def _machine_token(
        self, client: Client, scope: str | None, resource: str | None
    ) -> Mapping[str, Any]:
        """A token for a machine that is configured with the rights of a principal."""
        person = self._at.identity.principals.get(client.principal or "")
        if person is None or client.secret_sha256 is None:
            raise OAuthError("unauthorized_client", "the client may not act by itself")
        return await self._give_access_token(client, person, "token", scope, resource)

    async def _assertion_token(
        self, client: Client, form: Form, resource: str | None
    ) -> Mapping[str, Any]:
        """A token for a person whom the company's own provider vouches for (ID-JAG)."""
        oauth = self._at.oauth
        settings = oauth.enterprise
        assert settings is not None
        token = form.get("assertion", "").encode()
        try:
            if jwt.get_unverified_header(token).get("typ") != "oauth-id-jag+jwt":
                raise OAuthError("invalid_grant", "the assertion is no ID-JAG")
            claims = jwt.decode(
                token,
                await self._keys_for(settings.jwks_url).key_of(token),
                algorithms=ALGORITHMS,
                issuer=settings.issuer,
                audience=self._at.url,
                options={"require": ["exp", "iat", "iss", "aud", "sub", "jti", "client_id"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise OAuthError("invalid_grant", "the assertion could not be verified") from error
        if claims["client_id"] != client.id:
            raise OAuthError("invalid_grant", "the assertion was made for another client")
        if "resource" in claims:
            resource = self._at.resource(str(claims["resource"]))
        assertion_id = f"id-jag {claims['iss']} {claims['jti']}"
        if not await first_use(self._at.db, assertion_id[:500], float(claims["exp"])):
            raise OAuthError("invalid_grant", "the assertion was used before")
        try:
            rules = oauth.model_copy(update={"principal_claim": settings.principal_claim})
            person = person_of(claims, rules, self._at.identity.principals)
        except Unauthenticated as error:
            raise OAuthError("invalid_grant", str(error)) from error
        return await self._give_access_token(client, person, "oidc", claims.get("scope"), resource)

    async def _give_access_token(
        self, client: Client, person: Principal, by: str, scope: str | None, resource: str | None
    ) -> Mapping[str, Any]:
        """An access token without a refresh token: its client can ask for the next likewise."""
        scopes = " ".join(granted_scope(scope, admin=person.admin))
        address = resource or f"{self._at.url}/mcp"
        request = AuthorizationRequest(client.id, client.name, "", "", "", address, scopes)
        proof, code_id = self._at.identity.proof(person.name), secrets.token_hex(16)
        claims = claims_of(person, by, proof)
        return await self._at.grants.open(request, person.name, claims, code_id, renewable=False)

    def _keys_for(self, jwks_url: str) -> SigningKeys:
        if self._assertion_keys is None or self._assertion_keys[0] != jwks_url:
            keys = SigningKeys(None, jwks_url, self._at.identity.fetch, time.time)
            self._assertion_keys = jwks_url, keys
        return self._assertion_keys[1]

    async def _register(self, request: HttpRequest) -> Response:
        self._at.limit_rate(request, "register", REGISTRATIONS_A_MINUTE)
        body = await read_body(
            dict(request.scope["headers"]), request.receive, CLIENT_DOCUMENT_BYTES
        )
        try:
            value = orjson.loads(body)
        except ValueError:
            raise OAuthError("invalid_client_metadata", "the body is not JSON") from None
        return json_answer(await self._at.clients.register(value), 201)

    async def _revoke(self, request: HttpRequest) -> Response:
        form, basic = await _client_form(request)
        client = await self._at.clients.authenticate(form, basic, (self._at.url,))
        await self._at.grants.revoke_token(form.get("token", ""), client.id)
        return json_answer({})


async def _client_form(request: HttpRequest) -> tuple[Form, tuple[str, str] | None]:
    """The fields of a client's request, and what it says in an Authorization header."""
    form = await read_form(request, CLIENT_DOCUMENT_BYTES)
    scheme, _, value = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return form, None
    try:
        id, _, secret = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise OAuthError("invalid_client", "the Authorization header can't be read", 401) from None
    return form, (unquote(id), unquote(secret))


def _error_response(error: OAuthError) -> Response:
    body = {"error": error.code, "error_description": error.description}
    response = json_answer(body, error.status)
    if error.status == 401:
        response.headers["www-authenticate"] = 'Basic realm="gateway"'
    if error.status == 429:
        response.headers["retry-after"] = "60"
    return response
