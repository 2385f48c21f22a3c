"""What somebody else would be listed, and why not the rest: an admin looks through their eyes.

The view is the one that answers their tools/list, and each reason is the words of the rule that
made it so. Looking changes nothing. An admin of an organization looks at its people, and learns of
no connection that does not exist for the admin.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gateway.catalog.snapshot import ConnectionState
from gateway.errors import Fixable, NotFound
from gateway.limits import STORE_ROWS
from gateway.model import Principal
from gateway.naming import token_cost
from gateway.policy.access import configured_principal, decide, may_know, principal_now
from gateway.policy.view import View, why_hidden, why_own_hidden
from gateway.store import catalog as changes
from gateway.store.oauth import list_grants_that_hold
from gateway.web.gateway import Inquiry
from gateway.web.identity import scope_of
from gateway.web.shown import access_row

Shown = dict[str, Any]


async def known_principals(inquiry: Inquiry) -> dict[str, Principal]:
    """Whom an admin may look at: who is configured, who let a client in, and the admin."""
    inquiry.require_admin()
    me, settings, found = inquiry.principal, inquiry.snapshot.settings, {}
    for name, table in settings.principals.items():
        found[name] = configured_principal(name, table)
    for grant in await list_grants_that_hold(inquiry.gateway.db, time.time()):
        said: Shown = {key: grant.claimed.get(key) for key in ("role", "organization", "admin")}
        person = principal_now(settings, Principal(grant.principal, **said))
        if person is not None:
            found[person.name] = person
    mine = [each for each in found.values() if me.organization in (None, each.organization)]
    return {me.name: me} | {each.name: each for each in mine if each.name != me.name}


def addresses(inquiry: Inquiry) -> list[str]:
    """Where there is a view to be looked at: one's own, the bundles, the steps."""
    settings = inquiry.snapshot.settings
    steps = {
        f"/mcp/steps/{workflow}/{step}"
        for workflow, roles in settings.routes.items()
        for each in roles.values()
        for step in each
    }
    return ["/mcp", *(f"/mcp/bundles/{name}" for name in settings.bundles), *sorted(steps)]


async def view_as(inquiry: Inquiry, principal: str, address: str = "/mcp", role: str = "") -> Shown:
    """What a principal sees at an address, and the reason for each tool that is not listed.

    Where tokens claim roles, `role` says which one to go by.
    """
    who, scope = (await known_principals(inquiry)).get(principal), scope_of(address)
    if scope is None:
        hint = "Such as /mcp, /mcp/bundles/NAME or /mcp/steps/WORKFLOW/STEP."
        raise Fixable("invalid_arguments", "there is no such address", hint)
    if role and inquiry.principal.organization is None and claims_roles(inquiry):
        who = replace(who or Principal(principal), role=role)
    if who is None:
        hint = "GET /principals names them; people who let a client in are known too."
        raise NotFound("invalid_arguments", f"there is no principal {principal!r}", hint)
    seen = inquiry.gateway.view_of(inquiry.snapshot, who, scope)
    held = await changes.list_changes(inquiry.gateway.db, status="held", limit=STORE_ROWS)
    new = [(each.tool, each.connection) for each in held if each.kind == "added"]
    rows = await asyncio.to_thread(lambda: list(_rows(inquiry, who, seen, new)))
    counts = Counter(row["shown"] for row in rows)
    return {
        "principal": who.name,
        "admin": who.admin,
        "role": who.role,
        "organization": who.organization,
        "address": scope.address,
        "bundle_ids": list(seen.bundle_ids),
        **{kind: counts[kind] for kind in ("listed", "meta", "hidden", "no_tool")},
        "tokens": sum(row["tokens"] for row in rows if row["shown"] == "listed"),
        "revision": inquiry.snapshot.revision,
        "connections": [_connection_row(inquiry, who, seen, s) for s in inquiry.connections()],
        "tools": rows,
    }


def claims_roles(inquiry: Inquiry) -> bool:
    """Whether a person's role is known only when their token comes."""
    auth = inquiry.snapshot.settings.auth
    rules = {"jwt": auth, "oauth": auth.oauth}.get(auth.mode)
    return rules is not None and rules.role_claim is not None


def _connection_row(inquiry: Inquiry, who: Principal, seen: View, state: ConnectionState) -> Shown:
    snapshot = inquiry.snapshot
    reason = why_hidden(snapshot, who, seen, state, None)
    if not reason and not state.tools:
        reason = f"Nothing is known of its tools: it is {state.status}."
    return {
        "connection": state.name,
        "status": state.status,
        "exists": may_know(who, state),
        **access_row(snapshot, who, state),
        "tools": len(seen.connections.get(state.name, ())),
        "reason": reason,
    }


def _rows(
    inquiry: Inquiry, who: Principal, seen: View, new: list[tuple[str, str]]
) -> Iterator[Shown]:
    """Every tool there is: those that are listed, in the order of the list, then the others."""
    snapshot, own = inquiry.snapshot, inquiry.gateway.own_tools
    known = {state.name: state for state in inquiry.connections()}
    listed = set(seen.names)
    others = [name for name in (*own, *snapshot.tools) if name not in listed]
    for name in (*seen.names, *others):
        if name in own:
            reason = "" if name in seen.own else why_own_hidden(own[name], snapshot, who, seen)
            cost = token_cost(own[name].entry)
            yield _row(name, "", "hidden" if reason else "listed", reason, tokens=cost)
        elif (tool := snapshot.tools[name]).connection in known:
            state = known[tool.connection]
            shown = "listed" if name in seen.direct else "meta" if name in seen.meta else "hidden"
            reason = "" if shown == "listed" else why_hidden(snapshot, who, seen, state, tool)
            called = decide(tool, snapshot.permissions).outcome
            facts = {"access": tool.access, "when_called": called, "tokens": tool.tokens}
            yield _row(name, state.name, shown, reason, **facts)
    for state in known.values():
        for each in state.skipped:
            name = each.tool or each.operation or f"{each.method} {each.path}"
            reason = f"No tool for anybody: {each.reason}."
            yield _row(name, state.name, "no_tool", reason, access=each.access or "")
    for name, connection in new:
        if connection in known and name not in snapshot.tools:
            yield _row(name, connection, "no_tool", "New, and held until an admin accepts it.")


def _row(name: str, connection: str, shown: str, reason: str, **more: Any) -> Shown:
    facts = {"name": name, "connection": connection, "shown": shown, "reason": reason}
    return {**facts, "access": "", "when_called": "", "tokens": 0, **more}
