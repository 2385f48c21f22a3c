from __future__ import annotations

import asyncio
import sys
from collections import Counter

from sqlalchemy import select, text

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.engines import Sqlite
from tests.processes import START_SECONDS


async def killed_after(url: str, start: str, acknowledged: int) -> set[str]:
    """What a child had acknowledged when it was killed in the middle of writing."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.store.writing_child", url, start,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    async with asyncio.timeout(START_SECONDS):
        lines = [await child.stdout.readline() for _ in range(acknowledged)]
        child.kill()
        rest = await child.stdout.read()
        await child.wait()
    return {
        line.decode().strip()
        for line in [*lines, *rest.splitlines(keepends=True)]
        if line.endswith(b"\n")
    }


async def check(url: str, acknowledged: set[str]) -> None:
    async with Database(url) as db:
        names = await db.read(lambda tx: list(tx.execute(select(tables.facts.c.name)).scalars()))
        if isinstance(db.engine, Sqlite):
            sound = await db.read(lambda tx: tx.execute(text("PRAGMA integrity_check")).scalar())
            assert sound == "ok"
    written = Counter(name.rsplit(" ", 1)[0] for name in names)
    assert acknowledged <= set(written), "an acknowledged unit is gone"
    assert set(written.values()) <= {2}, "half a unit is there"


async def test_killed_process_loses_nothing_acknowledged_and_leaves_nothing_half(
    store_url: str,
) -> None:
    await check(store_url, await killed_after(store_url, "start", 100))
