from __future__ import annotations

import asyncio
import os

from gateway.store.cluster import Replica, beat, bury_the_dead, leave, living, this_host
from gateway.store.database import Database
from tests.store.test_executions import silence

US = Replica("us", this_host(), os.getpid(), 1.0)


async def test_processes_live_while_they_are_heard(db: Database) -> None:
    await beat(db, US)
    await beat(db, Replica("other", "elsewhere", 7, 1.0))
    assert sorted(await living(db)) == ["other", "us"]

    await silence(db, "other", 16.0)
    assert await living(db) == ["us"]

    await beat(db, Replica("other", "elsewhere", 7, 1.0))
    await leave(db, "us")
    assert await living(db) == ["other"]


async def test_dead_processes_of_this_host_need_not_be_waited_for(db: Database) -> None:
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    for replica in (
        US,
        Replica("ended", this_host(), ended.pid, 0.0),
        Replica("had our number", this_host(), os.getpid(), 0.0),
        Replica("runs", this_host(), os.getppid(), 0.0),
        Replica("elsewhere", "another host", ended.pid, 0.0),
    ):
        await beat(db, replica)

    assert sorted(await bury_the_dead(db, US)) == ["ended", "had our number"]
    assert sorted(await living(db)) == ["elsewhere", "runs", "us"]
