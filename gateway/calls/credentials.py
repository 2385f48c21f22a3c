"""The credentials that calls carry to an API: made per connection, sent to its own host only.

Bearer, basic and API keys are there at once. OAuth 2 client credentials, a token for the caller's
own (RFC 8693) and the Nango vault have to be asked: one request however many calls wait for it,
kept until shortly before the token expires, and forgotten when an API rejects it. The token request
goes to the token URL and nowhere else. What people have given by signing in, or as keys of their
own, is kept and renewed in `sign_in`; a person who has not signed in is told where.

`PreparedConnection` is what every call of a connection needs and no call should work out again:
headers, injected values, how it proves itself, how often it may be called, the paths that are
forbidden, and which texts are secret.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from cachetools import LRUCache

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
    is_per_user,
    is_personal,
    people_sign_in,
    secrets_in,
    secrets_of,
)
from gateway.config.settings import Azure
from gateway.errors import GatewayError, Refused, UpstreamFailed
from gateway.limits import MAX_REMEMBERED, TOKEN_SECONDS
from gateway.model import DEFAULT_KEY_HEADER, Build, Principal, RateLimit, digest
from gateway.outbound.client import Answer, Egress, Pairs, Request, locate
from gateway.sign_in import credentials as sign_in
from gateway.sign_in.client import Secret, ask_token, basic_header, read_nango
from gateway.upstream.session import end_tasks

Headers = Sequence[tuple[str, str]]
SendRequest = Callable[[Request], Awaitable[Answer]]
NOBODY = Principal("")  # for the gateway's own requests


@dataclass(frozen=True, slots=True)
class RequestCredentials:
    """The credentials to add to a request, and the secrets never to be shown afterwards."""

    headers: Pairs = ()
    query: Pairs = ()
    secrets: tuple[str, ...] = field(default=(), repr=False)
    version: int = 0  # of a person's credential


@dataclass(frozen=True, slots=True)
class Proof:
    """The kind of proof that a connection's settings and definition ask for."""

    owner: str  # of its tokens: the connection, or a name that connections share
    settings: Auth
    scheme: str = "Bearer"  # the word before a token
    ready: RequestCredentials | None = field(default=None, repr=False)  # None: it must be asked for
    key: tuple[str, str] = ("", "")  # the parameter of an API key, and its place
    home: str = ""  # the server that calls go to, as the definition says
    by_people: bool = False  # calls go out with people's own credentials
    binding: str = ""  # what these credentials are good for
    subject: str = field(default="", repr=False)  # the caller's own token, to be exchanged

    def account(self, principal: str) -> sign_in.Account:
        """The account whose credentials a call of this principal goes out with."""
        owner = principal if is_per_user(self.settings) else ""
        return sign_in.Account(owner, self.owner, self.settings, self.binding)


_NO_BUILD = Build("", "", "")


def proof_of(
    owner: str, settings: Auth, build: Build | None = None, connection: Connection | None = None
) -> Proof:
    """The proof of a connection; its definition fills in what its settings leave open."""
    build = build or _NO_BUILD
    scheme, key = build.auth_scheme or "Bearer", ("", "")
    if isinstance(settings, ApiKeyAuth):
        place = settings.place or build.auth_in or "header"
        key = settings.name or build.auth_name or DEFAULT_KEY_HEADER, place
    home, binding, by_people = "", "", people_sign_in(settings)
    if by_people:
        home = _home(build, connection)
        ends = [connection.address, home, connection.organization] if connection else ["", home]
        binding = sign_in.binding_of(settings, " ".join(each for each in ends if each is not None))
    proof = Proof(owner, settings, scheme, None, key, home, by_people, binding)
    match settings:
        case NoAuth():
            ready = RequestCredentials()
        case BearerAuth(token=token) if token is not None:
            ready = _token_credentials(scheme, token.get_secret_value())
        case BasicAuth(username=username) if username is not None:
            ready = _basic_credentials(username, settings.password.get_secret_value())
        case ApiKeyAuth(value=value) if value is not None:
            ready = _key_credentials(key, value.get_secret_value())
        case _:
            return proof
    return replace(proof, ready=ready)


