from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection

from gateway.errors import Fixable
from gateway.store.database import Database
from gateway.store.ledger import (
    Filter,
    Page,
    cursor_of,
    find_by_token,
    insert_in,
    list_executions,
    place_of,
)
from tests.store.rows import execution

ROWS = [
    execution(id="e1", created_at=1.0, status="completed"),
    execution(id="e2", created_at=2.0, tool="demo_other"),
    execution(id="e3", created_at=2.0, connection="other"),
    execution(id="e4", created_at=3.0, principal="bob", idempotency_token="t1"),
    execution(id="e5", created_at=4.5, idempotency_token="t1"),
]


@pytest.fixture
async def ledger(db: Database) -> Database:
    def unit(tx: Connection) -> None:
        for row in ROWS:
            insert_in(tx, row)

    await db.write(unit)
    return db


@pytest.mark.parametrize(
    ("filter", "ids"),
    [
        (Filter(), ["e5", "e4", "e3", "e2", "e1"]),
        (Filter(status="completed"), ["e1"]),
        (Filter(tool="demo_other"), ["e2"]),
        (Filter(connection="other"), ["e3"]),
        (Filter(principal="bob"), ["e4"]),
        (Filter(token="t1"), ["e5", "e4"]),
        (Filter(since=3.0), ["e5", "e4"]),
        (Filter(principal="ann", since=2.0, status="executing"), ["e5", "e3", "e2"]),
        (Filter(status="denied"), []),
    ],
)
async def test_filters_pick_executions_newest_first(
    ledger: Database, filter: Filter, ids: list[str]
) -> None:
    page = await list_executions(ledger, filter)

    assert [each.id for each in page.executions] == ids
    assert page.next is None


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 1000])
async def test_pages_give_each_execution_once(ledger: Database, limit: int) -> None:
    seen, cursor = [], None
    for _ in range(10):
        page = await list_executions(ledger, Filter(), limit=limit, cursor=cursor)
        seen += page.executions
        cursor = page.next
        if cursor is None:
            break

    assert seen == ROWS[::-1]


async def test_page_stays_put_when_newer_executions_come_in(ledger: Database) -> None:
    first = await list_executions(ledger, Filter(), limit=2)
    await ledger.write(lambda tx: insert_in(tx, execution(id="e6", created_at=9.0)))

    rest = await list_executions(ledger, Filter(), limit=10, cursor=first.next)

    assert rest == Page(ROWS[2::-1], None)


async def test_token_is_found_for_its_owner_and_for_admins(ledger: Database) -> None:
    assert await find_by_token(ledger, "t1", "bob") == [ROWS[3]]
    assert await find_by_token(ledger, "t1") == [ROWS[4], ROWS[3]]
    assert await find_by_token(ledger, "t2") == []


@given(st.text(max_size=40))
def test_foreign_cursors_are_refused_or_harmless(cursor: str) -> None:
    try:
        place = place_of(cursor)
    except Fixable as error:
        assert error.code == "invalid_arguments"
    else:
        assert cursor_of(*place) is not None


@given(st.floats(allow_nan=False), st.text(st.characters(codec="utf-8")))
def test_cursor_leads_back_to_its_place(created_at: float, id: str) -> None:
    assert place_of(cursor_of(created_at, id)) == (created_at, id)


async def test_cursor_that_is_none_of_ours_is_refused(db: Database) -> None:
    with pytest.raises(Fixable):
        await list_executions(db, Filter(), cursor="nonsense")
