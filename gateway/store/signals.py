"""What other processes are told, inside the transaction that gives the reason for it.

PostgreSQL carries it by NOTIFY, at commit. On SQLite it is a row that the others find when they
see that the file has changed. Either way a process hears its own signals too.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, insert, select, update

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.statements import is_postgres, store_time

CHANNEL = "gateway"
REVISION = "revision"
MAX_PAYLOAD_BYTES = 4000  # NOTIFY takes 8,000

# Sorts behind every other key: see `writer`.
REVISION_LOCK = "~revision"


async def current_revision(db: Database) -> int:
    """The revision of what all replicas share."""
    return await db.read(revision_in)


def revision_in(tx: Connection) -> int:
    return int(tx.execute(_revision).scalar_one())


def lock_revision(tx: Connection) -> None:
    """Makes changes that replicas must see happen one after the other; take it first in a unit."""
    tx.execute(_locked_revision)


def bump_revision(tx: Connection) -> int:
    """The next revision; every replica is told once it is committed."""
    value = int(tx.execute(_bump).scalar_one())
    if is_postgres(tx):
        _notify(tx, REVISION, str(value))
    return value


def signal(tx: Connection, kind: str, payload: str = "") -> None:
    """Tells every process a small named thing once this transaction is committed."""
    if len(payload.encode()) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a signal carries at most {MAX_PAYLOAD_BYTES} bytes")
    if is_postgres(tx):
        _notify(tx, kind, payload)
    else:
        row = {"kind": kind, "payload": payload, "at": store_time(tx)}
        tx.execute(insert(tables.signals).values(row))


def _notify(tx: Connection, kind: str, payload: str) -> None:
    tx.execute(select(func.pg_notify(CHANNEL, f"{kind} {payload}")))


_revision = select(tables.revision.c.value).where(tables.revision.c.id == 1)
_locked_revision = _revision.with_for_update()
_bump = (
    update(tables.revision)
    .where(tables.revision.c.id == 1)
    .values(value=tables.revision.c.value + 1)
    .returning(tables.revision.c.value)
)
