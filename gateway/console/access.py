"""Access: who sees what and why, what runs and what asks, who was let in and who signed in where.

Everyone sees and changes what is their own; admins see everyone's. Permissions are put here, over
those of config.toml; principals, roles, bundles and routes have pages of their own (`rights`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, get_args

from starlette.responses import RedirectResponse, Response

from gateway.config.profiles import Form, ShippedProfile, profiles_of, serving_of
from gateway.console.pages import (
    Visit,
    choose_rows,
    clip,
    download,
    file_links,
    go,
    link,
    list_page,
    page,
    toast,
)
from gateway.errors import Fixable
from gateway.limits import STORE_ROWS, TABLE_ROWS
from gateway.model import Level, Principal, Scope
from gateway.naming import listed_tokens
from gateway.policy.access import may_know
from gateway.policy.view import bundles_of
from gateway.web import credentials, rest
from gateway.web.access import addresses, claims_roles, known_principals, view_as
from gateway.web.shown import access_row

RULES = ("allowed", "confirm", "blocked")


async def access(visit: Visit) -> Response:
    inquiry, snapshot, me = visit.inquiry, visit.snapshot, visit.principal
    known = await known_principals(inquiry) if me.admin else {me.name: me}
    rows = list(islice(_access_rows(visit, known.values()), TABLE_ROWS))
    filter = visit.filter("q", "connection", "effective_access")
    kept = choose_rows(rows, filter, "principal", "role", "organization", "connection")
    return await list_page(
        visit,
        "access.html",
        "Access",
        kept,
        filter,
        own=[row for row in rows if row["principal"] == me.name],
        levels=get_args(Level),
        rules=RULES,
        permissions=snapshot.written_permissions,
        stored=snapshot.stored_permissions is not None,
        # Of more, nobody reads a list: the name is copied from the page of tools.
        tool_names=sorted(tools) if len(tools := inquiry.view.tools) <= STORE_ROWS else [],
        names=sorted({row["connection"] for row in rows}),
        profiles=_profile_rows(visit),
        **_to_choose_from(visit, known, me.name, "/mcp"),
        **await rest.list_client_grants(inquiry),
        **await rest.list_grants(inquiry),
        **await credentials.list_credentials(inquiry),
        **(await credentials.list_sign_ins(inquiry) if me.admin else {"sign_ins": []}),
    )


def _access_rows(visit: Visit, known: Iterable[Principal]) -> Iterator[dict[str, Any]]:
    """What each of these may do with each connection; the visitor is the first."""
    snapshot = visit.snapshot
    for principal in known:
        bundles = bundles_of(snapshot, principal, Scope("own"))
        seen = visit.gateway.view_of(snapshot, principal, Scope("own")).tools
        counts = Counter(tool.connection for tool in seen.values())
        for state in visit.inquiry.connections():
            if may_know(principal, state):
                yield {
                    "principal": principal.name,
                    "admin": principal.admin,
                    "role": principal.role or "",
                    "organization": principal.organization or "",
                    "bundles": list(bundles or ()),
                    "connection": state.name,
                    **access_row(snapshot, principal, state),
                    "tools": counts[state.name],
                }


def _profile_rows(visit: Visit) -> list[dict[str, Any]]:
    """What each client profile changes of what the visitor's clients are sent."""
    tools, rows = visit.inquiry.view.direct.values(), []
    clients = visit.snapshot.settings.clients
    costs = {form: sum(listed_tokens(tool, form) for tool in tools) for form in get_args(Form)}
    for name, profile in profiles_of(clients):
        serving = serving_of(profile)
        rows.append(
            {
                "name": name,
                "match": profile.match,
                "shipped": isinstance(profile, ShippedProfile),
                "schema": profile.schema_,
                "results": profile.results,
                "max_output_tokens": profile.max_output_tokens,
                "page_tools": profile.page_tools,
                "tokens": costs[serving.form],
                "why": getattr(profile, "why", ""),
                "date": getattr(profile, "date", ""),
            }
        )
    return rows


# --- through somebody else's eyes -----------------------------------------------------------------


