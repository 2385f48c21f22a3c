"""Which processes are alive: each writes a heartbeat by the store's clock, every 3 seconds.

A process that ended where we can see it, on the same machine in the same process namespace, need
not be waited for.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, ScalarSelect, Select, delete, select

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.statements import many, store_time, upsert

_table = tables.replicas

HEARTBEAT_SECONDS = 3.0
SILENT_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Replica:
    """One process of the gateway."""

    id: str
    host: str
    pid: int
    started_at: float


async def beat(db: Database, replica: Replica) -> None:
    """Says that this process is alive."""

    def unit(tx: Connection) -> None:
        row = {"id": replica.id, "host": replica.host, "pid": replica.pid}
        times = {"started_at": replica.started_at, "heartbeat_at": store_time(tx)}
        tx.execute(upsert(tx, _table).values({**row, **times}))

    await db.write(unit, f"replica {replica.id}")


async def leave(db: Database, replica_id: str) -> None:
    """Says that this process has ended in good order, or is known to be gone."""
    await db.write(lambda tx: tx.execute(delete(_table).where(_table.c.id == replica_id)).rowcount)


async def living(db: Database, silent_for: float = SILENT_SECONDS) -> list[str]:
    """The ids of processes whose heartbeat was heard."""
    return await db.read(lambda tx: [row.id for row in tx.execute(_alive(tx, silent_for))])


async def bury_the_dead(db: Database, us: Replica) -> list[str]:
    """Removes earlier processes of this host that no longer run, without waiting for silence."""
    here = select(_table.c.id, _table.c.host, _table.c.pid, _table.c.started_at).where(
        (_table.c.host == us.host) & (_table.c.id != us.id)
    )
    found = await db.read(lambda tx: many(tx, here, Replica))
    dead = [each.id for each in found if each.pid == us.pid or not _runs(each.pid)]
    for id in dead:
        await leave(db, id)
    return dead


def alive(tx: Connection, silent_for: float = SILENT_SECONDS) -> ScalarSelect[str]:
    """The ids of processes that are alive, inside another statement."""
    return _alive(tx, silent_for).scalar_subquery()


def this_host() -> str:
    """Where a process id means the same process: machine, boot and process namespace."""
    return f"{socket.gethostname()} {_boot()} {_process_namespace()}"


def _alive(tx: Connection, silent_for: float) -> Select[tuple[str]]:
    return select(_table.c.id).where(_table.c.heartbeat_at > store_time(tx) - silent_for)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _process_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""
