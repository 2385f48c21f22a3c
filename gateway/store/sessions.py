"""Sessions that were ended before their time. Living ones are in no table: their id is sealed."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.signals import signal
from gateway.store.statements import insert_new
from gateway.store.wishes import forget_wishes_in

_table = tables.ended_sessions
_grants = tables.standing_grants

SESSION_ENDED = "session_ended"  # the signal, with the session's id


async def end_session(db: Database, id: str, expires_at: float) -> None:
    """Ends a session in every process; forgotten once it would have expired anyway."""

    def unit(tx: Connection) -> None:
        if tx.execute(insert_new(tx, _table), {"id": id, "expires_at": expires_at}).rowcount:
            signal(tx, SESSION_ENDED, id)
            forget_wishes_in(tx, id)
            tx.execute(delete(_grants).where(_grants.c.session == id))

    await db.write(unit)


async def ended_sessions(db: Database, now: float, limit: int) -> list[str]:
    """Ended sessions that have not expired, the last `limit` to do so, the next one first."""
    latest = select(_table.c.id).where(_table.c.expires_at > now)
    statement = latest.order_by(_table.c.expires_at.desc(), _table.c.id).limit(limit)
    return await db.read(lambda tx: [*tx.execute(statement).scalars()][::-1])


async def first_use(db: Database, id: str, expires_at: float) -> bool:
    """Uses up what works once, in any process; False if someone was first."""
    row = {"id": id, "expires_at": expires_at}
    return await db.write(lambda tx: tx.execute(insert_new(tx, _table), row).rowcount) == 1


async def is_ended(db: Database, id: str) -> bool:
    """Whether this was ended, or used up."""
    statement = select(_table.c.id).where(_table.c.id == id)
    return await db.read(lambda tx: tx.execute(statement).first()) is not None
