"""What every call of a connection needs and none should work out again: made once a connection.

Headers, injected values, how it proves itself, how often it may be called, the paths that are
forbidden, and which texts are secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import Auth as AuthSettings
from gateway.config.connection import BasicAuth, Connection
from gateway.invoke.credentials import Auth, Grant, renewable
from gateway.invoke.redact import Redactor, names_a_secret, redactor_of
from gateway.model import Build, RateLimit


@dataclass(frozen=True, slots=True)
class Prepared:
    """A connection, ready for calls."""

    name: str
    settings: Connection
    auth: Auth
    headers: tuple[tuple[str, str], ...]
    inject: Mapping[str, Any]
    blocklist: tuple[str, ...]
    rate_limit: RateLimit | None
    secrets: frozenset[str]
    redactor: Redactor


class PreparedConnections:
    """One `Prepared` a connection, made again when its settings or its build change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[ConnectionState, Prepared]] = {}

    def of(self, snapshot: Snapshot, name: str) -> Prepared:
        """The connection of this snapshot, ready for calls."""
        state = snapshot.connections[name]
        known = self._known.get(name)
        if known is not None and known[0] is state:
            return known[1]
        prepared = prepare(state)
        self._known[name] = (state, prepared)
        for gone in self._known.keys() - snapshot.connections.keys():
            del self._known[gone]
        return prepared


def prepare(state: ConnectionState) -> Prepared:
    """What calls of this connection need."""
    settings, build = state.settings, state.build
    limit = settings.rate_limit
    secrets = frozenset(secrets_of(settings))
    return Prepared(
        state.name,
        settings,
        auth_of(settings.auth, build),
        tuple(settings.headers.items()),
        settings.inject,
        (*settings.blocklist, *(build.blocklist if build else ())),
        RateLimit(limit.requests, limit.window_seconds)
        if limit
        else (build.rate_limit if build else None),
        secrets,
        Redactor(secrets),
    )


def auth_of(settings: AuthSettings, build: Build | None = None) -> Auth:
    """How a connection proves itself; what it leaves open, its definition says."""
    values = {name: _plain(value) for name, value in settings if value is not None}
    if build is not None and build.auth_scheme:
        values["scheme"] = build.auth_scheme
    if settings.type == "api-key" and build is not None:
        values = {"name": build.auth_name, "place": build.auth_in or "header", **values}
    return Auth(**values)


def secrets_of(settings: Connection) -> set[str]:
    """Every text of the settings that must not be shown to anyone."""
    auth = settings.auth
    found = {value.get_secret_value() for _, value in auth if isinstance(value, SecretStr)}
    if isinstance(auth, BasicAuth):
        found |= {auth.username, f"{auth.username}:{auth.password.get_secret_value()}"}
    found |= {value for name, value in settings.headers.items() if names_a_secret(name)}
    injected = [settings.inject, *(r.inject for r in getattr(settings, "wrap", ()))]
    found |= {v for values in injected for v in values.values() if isinstance(v, str)}
    return {value for value in found if value}


def redactor_with(prepared: Prepared, grant: Grant) -> Redactor:
    """What clears an answer of the connection's secrets and of the token it was asked with."""
    if not renewable(prepared.auth) or not grant.secrets:
        return prepared.redactor
    return redactor_of(prepared.secrets.union(grant.secrets))


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value