def _home(build: Build, connection: Connection | None) -> str:
    """The one server that people's credentials are sent to; "": the definition names none.

    Before the definition is read, the server is taken to be where the definition lies.
    """
    expected: str = getattr(connection, "base_url", "") or getattr(connection, "spec", "")
    url = next((tool.http.base_url for tool in build.tools if tool.http), expected)
    return str(locate(url).origin()) if url.startswith(("http://", "https://")) else ""


def _token_credentials(scheme: str, token: str) -> RequestCredentials:
    return RequestCredentials((("Authorization", f"{scheme} {token}".strip()),), secrets=(token,))


def _basic_credentials(username: str, password: str) -> RequestCredentials:
    pair = f"{username}:{password}"
    return RequestCredentials((basic_header(username, password),), secrets=(pair, password))


def _key_credentials(key: tuple[str, str], value: str) -> RequestCredentials:
    pairs, in_query = ((key[0], value),), key[1] == "query"
    if key[1] == "cookie":
        pairs = (("Cookie", f"{key[0]}={value}"),)
    return RequestCredentials(() if in_query else pairs, pairs if in_query else (), (value,))


def _person_credentials(auth: Proof, credential: sign_in.OpenCredential) -> RequestCredentials:
    """A person's credential, as a request carries it."""
    secret = credential.secret
    if isinstance(auth.settings, ApiKeyAuth):
        return replace(_key_credentials(auth.key, secret.value), version=credential.version)
    return replace(_secret_credentials(auth.scheme, secret), version=credential.version)


def _secret_credentials(scheme: str, secret: Secret) -> RequestCredentials:
    if secret.username:
        return _basic_credentials(secret.username, secret.password)
    return _token_credentials(scheme, secret.tokens.access_token if secret.tokens else secret.token)


def with_credentials(request: Request, credentials: RequestCredentials, base_url: str) -> Request:
    """The request with its credentials, if it goes to the connection's own host."""
    if (
        not _is_below(request.url, base_url)
        and locate(request.url).origin() != locate(base_url).origin()
    ):
        raise Refused("access_denied", "Credentials are only sent to the connection's own host.")
    if credentials.query:
        request = msgspec.structs.replace(request, url=_with_query(request.url, credentials.query))
    return with_headers(request, credentials.headers)


def _is_below(url: str, base_url: str) -> bool:
    """Whether the URL is the base and a path or query after it, so surely on the same host."""
    return url.startswith(base_url) and url[len(base_url) : len(base_url) + 1] in ("/", "?")


def _with_query(url: str, pairs: Pairs) -> str:
    """The URL with these parameters, in place of any that a caller gave by that name."""
    path, _, query = url.partition("?")
    names = {name for name, _ in pairs}
    own_parts = [
        part
        for part in query.split("&")
        if part and not names.intersection(name for name, _ in parse_qsl(part, True))
    ]
    return f"{path}?{'&'.join([*own_parts, urlencode(pairs, quote_via=quote, safe='')])}"


