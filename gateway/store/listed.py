"""Which list of tools each client was last given, and what such a list held.

A client is a session of the 2025 era or, of 2026, a principal's client of one name; at each address
it has a list of its own. Many have the same one, so lists are kept apart: names, each with a digest
of what was listed of that tool.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import orjson
from sqlalchemy import Connection, delete, select, tuple_, update

from gateway.limits import FORMER_NAME_SECONDS, MAX_REMEMBERED, RESULT_SECONDS, SESSION_SECONDS
from gateway.model import json_bytes, pack, unpack
from gateway.store import tables
from gateway.store.database import Database, insert_new, signal, upsert

LISTED = "listed"  # the signal: a client was given another list than it had before

Contents = Mapping[str, str]  # of a list: a tool's name, and what tells its entry from others

_listed = tables.listed
_lists = tables.lists


class ListHolder(NamedTuple):
    """Whose list it is."""

    principal: str
    session: str  # "": it has none
    client: str  # its name, where it has no session
    address: str

    @property
    def payload(self) -> str:
        """Names it in a signal."""
        return json_bytes(self).decode()


def keep_list(
    db: Database, client: ListHolder, id: str, contents: Callable[[], Contents], now: float
) -> None:
    """Keeps which list a client was given, at once; nobody waits for it."""
    whose = client._asdict()
    lasts = SESSION_SECONDS if client.session else FORMER_NAME_SECONDS
    row = {**whose, "list": id, "told": None, "expires_at": now + lasts}

    def unit(tx: Connection) -> None:
        _keep_contents(tx, id, contents, now)
        before = tx.execute(select(_listed.c.list).filter_by(**whose)).scalar()
        upsert(tx, _listed, row)
        if before is None:
            _forget_oldest(tx, client.principal)
        elif before != id:
            signal(tx, LISTED, client.payload)

    db.write_soon(unit, within=0.0)


async def tell_first(db: Database, client: ListHolder, id: str) -> bool:
    """Whether a client is told now, by this process alone, of a list that it was not given."""
    untold = _listed.c.told.is_distinct_from(id)
    told = update(_listed).filter_by(**client._asdict()).where(untold).values(told=id)
    return await db.write(lambda tx: tx.execute(told).rowcount == 1)


async def last_list(db: Database, client: ListHolder) -> tuple[str, Contents] | None:
    """The list that a client was last given; None: it never had one."""
    given = select(_lists.c.id, _lists.c.contents).join(_listed, _lists.c.id == _listed.c.list)
    mine = [_listed.c[name] == value for name, value in client._asdict().items()]
    found = await db.read(lambda tx: tx.execute(given.where(*mine)).first())
    return None if found is None else (found.id, orjson.loads(unpack(found.contents)))


def _keep_contents(tx: Connection, id: str, contents: Callable[[], Contents], now: float) -> None:
    """Keeps what a list holds, and that it was given lately: it stays while a client has it."""
    at = tx.execute(select(_lists.c.at).filter_by(id=id)).scalar()
    if at is None:
        insert_new(tx, _lists, {"id": id, "contents": pack(orjson.dumps(contents())), "at": now})
    elif at < now - RESULT_SECONDS:
        tx.execute(update(_lists).filter_by(id=id).values(at=now))


def _forget_oldest(tx: Connection, principal: str) -> None:
    """A principal's clients call themselves what they like: so many are remembered."""
    keys = _listed.primary_key.columns
    mine = select(*keys).filter_by(principal=principal).order_by(_listed.c.expires_at.desc())
    beyond = tx.execute(mine.offset(MAX_REMEMBERED)).all()
    if beyond:
        tx.execute(delete(_listed).where(tuple_(*keys).in_([tuple(row) for row in beyond])))
