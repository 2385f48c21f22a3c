"""Credentials that callers have for the APIs behind us: listed, put and forgotten.

The same for REST and the console. Nobody reads a secret here, not even an admin, and nobody uses
another person's. A sign-in that an admin made for everybody is listed for admins, who also see
which person has signed in to which connection, and can end that sign-in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from gateway.calls.credentials import account_of
from gateway.catalog.snapshot import ConnectionState
from gateway.config.connection import OAuth2Auth, people_sign_in
from gateway.errors import Fixable, NotFound, Refused
from gateway.model import Principal
from gateway.policy.access import looks_after, may_know, principal_now
from gateway.sign_in.credentials import Account, key_of
from gateway.store.credentials import list_credentials as list_credentials_of_all
from gateway.store.tables import Credential
from gateway.web.gateway import Inquiry

log = structlog.get_logger("gateway.sign_in")

Json = dict[str, Any]


async def list_credentials(inquiry: Inquiry) -> Json:
    """The connections that the caller signs in to, and whether the caller has signed in."""
    people, user = inquiry.gateway.people, inquiry.principal
    own, ours = await people.rows_of(user.name), await people.rows_of("") if user.admin else {}
    rows = []
    for state in inquiry.connections():
        if people_sign_in(state.settings.auth):
            account = account_of(state, user.name)
            if account.owner or looks_after(user, state):
                rows.append(_row(state, account, (own if account.owner else ours).get(state.name)))
    return {"credentials": rows}


async def put_credential(inquiry: Inquiry, connection: str, posted: Any = None) -> Json:
    """Stores a key of the caller's own for a connection."""
    state, account = _account(inquiry, connection)
    if not isinstance(posted, Mapping):
        raise Fixable("invalid_arguments", "the body must be a JSON object")
    key, organization = key_of(account.auth, posted), inquiry.principal.organization
    await inquiry.gateway.people.save(account, key, organization)
    return await _current_row(inquiry, state, account)


async def delete_credential(inquiry: Inquiry, connection: str) -> Json:
    """Signs the caller out of a connection, here and at its provider."""
    state, account = _account(inquiry, connection)
    await inquiry.gateway.people.forget(owner=account.owner, connection=connection)
    return await _current_row(inquiry, state, account)


async def sign_in(inquiry: Inquiry, connection: str) -> Json:
    """The address that the caller opens in a browser to sign in."""
    _, account = _account(inquiry, connection)
    name = inquiry.principal.name
    return {"sign_in_url": inquiry.gateway.people.link(name, account.owner, connection)}


async def list_sign_ins(inquiry: Inquiry) -> Json:
    """Which person has signed in to which connection: for admins. An owner of "" is everybody."""
    inquiry.require_admin()
    rows = await list_credentials_of_all(inquiry.gateway.db)
    names = ("owner", "connection", "signed_in_at", "expires_at")
    return {
        "sign_ins": [
            {name: getattr(row, name) for name in names} | {"refused": bool(row.refused)}
            for row in rows
            if _oversees(inquiry, row)
        ]
    }


def _oversees(inquiry: Inquiry, row: Credential) -> bool:
    """Whether an admin may see a sign-in: those of an organization, of its people, and everybody's
    to its own connections where that is good now."""
    admin, state = inquiry.principal, inquiry.snapshot.connections.get(row.connection)
    if admin.organization is None or state is None or not may_know(admin, state):
        return admin.organization is None
    if not row.owner:
        return looks_after(admin, state) and account_of(state, "").binding == row.binding
    claimed = Principal(row.owner, organization=row.organization)
    person = principal_now(inquiry.snapshot.settings, claimed)
    return person is not None and person.organization == admin.organization


async def delete_sign_in(inquiry: Inquiry, connection: str, owner: str = "") -> Json:
    """Ends a person's sign-in to a connection, here and at its provider: for admins."""
    rows = (await list_sign_ins(inquiry))["sign_ins"]
    matching = [row for row in rows if (row["owner"], row["connection"]) == (owner, connection)]
    if not matching:
        raise NotFound("invalid_arguments", "there is no such sign-in", "GET /sign-ins lists them.")
    await inquiry.gateway.people.forget(owner=owner, connection=connection)
    by, owner_name = inquiry.principal.name, owner or "everybody"
    log.info("sign-in revoked", connection=connection, owner=owner_name, by=by)
    return {**matching[0], "revoked": True}


def _account(inquiry: Inquiry, connection: str) -> tuple[ConnectionState, Account]:
    """The connection, and the account whose credential the caller may change there."""
    state = inquiry.connection(connection)
    if not people_sign_in(state.settings.auth):
        words = f"nobody signs in to {connection}: its credentials are configured"
        raise NotFound("invalid_arguments", words, "GET /credentials names what you sign in to.")
    account = account_of(state, inquiry.principal.name)
    if not account.owner and not looks_after(inquiry.principal, state):  # it is everybody's
        inquiry.require_admin()
        raise Refused("access_denied", "admins of no organization sign in to it", "Ask one.")
    return state, account


async def _current_row(inquiry: Inquiry, state: ConnectionState, account: Account) -> Json:
    stored = (await inquiry.gateway.people.rows_of(account.owner)).get(state.name)
    return _row(state, account, stored)


def _row(state: ConnectionState, account: Account, stored: Credential | None) -> Json:
    is_valid = stored is not None and not stored.refused and stored.binding == account.binding
    return {
        "connection": state.name,
        "display_name": state.display_name,
        "type": state.settings.auth.type,
        "per": "user" if account.owner else "connection",
        "signed_in": is_valid,
        "signed_in_at": stored.signed_in_at if stored and is_valid else None,
        "expires_at": stored.expires_at if stored and is_valid else None,
        "by_key": not isinstance(state.settings.auth, OAuth2Auth),
    }
