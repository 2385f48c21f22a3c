"""Who sees what: one's own access, and for admins everyone's, with the rule that asks or allows."""

from __future__ import annotations

from collections import Counter
from typing import Any, get_args

from starlette.responses import Response

from gateway.config.reading import parse_permissions
from gateway.edge.console.layout import page
from gateway.edge.console.tables import containing, download, file_links, matching
from gateway.edge.console.visit import Visit, toast
from gateway.edge.meta_tools import known_connection
from gateway.errors import Fixable
from gateway.model import Level, Principal
from gateway.policy.access import admin_level, level, may_know, user_level
from gateway.policy.view import Scope, bundles_of

LEVELS: dict[str, str] = {
    "read_only": "Nothing but reads is carried out.",
    "execute_with_confirm": "Reads run; everything else waits for a person.",
    "full_access": "Everything runs at once. Nobody is asked.",
}
MAX_PRINCIPALS = 200
MAX_CONNECTIONS = 100


async def access(visit: Visit) -> Response:
    rows = _rows(visit)
    filter = {key: visit.query(key) for key in ("q", "connection", "effective_access")}
    kept = matching(
        rows, connection=filter["connection"], effective_access=filter["effective_access"]
    )
    kept = containing(kept, filter["q"], "principal", "role", "organization", "connection")
    if (file := download(visit, "access", kept)) is not None:
        return file
    snapshot = visit.asked.snapshot
    return await page(
        visit,
        "access.html",
        "Access",
        "access",
        rows=kept,
        filter=filter,
        own=[row for row in rows if row["principal"] == visit.principal.name],
        levels=get_args(Level),
        permissions=snapshot.permissions,
        stored=snapshot.stored_permissions is not None,
        level_words=LEVELS,
        settings=snapshot.settings if visit.principal.admin else None,
        names=sorted({row["connection"] for row in rows}),
        files=file_links("/access", **filter),
    )


async def choose(visit: Visit) -> Response:
    """The visitor's own choice for one connection."""
    state = known_connection(visit.asked, visit.request.path_params["name"])
    wanted = visit.form.get("access", "")
    for known in get_args(Level):
        if wanted == known:
            await visit.asked.gateway.catalog.choose(visit.principal.name, state.name, known)
            return toast(visit, f"Your access to {state.name} is now {wanted}")
    raise Fixable("invalid_arguments", f"access must be one of {', '.join(get_args(Level))}")


async def permissions(visit: Visit) -> Response:
    """The level for everyone; config.toml's again where `reset` says so."""
    visit.need_admin()
    catalog, snapshot = visit.asked.gateway.catalog, visit.asked.snapshot
    if visit.form.get("reset"):
        await catalog.put_permissions(None, by=visit.principal.name)
        return toast(visit, "The permissions of config.toml are in force again")
    wanted = visit.form.get("level", "")
    if wanted not in LEVELS:
        raise Fixable("invalid_arguments", f"level must be one of {', '.join(LEVELS)}")
    values = snapshot.permissions.model_dump(mode="json") | {"level": wanted}
    put = parse_permissions(snapshot.settings.permissions, values)
    await catalog.put_permissions(put, by=visit.principal.name)
    return toast(visit, f"Permissions are now {wanted}")


def _rows(visit: Visit) -> list[dict[str, Any]]:
    snapshot = visit.asked.snapshot
    rows = []
    for principal in _principals(visit):
        bundles = bundles_of(snapshot, principal, Scope("own"))
        seen = visit.asked.gateway.view_of(snapshot, principal, Scope("own")).tools
        counts = Counter(tool.connection for tool in seen.values())
        for state in list(snapshot.connections.values())[:MAX_CONNECTIONS]:
            if not (may_know(principal, state) and may_know(visit.principal, state)):
                continue
            rows.append(
                {
                    "principal": principal.name,
                    "admin": principal.admin,
                    "role": principal.role or "",
                    "organization": principal.organization or "",
                    "bundles": list(bundles or ()),
                    "connection": state.name,
                    "admin_access": admin_level(state),
                    "user_access": user_level(snapshot, principal, state.name),
                    "effective_access": level(snapshot, principal, state) or "disabled",
                    "tools": counts[state.name],
                }
            )
    return rows


def _principals(visit: Visit) -> list[Principal]:
    """The visitor first, then for an admin everyone who is configured."""
    known = visit.parts.identity.settings.principals
    others = [each for name, each in known.items() if name != visit.principal.name]
    return [visit.principal, *(others[:MAX_PRINCIPALS] if visit.principal.admin else ())]
