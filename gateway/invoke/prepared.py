"""What every call of a connection needs and none should work out again: made once a settings value.

Headers, injected values, the paths that are forbidden, and which texts are secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import SecretStr

from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import BasicAuth, Connection
from gateway.invoke.redact import Redactor, names_a_secret


@dataclass(frozen=True, slots=True)
class Prepared:
    """A connection, ready for calls."""

    name: str
    settings: Connection
    headers: tuple[tuple[str, str], ...]
    inject: Mapping[str, Any]
    blocklist: tuple[str, ...]
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
        return prepared


def prepare(state: ConnectionState) -> Prepared:
    """What calls of this connection need."""
    settings = state.settings
    of_provider = state.build.blocklist if state.build else ()
    return Prepared(
        state.name,
        settings,
        tuple(settings.headers.items()),
        settings.inject,
        (*settings.blocklist, *of_provider),
        Redactor(secrets_of(settings)),
    )


def secrets_of(settings: Connection) -> set[str]:
    """Every text of the settings that must not be shown to anyone."""
    auth = settings.auth
    found = {value.get_secret_value() for _, value in auth if isinstance(value, SecretStr)}
    if isinstance(auth, BasicAuth):
        found.add(f"{auth.username}:{auth.password.get_secret_value()}")
        found.add(auth.username)
    found |= {value for name, value in settings.headers.items() if names_a_secret(name)}
    found |= {value for value in settings.inject.values() if isinstance(value, str)}
    return {value for value in found if value}
