"""What other processes are told, inside the transaction that gives the reason for it.

PostgreSQL carries it by NOTIFY, at commit; what is too large for that is a row, and NOTIFY says
which. On SQLite it is a row that the others find when they see that the file has changed. Either
way a process hears its own signals too.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, insert, select, update

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.statements import is_postgres, store_time

CHANNEL = "gateway"
REVISION = "revision"
ROW = "row"  # the kind of a signal that is a row: its id
MAX_NOTIFY_BYTES = 4000  # NOTIFY takes 8,000

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
    """Tells every process a named thing once this transaction is committed."""
    if is_postgres(tx) and len(payload.encode()) <= MAX_NOTIFY_BYTES:
        _notify(tx, kind, payload)
        return
    row = {"kind": kind, "payload": payload, "at": store_time(tx)}
    id = tx.execute(insert(tables.signals).values(row).returning(tables.signals.c.id)).scalar_one()
    if is_postgres(tx):
        _notify(tx, ROW, str(id))


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
