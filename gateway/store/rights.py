"""Principals, roles, bundles and routes that were put at run time, beside those of config.toml.

A row holds the settings as config.toml would have them; of a token only its hash is ever here. It
carries the revision it was put at, which is its ETag. Whether a change may be made is decided in
its transaction, on the rows as they are then: changes of two admins at the same moment, in any
processes, are judged one after the other. Settings that were damaged by hand are read as settings
that are never valid: their row grants nothing and is reported, and the other rows count.
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
from gateway.store.database import Database, get_all, upsert, values
from gateway.store.oauth import revoke_grants_in
from gateway.store.tables import PutRight, RightKind

Rows = tuple[PutRight, ...]
JudgeRows = Callable[[Rows, Rows], None]  # raises the objection to a change of these rows to those
# The settings to put in place of a row's.
MakeRight = Callable[[PutRight | None], Mapping[str, Any]]

_rights = tables.rights


async def load_rights(db: Database) -> Rows:
    """All rows, the oldest first."""
    return await db.read(_all_rows)


def _all_rows(tx: Connection) -> Rows:
    raw = cast(_rights.c.settings, LargeBinary).label("settings")  # typed in by hand, it is text
    columns = [raw if column.name == "settings" else column for column in _rights.c]
    in_order = select(*columns).order_by(_rights.c.revision, _rights.c.kind, _rights.c.name)
    rows = get_all(tx, in_order, PutRight)
    return tuple(replace(each, settings=_settings(each.settings)) for each in rows)


def _settings(raw: Any) -> Mapping[str, Any]:
    with suppress(ValueError, RecursionError):
        if isinstance(settings := json_value(raw or b""), dict):
            return settings
    return {"settings that are no JSON object": None}


async def change_right(
    db: Database,
    kind: RightKind,
    name: str,
    make: MakeRight | None,
    *,
    judge: JudgeRows,
    by: str,
    now: float,
    expected: int | None = None,
    unused: bool = False,
) -> tuple[Rows, int]:
    """Puts the settings `make` gives, or with None deletes the row; all rows, and the revision.

    `expected`: the revision the row must have now, 0 for none yet. `unused`: a new principal must
    have a name under which nothing was ever done.
    """

    def unit(tx: Connection, revision: int) -> tuple[Rows, int]:
        before = _all_rows(tx)
        old = next((each for each in before if (each.kind, each.name) == (kind, name)), None)
        refuse_stale(f"{kind} {name}", old.revision if old else 0, expected)
        new = PutRight(kind, name, make(old), revision, now, by) if make else None
        after = with_right(before, kind, name, new)
        judge(before, after)
        if new is None:
            _delete_right(tx, kind, name, now)
        else:
            if unused and old is None:
                _refuse_used_name(tx, name)
            if token_of(old) not in (None, token_of(new)):
                # A person who had the token may have let clients in with it.
                revoke_grants_in(tx, now, principal=name)
            if by != name and token_of(new) not in (None, token_of(old)):
                _delete_grants_of(tx, name)
            upsert(tx, _rights, values(new))
        return after, revision

    return await write_revision(db, unit)


def with_right(rows: Rows, kind: RightKind, name: str, new: PutRight | None) -> Rows:
    """The rows with `new` in place of the row of this name, or with None without that row."""
    other_rows = tuple(each for each in rows if (each.kind, each.name) != (kind, name))
    if new is None and len(other_rows) == len(rows):
        raise NotFound("invalid_arguments", f"no {kind} {name!r} was put")
    if new is not None and len(other_rows) >= STORE_MANY_ROWS:
        raise Fixable("invalid_arguments", f"there are {len(rows)} already", "Delete some.")
    return other_rows if new is None else (*other_rows, new)


def _delete_right(tx: Connection, kind: str, name: str, now: float) -> None:
    """Deletes a row; of a principal also all its name stands for, which may be used again."""
    tx.execute(delete(_rights).filter_by(kind=kind, name=name))
    if kind == "principal":
        tx.execute(delete(tables.choices).filter_by(principal=name))
        revoke_grants_in(tx, now, principal=name)
        _delete_grants_of(tx, name)


def token_of(row: PutRight | None) -> str | None:
    """The hash of a principal's token."""
    return row.settings.get("token_sha256") if row and row.kind == "principal" else None


def _delete_grants_of(tx: Connection, name: str) -> None:
    """Forgets a principal's sign-ins, and the calls and clients that it had allowed.

    An admin who gave it another token could use them, and nobody uses what another person gave.
    """
    for table in (tables.standing_grants, tables.oauth_consents):
        tx.execute(delete(table).filter_by(principal=name))
    delete_credentials_in(tx, owner=name)


def _refuse_used_name(tx: Connection, name: str) -> None:
    """Refuses a name that was used before: its new owner would see what was done under it."""
    by_name = (tables.executions, tables.choices, tables.results)
    uses = (select(table.c.principal).filter_by(principal=name).limit(1) for table in by_name)
    if any(tx.execute(each).first() is not None for each in uses):
        raise Fixable("invalid_arguments", "this name can't be used", "Choose another name.")
