"""Access: what each principal may see and why, rules for tools, client grants and sign-ins.

Principals see and change their own access; admins see everyone's. Permissions are put here, over
those of config.toml; principals, roles, bundles and routes have pages of their own (`rights`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, get_args

from starlette.responses import RedirectResponse, Response

from gateway.config.profiles import Format, ShippedProfile, profiles_of, serving_of
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
from gateway.model import Level, Principal, ViewAddress
from gateway.naming import listed_tokens
from gateway.policy.access import may_know
from gateway.policy.view import bundles_of
from gateway.web import credentials, rest
from gateway.web.access import addresses, claims_roles, known_principals, view_as
from gateway.web.display import access_row

RULES = ("allowed", "confirm", "blocked")


async def access(visit: Visit) -> Response:
    inquiry, snapshot, me = visit.inquiry, visit.snapshot, visit.principal
    principals = await known_principals(inquiry) if me.admin else {me.name: me}
    rows = list(islice(_access_rows(visit, principals.values()), TABLE_ROWS))
    filter = visit.filter("q", "connection", "effective_access")
    chosen = choose_rows(rows, filter, "principal", "role", "organization", "connection")
    return await list_page(
        visit,
        "access.html",
        "Access",
        chosen,
        filter,
        own=[row for row in rows if row["principal"] == me.name],
        levels=get_args(Level),
        rules=RULES,
        permissions=await rest.get_permissions(inquiry),
        stored=snapshot.stored_permissions is not None,
        # Nobody reads a longer list: the name is copied from the page of tools.
        tool_names=sorted(tools) if len(tools := inquiry.view.tools) <= STORE_ROWS else [],
        names=sorted({row["connection"] for row in rows}),
        profiles=_profile_rows(visit),
        **_view_choices(visit, principals, me.name, "/mcp"),
        **await rest.list_client_grants(inquiry),
        **await rest.list_grants(inquiry),
        **await credentials.list_credentials(inquiry),
        **(await credentials.list_sign_ins(inquiry) if me.admin else {"sign_ins": []}),
    )


def _access_rows(visit: Visit, principals: Iterable[Principal]) -> Iterator[dict[str, Any]]:
    """A row per principal and connection: what the principal may do; the visitor comes first."""
    snapshot = visit.snapshot
    for principal in principals:
        bundles = bundles_of(snapshot, principal, ViewAddress("own"))
        tools = visit.gateway.view_of(snapshot, principal, ViewAddress("own")).tools
        counts = Counter(tool.connection for tool in tools.values())
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
    """A row per client profile: what it changes in the tools sent to the visitor's clients."""
    tools, rows = visit.inquiry.view.direct_tools.values(), []
    clients = visit.snapshot.settings.clients
    costs = {form: sum(listed_tokens(tool, form) for tool in tools) for form in get_args(Format)}
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


# --- the view of another principal ----------------------------------------------------------------


async def view(visit: Visit) -> Response:
    """The tools that a principal is listed at an address, and why the others are not."""
    query = visit.filter("principal", "address", "role")
    name, address = query["principal"] or visit.principal.name, query["address"] or "/mcp"
    listing = await view_as(visit.inquiry, name, address, query["role"])
    filter = visit.filter("q", "connection", "shown", "reason")
    rows = choose_rows(listing["tools"], filter, "name", "connection", "reason")[:TABLE_ROWS]
    facts = {key: value for key, value in listing.items() if key != "tools"}
    if (file := download(visit, "tools", rows, **facts)) is not None:
        return file
    reasons = Counter((row["shown"], row["reason"]) for row in listing["tools"] if row["reason"])
    return await page(
        visit,
        "access_view.html",
        f"As {name}",
        rows=rows,
        filter=filter,
        files=file_links(visit, {**query, **filter}),
        listing=listing,
        reasons=[
            (shown, reason, count, link("/access/view", **query, shown=shown, reason=reason))
            for (shown, reason), count in reasons.most_common()
        ],
        names=sorted({row["connection"] for row in listing["tools"]} - {""}),
        **_view_choices(visit, await known_principals(visit.inquiry), name, address),
    )


def _view_choices(visit: Visit, names: Iterable[str], name: str, address: str) -> dict[str, Any]:
    """The choices of the form that selects a principal and an address to view from."""
    return {
        "principals": list(names),
        "addresses": addresses(visit.inquiry),
        "roles": sorted(visit.snapshot.settings.roles) if claims_roles(visit.inquiry) else [],
        "chosen": {"principal": name, "address": address, "role": visit.query("role")},
    }


# --- client grants and sign-ins -------------------------------------------------------------------


async def revoke_client(visit: Visit) -> Response:
    """Ends the grant of a client."""
    grant = await rest.delete_client_grant(visit.inquiry, visit.id)
    words = f"{clip(grant['client_name'], 60)} is let in no longer"
    return toast(visit, words, removed_id=f"client-{visit.id}")


async def revoke_sign_in(visit: Visit) -> Response:
    """Ends the sign-in of one principal, or by an admin of everybody, at an API."""
    owner = visit.form.get("owner", "")
    await credentials.delete_sign_in(visit.inquiry, visit.id, owner)
    owner_name = clip(owner, 60) if owner else "Everybody"
    row_id = visit.form.get("row", "")
    return toast(visit, f"{owner_name} is signed out of {visit.id}", removed_id=row_id)


async def sign_in(visit: Visit) -> Response:
    """Redirects the visitor to the page where they sign in to an API as themselves."""
    answer = await credentials.sign_in(visit.inquiry, visit.request.path_params["name"])
    return RedirectResponse(answer["sign_in_url"], 303)


async def sign_out(visit: Visit) -> Response:
    """Deletes the credential that the visitor gave for an API."""
    answer = await credentials.delete_credential(visit.inquiry, visit.request.path_params["name"])
    return toast(visit, f"Signed out of {clip(answer['display_name'], 60)}")


# --- what can be changed at run time --------------------------------------------------------------


async def choose(visit: Visit) -> Response:
    """Stores the visitor's own choice of access for one connection."""
    chosen = await rest.choose_access(visit.inquiry, visit.id, visit.form.get("access"))
    return toast(visit, f"Your access to {visit.id} is now {chosen['user_access']}")


async def permissions(visit: Visit) -> Response:
    """Stores the level for everyone; `reset` brings back the permissions of config.toml."""
    if visit.form.get("reset"):
        await rest.delete_permissions(visit.inquiry)
        return toast(visit, "The permissions of config.toml are in force again")
    values = await rest.get_permissions(visit.inquiry) | {"level": visit.form.get("level", "")}
    stored = await rest.put_permissions(visit.inquiry, values)
    return toast(visit, f"Permissions are now {stored['level']}")


async def rule(visit: Visit) -> Response:
    """Stores a rule for one tool, over the level; without a rule the level decides."""
    visit.inquiry.require_admin()
    name, tool_rule = visit.form.get("tool", "").strip(), visit.form.get("rule", "")
    values = await rest.get_permissions(visit.inquiry)
    rules = {tool: each for tool, each in values["tools"].items() if tool != name}
    if tool_rule:
        if name not in visit.snapshot.tools and name not in values["tools"]:
            raise Fixable("invalid_arguments", f"There is no tool {clip(name, 80)!r}.")
        rules[name] = tool_rule
    await rest.put_permissions(visit.inquiry, values | {"tools": rules})
    return go(visit, "/console/access#rules")
