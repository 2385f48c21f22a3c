"""Connections, definitions, changes, choices: kept whole, and at a revision of their own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Literal

import pytest
from sqlalchemy import Connection

from gateway.errors import Fixable
from gateway.model import Problem
from gateway.store import catalog
from gateway.store.catalog import (
    Change,
    SealedConnection,
    StoredDefinition,
    choose_access,
    get_change,
    list_changes,
    load_choices,
    load_connections,
    load_definition,
    load_marks,
    load_packed,
    load_permissions,
    load_validation,
    put_permissions,
    save_validation,
)
from gateway.store.cluster import current_revision, write_revision
from gateway.store.database import Database
from tests.raising import raises
from tests.store.rows import change

APPLIED = change(id="c2", status="applied", change_class="safe", operation=None, by="ann")
ELSEWHERE = change(id="c3", connection="other")
PROBLEMS = (Problem("warning", "paths./books", "no answer is described"),)
DEFINITION = StoredDefinition(
    connection="demo",
    location="http://127.0.0.1/openapi.json",
    sha256="abc",
    build_key="key 1",
    build=b"tools",
    fetched_at=5.0,
    etag='"1"',
    last_modified="yesterday",
)
PACKED = b'{"openapi": "3.1.0"}' * 1000
PLACE = (DEFINITION.connection, DEFINITION.location)


async def put(
    db: Database, name: str, settings: bytes = b"sealed", expected: int | None = None
) -> SealedConnection:
    def unit(tx: Connection, revision: int) -> SealedConnection:
        connection = SealedConnection(name, settings, revision, 5.0, "ann")
        catalog.put_connection(tx, connection, expected)
        return connection

    return await write_revision(db, unit)


async def delete(db: Database, name: str, expected: int | None = None) -> bool:
    return await write_revision(db, lambda tx, _: catalog.delete_connection(tx, name, expected))


async def save(db: Database, definition: StoredDefinition, packed: bytes = PACKED) -> None:
    await db.write(lambda tx: catalog.save_definition(tx, definition, packed))


async def record(db: Database, *changes: Change) -> None:
    await db.write(lambda tx: catalog.record_changes(tx, "demo", changes))


async def decide(
    db: Database, id: str, status: Literal["accepted", "rejected"], by: str, now: float
) -> Change | None:
    return await db.write(partial(catalog.decide_change, id=id, status=status, by=by, now=now))


async def test_put_connection_is_there_after_a_restart_until_it_is_replaced(store_url: str) -> None:
    async with Database(store_url) as db:
        first = await put(db, "shop")
    async with Database(store_url) as db:
        assert await load_connections(db) == [first]
        assert await put(db, "shop", b"other") == replace(first, settings=b"other", revision=2)
        assert await load_connections(db) == [replace(first, settings=b"other", revision=2)]


@pytest.mark.parametrize("expected", [0, 2])
async def test_put_with_a_wrong_revision_changes_nothing(db: Database, expected: int) -> None:
    first = await put(db, "shop", expected=0)

    with raises(Fixable, code="precondition", details={"revision": 1}):
        await put(db, "shop", b"other", expected)

    assert await load_connections(db) == [first]
    assert await current_revision(db) == 1


async def test_of_many_puts_at_one_revision_one_wins_whole(
    db: Database, other_db: Database
) -> None:
    puts = [put((db, other_db)[n % 2], "shop", b"%d" % n, 0) for n in range(20)]

    outcomes = await asyncio.gather(*puts, return_exceptions=True)

    winners = [outcome for outcome in outcomes if isinstance(outcome, SealedConnection)]
    assert await load_connections(db) == winners
    assert len(winners) == 1
    assert all(isinstance(outcome, SealedConnection | Fixable) for outcome in outcomes)


async def test_revisions_count_every_change_once(db: Database, other_db: Database) -> None:
    stored = await asyncio.gather(*(put((db, other_db)[n % 2], f"shop_{n}") for n in range(20)))

    assert sorted(each.revision for each in stored) == list(range(1, 21))


async def test_deleted_connection_takes_its_definition_along(db: Database) -> None:
    await put(db, "demo")
    await save(db, DEFINITION)

    with pytest.raises(Fixable):
        await delete(db, "demo", 9)
    assert await delete(db, "demo", 1)
    assert not await delete(db, "demo")

    assert await load_connections(db) == []
    assert await load_definition(db, *PLACE) is None


async def test_definition_comes_back_with_its_build_and_document(db: Database) -> None:
    await save(db, DEFINITION)

    assert await load_definition(db, *PLACE) == DEFINITION
    assert await load_packed(db, *PLACE) == PACKED
    assert await load_marks(db) == {"demo": (DEFINITION.location, 5.0)}


@pytest.mark.parametrize("location", [DEFINITION.location, "elsewhere.json"])
async def test_saving_again_replaces(db: Database, location: str) -> None:
    newer = replace(DEFINITION, location=location, sha256="def", build=b"others", etag=None)
    await save(db, DEFINITION)

    await save(db, newer, b"new")

    assert await load_definition(db, "demo", location) == newer
    assert await load_packed(db, "demo", location) == b"new"
    assert await load_marks(db) == {"demo": (location, 5.0)}


async def test_validation_is_remembered_by_content(db: Database) -> None:
    await save_validation(db, "abc", PROBLEMS, 5.0)
    await save_validation(db, "abc", (), 6.0)
    await save_validation(db, "fine", (), 5.0)

    assert await load_validation(db, "abc") == PROBLEMS
    assert await load_validation(db, "fine") == ()
    assert await load_validation(db, "other") is None


async def test_changes_come_back_newest_first_and_filtered(db: Database) -> None:
    await record(db, change(), APPLIED, ELSEWHERE)

    assert await list_changes(db) == [ELSEWHERE, APPLIED, change()]
    assert await list_changes(db, limit=1) == [ELSEWHERE]
    assert await list_changes(db, connection="demo") == [APPLIED, change()]
    assert await list_changes(db, connection="demo", status="held") == [change()]
    assert await get_change(db, "c2") == APPLIED
    assert await get_change(db, "c9") is None


async def test_held_change_is_decided_once(db: Database, other_db: Database) -> None:
    await record(db, change(), APPLIED)

    outcomes = await asyncio.gather(
        decide(db, "c1", "accepted", "ann", 7.0), decide(other_db, "c1", "rejected", "bob", 8.0)
    )

    decided = [outcome for outcome in outcomes if outcome is not None]
    assert decided == [await get_change(db, "c1")]
    assert decided[0] in (
        change(status="accepted", by="ann", decided_at=7.0),
        change(status="rejected", by="bob", decided_at=8.0),
    )
    assert await decide(db, "c2", "accepted", "ann", 9.0) is None


async def test_refresh_replaces_what_it_no_longer_holds(db: Database) -> None:
    newer = change(id="c4", after=b"newest")
    await record(db, change(), APPLIED)

    await record(db, newer)

    assert await list_changes(db) == [newer, APPLIED]


async def test_change_that_is_known_is_not_told_again(db: Database) -> None:
    await record(db, change())
    await record(db, change(id="c4"))
    assert await list_changes(db) == [change()]

    rejected = await decide(db, "c1", "rejected", "ann", 7.0)
    await record(db, change(id="c5"))
    assert await list_changes(db) == [rejected]


async def test_latest_choice_of_each_principal_holds(db: Database) -> None:
    revisions = [
        await choose_access(db, "ann", "demo", "read-only"),
        await choose_access(db, "ann", "demo", "disabled"),
        await choose_access(db, "bob", "demo", "read-only"),
    ]

    assert revisions == [1, 2, 3]
    chosen = {("ann", "demo"): "disabled", ("bob", "demo"): "read-only"}
    assert await load_choices(db) == chosen


async def test_permissions_hold_until_they_are_deleted(db: Database) -> None:
    assert await load_permissions(db) is None

    await put_permissions(db, {"level": "read_only"}, by="ann", now=5.0)
    assert await put_permissions(db, {"level": "full_access"}, by="bob", now=6.0) == 2

    assert await load_permissions(db) == {"level": "full_access"}
    assert await put_permissions(db, None, by="bob", now=7.0) == 3
    assert await load_permissions(db) is None
