"""What callers prove themselves with to the APIs behind us: their own, listed, put, forgotten.

The same for REST and the console. Nobody reads a secret here, an admin neither, and nobody uses
another person's. What an admin signed in for everybody is listed for admins, who also see who has
signed in to what, and can end it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from gateway.calls.credentials import account_of
from gateway.catalog.snapshot import ConnectionState
from gateway.config.connection import OAuth2Auth, people_sign_in
from gateway.errors import Fixable, InsufficientScope, NotFound, Refused
from gateway.sign_in.keeper import Account, key_of
from gateway.store.credentials import list_credentials as list_credentials_of_all
from gateway.store.tables import Credential
from gateway.web.gateway import Inquiry

log = structlog.get_logger("gateway.sign_in")

Shown = dict[str, Any]


async def list_credentials(inquiry: Inquiry) -> Shown:
    """The connections that the caller signs in to, and whether they have."""
    keeper, me = inquiry.gateway.keeper, inquiry.principal
    mine, shared = await keeper.of(me.name), await keeper.of("") if me.admin else {}
    rows = []
    for state in inquiry.connections():
        if people_sign_in(state.settings.auth):
            account = account_of(state, me.name)
            if account.owner or me.admin:
                found = (mine if account.owner else shared).get(state.name)
                rows.append(_row(state, account, found))
    return {"credentials": rows}


async def put_credential(inquiry: Inquiry, connection: str, posted: Any = None) -> Shown:
    """Keeps a key of the caller's own."""
    state, account = _account(inquiry, connection, changes=True)
    if not isinstance(posted, Mapping):
        raise Fixable("invalid_arguments", "the body must be a JSON object")
    await inquiry.gateway.keeper.save(account, key_of(account.auth, posted))
    return await _shown(inquiry, state, account)


async def delete_credential(inquiry: Inquiry, connection: str) -> Shown:
    """Signs the caller out of a connection, here and at its provider."""
    state, account = _account(inquiry, connection, changes=True)
    await inquiry.gateway.keeper.forget(owner=account.owner, connection=connection)
    return await _shown(inquiry, state, account)


async def sign_in(inquiry: Inquiry, connection: str) -> Shown:
    """The address that the caller opens in a browser to sign in."""
    _, account = _account(inquiry, connection)
    me = inquiry.principal.name
    return {"sign_in_url": inquiry.gateway.keeper.link(me, account.owner, connection)}


async def list_sign_ins(inquiry: Inquiry) -> Shown:
    """Who has signed in to what: for admins. An owner of "" is everybody."""
    inquiry.require_admin()
    found = await list_credentials_of_all(inquiry.gateway.db)
    names = ("owner", "connection", "signed_in_at", "expires_at")
    return {
        "sign_ins": [
            {name: getattr(each, name) for name in names} | {"refused": bool(each.refused)}
            for each in found
            if inquiry.oversees(each.connection)
        ]
    }


async def delete_sign_in(inquiry: Inquiry, connection: str, owner: str = "") -> Shown:
    """Ends somebody's sign-in to a connection, here and at its provider: for admins."""
    rows = (await list_sign_ins(inquiry))["sign_ins"]
    found = [row for row in rows if (row["owner"], row["connection"]) == (owner, connection)]
    if not found:
        raise NotFound("invalid_arguments", "there is no such sign-in", "GET /sign-ins lists them.")
    await inquiry.gateway.keeper.forget(owner=owner, connection=connection)
    by, whose = inquiry.principal.name, owner or "everybody"
    log.info("sign-in revoked", connection=connection, owner=whose, by=by)
    return {**found[0], "revoked": True}


def _account(
    inquiry: Inquiry, connection: str, *, changes: bool = False
) -> tuple[ConnectionState, Account]:
    """Whose credential the caller may change here."""
    state = inquiry.connection(connection)
    if changes and "tools:write" in inquiry.principal.withheld:
        raise InsufficientScope("tools:read", "tools:write")
    if not people_sign_in(state.settings.auth):
        words = f"nobody signs in to {connection}: its credentials are configured"
        raise NotFound("invalid_arguments", words, "GET /credentials names what you sign in to.")
    account = account_of(state, inquiry.principal.name)
    if not account.owner and not inquiry.principal.admin:
        words = f"only an admin signs in to {connection}, for everybody"
        raise Refused("access_denied", words, "Ask an admin of the gateway.")
    return state, account


async def _shown(inquiry: Inquiry, state: ConnectionState, account: Account) -> Shown:
    found = (await inquiry.gateway.keeper.of(account.owner)).get(state.name)
    return _row(state, account, found)


def _row(state: ConnectionState, account: Account, found: Credential | None) -> Shown:
    holds = found is not None and not found.refused and found.binding == account.binding
    return {
        "connection": state.name,
        "display_name": state.display_name,
        "type": state.settings.auth.type,
        "per": "user" if account.owner else "connection",
        "signed_in": holds,
        "signed_in_at": found.signed_in_at if found and holds else None,
        "expires_at": found.expires_at if found and holds else None,
        "by_key": not isinstance(state.settings.auth, OAuth2Auth),
    }
