"""Connections, definitions, changes, choices: kept whole, and at a revision of their own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Literal

import pytest
from sqlalchemy import LargeBinary, cast, literal, update

from gateway.errors import Fixable, NotFound
from gateway.model import Build, BuiltDefinition, Problem, RawDefinition
from gateway.store import catalog, tables
from gateway.store.catalog import (
    StoredCatalog,
    choose_access,
    get_change,
    list_changes,
    load_choices,
    load_validation,
    save_validation,
)
from gateway.store.cluster import current_revision
from gateway.store.database import Database
from gateway.store.secrets import Seal
from gateway.store.tables import Change
from tests.raising import raises
from tests.store.rows import TOOL, change

SEAL = Seal(["a key of this test"])

APPLIED = change(id="c2", status="applied", change_class="safe", by="ann")
ELSEWHERE = change(id="c3", connection="other")
PROBLEMS = (Problem("warning", "paths./books", "no answer is described"),)
PACKED = b'{"openapi": "3.1.0"}' * 1000
DEFINITION = RawDefinition("http://127.0.0.1/openapi.json", PACKED, "abc", '"1"', "yesterday")
BOOKS = Build("openapi-3.1", "Books", "http://127.0.0.1", (TOOL,))
FOUND = BuiltDefinition(BOOKS, DEFINITION, "key 1", 5.0)


@pytest.fixture
def stored(db: Database) -> StoredCatalog:
    return StoredCatalog(db, SEAL)


async def put(
    db: Database, name: str, settings: str = "first", expected: int | None = None
) -> tuple[str, dict[str, str], int]:
    stored, values = StoredCatalog(db, SEAL), {"display_name": settings}
    revision = await stored.save(name, FOUND, (), by="ann", put=values, expected=expected)
    return name, values, revision


async def connections(db: Database) -> list[tuple[str, Any, int]]:
    return list((await StoredCatalog(db, SEAL).load({})).connections)


async def record(db: Database, *changes: Change) -> None:
    await db.write(lambda tx: catalog.record_changes(tx, "demo", changes))


async def decide(
    db: Database, held: Change, status: Literal["accepted", "rejected"], by: str, now: float
) -> Change | None:
    return await db.write(lambda tx: catalog.decide_change(tx, held, status, by=by, now=now))


@pytest.mark.parametrize("expected", [0, 2])
async def test_put_with_a_wrong_revision_changes_nothing(db: Database, expected: int) -> None:
    first = await put(db, "shop", expected=0)

    with raises(Fixable, code="precondition", details={"revision": 1}):
        await put(db, "shop", "other", expected)

    assert await connections(db) == [first]
    assert await current_revision(db) == 1


async def test_of_many_puts_at_one_revision_one_wins_whole(
    db: Database, other_db: Database
) -> None:
    puts = [put((db, other_db)[n % 2], "shop", str(n), 0) for n in range(20)]

    outcomes = await asyncio.gather(*puts, return_exceptions=True)

    winners = [outcome for outcome in outcomes if isinstance(outcome, tuple)]
    assert await connections(db) == winners
    assert len(winners) == 1
    assert all(isinstance(outcome, tuple | Fixable) for outcome in outcomes)


async def test_revisions_count_every_change_once(db: Database, other_db: Database) -> None:
    puts = await asyncio.gather(*(put((db, other_db)[n % 2], f"shop_{n}") for n in range(20)))

    assert sorted(revision for _, _, revision in puts) == list(range(1, 21))


async def test_deleted_connection_takes_its_definition_along(
    db: Database, stored: StoredCatalog
) -> None:
    await put(db, "demo")

    with pytest.raises(Fixable):
        await stored.delete("demo", 9)
    assert await stored.delete("demo", 1) == 2
    with pytest.raises(NotFound):
        await stored.delete("demo", None)

    left = await stored.load({})
    assert (left.connections, left.found) == ([], {})


async def test_definition_comes_back_with_its_build_and_document(stored: StoredCatalog) -> None:
    await stored.save("demo", FOUND, (), by="ann")

    found = (await stored.load({})).found["demo"]

    light = replace(DEFINITION, packed=b"")
    assert (found, found.definition) == (FOUND, light)
    assert (found.build_key, found.at) == ("key 1", 5.0)
    assert await stored.whole("demo", light) == DEFINITION
    assert (await stored.load({"demo": found})).found["demo"] is found


@pytest.mark.parametrize("location", [DEFINITION.location, "elsewhere.json"])
async def test_saving_again_replaces(stored: StoredCatalog, location: str) -> None:
    newer = RawDefinition(location, b"new", "def")
    await stored.save("demo", FOUND, (), by="ann")

    await stored.save("demo", replace(FOUND, definition=newer, at=6.0), (), by="ann")

    found = (await stored.load({})).found["demo"]
    assert (found.definition, found.at) == (replace(newer, packed=b""), 6.0)
    assert await stored.whole("demo", found.definition) == newer


async def test_tool_that_another_version_wrote_is_left_out(db: Database) -> None:
    await record(db, change())
    broken = update(tables.changes).values(before=cast(literal(b"no tool"), LargeBinary))
    await db.write(lambda tx: tx.execute(broken))

    assert await list_changes(db) == [change(before=None)]


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
        decide(db, change(), "accepted", "ann", 7.0),
        decide(other_db, change(), "rejected", "bob", 8.0),
    )

    decided = [outcome for outcome in outcomes if outcome is not None]
    assert decided == [await get_change(db, "c1")]
    assert decided[0] in (
        change(status="accepted", by="ann", decided_at=7.0),
        change(status="rejected", by="bob", decided_at=8.0),
    )
    assert await decide(db, APPLIED, "accepted", "ann", 9.0) is None


async def test_refresh_replaces_what_it_no_longer_holds(db: Database) -> None:
    newer = change(id="c4", after=replace(TOOL, path="/newest"))
    await record(db, change(), APPLIED)

    await record(db, newer)

    assert await list_changes(db) == [newer, APPLIED]


async def test_change_that_is_known_is_not_told_again(db: Database) -> None:
    await record(db, change())
    await record(db, change(id="c4"))
    assert await list_changes(db) == [change()]

    rejected = await decide(db, change(), "rejected", "ann", 7.0)
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
