from __future__ import annotations

import asyncio

import pytest
from sqlalchemy import select

from gateway.errors import Fixable
from gateway.store import tables
from gateway.store.catalog import (
    StoredConnection,
    delete_connection,
    get_connection,
    load_connections,
    load_definition,
    put_connection,
    save_definition,
)
from gateway.store.cluster import current_revision
from gateway.store.database import Database
from gateway.store.secrets import Seal
from tests.store.test_definitions import DEFINITION

SEAL = Seal(["correct horse battery staple"])
SETTINGS = {"kind": "openapi", "auth": {"type": "bearer", "token": "s3cret"}}


async def test_put_connection_is_there_after_a_restart(store_url: str) -> None:
    async with Database(store_url) as db:
        put = await put_connection(db, SEAL, "shop", SETTINGS, by="ann", now=5.0)
    async with Database(store_url) as db:
        found = await load_connections(db, SEAL)

    assert put == StoredConnection("shop", SETTINGS, 1, 5.0, "ann")
    assert found == [put]


async def test_credentials_are_sealed_in_the_store(db: Database) -> None:
    await put_connection(db, SEAL, "shop", SETTINGS, by="ann", now=5.0)

    column = tables.connections.c.settings
    settings = await db.read(lambda tx: tx.execute(select(column)).scalar_one())

    assert b"s3cret" not in settings


async def test_put_without_expectation_replaces(db: Database) -> None:
    await put_connection(db, SEAL, "shop", SETTINGS, by="ann", now=5.0)
    await put_connection(db, SEAL, "shop", {"kind": "mcp"}, by="bob", now=6.0)

    found = await get_connection(db, SEAL, "shop")

    assert found == StoredConnection("shop", {"kind": "mcp"}, 2, 6.0, "bob")
    assert await get_connection(db, SEAL, "other") is None


@pytest.mark.parametrize("expected", [0, 2])
async def test_put_with_a_wrong_revision_changes_nothing(db: Database, expected: int) -> None:
    put = await put_connection(db, SEAL, "shop", SETTINGS, by="ann", now=5.0, expected=0)

    with pytest.raises(Fixable) as caught:
        await put_connection(db, SEAL, "shop", {}, by="bob", now=6.0, expected=expected)

    assert (caught.value.code, caught.value.details) == ("precondition", {"revision": 1})
    assert await load_connections(db, SEAL) == [put]
    assert await current_revision(db) == 1


async def test_of_many_puts_at_one_revision_one_wins_whole(
    db: Database, other_db: Database
) -> None:
    async def put(n: int) -> StoredConnection:
        store = (db, other_db)[n % 2]
        return await put_connection(
            store, SEAL, "shop", {"n": n}, by=f"by {n}", now=float(n), expected=0
        )

    outcomes = await asyncio.gather(*(put(n) for n in range(20)), return_exceptions=True)

    winners = [outcome for outcome in outcomes if isinstance(outcome, StoredConnection)]
    assert await load_connections(db, SEAL) == winners
    assert len(winners) == 1
    assert all(isinstance(outcome, StoredConnection | Fixable) for outcome in outcomes)


async def test_revisions_count_every_change_once(db: Database, other_db: Database) -> None:
    puts = [
        put_connection((db, other_db)[n % 2], SEAL, f"shop_{n}", {}, by="ann", now=1.0)
        for n in range(20)
    ]

    stored = await asyncio.gather(*puts)

    assert sorted(each.revision for each in stored) == list(range(1, 21))


async def test_deleted_connection_takes_its_definitions_along(db: Database) -> None:
    await put_connection(db, SEAL, "demo", SETTINGS, by="ann", now=5.0)
    await save_definition(db, DEFINITION, b"raw")

    with pytest.raises(Fixable):
        await delete_connection(db, "demo", expected=9)
    assert await delete_connection(db, "demo", expected=1) == 3
    assert await delete_connection(db, "demo") is None

    assert await load_connections(db, SEAL) == []
    assert await load_definition(db, "demo", DEFINITION.location) is None
    assert await current_revision(db) == 3
