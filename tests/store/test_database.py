from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Connection, insert, select, text

from gateway.errors import Broken, ConfigInvalid, Fixable, Overloaded
from gateway.limits import STORE_BURST_BYTES, STORE_QUEUE
from gateway.store import tables
from gateway.store.database import Database
from gateway.store.engines import Postgres, Sqlite, engine_for
from tests.databases import eventually
from tests.peers import soon
from tests.raising import raises

FACTS = tables.facts


def add_fact(tx: Connection, name: str, value: bytes = b"") -> int:
    return tx.execute(insert(FACTS), {"name": name, "value": value}).rowcount


def fact_names(tx: Connection) -> list[str]:
    return list(tx.execute(select(FACTS.c.name).order_by(FACTS.c.name)).scalars())


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[tuple[Database, threading.Event]]:
    """A store whose writer is busy with one unit until the gate opens."""
    gate, started = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def unit(tx: Connection) -> int:
        loop.call_soon_threadsafe(started.set)
        assert gate.wait(5)
        return add_fact(tx, "held")

    async with Database(f"sqlite:///{tmp_path}/gateway.db") as db:
        task = asyncio.create_task(db.write(unit))
        await soon(started.wait())
        yield db, gate
        gate.set()
        await task


Held = tuple[Database, threading.Event]


async def test_waiting_units_share_one_commit(held: Held) -> None:
    db, gate = held
    rest = [asyncio.create_task(db.write(partial(add_fact, name=f"{n:03}"))) for n in range(100)]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*rest)

    assert db.commits == 2
    assert len(await db.read(fact_names)) == 101


async def test_failing_unit_fails_only_itself(db: Database) -> None:
    def refused(tx: Connection) -> None:
        add_fact(tx, "half")
        raise Fixable("precondition", "no")

    outcomes = await asyncio.gather(
        db.write(lambda tx: add_fact(tx, "a")),
        db.write(refused),
        db.write(lambda tx: tx.execute(text("SELECT nothing FROM nowhere"))),
        db.write(lambda tx: add_fact(tx, "a")),
        db.write(lambda tx: add_fact(tx, "b")),
        return_exceptions=True,
    )

    kinds = [outcome if isinstance(outcome, int) else type(outcome) for outcome in outcomes]
    assert kinds == [1, Fixable, Broken, Broken, 1]
    with pytest.raises(Fixable, match="no"):  # by itself too
        await db.write(refused)
    assert await db.read(fact_names) == ["a", "b"]


async def test_full_queue_answers_busy_at_once(held: Held) -> None:
    db, gate = held
    waiting = [asyncio.create_task(db.write(lambda tx: None)) for _ in range(STORE_QUEUE)]
    await asyncio.sleep(0)

    with raises(Overloaded, code="busy"):
        await db.write(lambda tx: None)

    gate.set()
    await asyncio.gather(*waiting)


async def test_unit_whose_caller_gave_up_does_not_happen(held: Held) -> None:
    db, gate = held
    given_up = asyncio.create_task(db.write(lambda tx: add_fact(tx, "late")))
    await asyncio.sleep(0)
    given_up.cancel()
    gate.set()
    await db.write(lambda tx: None)

    assert await db.read(fact_names) == ["held"]


async def test_reads_go_on_while_a_write_holds_the_file_and_cannot_write(held: Held) -> None:
    db, gate = held
    assert await db.read(fact_names) == []
    gate.set()
    with pytest.raises(Broken):
        await db.read(lambda tx: add_fact(tx, "a"))


async def test_rows_written_soon_arrive_by_themselves(db: Database) -> None:
    for name, within in (("a", 3600.0), ("b", 0.2), ("c", 3600.0)):
        assert db.write_soon(partial(add_fact, name=name), within=within)

    async def commits() -> int:
        return db.commits

    await eventually(lambda: db.read(fact_names), ["a", "b", "c"])
    await eventually(commits, 1)


async def test_rows_written_soon_are_flushed_on_close(store_url: str) -> None:
    async with Database(store_url) as first:
        first.write_soon(partial(add_fact, name="a"))
    async with Database(store_url) as second:
        assert await second.read(fact_names) == ["a"]


async def test_refused_row_costs_only_itself_and_is_counted(db: Database) -> None:
    for name in ("a", "b", "a", "c"):
        db.write_soon(partial(add_fact, name=name))
    await db.write(lambda tx: add_fact(tx, "d"))

    assert await db.read(fact_names) == ["a", "b", "c", "d"]
    assert db.dropped == 1


async def test_rows_beyond_the_bound_are_refused_and_counted(db: Database) -> None:
    size = STORE_BURST_BYTES // 2 - 2048
    kept = [db.write_soon(partial(add_fact, name=name), size, 3600.0) for name in "abc"]

    assert (kept, db.dropped) == ([True, True, False], 1)
    await eventually(lambda: db.read(fact_names), ["a", "b"])  # many don't wait so long


async def test_closed_store_takes_no_more(store_url: str) -> None:
    db = Database(store_url)
    await db.open()
    await db.close()

    with raises(Broken, code="store_unavailable"):
        await db.write(lambda tx: None)
    assert not db.write_soon(partial(add_fact, name="a"))


async def test_cancelled_reads_leave_the_store_usable(db: Database) -> None:
    for _ in range(20):
        reads = [asyncio.create_task(db.read(fact_names)) for _ in range(8)]
        await asyncio.sleep(0)
        for read in reads:
            read.cancel()
        await asyncio.gather(*reads, return_exceptions=True)

    assert await asyncio.gather(*(db.read(fact_names) for _ in range(8))) == [[]] * 8


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("sqlite:///state/gateway.db", Sqlite),
        ("sqlite:////var/gateway.db", Sqlite),
        ("postgresql://user@host/db", Postgres),
        ("postgres://user@host/db", Postgres),
    ],
)
async def test_url_names_its_engine(url: str, kind: type) -> None:
    assert isinstance(engine_for(url), kind)


@pytest.mark.parametrize("url", ["", "sqlite://", "sqlite:///", "mysql://host/db", "state.db"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"store\.url"):
        engine_for(url)


async def test_unreachable_store_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for url in (f"sqlite:///{tmp_path}/file/gateway.db", "postgresql://user@127.0.0.1:1/db"):
        with raises(Broken, code="store_unavailable"):
            await Database(url).open()
