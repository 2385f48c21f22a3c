"""Shows an admin the tools that another principal is listed, and the reason for each hidden one.

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
from gateway.config.settings import Settings
from gateway.errors import Fixable, NotFound
from gateway.limits import STORE_ROWS
from gateway.model import Principal
from gateway.naming import token_cost
from gateway.policy.access import configured_principal, decide, may_know, principal_now
from gateway.policy.view import View, why_hidden, why_own_hidden
from gateway.store import catalog as changes
from gateway.store.oauth import list_grants_that_hold
from gateway.store.tables import ClientGrant
from gateway.web.display import access_row
from gateway.web.gateway import Inquiry
from gateway.web.identity import view_address_of

Json = dict[str, Any]


async def known_principals(inquiry: Inquiry) -> dict[str, Principal]:
    """The principals an admin may look at: the configured, those who let a client in, the admin."""
    inquiry.require_admin()
    admin, settings, people = inquiry.principal, inquiry.snapshot.settings, {}
    for name, table in settings.principals.items():
        people[name] = configured_principal(name, table)
    for grant in await visible_grants(inquiry):
        if (person := _person_of(settings, grant)) is not None:
            people[person.name] = person
    visible = [p for p in people.values() if admin.organization in (None, p.organization)]
    return {admin.name: admin} | {p.name: p for p in visible if p.name != admin.name}


async def visible_grants(inquiry: Inquiry) -> list[ClientGrant]:
    """What people gave their clients: one's own; for an admin also its organization's, or all."""
    db, found, last = inquiry.gateway.db, list[ClientGrant](), ""
    own = {} if inquiry.principal.admin else {"principal": inquiry.principal.name}
    while len(found) < STORE_ROWS:
        grants = await list_grants_that_hold(db, time.time(), last, **own)
        found += [grant for grant in grants if may_see_grant(inquiry, grant)]
        if len(grants) < STORE_ROWS:
            break
        last = grants[-1].id
    return found


def may_see_grant(inquiry: Inquiry, grant: ClientGrant) -> bool:
    """Whether a grant is the caller's own, or of a person the caller looks after."""
    me, person = inquiry.principal, _person_of(inquiry.snapshot.settings, grant)
    looks_after = me.admin and me.organization in (None, person and person.organization)
    return looks_after or grant.principal == me.name


def _person_of(settings: Settings, grant: ClientGrant) -> Principal | None:
    """The person who gave a grant, with the rights that they have now."""
    claims: Json = {key: grant.claimed.get(key) for key in ("role", "organization", "admin")}
    return principal_now(settings, Principal(grant.principal, **claims))


def addresses(inquiry: Inquiry) -> list[str]:
    """The addresses that have a view to look at: /mcp, the bundles and the steps."""
    settings = inquiry.snapshot.settings
    steps = {
        f"/mcp/steps/{workflow}/{step}"
        for workflow, roles in settings.routes.items()
        for steps_of_role in roles.values()
        for step in steps_of_role
    }
    return ["/mcp", *(f"/mcp/bundles/{name}" for name in settings.bundles), *sorted(steps)]


async def view_as(inquiry: Inquiry, principal: str, address: str = "/mcp", role: str = "") -> Json:
    """What a principal sees at an address, and the reason for each tool that is not listed.

    Where tokens claim roles, `role` says which one to go by.
    """
    person, view_at = (await known_principals(inquiry)).get(principal), view_address_of(address)
    if view_at is None:
        hint = "Such as /mcp, /mcp/bundles/NAME or /mcp/steps/WORKFLOW/STEP."
        raise Fixable("invalid_arguments", "there is no such address", hint)
    if role and inquiry.principal.organization is None and claims_roles(inquiry):
        person = replace(person or Principal(principal), role=role)
    if person is None:
        hint = "GET /principals names them; people who let a client in are known too."
        raise NotFound("invalid_arguments", f"there is no principal {principal!r}", hint)
    view = inquiry.gateway.view_of(inquiry.snapshot, person, view_at)
    db, oversight = inquiry.gateway.db, inquiry.oversight()
    held_changes = await changes.list_changes(db, status="held", oversight=oversight)
    new_tools = [(c.tool, c.connection) for c in held_changes if c.kind == "added"]
    rows = await asyncio.to_thread(lambda: list(_rows(inquiry, person, view, new_tools)))
    counts = Counter(row["shown"] for row in rows)
    return {
        "principal": person.name,
        "admin": person.admin,
        "role": person.role,
        "organization": person.organization,
        "address": view_at.path,
        "bundle_ids": list(view.bundle_ids),
        **{kind: counts[kind] for kind in ("listed", "meta", "hidden", "no_tool")},
        "tokens": sum(row["tokens"] for row in rows if row["shown"] == "listed"),
        "revision": inquiry.snapshot.revision,
        "connections": [_state_row(inquiry, person, view, s) for s in inquiry.connections()],
        "tools": rows,
    }


def claims_roles(inquiry: Inquiry) -> bool:
    """Whether roles come from tokens: a person's role is known only when their token comes."""
    auth = inquiry.snapshot.settings.auth
    rules = {"jwt": auth, "oauth": auth.oauth}.get(auth.mode)
    return rules is not None and rules.role_claim is not None


def _state_row(inquiry: Inquiry, person: Principal, view: View, state: ConnectionState) -> Json:
    snapshot = inquiry.snapshot
    reason = why_hidden(snapshot, person, view, state, None)
    if not reason and not state.tools:
        reason = f"Nothing is known of its tools: it is {state.status}."
    return {
        "connection": state.name,
        "status": state.status,
        "exists": may_know(person, state),
        **access_row(snapshot, person, state),
        "tools": len(view.connections.get(state.name, ())),
        "reason": reason,
    }


def _rows(
    inquiry: Inquiry, person: Principal, view: View, new_tools: list[tuple[str, str]]
) -> Iterator[Json]:
    """Every tool: those that are listed, in the order of the list, then those that are not."""
    snapshot, own = inquiry.snapshot, inquiry.gateway.own_tools
    states = {state.name: state for state in inquiry.connections()}
    listed = set(view.names)
    unlisted = [name for name in (*own, *snapshot.tools) if name not in listed]
    for name in (*view.names, *unlisted):
        if name in own:
            reason = "" if name in listed else why_own_hidden(own[name], snapshot, person, view)
            cost = token_cost(own[name].entry)
            yield _row(name, "", "hidden" if reason else "listed", reason, tokens=cost)
        elif (tool := snapshot.tools[name]).connection in states:
            state = states[tool.connection]
            shown = "listed" if name in listed else "meta" if name in view.meta_tools else "hidden"
            reason = "" if shown == "listed" else why_hidden(snapshot, person, view, state, tool)
            outcome = decide(tool, snapshot.permissions).outcome
            facts = {"access": tool.access, "when_called": outcome, "tokens": tool.tokens}
            yield _row(name, state.name, shown, reason, **facts)
    for state in states.values():
        for skipped in state.skipped:
            name = skipped.tool or skipped.operation or f"{skipped.method} {skipped.path}"
            reason = f"No tool for anybody: {skipped.reason}."
            yield _row(name, state.name, "no_tool", reason, access=skipped.access or "")
    for name, connection in new_tools:
        if connection in states and name not in snapshot.tools:
            yield _row(name, connection, "no_tool", "New, and held until an admin accepts it.")


def _row(name: str, connection: str, shown: str, reason: str, **details: Any) -> Json:
    facts = {"name": name, "connection": connection, "shown": shown, "reason": reason}
    return {**facts, "access": "", "when_called": "", "tokens": 0, **details}
