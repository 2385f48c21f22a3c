"""Pages of a busy gateway stay small, and read no more of the store than they show."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from itertools import chain, pairwise

import pytest
from msgspec.structs import asdict
from sqlalchemy import event
from sqlalchemy.engine import Engine

from bench.console import definition
from gateway.limits import TABLE_ROWS
from gateway.model import new_id
from gateway.store.database import Database, insert_rows, values
from gateway.store.tables import approvals, executions
from tests.configs import principal, table
from tests.conftest import Running, gateway_on
from tests.console.conftest import DEMO, SignedIn
from tests.console.test_live import stream
from tests.peers import until
from tests.store.rows import approval, execution

MOST_BYTES = 300 * 1024
WAITING, CALLS, CONNECTIONS = 200, 6_000, 3
NEWEST = "ORDER BY executions.created_at DESC"  # which a page asks for that shows calls
LONG = {f"argument_{number}": "long words " * 30 for number in range(12)}


@pytest.fixture(scope="module")
async def busy(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    """A gateway with many tools, calls and questions, and many who may call."""
    folder, config = tmp_path_factory.mktemp("busy"), DEMO
    for number in range(CONNECTIONS):
        (folder / f"api{number}.json").write_bytes(definition(number))
        config += table(f"connections.api{number}", kind="openapi", spec=f"api{number}.json")
    config += "".join(principal(f"agent_{number}") for number in range(60))
    async with gateway_on(folder / "config.toml", config) as made:
        await fill(made)
        yield made


async def fill(gateway: Running) -> None:
    tools, db, now = list(gateway.app.gateway.snapshot.tools), gateway.app.gateway.db, time.time()
    assert len(tools) > 200
    rows, waiting = [], []
    for number in range(CALLS):
        tool, at = tools[number % len(tools)], now - number * 7200 / CALLS
        row = execution(
            id=new_id(at),
            tool=tool,
            connection=tool.partition("_")[0],
            status="failed" if number % 5 == 4 else "completed",
            created_at=at,
            finished_at=at + 0.1,
            arguments=LONG,
        )
        rows.append(asdict(row))
    for number in range(WAITING):
        at, id = now - number, new_id(now - number)
        rows.append(asdict(execution(id=id, status="pending_confirmation", created_at=at)))
        asked = {"id": new_id(at), "execution_id": id, "created_at": at, "expires_at": now + 3600}
        waiting.append(values(approval(**asked, arguments=LONG)))
    await db.write(lambda tx: insert_rows(tx, executions, rows))
    await db.write(lambda tx: tx.execute(approvals.insert(), waiting))


PAGES = (
    "",
    "/connections",
    "/connections/new",
    "/connections/api0",
    "/connections/api0/edit",
    "/tools",
    "/tools?start=100&sort=-tokens",
    "/tool?name={tool}&range=30d",
    "/approvals",
    "/charts?range=30d&by=tool",
    "/charts?range=1h&by=connection",
    "/executions",
    "/executions?since=30d&status=failed",
    "/executions/{id}",
    "/access",
    "/access/view?principal=agent_7",
)


async def test_no_page_is_larger_than_300_kb(busy: Running, signed_in: SignedIn) -> None:
    someone = await signed_in(busy)
    rows = (await someone.get("/console/executions?format=json")).json()["executions"]
    known = {"tool": sorted(busy.app.gateway.snapshot.tools)[0], "id": rows[0]["id"]}
    sizes = {}
    for path in PAGES:
        answer = await someone.get(f"/console{path}".format(**known))
        assert answer.status_code == 200, (path, answer.text[-300:])
        sizes[path] = len(answer.content)
    assert {path: size for path, size in sizes.items() if size > MOST_BYTES} == {}
    assert "and 180 more" in (await someone.get("/console/approvals")).text


@contextmanager
def statements() -> Iterator[list[tuple[str, tuple[object, ...]]]]:
    """What is asked of the store meanwhile."""
    asked: list[tuple[str, tuple[object, ...]]] = []

    def note(_: object, __: object, sql: str, given: tuple[object, ...], *more: object) -> None:
        asked.append((sql, given))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield asked
    finally:
        event.remove(Engine, "before_cursor_execute", note)


async def plan(db: Database, sql: str, given: tuple[object, ...]) -> str:
    """How SQLite finds the rows of a statement."""
    found = await db.read(lambda tx: tx.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", given).all())
    return "\n".join(row[-1] for row in found)


@pytest.mark.parametrize("by", ["connection", "tool"])
async def test_charts_count_by_an_index_alone(busy: Running, signed_in: SignedIn, by: str) -> None:
    someone = await signed_in(busy)
    with statements() as asked:
        await someone.get(f"/console/charts?range=7d&by={by}")
    counted = [each for each in asked if "places" in each[0]]
    assert counted
    for each in counted:
        how = await plan(busy.app.gateway.db, *each)
        assert "executions USING COVERING INDEX" in how, how
        assert "TEMP B-TREE" not in how, how


async def test_facets_look_at_the_newest_calls_only(busy: Running, signed_in: SignedIn) -> None:
    someone = await signed_in(busy)
    page = (await someone.get("/console/executions?since=30d")).text
    status = page.partition('<section aria-label="status">')[2].partition("</section>")[0]
    found = [int(each.partition("<")[0].replace(",", "")) for each in status.split("<small>")[1:]]
    assert sum(found) == TABLE_ROWS < CALLS
    assert "Counted in the newest 5,000 calls." in page


async def test_an_open_page_reads_little_while_nothing_happens(
    busy: Running, signed_in: SignedIn
) -> None:
    someone = await signed_in(busy)
    async with stream(someone, "") as following:
        assert 'hx-target="#feed"' in await following()
        with statements() as asked:

            def looks() -> int:
                return sum("ended_sessions" in sql for sql, _ in asked)

            await until(lambda: looks() == 2)  # one look is over then
        assert not [sql for sql, _ in asked if NEWEST in sql]
        with statements() as asked:
            busy.app.gateway.feed.wake()
            await until(lambda: any(NEWEST in sql for sql, _ in asked))


async def test_open_pages_look_at_the_store_one_after_the_other(
    busy: Running, signed_in: SignedIn
) -> None:
    """Or a call would wait for a place behind all of them: there are few connections that read."""
    someone = await signed_in(busy)
    async with AsyncExitStack() as opened:
        for _ in range(6):
            following = await opened.enter_async_context(stream(someone, ""))
            assert 'hx-target="#feed"' in await following()
        for _ in range(7):
            assert ("renders", "renders") not in pairwise(await _look_at_all(busy, 6))


async def _look_at_all(busy: Running, pages: int) -> list[str]:
    """What open pages do when there is news, until each has rendered."""
    with statements() as asked:
        busy.app.gateway.feed.wake()
        await until(lambda: _steps(asked).count("renders") >= pages)
    return _steps(asked)


def _steps(asked: list[tuple[str, tuple[object, ...]]]) -> list[str]:
    """The first and the last that a look of an open page asks, as often as they were asked."""
    steps = {"begins": ("ended_sessions", ""), "renders": ("SELECT executions.id", NEWEST)}
    found = ((name for name in steps if all(w in sql for w in steps[name])) for sql, _ in asked)
    return list(chain.from_iterable(found))


async def test_only_the_page_of_calls_that_wait_reads_their_arguments(
    busy: Running, signed_in: SignedIn
) -> None:
    someone = await signed_in(busy)
    for path, reads in {"": False, "/connections/api0": False, "/approvals": True}.items():
        with statements() as asked:
            assert f"{WAITING:,}" in (await someone.get(f"/console{path}")).text
        # The gateway itself looks for calls that were approved, whatever page is open.
        waiting = [given for sql, given in asked if "approvals.arguments" in sql]
        assert any("pending" in given for given in waiting) == reads, path
