"""What may not be put, or edited, at run time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import ArmConnection, Connection, McpConnection
from gateway.config.reading import parse_connection
from gateway.config.settings import Settings, bundle_trust_problems
from gateway.errors import ConfigInvalid, Fixable, Refused


def read_put(name: str, values: Mapping[str, Any], organization: str | None) -> Connection:
    """A connection as it is put: one that names no organization belongs to its admin's."""
    if organization is not None and values.get("organization") is None:
        values = {**values, "organization": organization}
    return parse_connection(name, values)


def read_planned(settings: Settings, name: str, values: Mapping[str, Any]) -> Connection:
    """A connection that is only looked at: what may not be put is not tried either."""
    connection = parse_connection(name, values)
    refuse_unsafe(settings, name, connection)
    return connection


def refuse_configured(state: ConnectionState | None, new: Connection | None = None) -> None:
    """Refuses to touch a connection that config.toml, or we, or Azure define.

    What is found in Azure may be put under its name, with other settings.
    """
    if state is not None and state.origin == "azure":
        if not _is_same_resource(state.settings, new):
            raise Fixable(
                "connection_invalid",
                f"the connection {state.name!r} comes from Azure's resource group",
                "Remove it in Azure, or put it with kind arm and enabled false.",
            )
    elif state is not None and state.origin != "stored":
        raise Fixable(
            "connection_invalid",
            f"the connection {state.name!r} is defined in config.toml",
            "Choose another name, or edit config.toml.",
        )


def _is_same_resource(found: Connection, new: Connection | None) -> bool:
    if not isinstance(found, ArmConnection) or not isinstance(new, ArmConnection):
        return False
    return new.resource_id is None or new.resource_id.lower() == str(found.resource_id).lower()


def refuse_put(
    settings: Settings,
    name: str,
    connection: Connection,
    state: ConnectionState | None,
    organization: str | None,
) -> None:
    """Refuses what may not be put under this name, or not by an admin of this organization."""
    refuse_foreign(organization, connection, state)
    refuse_configured(state, connection)
    refuse_unsafe(settings, name, connection)


def refuse_foreign(
    organization: str | None, connection: Connection, state: ConnectionState | None
) -> None:
    """Keeps an admin of an organization to that organization's connections."""
    if organization is None:
        return
    if connection.organization != organization:
        raise Refused(
            "access_denied",
            "you may only put connections of your own organization",
            f'Set organization = "{organization}".',
        )
    if connection.tls.cert_file:
        raise Refused(
            "access_denied",
            "an organization's admin may not name the gateway's own certificates",
            "Ask an operator to write the connection into config.toml.",
        )
    if state is not None and state.settings.organization != organization:
        raise Fixable("connection_invalid", "this name can't be used", "Choose another name.")


def refuse_unsafe(settings: Settings, name: str, connection: Connection) -> None:
    """Refuses commands, and what would break a rule that the configuration was checked for."""
    if isinstance(connection, McpConnection) and connection.transport == "stdio":
        raise Fixable(
            "connection_invalid",
            "commands can't be put at run time",
            'Write connections with transport = "stdio" into config.toml.',
        )
    if connection.trust != "untrusted":
        return
    for bundle_name, bundle in settings.bundles.items():
        if problems := bundle_trust_problems(bundle_name, bundle, {name}):
            where, what = problems[0]
            raise Fixable("connection_invalid", f"{where}: {what}", "Trust it, or edit the bundle.")


def refuse_edit(settings: Settings, current: Snapshot) -> None:
    """Refuses a configuration whose bundles break a rule for connections it does not name."""
    untrusted = {
        name
        for name, state in current.connections.items()
        if state.settings.trust == "untrusted" and state.origin not in ("config", "demo")
    }
    untrusted -= settings.connections.keys()
    problems = [
        f"config.toml: {where}: {what}"
        for name, bundle in settings.bundles.items()
        for where, what in bundle_trust_problems(name, bundle, untrusted)
    ]
    if problems:
        raise ConfigInvalid(problems)
