"""Principals, roles, bundles and routes that were put at run time, beside those of config.toml.

A row holds the settings as config.toml would have them; of a token only its hash is ever here. Each
carries the revision it was put at, which is its ETag. Whether a change may be made is decided in
its transaction, on the rows as they are then: what two admins do at the same moment, in whatever
processes, is judged one after the other. Settings that a hand has damaged are read as some that
never hold: their row gives nothing and is told of, and the others count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, LargeBinary, cast, delete, select

from gateway.errors import Fixable, NotFound
from gateway.limits import STORE_MANY_ROWS
from gateway.model import json_value
from gateway.store import tables
from gateway.store.cluster import refuse_stale, write_revision
from gateway.store.credentials import delete_credentials_in
from gateway.store.database import Database, many, upsert, values
from gateway.store.oauth import revoke_grants_in
from gateway.store.tables import PutRight, RightKind

Rows = tuple[PutRight, ...]
Judge = Callable[[Rows, Rows], None]  # raises what is against a change, from these to those
Make = Callable[[PutRight | None], Mapping[str, Any]]  # the settings to put in place of a row's

_rights = tables.rights


async def load_rights(db: Database) -> Rows:
    """All of them, the oldest first."""
    return await db.read(_all)


def _all(tx: Connection) -> Rows:
    raw = cast(_rights.c.settings, LargeBinary).label("settings")  # a hand writes text there
    columns = [raw if column.name == "settings" else column for column in _rights.c]
    in_order = select(*columns).order_by(_rights.c.revision, _rights.c.kind, _rights.c.name)
    rows = many(tx, in_order, PutRight)
    return tuple(replace(each, settings=_settings(each.settings)) for each in rows)


def _settings(raw: Any) -> Mapping[str, Any]:
    with suppress(ValueError, RecursionError):
        if isinstance(found := json_value(raw or b""), dict):
            return found
    return {"settings that are no JSON object": None}


async def change_right(
    db: Database,
    kind: RightKind,
    name: str,
    make: Make | None,
    *,
    judge: Judge,
    by: str,
    now: float,
    expected: int | None = None,
    unused: bool = False,
) -> tuple[Rows, int]:
    """Puts what `make` gives, or with None deletes it; all there are then, and the revision.

    `expected`: the revision it must have now, 0 for none yet. `unused`: a principal that is new
    must have a name under which nothing was ever done.
    """

    def unit(tx: Connection, revision: int) -> tuple[Rows, int]:
        before = _all(tx)
        old = next((each for each in before if (each.kind, each.name) == (kind, name)), None)
        refuse_stale(f"{kind} {name}", old.revision if old else 0, expected)
        new = PutRight(kind, name, make(old), revision, now, by) if make else None
        after = with_right(before, kind, name, new)
        judge(before, after)
        if new is None:
            _delete(tx, kind, name, now)
        else:
            if unused and old is None:
                _refuse_used(tx, name)
            if token_of(old) not in (None, token_of(new)):
                # Whoever had the token may have let clients in by it.
                revoke_grants_in(tx, tables.oauth_grants.c.principal == name, now)
            if by != name and token_of(new) not in (None, token_of(old)):
                _forget_given(tx, name)
            upsert(tx, _rights, values(new))
        return after, revision

    return await write_revision(db, unit)


def with_right(rows: Rows, kind: RightKind, name: str, new: PutRight | None) -> Rows:
    """The rows with this one in place of what is there, or with None without it."""
    others = tuple(each for each in rows if (each.kind, each.name) != (kind, name))
    if new is None and len(others) == len(rows):
        raise NotFound("invalid_arguments", f"no {kind} {name!r} was put")
    if new is not None and len(others) >= STORE_MANY_ROWS:
        raise Fixable("invalid_arguments", f"there are {len(rows)} already", "Delete some.")
    return others if new is None else (*others, new)


def _delete(tx: Connection, kind: str, name: str, now: float) -> None:
    """Deletes a row, with a principal also what it was given: its name may be used again."""
    tx.execute(delete(_rights).filter_by(kind=kind, name=name))
    if kind == "principal":
        tx.execute(delete(tables.choices).filter_by(principal=name))
        revoke_grants_in(tx, tables.oauth_grants.c.principal == name, now)
        _forget_given(tx, name)


def token_of(row: PutRight | None) -> str | None:
    """The hash of a principal's token."""
    return row.settings.get("token_sha256") if row and row.kind == "principal" else None


def _forget_given(tx: Connection, name: str) -> None:
    """Forgets what a principal signed in to, and what and whom it had allowed.

    Whoever gave it another token could use that, and nobody uses what another person gave.
    """
    for table in (tables.standing_grants, tables.oauth_consents):
        tx.execute(delete(table).filter_by(principal=name))
    delete_credentials_in(tx, owner=name)


def _refuse_used(tx: Connection, name: str) -> None:
    """Refuses a name that somebody had: whoever has it sees what was done under it."""
    by_name = (tables.executions, tables.choices, tables.results)
    used = (select(table.c.principal).filter_by(principal=name).limit(1) for table in by_name)
    if any(tx.execute(each).first() is not None for each in used):
        raise Fixable("invalid_arguments", "this name can't be used", "Choose another name.")
