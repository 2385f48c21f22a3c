"""Stores which list of tools each client was last given, and what such a list held.

A client is a session of the 2025 era or, of 2026, a principal's client of one name; at each address
it has a list of its own. Many clients have the same list, so lists are kept apart: tool names, each
with a digest of the tool's entry.
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

Contents = Mapping[str, str]  # of a list: by a tool's name, a digest of its entry

_listed = tables.listed
_lists = tables.lists


class ListHolder(NamedTuple):
    """The client that has a list."""

    principal: str
    session: str  # "": it has none
    client: str  # its name, where it has no session
    address: str


def keep_list(
    db: Database, client: ListHolder, id: str, contents: Callable[[], Contents], now: float
) -> None:
    """Keeps which list a client was given, at once; the caller does not wait for it."""
    holder = client._asdict()
    lifetime = SESSION_SECONDS if client.session else FORMER_NAME_SECONDS
    row = {**holder, "list": id, "told": None, "expires_at": now + lifetime}

    def unit(tx: Connection) -> None:
        _keep_contents(tx, id, contents, now)
        previous = tx.execute(select(_listed.c.list).filter_by(**holder)).scalar()
        upsert(tx, _listed, row)
        if previous is None:
            _forget_oldest(tx, client.principal)
        elif previous != id:
            signal(tx, LISTED, json_bytes(client).decode())

    db.write_soon(unit, within=0.0)


async def mark_told(db: Database, client: ListHolder, id: str) -> bool:
    """Marks a client as told of a list that it was not given; False: another process did."""
    is_untold = _listed.c.told.is_distinct_from(id)
    statement = update(_listed).filter_by(**client._asdict()).where(is_untold).values(told=id)
    return await db.write(lambda tx: tx.execute(statement).rowcount == 1)


async def last_list(db: Database, client: ListHolder) -> tuple[str, Contents] | None:
    """The list that a client was last given; None: it never had one."""
    statement = select(_lists.c.id, _lists.c.contents).join(_listed, _lists.c.id == _listed.c.list)
    conditions = [_listed.c[name] == value for name, value in client._asdict().items()]
    row = await db.read(lambda tx: tx.execute(statement.where(*conditions)).first())
    return None if row is None else (row.id, orjson.loads(unpack(row.contents)))


def _keep_contents(tx: Connection, id: str, contents: Callable[[], Contents], now: float) -> None:
    """Keeps what a list holds, and that it was given lately: it stays while a client has it."""
    at = tx.execute(select(_lists.c.at).filter_by(id=id)).scalar()
    if at is None:
        insert_new(tx, _lists, {"id": id, "contents": pack(orjson.dumps(contents())), "at": now})
    elif at < now - RESULT_SECONDS:
        tx.execute(update(_lists).filter_by(id=id).values(at=now))


def _forget_oldest(tx: Connection, principal: str) -> None:
    """Forgets the oldest clients of a principal: they may call themselves what they like."""
    keys = _listed.primary_key.columns
    newest = select(*keys).filter_by(principal=principal).order_by(_listed.c.expires_at.desc())
    beyond = tx.execute(newest.offset(MAX_REMEMBERED)).all()
    if beyond:
        tx.execute(delete(_listed).where(tuple_(*keys).in_([tuple(row) for row in beyond])))
