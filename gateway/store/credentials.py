"""Stores people's credentials for the APIs behind us, sealed: one row a person and connection.

A row whose owner is "" is everybody's: an admin has signed the connection in. The version counts
what was put there; a process that changes a row names the version it saw, so that of two processes
one goes on and the other looks again. A renewal is put on disk before the new token is asked for:

    at rest ──► renewer = this process ──► answered: new tokens, next version, at rest
                     ├──► refused:   the row says so, and the person has to sign in again
                     ├──► no answer: at rest, as it was
                     └──► the process dies: the token may be used up, and is not used again

A provider that punishes the second use of a refresh token so never sees one, whatever process dies.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, select, update

from gateway.store import tables
from gateway.store.database import Database, get_all, get_one, signal, upsert, values
from gateway.store.tables import Credential

CREDENTIAL = "credential"  # the signal, with the connection and the owner
SIGNED = "signed"  # the second signal when a person has signed in or out: it may be another account

_credentials = tables.credentials
_registrations = tables.registrations


def payload_of(connection: str, owner: str) -> str:
    """The payload of the signal of a credential that has changed."""
    return f"{connection} {owner}"


async def get_credential(db: Database, owner: str, connection: str) -> Credential | None:
    """The credential of this owner for this connection."""
    statement = select(_credentials).filter_by(owner=owner, connection=connection)
    return await db.read(lambda tx: get_one(tx, statement, Credential))


async def list_credentials(db: Database, **columns: str) -> list[Credential]:
    """The credentials with these columns, the latest sign-in first."""
    query = select(_credentials).filter_by(**columns).order_by(_credentials.c.signed_in_at.desc())
    return await db.read(lambda tx: get_all(tx, query, Credential))


async def save_credential(db: Database, credential: Credential) -> None:
    """Puts a credential that a person has just given in place of the stored one."""

    def unit(tx: Connection) -> None:
        key = _is_row_of(credential)
        version = tx.execute(select(_credentials.c.version).where(*key).with_for_update()).scalar()
        upsert(tx, _credentials, values(credential) | {"version": (version or 0) + 1})
        _signal_change(tx, credential, CREDENTIAL, SIGNED)

    await db.write(unit, _lock(credential))


async def change_credential(db: Database, old: Credential, **changes: Any) -> bool:
    """Changes a row that is still as it was read; False: it is not."""

    def unit(tx: Connection) -> bool:
        is_same = (
            *_is_row_of(old),
            _credentials.c.version == old.version,
            _credentials.c.renewer.is_not_distinct_from(old.renewer),
        )
        is_changed = tx.execute(update(_credentials).where(*is_same).values(changes)).rowcount == 1
        if is_changed and changes.get("renewer") is None:
            _signal_change(tx, old, CREDENTIAL)
        return is_changed

    return await db.write(unit, _lock(old))


async def delete_credentials(db: Database, **columns: str) -> list[Credential]:
    """Removes the credentials with these columns, and gives them."""
    return await db.write(lambda tx: _delete_rows(tx, **columns))


def _delete_rows(tx: Connection, **columns: str) -> list[Credential]:
    rows = get_all(tx, select(_credentials).filter_by(**columns).with_for_update(), Credential)
    tx.execute(delete(_credentials).filter_by(**columns))
    for row in rows:
        _signal_change(tx, row, CREDENTIAL, SIGNED)
    return rows


def delete_credentials_in(tx: Connection, **columns: str) -> None:
    """Removes the credentials of a connection or an owner that is being deleted."""
    _delete_rows(tx, **columns)
    if "connection" in columns:
        tx.execute(delete(_registrations).filter_by(**columns))


async def get_registration(db: Database, connection: str, issuer: str) -> bytes | None:
    """Our client id and secret at this server, sealed; None: we never registered there."""
    statement = select(_registrations.c.sealed).filter_by(connection=connection, issuer=issuer)
    return await db.read(lambda tx: tx.execute(statement).scalar_one_or_none())


async def save_registration(db: Database, connection: str, issuer: str, sealed: bytes) -> None:
    """Keeps our client id and secret at this server."""
    row = {"connection": connection, "issuer": issuer, "sealed": sealed}
    await db.write(lambda tx: upsert(tx, _registrations, row))


async def forget_registration(db: Database, connection: str, issuer: str) -> None:
    """Forgets our client id at a server that does not know it any more."""
    statement = delete(_registrations).filter_by(connection=connection, issuer=issuer)
    await db.write(lambda tx: tx.execute(statement).rowcount)


def _is_row_of(row: Credential) -> tuple[ColumnElement[bool], ...]:
    return _credentials.c.owner == row.owner, _credentials.c.connection == row.connection


def _lock(credential: Credential) -> str:
    return f"credential {credential.connection} {credential.owner}"


def _signal_change(tx: Connection, credential: Credential, *kinds: str) -> None:
    for kind in kinds:
        signal(tx, kind, payload_of(credential.connection, credential.owner))