async def view(visit: Visit) -> Response:
    """What a principal is listed at an address, and why not the rest."""
    asked = visit.filter("principal", "address", "role")
    who, address = asked["principal"] or visit.principal.name, asked["address"] or "/mcp"
    seen = await view_as(visit.inquiry, who, address, asked["role"])
    filter = visit.filter("q", "connection", "shown", "reason")
    rows = choose_rows(seen["tools"], filter, "name", "connection", "reason")[:TABLE_ROWS]
    facts = {key: value for key, value in seen.items() if key != "tools"}
    if (file := download(visit, "tools", rows, **facts)) is not None:
        return file
    reasons = Counter((row["shown"], row["reason"]) for row in seen["tools"] if row["reason"])
    return await page(
        visit,
        "access_view.html",
        f"As {who}",
        rows=rows,
        filter=filter,
        files=file_links(visit, {**asked, **filter}),
        seen=seen,
        reasons=[
            (*each, count, link("/access/view", **asked, shown=each[0], reason=each[1]))
            for each, count in reasons.most_common()
        ],
        names=sorted({row["connection"] for row in seen["tools"]} - {""}),
        **_to_choose_from(visit, await known_principals(visit.inquiry), who, address),
    )


def _to_choose_from(visit: Visit, known: Iterable[str], who: str, address: str) -> dict[str, Any]:
    """What the form has that chooses through whose eyes to look, and where."""
    return {
        "principals": list(known),
        "addresses": addresses(visit.inquiry),
        "roles": sorted(visit.snapshot.settings.roles) if claims_roles(visit.inquiry) else [],
        "chosen": {"principal": who, "address": address, "role": visit.query("role")},
    }


# --- who was let in, and who signed in ------------------------------------------------------------


async def revoke_client(visit: Visit) -> Response:
    """Ends what a client was given at the front door."""
    grant = await rest.delete_client_grant(visit.inquiry, visit.id)
    words = f"{clip(grant['client_name'], 60)} is let in no longer"
    return toast(visit, words, gone=f"client-{visit.id}")


async def revoke_sign_in(visit: Visit) -> Response:
    """Ends what somebody, or an admin for everybody, has given for an API."""
    owner = visit.form.get("owner", "")
    await credentials.delete_sign_in(visit.inquiry, visit.id, owner)
    whose = clip(owner, 60) if owner else "Everybody"
    gone = visit.form.get("row", "")
    return toast(visit, f"{whose} is signed out of {visit.id}", gone=gone)


async def sign_in(visit: Visit) -> Response:
    """Leads the visitor to where they sign in to an API as themselves."""
    found = await credentials.sign_in(visit.inquiry, visit.request.path_params["name"])
    return RedirectResponse(found["sign_in_url"], 303)


async def sign_out(visit: Visit) -> Response:
    """Forgets what the visitor has given for an API."""
    found = await credentials.delete_credential(visit.inquiry, visit.request.path_params["name"])
    return toast(visit, f"Signed out of {clip(found['display_name'], 60)}")


# --- what can be changed at run time --------------------------------------------------------------


async def choose(visit: Visit) -> Response:
    """The visitor's own choice for one connection."""
    chosen = await rest.choose_access(visit.inquiry, visit.id, visit.form.get("access"))
    return toast(visit, f"Your access to {visit.id} is now {chosen['user_access']}")


async def permissions(visit: Visit) -> Response:
    """The level for everyone; config.toml's again where `reset` says so."""
    if visit.form.get("reset"):
        await rest.delete_permissions(visit.inquiry)
        return toast(visit, "The permissions of config.toml are in force again")
    values = await rest.get_permissions(visit.inquiry) | {"level": visit.form.get("level", "")}
    put = await rest.put_permissions(visit.inquiry, values)
    return toast(visit, f"Permissions are now {put['level']}")


async def rule(visit: Visit) -> Response:
    """A rule for one tool, over the level; no rule: the level decides."""
    visit.inquiry.require_admin()
    name, said = visit.form.get("tool", "").strip(), visit.form.get("rule", "")
    values = await rest.get_permissions(visit.inquiry)
    rules = {tool: each for tool, each in values["tools"].items() if tool != name}
    if said:
        if name not in visit.snapshot.tools and name not in values["tools"]:
            raise Fixable("invalid_arguments", f"There is no tool {clip(name, 80)!r}.")
        rules[name] = said
    await rest.put_permissions(visit.inquiry, values | {"tools": rules})
    return go(visit, "/console/access#rules")
