from __future__ import annotations

import asyncio

from gateway.store.catalog import Change, decide_change, get_change, list_changes, record_in
from gateway.store.cluster import current_revision
from gateway.store.database import Database
from tests.store.rows import change

APPLIED = change(id="c2", status="applied", change_class="safe", operation=None, by="ann")
ELSEWHERE = change(id="c3", connection="other")


async def record(db: Database, *changes: Change) -> None:
    await db.write(lambda tx: record_in(tx, "demo", changes))


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
        decide_change(db, "c1", "accepted", by="ann", now=7.0),
        decide_change(other_db, "c1", "rejected", by="bob", now=8.0),
    )

    decided = [outcome for outcome in outcomes if outcome is not None]
    assert decided == [await get_change(db, "c1")]
    assert decided[0] in (
        change(status="accepted", by="ann", decided_at=7.0),
        change(status="rejected", by="bob", decided_at=8.0),
    )
    assert await decide_change(db, "c2", "accepted", by="ann", now=9.0) is None
    assert await current_revision(db) == 1


async def test_refresh_replaces_what_it_no_longer_holds(db: Database) -> None:
    newer = change(id="c4", after=b"newest")
    await record(db, change(), APPLIED)

    await record(db, newer)

    assert await list_changes(db) == [newer, APPLIED]


async def test_change_that_is_known_is_not_told_again(db: Database) -> None:
    await record(db, change())
    await record(db, change(id="c4"))
    assert await list_changes(db) == [change()]

    rejected = await decide_change(db, "c1", "rejected", by="ann", now=7.0)
    await record(db, change(id="c5"))
    assert await list_changes(db) == [rejected]
