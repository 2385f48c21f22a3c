"""Decides what a principal may do: effective access, and one call with its rule. Pure.

Effective access is the smaller of what the admin grants and what the user chose: read-write shows
everything but dangerous tools, read-only shows reads, disabled shows nothing. A connection of
another organization does not exist for the caller: `level` is None then, and every edge answers as
for a name that was never used.

Of a tool that the caller may see, permissions decide: a word about this very tool first, then the
level. The reason goes to the model, the audit row and the console alike.

A rule for a name that matches nothing holds nowhere, and permissions that were put at run time stay
in force over config.toml, however strict that has become. Neither may happen in silence, so the
log, `gateway check`, /health and the console all read it off `configuration_problems`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import msgspec

from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.config.connection import McpConnection
from gateway.config.settings import Permissions, PrincipalSettings, Settings, key_path
from gateway.errors import GatewayError, InsufficientScope, Refused, UnknownTool
from gateway.model import Level, Principal, Problem, Tool

LEVELS: tuple[Level, ...] = ("disabled", "read-only", "read-write")
RAW_REQUESTS = "proxy"  # what permissions call a raw request that is no tool's
_PERMISSION_LEVELS = ("full_access", "execute_with_confirm", "read_only")


def level(snapshot: Snapshot, principal: Principal, state: ConnectionState) -> Level | None:
    """The access of the principal to the connection; None: it may not know that it exists."""
    if not may_know(principal, state):
        return None
    by_admin, by_user = admin_level(state), user_level(snapshot, principal, state.name)
    return by_user if by_admin == "read-write" else min(by_admin, by_user, key=LEVELS.index)


def may_know(principal: Principal, state: ConnectionState) -> bool:
    """Whether the connection exists for this principal; an admin of no organization knows all."""
    owner = state.settings.organization
    if owner is None or owner == principal.organization:
        return True
    return principal.admin and principal.organization is None


def looks_after(principal: Principal, state: ConnectionState) -> bool:
    """Whether the principal is an admin of it; one with an organization is of its own alone."""
    return principal.admin and principal.organization in (None, state.settings.organization)


def oversees(
    snapshot: Snapshot, principal: Principal, connection: str, organization: str | None
) -> bool:
    """Whether the principal may see a call that was made there for that organization; None: the
    connection's of now."""
    if not principal.admin or principal.organization is None:
        return principal.admin
    state = snapshot.connections.get(connection)
    if organization is None and state is not None:
        organization = state.settings.organization
    is_own = organization == principal.organization
    return is_own and state is not None and may_know(principal, state)


def oversight(
    snapshot: Snapshot, principal: Principal
) -> tuple[str, tuple[str, ...], tuple[str, ...]] | None:
    """The organization whose rows a principal may see, the connections where it may, and those of
    them that are the organization's own; None: no such bound."""
    if principal.admin and principal.organization is None:
        return None
    organization = principal.organization or ""  # "": nobody's
    known = [state for state in snapshot.connections.values() if may_know(principal, state)]
    own = tuple(each.name for each in known if each.settings.organization == organization)
    return organization, tuple(each.name for each in known), own


def admin_level(state: ConnectionState) -> Level:
    """The admin's side: the connection's own level, nothing while it is switched off."""
    return state.settings.access if state.settings.enabled else "disabled"


def user_level(snapshot: Snapshot, principal: Principal, connection: str) -> Level:
    """The user's side: a choice made at run time, else the configured one, else the default."""
    choice = snapshot.choices.get((principal.name, connection))
    return choice or principal.connections.get(connection) or principal.access


def why_limited(snapshot: Snapshot, principal: Principal, state: ConnectionState) -> str:
    """What keeps a principal's access to a connection below read-write; "": nothing does."""
    access, user, name = level(snapshot, principal, state), principal.name, state.name
    if access is None:
        return f"{name} belongs to the organization {state.settings.organization}; {user} does not."
    if access == "read-write":
        return ""
    visible = "only its reads are" if access == "read-only" else "nothing of it is"
    if access == admin_level(state):
        rule = f"access = {access}" if state.settings.enabled else "enabled = false"
        return f"The settings of {name} say {rule}: {visible} shown."
    if (user, name) in snapshot.choices:
        return f"{user} chose {access} for {name}: {visible} shown."
    key = f"connections.{name}" if name in principal.connections else "access"
    return f"principals.{user}.{key} is {access}: {visible} shown."


def may_see(access: Level | None, tool: Tool) -> bool:
    """Whether a tool is visible, and callable, at this level."""
    if access is None or access == "disabled" or tool.access == "dangerous":
        return False
    return access == "read-write" or tool.access == "read"


