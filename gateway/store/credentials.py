"""What people prove themselves with to the APIs behind us, sealed: one row a person and connection.

A row whose owner is "" is everybody's: an admin has signed the connection in. The version counts
what was put there; whoever changes a row names the version it saw, so that of two processes one
goes on and the other looks again. Renewing a token is put on disk before it is asked for:

    at rest ──► renewer = this process ──► answered: new tokens, next version, at rest
                     ├──► refused:   the row says so, and the person has to sign in again
                     ├──► no answer: at rest, as it was
                     └──► the process dies: the token may be used up, and is not used again

A provider that punishes the second use of a refresh token so never sees one, whatever is killed.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, select, update

from gateway.store import tables
from gateway.store.database import Database, many, one, signal, upsert, values
from gateway.store.tables import Credential

CREDENTIAL = "credential"  # the signal: which connection, whose
SIGNED = "signed"  # besides, where somebody has signed in or out: it may be another account

_credentials = tables.credentials
_registrations = tables.registrations


def payload_of(connection: str, owner: str) -> str:
    """What the signal says of a credential that has changed."""
    return f"{connection} {owner}"


async def get_credential(db: Database, owner: str, connection: str) -> Credential | None:
    """What this owner has for this connection."""
    found = select(_credentials).filter_by(owner=owner, connection=connection)
    return await db.read(lambda tx: one(tx, found, Credential))


async def list_credentials(db: Database, **which: str) -> list[Credential]:
    """The credentials with these columns, the latest sign-in first."""
    found = select(_credentials).filter_by(**which).order_by(_credentials.c.signed_in_at.desc())
    return await db.read(lambda tx: many(tx, found, Credential))


async def save_credential(db: Database, credential: Credential) -> None:
    """Puts what somebody has just given in the place of whatever was there."""

    def unit(tx: Connection) -> None:
        where = _one(credential)
        known = tx.execute(select(_credentials.c.version).where(*where).with_for_update()).scalar()
        upsert(tx, _credentials, values(credential) | {"version": (known or 0) + 1})
        _tell(tx, credential, CREDENTIAL, SIGNED)

    await db.write(unit, _lock(credential))


async def change_credential(db: Database, seen: Credential, **to: Any) -> bool:
    """Changes a row that is still as it was seen; False: it is not."""

    def unit(tx: Connection) -> bool:
        as_seen = (
            *_one(seen),
            _credentials.c.version == seen.version,
            _credentials.c.renewer.is_not_distinct_from(seen.renewer),
        )
        changed = tx.execute(update(_credentials).where(*as_seen).values(to)).rowcount == 1
        if changed and to.get("renewer") is None:
            _tell(tx, seen, CREDENTIAL)
        return changed

    return await db.write(unit, _lock(seen))


async def delete_credentials(db: Database, **which: str) -> list[Credential]:
    """Removes the credentials with these columns; gives what they were."""

    def unit(tx: Connection) -> list[Credential]:
        found = many(tx, select(_credentials).filter_by(**which).with_for_update(), Credential)
        tx.execute(delete(_credentials).filter_by(**which))
        for each in found:
            _tell(tx, each, CREDENTIAL, SIGNED)
        return found

    return await db.write(unit)


def delete_credentials_in(tx: Connection, **which: str) -> None:
    """Removes the credentials of a connection or an owner that is being deleted."""
    for each in many(tx, select(_credentials).filter_by(**which), Credential):
        _tell(tx, each, CREDENTIAL, SIGNED)
    tx.execute(delete(_credentials).filter_by(**which))
    if "connection" in which:
        tx.execute(delete(_registrations).filter_by(**which))


async def get_registration(db: Database, connection: str, issuer: str) -> bytes | None:
    """Who we are at this server, sealed; None: we never registered there."""
    found = select(_registrations.c.sealed).filter_by(connection=connection, issuer=issuer)
    return await db.read(lambda tx: tx.execute(found).scalar_one_or_none())


async def save_registration(db: Database, connection: str, issuer: str, sealed: bytes) -> None:
    """Keeps who we are at this server."""
    row = {"connection": connection, "issuer": issuer, "sealed": sealed}
    await db.write(lambda tx: upsert(tx, _registrations, row))


async def forget_registration(db: Database, connection: str, issuer: str) -> None:
    """Forgets who we were at a server that does not know us any more."""
    which = delete(_registrations).filter_by(connection=connection, issuer=issuer)
    await db.write(lambda tx: tx.execute(which).rowcount)


def _one(of: Credential) -> tuple[ColumnElement[bool], ...]:
    return _credentials.c.owner == of.owner, _credentials.c.connection == of.connection


def _lock(of: Credential) -> str:
    return f"credential {of.connection} {of.owner}"


def _tell(tx: Connection, of: Credential, *kinds: str) -> None:
    for kind in kinds:
        signal(tx, kind, payload_of(of.connection, of.owner))
