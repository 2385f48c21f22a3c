"""How connections and tools are shown, the same to a model, over REST and in the console.

Secrets are masked here: whatever is `SecretStr` in the configuration, injected values, environment
of child processes, headers and options whose names speak of credentials, and what addresses have
in their query.
"""

from __future__ import annotations

from typing import Any

from gateway.catalog.discover import problem_dict
from gateway.catalog.fetch import is_inline
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.catalog.sources import kind_of
from gateway.config.connection import Connection
from gateway.config.settings import Permissions
from gateway.invoke.redact import SECRET_NAME
from gateway.model import Principal, Tool
from gateway.policy.access import admin_level, level, user_level, visible_tools
from gateway.policy.decide import decide

MASK = "**********"
MAX_PROBLEMS = 50
INLINE_SHOWN = 200


def tool_row(tool: Tool, permissions: Permissions) -> dict[str, Any]:
    """One tool as `list_dynamic_tools` and REST list it."""
    return {
        "name": tool.name,
        "connection": tool.connection,
        "operation": tool.operation,
        "method": tool.method,
        "path": tool.path,
        "access": tool.access,
        "risk": tool.risk,
        "requires_confirmation": decide(tool, permissions).outcome == "confirm",
        "description": tool.description,
        "tokens": tool.tokens,
    }


def connection_row(
    snapshot: Snapshot, principal: Principal, state: ConnectionState, refreshed_at: float | None
) -> dict[str, Any]:
    """One connection as `list_connections` and REST list it."""
    tools = visible_tools(snapshot, principal, state)
    return {
        "name": state.name,
        "display_name": state.display_name,
        "kind": kind_of(state.settings),
        "origin": state.origin,
        "status": state.status,
        "effective_access": level(snapshot, principal, state) or "disabled",
        "tools": len(tools),
        "tokens": sum(tool.tokens for tool in tools),
        "last_refresh": refreshed_at,
        "problems": [problem_dict(problem) for problem in state.problems[:MAX_PROBLEMS]],
        "consent_link": state.consent_link,
    }


def connection_detail(
    snapshot: Snapshot, principal: Principal, state: ConnectionState, refreshed_at: float | None
) -> dict[str, Any]:
    """One connection with its settings; those of an admin's concern only for admins."""
    row = connection_row(snapshot, principal, state, refreshed_at)
    row |= {
        "admin_access": admin_level(state),
        "user_access": user_level(snapshot, principal, state.name),
        "base_url": masked_url(state.build.base_url) if state.build else "",
        "revision": state.revision,
    }
    if principal.admin:
        row["settings"] = masked_settings(state.settings)
        row["skipped"] = len(state.skipped)
    return row


def masked_settings(settings: Connection) -> dict[str, Any]:
    """The settings as they were put, with every secret masked."""
    shown = settings.model_dump(mode="json", by_alias=True, exclude_unset=True)
    shown["kind"] = kind_of(settings)
    for table in ("inject", "env", "parameter_values"):
        if table in shown:
            shown[table] = dict.fromkeys(shown[table], MASK)
    if "headers" in shown:
        shown["headers"] = {
            name: MASK if SECRET_NAME.search(name) else value
            for name, value in shown["headers"].items()
        }
    for rule in shown.get("wrap", ()):
        rule["inject"] = dict.fromkeys(rule.get("inject", ()), MASK)
    for key in ("spec", "url", "base_url"):
        if shown.get(key) and not is_inline(shown[key]):
            shown[key] = masked_url(shown[key])
    if "args" in shown:
        shown["args"] = _masked_options(shown["args"])
    spec = shown.get("spec", "")
    if len(spec) > INLINE_SHOWN:
        shown["spec"] = f"{spec[:INLINE_SHOWN]}… ({len(spec)} characters)"
    return shown


def masked_url(url: str) -> str:
    """The address, with the values in its query masked: some services put their keys there."""
    place, _, query = url.partition("?")
    if not query:
        return url
    names = (pair.partition("=")[0] for pair in query.split("&"))
    return place + "?" + "&".join(f"{name}={MASK}" for name in names)


def _masked_options(args: list[str]) -> list[str]:
    """A command's arguments without the values of options such as `--api-key`."""
    shown: list[str] = []
    for arg in args:
        name, equals, _ = arg.partition("=")
        after = shown[-1] if shown else ""
        if after.startswith("-") and "=" not in after and SECRET_NAME.search(after):
            shown.append(MASK)
        else:
            secret = equals and SECRET_NAME.search(name)
            shown.append(f"{name}={MASK}" if secret else arg)
    return shown