def visible_tools(
    snapshot: Snapshot, principal: Principal, state: ConnectionState
) -> tuple[Tool, ...]:
    """The connection's tools this principal may see."""
    access = level(snapshot, principal, state)
    if access == "read-write":
        return state.tools
    return tuple(tool for tool in state.tools if may_see(access, tool))


class Decision(msgspec.Struct, frozen=True):
    """The decision on a call, and the rule that makes it."""

    outcome: Literal["allow", "confirm", "block"]
    reason: str
    code: str = "access_denied"


def strictness(decision: Decision) -> int:
    """The strictness of a decision."""
    return ("allow", "confirm", "block").index(decision.outcome)


def decide(tool: Tool, permissions: Permissions) -> Decision:
    """The decision on calling this tool under these permissions."""
    match permissions.tools.get(tool.name):
        case "blocked":
            return Decision("block", f"permissions.tools blocks {tool.name}")
        case "allowed":
            return Decision("allow", f"permissions.tools allows {tool.name}")
        case "confirm":
            return _unless_auto_approved(tool, permissions, "permissions.tools asks for it")
    if tool.access == "read":
        return Decision("allow", "a read needs no confirmation")
    if permissions.level == "full_access":
        return Decision("allow", "permissions.level is full_access")
    if permissions.level == "read_only":
        return Decision("block", "permissions.level is read_only", "read_only")
    return _unless_auto_approved(tool, permissions, f"a {tool.access} asks for confirmation")


def _unless_auto_approved(tool: Tool, permissions: Permissions, reason: str) -> Decision:
    approval = permissions.auto_approve
    if approval.enabled and tool.name in approval.tools:
        return Decision("allow", "permissions.auto_approve lists it")
    return Decision("confirm", reason)


def permit(
    snapshot: Snapshot, principal: Principal, tool: Tool, judged_tool: Tool | None = None
) -> Decision:
    """The decision on a call of this principal; raises Refused where it may not be made at all.

    `judged_tool` is what permissions are asked about, where it is not the tool itself.
    """
    state = snapshot.connections[tool.connection]
    access, read_only = level(snapshot, principal, state), "You have read-only access to"
    if not may_see(access, tool):
        if access == "read-only":
            raise Refused("read_only", f"{read_only} {state.display_name}")
        raise Refused("access_denied", f"you have no access to {state.display_name}")
    if tool.access != "read" and "tools:write" in principal.withheld:
        raise InsufficientScope("tools:read", "tools:write")
    decision = decide(judged_tool or tool, snapshot.permissions)
    if decision.outcome == "block":
        is_read_only = decision.code == "read_only"
        message = f"{read_only} {state.display_name}" if is_read_only else f"{tool.name} is blocked"
        raise Refused(decision.code, message, decision.reason)
    return decision


def permit_again(
    snapshot: Snapshot,
    caller: Principal,
    find: Callable[[Snapshot, Principal], tuple[Tool, Tool]],
    is_unchanged: Callable[[Snapshot, Tool], bool],
) -> tuple[Tool, Tool]:
    """The tool that a call which waited is made with now, and the tool permissions are asked about.

    Raises Refused where the tool, or the caller's right to it, has changed since it was allowed.
    """
    principal = principal_now(snapshot.settings, caller)
    if principal is None:
        raise Refused("access_denied", "the caller has no access any more")
    try:
        tool, judged_tool = find(snapshot, principal)
    except (UnknownTool, GatewayError):
        raise Refused("access_denied", "the tool is no longer there for the caller") from None
    permit(snapshot, principal, tool, judged_tool)
    if not is_unchanged(snapshot, tool):
        raise Refused("access_denied", "the tool has changed since")
    return tool, judged_tool


def principal_now(settings: Settings, before: Principal) -> Principal | None:
    """A principal whose call waited, with the rights it has now; None: it has none left."""
    configured, auth = settings.principals.get(before.name), settings.auth
    by_provider = auth.oauth if auth.oauth and auth.oauth.sign_in == "oidc" else None
    rules = {"jwt": auth, "oauth": by_provider}.get(auth.mode)
    if configured is None and rules is None:
        return before if auth.mode == "none" else None
    now = configured_principal(before.name, configured) if configured else Principal(before.name)
    if rules is None:
        return now
    # The claims of its token can't be asked for again; its configured rights can.
    return replace(now, **{field: getattr(before, field) for field in rules.by_field})


_PRINCIPAL_FIELDS = {"admin", "organization", "role", "access", "connections"}


def configured_principal(name: str, settings: PrincipalSettings) -> Principal:
    """A principal with all that its table in config.toml says."""
    return Principal(name, **settings.model_dump(include=_PRINCIPAL_FIELDS))


# --- settings that have no effect -----------------------------------------------------------------


