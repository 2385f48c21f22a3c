"""Stores clients that registered themselves at the front door, consents, and grants.

A grant is what a person gave to a client. Its row is made by the first use of a code, whose id is
unique there: a second use finds the row, and revokes it. A refresh token is known by its hash; each
use puts another in its place:

    presented is the current one         it becomes the previous one, a new one is the current
    presented is the previous one, soon  the answer of that use is given again: it may be lost
    presented is any older one           someone has a copy: the grant is revoked

Access tokens are not kept at all. Each process knows the grants that were revoked while their
tokens may live, hears of new ones by a signal, and so reads nothing here to check a token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, delete, func, select, update

from gateway.limits import STORE_ROWS
from gateway.store import tables
from gateway.store.database import Database, get_all, get_one, insert_new, signal, upsert, values
from gateway.store.tables import ClientGrant

GRANT_REVOKED = "grant_revoked"  # the signal, with the grant's id

_clients = tables.oauth_clients
_consents = tables.oauth_consents
_grants = tables.oauth_grants


# --- clients --------------------------------------------------------------------------------------


async def add_client(
    db: Database, id: str, metadata: Mapping[str, Any], now: float, most: int
) -> None:
    """Keeps a client that registered itself; the oldest unused clients give way."""

    def unit(tx: Connection) -> None:
        row = {"id": id, "metadata": dict(metadata), "created_at": now, "used_at": None}
        tx.execute(_clients.insert(), row)
        beyond = (tx.execute(select(func.count()).select_from(_clients)).scalar() or 0) - most
        if beyond > 0:
            unused_first = _clients.c.used_at.nulls_first()  # PostgreSQL would have them last
            oldest = select(_clients.c.id).order_by(unused_first, _clients.c.created_at)
            tx.execute(delete(_clients).where(_clients.c.id.in_(oldest.limit(beyond))))

    await db.write(unit, "~clients")


async def get_client(db: Database, id: str) -> Mapping[str, Any] | None:
    """The metadata that a client gave when it registered."""
    statement = select(_clients.c.metadata).where(_clients.c.id == id)
    return await db.read(lambda tx: tx.execute(statement).scalar_one_or_none())


# --- consents -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Consent:
    """A person's word that a client may act for them, as the client described itself then."""

    principal: str
    client_id: str
    digest: str
    scope: str
    at: float


async def get_consent(db: Database, principal: str, client_id: str) -> Consent | None:
    """This person's latest consent for this client."""
    condition = (_consents.c.principal == principal) & (_consents.c.client_id == client_id)
    return await db.read(lambda tx: get_one(tx, select(_consents).where(condition), Consent))


async def save_consent(db: Database, consent: Consent) -> None:
    """Keeps a consent, and that the client is in use."""

    def unit(tx: Connection) -> None:
        upsert(tx, _consents, values(consent))
        client = update(_clients).where(_clients.c.id == consent.client_id)
        tx.execute(client.values(used_at=consent.at))

    await db.write(unit)


# --- grants ---------------------------------------------------------------------------------------


async def open_grant(db: Database, grant: ClientGrant) -> bool:
    """Keeps a grant if its code is used for the first time; False: the code's grant is revoked."""

    def unit(tx: Connection) -> bool:
        if insert_new(tx, _grants, values(grant)):
            return True
        revoke_grants_in(tx, grant.created_at, code_id=grant.code_id)
        return False

    return await db.write(unit, f"code {grant.code_id}")


async def get_client_grant(db: Database, id: str) -> ClientGrant | None:
    """The grant of this id, revoked or not."""
    return await db.read(lambda tx: get_one(tx, select(_grants).filter_by(id=id), ClientGrant))


async def is_revoked(db: Database, id: str) -> bool:
    """Whether a grant was revoked, or is too old to be known."""
    grant = await get_client_grant(db, id)
    return grant is None or grant.revoked_at is not None


async def list_grants_that_hold(
    db: Database, now: float, before: str = "", **columns: str
) -> list[ClientGrant]:
    """The grants with these columns that hold, the newest first; those `before` an id, if given."""
    holds = _grants.c.revoked_at.is_(None) & (_grants.c.expires_at > now)
    among = holds & (_grants.c.id < before) if before else holds
    held = select(_grants).filter_by(**columns).where(among).order_by(_grants.c.id.desc())
    return await db.read(lambda tx: get_all(tx, held.limit(STORE_ROWS), ClientGrant))


@dataclass(frozen=True, slots=True)
class Rotation:
    """One use of a refresh token: what takes its place, and the answer that says so."""

    grant_id: str
    presented_sha256: str
    next_sha256: str
    sealed_answer: bytes
    now: float
    expires_at: float
    grace_seconds: float


async def rotate(db: Database, use: Rotation) -> bytes | Literal["new", "revoked"]:
    """`new`, or the sealed answer of a use just before, or `revoked`: no token may be given."""

    def unit(tx: Connection) -> bytes | Literal["new", "revoked"]:
        is_grant = _grants.c.id == use.grant_id
        grant = get_one(tx, select(_grants).where(is_grant).with_for_update(), ClientGrant)
        if grant is None or grant.revoked_at is not None or grant.expires_at <= use.now:
            return "revoked"
        if grant.refresh_sha256 == use.presented_sha256:
            changes = {
                "refresh_sha256": use.next_sha256,
                "previous_sha256": use.presented_sha256,
                "rotated_at": use.now,
                "rotated_answer": use.sealed_answer,
                "last_used_at": use.now,
                "expires_at": use.expires_at,
            }
            tx.execute(update(_grants).where(is_grant).values(changes))
            return "new"
        just_now = use.now - (grant.rotated_at or 0.0) <= use.grace_seconds
        is_repeated = grant.previous_sha256 == use.presented_sha256 and just_now
        if is_repeated and grant.rotated_answer is not None:
            return grant.rotated_answer
        revoke_grants_in(tx, use.now, id=use.grant_id)
        return "revoked"

    return await db.write(unit, f"grant {use.grant_id}")


async def revoke_client_grants(db: Database, now: float, **columns: str) -> None:
    """Revokes the grants with these columns, in every process."""
    await db.write(lambda tx: revoke_grants_in(tx, now, **columns))


def revoke_grants_in(tx: Connection, now: float, **columns: str) -> None:
    """Revokes the grants with these columns that hold, inside the caller's transaction."""
    statement = update(_grants).filter_by(**columns, revoked_at=None)
    revoked = tx.execute(statement.values(revoked_at=now).returning(_grants.c.id))
    for id in revoked.scalars():
        signal(tx, GRANT_REVOKED, id)


async def list_revoked(db: Database, since: float) -> list[str]:
    """The ids of grants that were revoked after a moment: their access tokens may still live."""
    statement = select(_grants.c.id).where(_grants.c.revoked_at > since)
    return await db.read(lambda tx: list(tx.execute(statement).scalars()))


def note_grant_used(db: Database, id: str, now: float) -> None:
    """Keeps that a grant was used, soon."""
    statement = update(_grants).where(_grants.c.id == id, _grants.c.last_used_at < now)
    db.write_soon(lambda tx: tx.execute(statement.values(last_used_at=now)), len(id))
