"""What may not be put at run time. Pure."""

from __future__ import annotations

from gateway.catalog.snapshot import ConnectionState
from gateway.config.connection import ArmConnection, Connection, McpConnection
from gateway.config.settings import Settings, bundle_trust_problems
from gateway.errors import Fixable


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
