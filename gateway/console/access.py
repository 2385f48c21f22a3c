"""Who sees what: one's own access and sign-ins, and for admins everyone's, and the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any, get_args

from starlette.responses import RedirectResponse, Response

from gateway.config.profiles import Form, ShippedProfile, profiles_of, serving_of
from gateway.console.pages import (
    Visit,
    choose_rows,
    clip,
    list_page,
    toast,
)
from gateway.limits import TABLE_ROWS
from gateway.model import Level, Scope
from gateway.naming import listed_tokens
from gateway.policy.access import may_know
from gateway.policy.view import bundles_of
from gateway.web import credentials, rest
from gateway.web.shown import access_row


async def access(visit: Visit) -> Response:
    rows = list(islice(_access_rows(visit), TABLE_ROWS))
    filter = visit.filter("q", "connection", "effective_access")
    kept = choose_rows(rows, filter, "principal", "role", "organization", "connection")
    snapshot = visit.snapshot
    return await list_page(
        visit,
        "access.html",
        "Access",
        kept,
        filter,
        own=[row for row in rows if row["principal"] == visit.principal.name],
        levels=get_args(Level),
        permissions=snapshot.written_permissions,
        stored=snapshot.stored_permissions is not None,
        settings=snapshot.settings if visit.principal.admin else None,
        names=sorted({row["connection"] for row in rows}),
        profiles=_profile_rows(visit),
        **await rest.list_client_grants(visit.inquiry),
        **await credentials.list_credentials(visit.inquiry),
    )


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


async def revoke_client(visit: Visit) -> Response:
    """Ends what a client was given at the front door."""
    grant = await rest.delete_client_grant(visit.inquiry, visit.id)
    return toast(visit, f"{clip(grant['client_name'], 60)} is let in no longer")


async def sign_in(visit: Visit) -> Response:
    """Leads the visitor to where they sign in to an API as themselves."""
    found = await credentials.sign_in(visit.inquiry, visit.request.path_params["name"])
    return RedirectResponse(found["sign_in_url"], 303)


async def sign_out(visit: Visit) -> Response:
    """Forgets what the visitor has given for an API."""
    found = await credentials.delete_credential(visit.inquiry, visit.request.path_params["name"])
    return toast(visit, f"Signed out of {clip(found['display_name'], 60)}")


def _access_rows(visit: Visit) -> Iterator[dict[str, Any]]:
    """The visitor's own access first, then for an admin that of everyone who is configured."""
    snapshot, own = visit.snapshot, visit.principal
    known = visit.backend.identity.principals if own.admin else {}
    for principal in (own, *(each for name, each in known.items() if name != own.name)):
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
