"""What proves to an API who is calling: worked out per connection, and sent to its own host only.

Bearer, basic and API keys are there at once. OAuth 2 client credentials and the Nango vault have to
be asked: one request however many calls wait for it, kept until shortly before the token expires,
and forgotten when an API rejects it. The token request goes to the token URL and nowhere else.

`Prepared` is what every call of a connection needs and none should work out again: headers,
injected values, how it proves itself, how often it may be called, the paths that are forbidden,
and which texts are secret.
"""

from __future__ import annotations

import asyncio
import base64
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import jwt
import msgspec
import orjson

from gateway.calls.redact import Redactor, redactor_of
from gateway.calls.request import with_headers
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import (
    ApiKeyAuth,
    ArmConnection,
    Auth,
    BasicAuth,
    BearerAuth,
    Connection,
    NangoAuth,
    NoAuth,
    OAuth2Auth,
    secrets_in,
    secrets_of,
)
from gateway.config.settings import Azure
from gateway.errors import GatewayError, Refused, UpstreamFailed
from gateway.limits import AZURE_SECONDS, LARGE_BYTES, TOKEN_LIFE_SECONDS, TOKEN_SECONDS
from gateway.model import DEFAULT_KEY_HEADER, Build, RateLimit, TlsFiles
from gateway.outbound.client import Answer, Egress, Pairs, Request, locate

