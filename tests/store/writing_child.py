"""A process that writes until it is killed, saying what the store has acknowledged.

Each unit writes two rows that belong together, through one of several tasks at once.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from sqlalchemy import Connection, insert

from gateway.store import tables
from gateway.store.database import Database

TASKS = 8


def unit(tx: Connection, name: str) -> None:
    tx.execute(insert(tables.facts), {"name": f"{name} first", "value": b""})
    tx.execute(insert(tables.facts), {"name": f"{name} second", "value": b""})


async def write_on_and_on(db: Database, task: int, start: str) -> None:
    for n in range(1_000_000):
        name = f"{start} {task} {n}"
        await db.write(partial(unit, name=name))
        print(name, flush=True)


async def main(url: str, start: str) -> None:
    async with Database(url) as db:
        await asyncio.gather(*(write_on_and_on(db, task, start) for task in range(TASKS)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