class Credentials:
    """The credentials of all connections, with the tokens that are kept for them."""

    def __init__(
        self,
        egress: Egress,
        people: sign_in.PeopleCredentials | None = None,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._egress = egress
        self.people = people  # None: nobody can sign in
        self._clock = clock
        self._tokens: LRUCache[str, _HeldToken] = LRUCache(MAX_REMEMBERED)
        self._caller_tokens: LRUCache[str, str] = LRUCache(MAX_REMEMBERED)
        self._upstream_proofs: LRUCache[str, tuple[Connection, Proof]] = LRUCache(MAX_REMEMBERED)
        self._renewals: dict[Proof, asyncio.Task[_HeldToken]] = {}

    def present(self, principal: str, token: str) -> None:
        """Remembers a principal's token, for which their calls' tokens are exchanged."""
        self._caller_tokens.pop(principal, None)
        self._caller_tokens[principal] = token  # the latest is the last

    async def send(
        self,
        auth: Proof,
        request: Request,
        base_url: str,
        exchange: SendRequest,
        principal: Principal = NOBODY,
    ) -> tuple[Answer, RequestCredentials]:
        """Sends with credentials; once more with fresh ones if the API rejects an expired token."""
        base_url = auth.home or base_url
        credentials = auth.ready or await self.obtain(auth, principal)
        answer = await exchange(with_credentials(request, credentials, base_url))
        if answer.status == 401 and auth.ready is None:
            old, credentials = credentials, await self._obtain_other(auth, principal, credentials)
            answer = await exchange(with_credentials(request, credentials, base_url))
            # The token that was refused is a secret still: the answer may quote it.
            credentials = replace(credentials, secrets=(*credentials.secrets, *old.secrets))
            if answer.status == 401 and auth.by_people:
                raise await self._sign_in_error(auth, principal, credentials)
        return answer, credentials

    async def upstream_headers(
        self,
        name: str,
        settings: Connection,
        principal: str | None,
        refused_headers: Headers | None,
        fresh: bool = False,
    ) -> Pairs:
        """The headers that prove us to an MCP server; a fresh token where it refused the last one.

        Where it refuses a fresh token too, the person has to sign in again. Tools are listed with
        the credentials of the person who signed in or called last, or without any.
        """
        entry = self._upstream_proofs.get(name)
        if entry is None or entry[0] is not settings:
            proof = proof_of(name, settings.auth, None, settings)
            entry = self._upstream_proofs[name] = (settings, proof)
        auth = entry[1]
        if auth.ready is not None and refused_headers is None:
            return auth.ready.headers
        if principal is None and is_personal(auth.settings):
            principal = await self._latest_principal(auth)
            if not principal and refused_headers is None:
                return ()
        person = Principal(principal or "")
        credentials = await self.obtain(auth, person)
        if refused_headers is not None and set(credentials.headers) <= set(refused_headers):
            if fresh and auth.by_people:
                raise await self._sign_in_error(auth, person, credentials)
            if not fresh:
                credentials = await self._obtain_other(auth, person, credentials)
        return credentials.headers

    async def obtain(
        self, auth: Proof, principal: Principal = NOBODY, rejected: int = 0
    ) -> RequestCredentials:
        """The credentials that a call adds to its request; never of a version that was rejected."""
        if auth.ready is not None:
            return auth.ready
        if auth.by_people:
            return await self._obtain_of_person(auth, principal, rejected)
        auth = self._with_subject(auth, principal)
        token = self._tokens.get(auth.owner)
        if token is not None and token.auth == auth and self._clock() < token.renew_at:
            return token.credentials
        task = self._renewals.get(auth)
        if task is None:
            task = self._renewals[auth] = asyncio.create_task(self._renew(auth, token))
            task.add_done_callback(partial(self._end_renewal, auth))
        return (await asyncio.shield(task)).credentials

    async def _obtain_other(
        self, auth: Proof, principal: Principal, old: RequestCredentials
    ) -> RequestCredentials:
        """The credentials for a second attempt, in place of those that the API did not accept."""
        if not auth.by_people:
            self.reject(self._with_subject(auth, principal), old)
        return await self.obtain(auth, principal, rejected=old.version)

    def reject(self, auth: Proof, credentials: RequestCredentials) -> None:
        """Forgets credentials that an API did not accept, unless others have replaced them."""
        token = self._tokens.get(auth.owner)
        if token and token.credentials == credentials:
            self._tokens[auth.owner] = replace(token, renew_at=0.0, expires_at=0.0)

    async def close(self) -> None:
        """Ends every request for a token, but for those whose answer can't be asked for again."""
        await end_tasks(*self._renewals.values())
        if self.people is not None:
            await self.people.close()

    # --- people -----------------------------------------------------------------------------------

    async def _obtain_of_person(
        self, auth: Proof, principal: Principal, rejected: int
    ) -> RequestCredentials:
        try:
            if self.people is None:
                raise sign_in.SignInNeeded
            credential = await self.people.get(auth.account(principal.name), rejected)
        except sign_in.SignInNeeded as error:
            raise sign_in.sign_in_required(
                self.people, auth.owner, auth.settings, principal
            ) from error
        return _person_credentials(auth, credential)

    async def _sign_in_error(
        self, auth: Proof, principal: Principal, credentials: RequestCredentials
    ) -> UpstreamFailed:
        """The error for an API that does not accept a credential renewed just now."""
        if self.people is not None and isinstance(auth.settings, OAuth2Auth):
            await self.people.refuse(auth.account(principal.name), credentials.version)
        return sign_in.sign_in_required(self.people, auth.owner, auth.settings, principal)

    async def _latest_principal(self, auth: Proof) -> str:
        """The principal whose credentials list the tools of a server; "": nobody's."""
        if auth.by_people:
            names = await self.people.holders(auth.owner) if self.people else []
        else:
            names = list(self._caller_tokens)[-1:]
        return names[0] if names else ""

    def _with_subject(self, auth: Proof, principal: Principal) -> Proof:
        """The proof with the caller's own token, where that is exchanged for another token."""
        settings = auth.settings
        if not isinstance(settings, OAuth2Auth) or settings.grant != "token_exchange":
            return auth
        token = principal.presented or self._caller_tokens.get(principal.name)
        if token is None:
            words = f"{auth.owner} is called with the caller's own token, and there is none."
            hint = "Call with a token of your own."
            raise UpstreamFailed("sign_in_required", words, hint, sent=False)
        return replace(auth, owner=f"{auth.owner} {digest(token.encode())}", subject=token)

    # --- tokens that the gateway asks for ---------------------------------------------------------

    async def _renew(self, auth: Proof, old: _HeldToken | None) -> _HeldToken:
        is_rejected = old is not None and old.expires_at == 0.0
        try:
            new = await self._fetch_token(auth, is_rejected)
        except GatewayError:
            now = self._clock()
            if old is None or old.auth != auth or now >= old.expires_at:
                raise
            new = replace(old, renew_at=now + TOKEN_SECONDS)  # the old token still works
        self._tokens[auth.owner] = new
        return new

    def _end_renewal(self, auth: Proof, task: asyncio.Task[_HeldToken]) -> None:
        del self._renewals[auth]
        if not task.cancelled():
            task.exception()  # its callers have the error, unless they all have gone

    async def _fetch_token(self, auth: Proof, is_rejected: bool) -> _HeldToken:
        asked_at, settings = self._clock(), auth.settings
        if isinstance(settings, OAuth2Auth):
            token, life = await ask_token(self._egress, settings, auth.subject)
            credentials = _token_credentials(auth.scheme, token)
        else:
            assert isinstance(settings, NangoAuth)
            secret, life = await read_nango(self._egress, settings, is_rejected, asked_at)
            credentials = _secret_credentials(auth.scheme, secret)
        life = max(life, 1.0)
        return _HeldToken(auth, credentials, asked_at + 0.8 * life, asked_at + life)


@dataclass(frozen=True, slots=True)
class _HeldToken:
    auth: Proof
    credentials: RequestCredentials
    renew_at: float
    expires_at: float  # 0.0: the API did not accept it


# Names no connection can have: all connections behind Azure share its tokens.
AZURE = "[azure]"
AZURE_RUNTIME = "[azure runtime]"
# Azure's connectors don't take a token that was made for managing Azure, nor should they see one.
RUNTIME_SCOPE = "https://apihub.azure.com/.default"


@dataclass(frozen=True, slots=True)
class PreparedConnection:
    """A connection, ready for calls."""

    name: str
    settings: Connection
    auth: Proof
    envelope: str | None  # Azure's resource that makes the call for us
    headers: Pairs
    blocklist: tuple[str, ...]
    rate_limit: RateLimit | None
    secrets: frozenset[str]
    redactor: Redactor

    def redactor_with(self, sent: Iterable[str]) -> Redactor:
        """The redactor of the connection's secrets and of those its requests went out with."""
        return self.redactor if self.auth.ready else redactor_of(self.secrets.union(sent))


class PreparedConnections:
    """One `PreparedConnection` a connection, made again when its settings or its build change."""

    def __init__(self) -> None:
        self._prepared: dict[str, tuple[ConnectionState, Azure | None, PreparedConnection]] = {}

    def of(self, snapshot: Snapshot, name: str) -> PreparedConnection:
        """The connection of this snapshot, ready for calls."""
        state, azure = snapshot.connections[name], snapshot.settings.azure
        entry = self._prepared.get(name)
        if entry is not None and entry[0] is state and entry[1] is azure:
            return entry[2]
        prepared = prepare(state, azure)
        self._prepared[name] = (state, azure, prepared)
        for old_name in self._prepared.keys() - snapshot.connections.keys():
            del self._prepared[old_name]
        return prepared


def prepare(state: ConnectionState, azure: Azure | None = None) -> PreparedConnection:
    """The connection, made ready for calls."""
    settings, build, auth = state.settings, state.build or _NO_BUILD, _proof(state, azure)
    limit = settings.rate_limit
    secrets = frozenset(secrets_of(settings) | secrets_in(auth.settings))
    return PreparedConnection(
        state.name,
        settings,
        auth,
        build.envelope,
        tuple(settings.headers.items()),
        (*settings.blocklist, *build.blocklist),
        RateLimit(limit.requests, limit.window_seconds, limit.per) if limit else build.rate_limit,
        secrets,
        redactor_of(secrets),
    )


def _proof(state: ConnectionState, azure: Azure | None) -> Proof:
    """How calls prove themselves, and under which name tokens for that are kept."""
    settings, build = state.settings, state.build
    if not isinstance(settings, ArmConnection) or azure is None or settings.auth.type != "none":
        return proof_of(state.name, settings.auth, build, settings)
    if build is None or build.envelope is not None:
        return proof_of(AZURE, azure.auth, build)
    auth = azure.auth
    if isinstance(auth, OAuth2Auth):
        auth = auth.model_copy(update={"scopes": (RUNTIME_SCOPE,)})
    return proof_of(AZURE_RUNTIME, auth, build)


def account_of(state: ConnectionState, principal: str) -> sign_in.Account:
    """The account whose credentials calls of this principal go out with."""
    settings = state.settings
    return proof_of(state.name, settings.auth, state.build, settings).account(principal)


def prove(
    credentials: Credentials, name: str, settings: Connection, build: Build | None
) -> tuple[object, Callable[[Request, SendRequest], Awaitable[Answer]]]:
    """A connection's proof, and the function that sends a request of its own with that proof.

    A token that the host no longer accepts is replaced once. No host but the request's own sees a
    credential.
    """
    auth = proof_of(name, settings.auth, build, settings)
    headers = tuple(settings.headers.items())
    if is_personal(auth.settings):
        auth = proof_of(name, NoAuth())  # a definition belongs to no person

    async def send(request: Request, exchange: SendRequest) -> Answer:
        request = with_headers(request, headers)
        try:
            return (await credentials.send(auth, request, request.url, exchange))[0]
        except UpstreamFailed as error:
            if error.code != "sign_in_required":
                raise
        return await exchange(request)  # nobody has signed in yet: the host may be open to all

    return (auth, headers), send