def configuration_problems(snapshot: Snapshot) -> tuple[Problem, ...]:
    """The settings, of config.toml or put at run time, that do not do what they say."""
    return (
        *(snapshot.put_access.problems if snapshot.put_access else ()),
        *_unmatched_tools(snapshot),
        *_unmatched_bundle_tools(snapshot),
        *_unmatched_connections(snapshot),
        *_overruled_permissions(snapshot),
    )


def _unmatched_tools(snapshot: Snapshot) -> Iterator[Problem]:
    permissions = snapshot.permissions
    rules = [(f"permissions.tools.{name}", name) for name in permissions.tools]
    rules += [("permissions.auto_approve.tools", name) for name in permissions.auto_approve.tools]
    unread = [state for state in snapshot.connections.values() if state.build is None]
    for where, name in rules:
        if name in snapshot.tools or name == RAW_REQUESTS:
            continue
        if not any(_may_have(snapshot, state, name) for state in unread):
            successor = snapshot.successors.get(name)
            renamed = f" any more: it is called {successor[0]!r}" if successor else ""
            yield _warning(where, f"there is no tool {name!r}{renamed}")


def _unmatched_bundle_tools(snapshot: Snapshot) -> Iterator[Problem]:
    """Tools that bundles name one by one; a glob may well be there for tools that come later."""
    for key, bundle in snapshot.settings.bundles.items():
        names = {*bundle.allow, *bundle.deny}
        states = [snapshot.connections.get(name) for name in bundle.connections]
        if not any(map(_is_name, names)) or not all(state and state.build for state in states):
            continue
        tools = [tool for state in states if state for tool in state.tools]
        names -= {tool.capability for tool in tools} & {*bundle.deny}
        for name in sorted(filter(_is_name, names - {tool.local_name for tool in tools})):
            where = "deny" if name in bundle.deny else "allow"
            yield _warning(
                key_path("bundles", key, where), f"its connections have no tool {name!r}"
            )


def _is_name(pattern: str) -> bool:
    return not set(pattern) & set("*?[")


def _may_have(snapshot: Snapshot, state: ConnectionState, name: str) -> bool:
    """Whether a connection that has not been read yet might have a tool of this name."""
    settings = state.settings
    own_names = [rule.as_ for rule in settings.wrap] if isinstance(settings, McpConnection) else []
    portable = [f"{key}_" for key, at in snapshot.settings.capabilities.items() if at == state.name]
    return name in own_names or name.startswith((state.prefix, *portable))


def _unmatched_connections(snapshot: Snapshot) -> Iterator[Problem]:
    settings = snapshot.settings
    if settings.azure is not None:
        return  # its connections come and go
    rules = [
        (key_path("principals", user, "connections"), name)
        for user, principal in settings.principals.items()
        for name in principal.connections
    ]
    rules += [
        (key_path("bundles", key, "connections"), name)
        for key, bundle in settings.bundles.items()
        for name in bundle.connections
    ]
    rules += [(f"capabilities.{key}", name) for key, name in settings.capabilities.items()]
    for where, name in rules:
        if name not in snapshot.connections:
            yield _warning(where, f"there is no connection {name!r}")


def _overruled_permissions(snapshot: Snapshot) -> Iterator[Problem]:
    """Where config.toml is stricter than the permissions that were put over it."""
    configured, put = snapshot.settings.permissions, snapshot.stored_permissions
    if put is None:
        return
    if _PERMISSION_LEVELS.index(configured.level) > _PERMISSION_LEVELS.index(put.level):
        yield _weaker("level", configured.level, put.level)
    for name in sorted((_named_tools(configured) | _named_tools(put)) & snapshot.tools.keys()):
        before, after = (decide(snapshot.tools[name], each) for each in (configured, put))
        if strictness(before) > strictness(after):
            yield _weaker(f"tools.{name}", before.outcome, after.outcome)
    if configured.always_allow_minutes < put.always_allow_minutes:
        minutes = (configured.always_allow_minutes, put.always_allow_minutes)
        yield _weaker("always_allow_minutes", *(f"{each:g}" for each in minutes))
    if put.always_allow_high_risk and not configured.always_allow_high_risk:
        yield _weaker("always_allow_high_risk", "false", "true")
    if put.self_approval and not configured.self_approval:
        yield _weaker("self_approval", "false", "true")


def _named_tools(permissions: Permissions) -> set[str]:
    return {*permissions.tools, *permissions.auto_approve.tools}


def _weaker(key: str, rule: str, put: str) -> Problem:
    return Problem(
        "error",
        f"permissions.{key}",
        f"config.toml says {rule}, which is stricter, but {put} was put at run time and stays "
        "in force until DELETE /api/v1/permissions",
        configured=True,
    )


def _warning(where: str, message: str) -> Problem:
    return Problem("warning", where, message, configured=True)
