"""Effective access: the smaller of what the admin grants and what the user chose.

read-write shows everything but dangerous tools, read-only shows reads, disabled shows nothing. A
connection of another organization does not exist for the caller: `level` is None then, and every
edge answers as for a name nobody ever used.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.model import Level, Principal, Tool

ORDER: Mapping[Level, int] = {"disabled": 0, "read-only": 1, "read-write": 2}


def level(snapshot: Snapshot, principal: Principal, state: ConnectionState) -> Level | None:
    """What the principal may do with the connection; None: it may not know that it exists."""
    if not may_know(principal, state):
        return None
    return smaller(admin_level(state), user_level(snapshot, principal, state.name))


def may_know(principal: Principal, state: ConnectionState) -> bool:
    """Whether the connection exists for this principal; an admin of no organization knows all."""
    owner = state.settings.organization
    if owner is None or owner == principal.organization:
        return True
    return principal.admin and principal.organization is None


def oversees(snapshot: Snapshot, principal: Principal, connection: str) -> bool:
    """Whether what others do with a connection is this principal's business."""
    if not principal.admin or principal.organization is None:
        return principal.admin
    state = snapshot.connections.get(connection)
    return state is not None and may_know(principal, state)


def admin_level(state: ConnectionState) -> Level:
    """The admin's side: the connection's own level, nothing while it is switched off."""
    return state.settings.access if state.settings.enabled else "disabled"


def user_level(snapshot: Snapshot, principal: Principal, connection: str) -> Level:
    """The user's side: a choice made at run time, else the configured one, else the default."""
    chosen = snapshot.choices.get((principal.name, connection))
    return chosen or principal.connections.get(connection) or principal.access


def smaller(one: Level, other: Level) -> Level:
    """The more restrictive of two levels."""
    return one if ORDER[one] <= ORDER[other] else other


def shows(granted: Level | None, tool: Tool) -> bool:
    """Whether a tool is visible, and callable, at this level."""
    if granted is None or granted == "disabled" or tool.access == "dangerous":
        return False
    return granted == "read-write" or tool.access == "read"


def visible_tools(
    snapshot: Snapshot, principal: Principal, state: ConnectionState
) -> tuple[Tool, ...]:
    """The connection's tools this principal may see."""
    granted = level(snapshot, principal, state)
    if granted == "read-write":
        return state.tools
    return state.reads if granted == "read-only" else ()
