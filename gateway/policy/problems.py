"""What an operator wrote and what does not hold: names that nothing has, rules that are overruled.

A rule for a name that matches nothing holds nowhere, and permissions that were put at run time stay
in force over config.toml, however strict that has become. Neither may happen in silence, so the
log, `gateway check`, /health and the console all read it off here. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import McpConnection
from gateway.config.settings import Permissions
from gateway.model import Problem
from gateway.policy.access import caution, decide

RAW_REQUESTS = "proxy"  # what permissions call a raw request that is no tool's
_LEVELS = ("full_access", "execute_with_confirm", "read_only")


def configuration_problems(snapshot: Snapshot) -> tuple[Problem, ...]:
    """What is written in config.toml or was put, and does not do what it says."""
    return (
        *_unmatched_tools(snapshot),
        *_unmatched_in_bundles(snapshot),
        *_unmatched_connections(snapshot),
        *_overruled(snapshot),
    )


def _unmatched_tools(snapshot: Snapshot) -> Iterator[Problem]:
    permissions = snapshot.permissions
    named = [(f"permissions.tools.{name}", name) for name in permissions.tools]
    named += [("permissions.auto_approve.tools", name) for name in permissions.auto_approve.tools]
    unread = [state for state in snapshot.connections.values() if state.build is None]
    for where, name in named:
        if name in snapshot.tools or name == RAW_REQUESTS:
            continue
        if not any(_may_have(snapshot, state, name) for state in unread):
            yield _warning(where, f"there is no tool {name!r}")


def _unmatched_in_bundles(snapshot: Snapshot) -> Iterator[Problem]:
    """Tools that bundles name one by one; a glob may well be there for what comes later."""
    for key, bundle in snapshot.settings.bundles.items():
        names = {*bundle.allow, *bundle.deny}
        states = [snapshot.connections.get(name) for name in bundle.connections]
        if not any(map(_is_name, names)) or not all(state and state.build for state in states):
            continue
        known = {tool.local_name for state in states if state for tool in state.tools}
        for name in sorted(filter(_is_name, names - known)):
            where = "deny" if name in bundle.deny else "allow"
            yield _warning(f"bundles.{key}.{where}", f"its connections have no tool {name!r}")


def _is_name(pattern: str) -> bool:
    return not set(pattern) & set("*?[")


def _may_have(snapshot: Snapshot, state: ConnectionState, name: str) -> bool:
    """Whether a connection that has not been read yet might have a tool of this name."""
    settings = state.settings
    given = [rule.as_ for rule in settings.wrap] if isinstance(settings, McpConnection) else []
    portable = [f"{key}_" for key, at in snapshot.settings.capabilities.items() if at == state.name]
    return name in given or name.startswith((state.prefix, *portable))


def _unmatched_connections(snapshot: Snapshot) -> Iterator[Problem]:
    settings = snapshot.settings
    if settings.azure is not None:
        return  # its connections come and go
    named = [
        (f"principals.{who}.connections", name)
        for who, principal in settings.principals.items()
        for name in principal.connections
    ]
    named += [
        (f"bundles.{key}.connections", name)
        for key, bundle in settings.bundles.items()
        for name in bundle.connections
    ]
    named += [(f"capabilities.{key}", name) for key, name in settings.capabilities.items()]
    for where, name in named:
        if name not in snapshot.connections:
            yield _warning(where, f"there is no connection {name!r}")


def _overruled(snapshot: Snapshot) -> Iterator[Problem]:
    """Where config.toml is stricter than the permissions that were put over it."""
    written, put = snapshot.settings.permissions, snapshot.stored_permissions
    if put is None:
        return
    if _LEVELS.index(written.level) > _LEVELS.index(put.level):
        yield _weaker("level", written.level, put.level)
    for name in sorted((_named(written) | _named(put)) & snapshot.tools.keys()):
        here, there = (decide(snapshot.tools[name], each) for each in (written, put))
        if caution(here) > caution(there):
            yield _weaker(f"tools.{name}", here.outcome, there.outcome)
    if written.always_allow_minutes < put.always_allow_minutes:
        minutes = (written.always_allow_minutes, put.always_allow_minutes)
        yield _weaker("always_allow_minutes", *(f"{each:g}" for each in minutes))
    if put.always_allow_high_risk and not written.always_allow_high_risk:
        yield _weaker("always_allow_high_risk", "false", "true")


def _named(permissions: Permissions) -> set[str]:
    return {*permissions.tools, *permissions.auto_approve.tools}


def _weaker(key: str, written: str, put: str) -> Problem:
    return Problem(
        "error",
        f"permissions.{key}",
        f"config.toml says {written}, which is stricter, but {put} was put at run time and stays "
        "in force until DELETE /api/v1/permissions",
        configured=True,
    )


def _warning(where: str, message: str) -> Problem:
    return Problem("warning", where, message, configured=True)
