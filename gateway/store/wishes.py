"""What sessions of the 2025 era want to hear of, for whoever serves them after a restart."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, select

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.statements import upsert

_table = tables.wishes

MAX_KEPT = 10_000  # that a start takes up

Wish = dict[str, Any]


def keep_wish_in(tx: Connection, key: str, wish: Wish, expires_at: float) -> None:
    """Keeps what a session wants under this key; what it no longer wants is forgotten."""
    session = wish["session"]
    if wish.get("on") is False:
        tx.execute(delete(_table).where((_table.c.session == session) & (_table.c.key == key)))
    else:
        row = {"session": session, "key": key, "wish": wish, "expires_at": expires_at}
        tx.execute(upsert(tx, _table), row)


def forget_wishes_in(tx: Connection, session: str) -> None:
    """The session has ended, and its wishes with it."""
    tx.execute(delete(_table).where(_table.c.session == session))


async def kept_wishes(db: Database, now: float) -> list[Wish]:
    """What living sessions want, the latest first."""
    statement = select(_table.c.wish).where(_table.c.expires_at > now)
    latest = statement.order_by(_table.c.expires_at.desc()).limit(MAX_KEPT)
    return await db.read(lambda tx: list(tx.execute(latest).scalars()))
