"""What every call of a connection needs and none should work out again: made once a connection.

Headers, injected values, how it proves itself, how often it may be called, the paths that are
forbidden, and which texts are secret.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import SecretStr

from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import ArmConnection, BasicAuth, Connection, OAuth2Auth
from gateway.config.connection import Auth as AuthSettings
from gateway.config.settings import Azure
from gateway.invoke.credentials import Auth, Credentials, Grant, renewable, send_granted
from gateway.invoke.redact import SECRET_NAME, Redactor, redactor_of
from gateway.invoke.request import with_headers
from gateway.model import DEFAULT_KEY_HEADER, Build, RateLimit, TlsFiles
from gateway.outbound.client import Answer, Request

# Names no connection can have: Azure's tokens are one for all connections behind it.
AZURE = "[azure]"
AZURE_RUNTIME = "[azure runtime]"
# Azure's connectors don't take a token that was made for managing Azure, nor should they see one.
RUNTIME_SCOPE = "https://apihub.azure.com/.default"


Exchange = Callable[[Request], Awaitable[Answer]]

MAX_ADDRESS = 4096


@dataclass(frozen=True, slots=True)
class Prepared:
    """A connection, ready for calls."""

    name: str
    settings: Connection
    auth: Auth
    vouched_by: str  # whose token it is: the connection's own, or one that several share
    envelope: str | None  # Azure's resource that makes the call for us
    headers: tuple[tuple[str, str], ...]
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
    settings, build = state.settings, state.build
    limit = settings.rate_limit
    auth, vouched_by = _vouching(state, azure)
    secrets = frozenset(secrets_of(settings) | _secrets_in(auth))
    return Prepared(
        state.name,
        settings,
        auth_of(auth, build),
        vouched_by,
        build.envelope if build else None,
        tuple(settings.headers.items()),
        settings.tls_files,
        settings.inject,
        (*settings.blocklist, *(build.blocklist if build else ())),
        RateLimit(limit.requests, limit.window_seconds)
        if limit
        else (build.rate_limit if build else None),
        secrets,
        Redactor(secrets),
    )


def _vouching(state: ConnectionState, azure: Azure | None) -> tuple[AuthSettings, str]:
    """How calls prove themselves, and under which name tokens for that are kept."""
    settings, build = state.settings, state.build
    if not isinstance(settings, ArmConnection) or azure is None or settings.auth.type != "none":
        return settings.auth, state.name
    if build is None or build.envelope is not None:
        return azure.auth, AZURE
    if isinstance(azure.auth, OAuth2Auth):
        return azure.auth.model_copy(update={"scopes": (RUNTIME_SCOPE,)}), AZURE_RUNTIME
    return azure.auth, AZURE_RUNTIME


def auth_of(settings: AuthSettings, build: Build | None = None) -> Auth:
    """How a connection proves itself; what it leaves open, its definition says."""
    values = {name: _plain(value) for name, value in settings if value is not None}
    if build is not None and build.auth_scheme:
        values["scheme"] = build.auth_scheme
    if settings.type == "api-key":
        name, place = (build.auth_name, build.auth_in) if build else (None, None)
        declared = {"name": name or DEFAULT_KEY_HEADER, "place": place or "header"}
        values = declared | values
    return Auth(**values)


def prove(
    credentials: Credentials, name: str, settings: Connection, build: Build | None
) -> tuple[object, Callable[[Request, Exchange], Awaitable[Answer]]]:
    """What a connection proves itself with, and the way to send a request of its own with that.

    A token that the host no longer accepts is replaced once. The request's own host is the only
    one that sees any of it.
    """
    auth, headers = auth_of(settings.auth, build), tuple(settings.headers.items())

    async def send(request: Request, exchange: Exchange) -> Answer:
        request = with_headers(request, headers)
        answer, _ = await send_granted(credentials, name, auth, request, request.url, exchange)
        return answer

    return (auth, headers), send


def secrets_of(settings: Connection) -> set[str]:
    """Every text of the settings that must not be shown to anyone."""
    found = _secrets_in(settings.auth)
    tables = ("parameter_values", "env")
    named = [pair for table in tables for pair in getattr(settings, table, {}).items()]
    named += [*settings.headers.items(), *_query_of(settings), *_options_of(settings)]
    found |= {v for name, value in named if SECRET_NAME.search(name) for v in _texts(value)}
    found |= set(_texts(settings.inject))
    found |= {text for rule in getattr(settings, "wrap", ()) for text in _texts(rule.inject)}
    return {value for value in found if value}


def _query_of(settings: Connection) -> list[tuple[str, str]]:
    """What the connection's addresses carry in their query: some services put their keys there."""
    addresses = [getattr(settings, key, None) or "" for key in ("spec", "url", "base_url")]
    queries = [urlsplit(a).query for a in addresses if "\n" not in a and len(a) < MAX_ADDRESS]
    return [pair for query in queries for pair in parse_qsl(query)]


def _options_of(settings: Connection) -> list[tuple[str, str]]:
    """The options of a child's command, `--name value` and `--name=value` alike."""
    args = [part for arg in getattr(settings, "args", ()) for part in arg.split("=", 1)]
    return [(name, value) for name, value in pairwise(args) if name.startswith("-")]


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _secrets_in(auth: AuthSettings) -> set[str]:
    found = {value.get_secret_value() for _, value in auth if isinstance(value, SecretStr)}
    if isinstance(auth, BasicAuth):
        found |= {auth.username, f"{auth.username}:{auth.password.get_secret_value()}"}
    return {value for value in found if value}


def redactor_with(prepared: Prepared, grant: Grant) -> Redactor:
    """What clears an answer of the connection's secrets and of the token it was asked with."""
    if not renewable(prepared.auth) or not grant.secrets:
        return prepared.redactor
    return redactor_of(prepared.secrets.union(grant.secrets))


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value