JSON = "application/json"
Exchange = Callable[[Request], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Grant:
    """What to add to a request, and what must never be shown afterwards."""

    headers: Pairs = ()
    query: Pairs = ()
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Proof:
    """How a connection proves itself: its settings, and what its definition says of them."""

    owner: str  # of its tokens: the connection, or a name that several share
    settings: Auth
    scheme: str = "Bearer"  # the word before a token
    ready: Grant | None = field(default=None, repr=False)  # None: it has to be asked for


_NO_BUILD = Build("", "", "")


def proof_of(owner: str, settings: Auth, build: Build | None = None) -> Proof:
    """How a connection proves itself; what it leaves open, its definition says."""
    build = build or _NO_BUILD
    scheme = build.auth_scheme or "Bearer"
    match settings:
        case NoAuth():
            ready = Grant()
        case BearerAuth():
            ready = _token_grant(scheme, settings.token.get_secret_value())
        case BasicAuth():
            ready = _basic_grant(settings.username, settings.password.get_secret_value())
        case ApiKeyAuth():
            ready = _key_grant(settings, build)
        case _:
            return Proof(owner, settings, scheme)
    return Proof(owner, settings, scheme, ready)


def _token_grant(scheme: str, token: str) -> Grant:
    return Grant((("Authorization", f"{scheme} {token}".strip()),), secrets=(token,))


def _basic_grant(username: str, password: str) -> Grant:
    pair = f"{username}:{password}"
    text = "Basic " + base64.b64encode(pair.encode()).decode()
    return Grant((("Authorization", text),), secrets=(pair, password))


def _key_grant(settings: ApiKeyAuth, build: Build) -> Grant:
    value = settings.value.get_secret_value()
    pairs = ((settings.name or build.auth_name or DEFAULT_KEY_HEADER, value),)
    in_query = (settings.place or build.auth_in) == "query"
    return Grant(() if in_query else pairs, pairs if in_query else (), secrets=(value,))


def with_grant(request: Request, grant: Grant, base_url: str) -> Request:
    """The request with its credentials, if it goes to the connection's own host."""
    if (
        not _below(request.url, base_url)
        and locate(request.url).origin() != locate(base_url).origin()
    ):
        raise Refused("access_denied", "Credentials are only sent to the connection's own host.")
    if grant.query:
        request = msgspec.structs.replace(request, url=_with_query(request.url, grant))
    return with_headers(request, grant.headers)


def _below(url: str, base_url: str) -> bool:
    """Whether the URL is the base and a path or query after it, so surely on the same host."""
    return url.startswith(base_url) and url[len(base_url) : len(base_url) + 1] in ("/", "?")


def _with_query(url: str, grant: Grant) -> str:
    """The URL with the granted parameters, in place of any that a caller gave by that name."""
    path, _, query = url.partition("?")
    names = {name for name, _ in grant.query}
    kept = [
        text
        for text in query.split("&")
        if text and not names.intersection(name for name, _ in parse_qsl(text, True))
    ]
    return f"{path}?{'&'.join([*kept, urlencode(grant.query, quote_via=quote, safe='')])}"


class Credentials:
    """The grants of all connections, with the tokens that are held for them."""

    def __init__(self, egress: Egress, *, clock: Callable[[], float] = time.time) -> None:
        self._egress = egress
        self._clock = clock
        self._held: dict[str, _HeldToken] = {}
        self._asking: dict[Proof, asyncio.Task[_HeldToken]] = {}

    async def send(
        self, auth: Proof, request: Request, base_url: str, exchange: Exchange
    ) -> tuple[Answer, Grant]:
        """Sends with credentials; once more with fresh ones if the API rejects an expired token."""
        grant = await self.grant(auth)
        answer = await exchange(with_grant(request, grant, base_url))
        if answer.status == 401 and auth.ready is None:
            self.reject(auth, grant)
            refused, grant = grant, await self.grant(auth)
            answer = await exchange(with_grant(request, grant, base_url))
            # The token that was refused is a secret still: the answer may quote it.
            grant = replace(grant, secrets=(*grant.secrets, *refused.secrets))
        return answer, grant

    async def upstream_headers(self, name: str, settings: Connection, refused: bool) -> Pairs:
        """What proves us to an MCP server; a fresh token where it refused the last one."""
        auth = proof_of(name, settings.auth)
        grant = await self.grant(auth)
        if refused:
            self.reject(auth, grant)
            grant = await self.grant(auth)
        return grant.headers

    async def grant(self, auth: Proof) -> Grant:
        """What a call adds to its request."""
        if auth.ready is not None:
            return auth.ready
        held = self._held.get(auth.owner)
        if held is not None and held.auth == auth and self._clock() < held.renew_at:
            return held.grant
        task = self._asking.get(auth)
        if task is None:
            task = self._asking[auth] = asyncio.create_task(self._renew(auth, held))
            task.add_done_callback(partial(self._note_end, auth))
        return (await asyncio.shield(task)).grant

    def reject(self, auth: Proof, grant: Grant) -> None:
        """Forget a grant that an API did not accept, unless another has replaced it already."""
        held = self._held.get(auth.owner)
        if held and held.grant == grant:
            self._held[auth.owner] = replace(held, renew_at=0.0, expires_at=0.0)

    async def close(self) -> None:
        """End every request for a token."""
        tasks = [*self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _renew(self, auth: Proof, held: _HeldToken | None) -> _HeldToken:
        rejected = held is not None and held.expires_at == 0.0
        try:
            found = await self._fetch(auth, rejected)
        except GatewayError:
            now = self._clock()
            if held is None or held.auth != auth or now >= held.expires_at:
                raise
            found = replace(held, renew_at=now + TOKEN_SECONDS)  # the old one still works
        self._held[auth.owner] = found
        return found

    def _note_end(self, auth: Proof, task: asyncio.Task[_HeldToken]) -> None:
        del self._asking[auth]
        if not task.cancelled():
            task.exception()  # its callers have it, unless all of them have gone

    async def _fetch(self, auth: Proof, rejected: bool) -> _HeldToken:
        asked_at, settings = self._clock(), auth.settings
        if isinstance(settings, OAuth2Auth):
            token, life = await _client_credentials(self._egress, settings)
            grant = _token_grant(auth.scheme, token)
        else:
            assert isinstance(settings, NangoAuth)
            held = await _read_nango(self._egress, settings, rejected)
            grant = _nango_grant(auth.scheme, held)
            life = _seconds_until(held.get("expires_at"), asked_at)
        life = max(life, 1.0)
        return _HeldToken(auth, grant, asked_at + 0.8 * life, asked_at + life)


@dataclass(frozen=True, slots=True)
class _HeldToken:
    auth: Proof
    grant: Grant
    renew_at: float
    expires_at: float  # 0.0: the API did not accept it


# --- OAuth 2 client credentials -------------------------------------------------------------------


async def _client_credentials(egress: Egress, auth: OAuth2Auth) -> tuple[str, float]:
    """A token and its life. Servers want the client's secret in the form, or else as basic auth."""
    form = [("grant_type", "client_credentials")]
    if auth.scopes:
        form.append(("scope", " ".join(auth.scopes)))
    secret = auth.client_secret.get_secret_value()
    client = [("client_id", auth.client_id), ("client_secret", secret)]
    answer = await _post(egress, auth.token_url, form + client)
    if answer.status == 401 or (answer.status == 400 and b"invalid_client" in answer.body):
        basic = _basic_grant(quote(auth.client_id, ""), quote(secret, ""))
        answer = await _post(egress, auth.token_url, form, basic.headers)
    value = _object(answer, "The token endpoint", "client_id, client_secret and token_url")
    token = value.get("access_token")
    if not isinstance(token, str) or not token:
        raise UpstreamFailed("upstream_error", "The token endpoint answered without a token.")
    return token, _seconds(value.get("expires_in"))


async def _post(
    egress: Egress, url: str, form: list[tuple[str, str]], headers: Pairs = ()
) -> Answer:
    fixed = (("Accept", JSON), ("Content-Type", "application/x-www-form-urlencoded"))
    request = Request("POST", url, fixed + headers, urlencode(form).encode())
    return await egress.send(request, deadline=TOKEN_SECONDS, max_bytes=LARGE_BYTES)


def _seconds(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return TOKEN_LIFE_SECONDS
    return seconds if math.isfinite(seconds) else TOKEN_LIFE_SECONDS


# --- Nango ----------------------------------------------------------------------------------------


async def _read_nango(egress: Egress, auth: NangoAuth, fresh: bool) -> dict[str, Any]:
    """The credentials that the vault holds; `fresh` makes it renew them first."""
    query = {"provider_config_key": auth.provider_config_key}
    if fresh:
        query["force_refresh"] = "true"
    url = f"{auth.url.rstrip('/')}/connection/{quote(auth.connection_id, '')}?{urlencode(query)}"
    key = auth.secret_key.get_secret_value()
    request = Request("GET", url, (("Accept", JSON), ("Authorization", f"Bearer {key}")))
    answer = await egress.send(request, deadline=TOKEN_SECONDS, max_bytes=LARGE_BYTES)
    value = _object(answer, "Nango", "secret_key, connection_id and provider_config_key")
    credentials = value.get("credentials")
    if not isinstance(credentials, dict):
        raise UpstreamFailed("upstream_error", "Nango answered without credentials.")
    return credentials


_NANGO_TOKENS = ("access_token", "token", "apiKey", "api_key", "jwt_token", "oauth_token")


def _nango_grant(scheme: str, credentials: dict[str, Any]) -> Grant:
    if isinstance(credentials.get("username"), str) and "access_token" not in credentials:
        return _basic_grant(credentials["username"], str(credentials.get("password") or ""))
    token = next((t for n in _NANGO_TOKENS if (t := credentials.get(n)) and isinstance(t, str)), "")
    if not token:
        raise UpstreamFailed(
            "upstream_error", "Nango holds credentials of a kind that can't be sent as a token."
        )
    return _token_grant(scheme, token)


def _seconds_until(value: Any, now: float) -> float:
    """Seconds until a time that is written as in ISO 8601."""
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return TOKEN_LIFE_SECONDS
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now


def _object(answer: Answer, who: str, what: str) -> dict[str, Any]:
    """The JSON object of an answer, or the reason why there is none. Nothing of it is quoted."""
    if answer.status in (400, 401, 403, 404):
        raise Refused(
            "not_connected",
            f"{who} refused to give a token ({answer.status}).",
            f"An operator must check {what}.",
        )
    try:
        value = orjson.loads(answer.body) if answer.status < 300 else None
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise UpstreamFailed(
            "upstream_error",
            f"{who} gave no token ({answer.status}).",
            "Try again later.",
            status=answer.status,
        )
    return value


# Names no connection can have: Azure's tokens are one for all connections behind it.
AZURE = "[azure]"
AZURE_RUNTIME = "[azure runtime]"
# Azure's connectors don't take a token that was made for managing Azure, nor should they see one.
RUNTIME_SCOPE = "https://apihub.azure.com/.default"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A connection, ready for calls."""

    name: str
    settings: Connection
    auth: Proof
    envelope: str | None  # Azure's resource that makes the call for us
    headers: Pairs
    tls: TlsFiles
    inject: Mapping[str, Any]
    blocklist: tuple[str, ...]
    rate_limit: RateLimit | None
    secrets: frozenset[str]
    redactor: Redactor


class PreparedConnections:
    """One `Prepared` a connection, made again when its settings or its build change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[ConnectionState, Azure | None, Prepared]] = {}

    def of(self, snapshot: Snapshot, name: str) -> Prepared:
        """The connection of this snapshot, ready for calls."""
        state, azure = snapshot.connections[name], snapshot.settings.azure
        known = self._known.get(name)
        if known is not None and known[0] is state and known[1] is azure:
            return known[2]
        prepared = prepare(state, azure)
        self._known[name] = (state, azure, prepared)
        for gone in self._known.keys() - snapshot.connections.keys():
            del self._known[gone]
        return prepared


def prepare(state: ConnectionState, azure: Azure | None = None) -> Prepared:
    """What calls of this connection need."""
    settings, build, auth = state.settings, state.build or _NO_BUILD, _proof(state, azure)
    limit = settings.rate_limit
    secrets = frozenset(secrets_of(settings) | secrets_in(auth.settings))
    return Prepared(
        state.name,
        settings,
        auth,
        build.envelope,
        tuple(settings.headers.items()),
        settings.tls,
        settings.inject,
        (*settings.blocklist, *build.blocklist),
        RateLimit(limit.requests, limit.window_seconds) if limit else build.rate_limit,
        secrets,
        redactor_of(secrets),
    )


def _proof(state: ConnectionState, azure: Azure | None) -> Proof:
    """How calls prove themselves, and under which name tokens for that are kept."""
    settings, build = state.settings, state.build
    if not isinstance(settings, ArmConnection) or azure is None or settings.auth.type != "none":
        return proof_of(state.name, settings.auth, build)
    if build is None or build.envelope is not None:
        return proof_of(AZURE, azure.auth, build)
    auth = azure.auth
    if isinstance(auth, OAuth2Auth):
        auth = auth.model_copy(update={"scopes": (RUNTIME_SCOPE,)})
    return proof_of(AZURE_RUNTIME, auth, build)


def prove(
    credentials: Credentials, name: str, settings: Connection, build: Build | None
) -> tuple[object, Callable[[Request, Exchange], Awaitable[Answer]]]:
    """What a connection proves itself with, and the way to send a request of its own with that.

    A token that the host no longer accepts is replaced once. The request's own host is the only
    one that sees any of it.
    """
    auth, headers = proof_of(name, settings.auth, build), tuple(settings.headers.items())

    async def send(request: Request, exchange: Exchange) -> Answer:
        request = with_headers(request, headers)
        return (await credentials.send(auth, request, request.url, exchange))[0]

    return (auth, headers), send


def redactor_with(prepared: Prepared, grant: Grant) -> Redactor:
    """What clears an answer of the connection's secrets and of the token it was asked with."""
    if prepared.auth.ready is not None:
        return prepared.redactor
    return redactor_of(prepared.secrets.union(grant.secrets))


# --- Azure ----------------------------------------------------------------------------------------


async def ask_azure(
    egress: Egress, credentials: Credentials, azure: Azure, request: Request, max_bytes: int
) -> Answer:
    """What Azure answers; a token it no longer accepts is replaced once."""

    send = partial(egress.send, deadline=AZURE_SECONDS, max_bytes=max_bytes)
    auth = proof_of(AZURE, azure.auth)
    return (await credentials.send(auth, request, azure.endpoint, send))[0]


async def azure_identity(credentials: Credentials, azure: Azure) -> dict[str, str]:
    """Who we are to Azure, read off our own token; nothing where it does not say.

    It is not checked: Azure checks what it is told.
    """
    grant = await credentials.grant(proof_of(AZURE, azure.auth))
    try:
        claims = jwt.decode(grant.secrets[0], options={"verify_signature": False})
    except (IndexError, jwt.InvalidTokenError):
        return {}
    found = {"objectId": claims.get("oid"), "tenantId": claims.get("tid")}
    return {name: value for name, value in found.items() if isinstance(value, str)}
