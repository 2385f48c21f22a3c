"""Token buckets that several processes share: one statement takes and refills, so it can't race.

A take waits for a commit. Where that is too slow, take several at once and hand them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sqlalchemy import BindParameter, Double, Executable, bindparam, case

from gateway.store import tables
from gateway.store.database import Database
from gateway.store.statements import insert_on, is_postgres

_table = tables.buckets


@dataclass(frozen=True, slots=True)
class Taken:
    """Whether there was enough; else in how many seconds there will be."""

    allowed: bool
    left: float
    retry_after: float = 0.0


async def take(
    db: Database, key: str, *, capacity: float, per_second: float, now: float, amount: float = 1.0
) -> Taken:
    """Takes from a bucket that holds `capacity` and refills by `per_second`."""
    asked = {"cap": capacity, "rate": per_second, "now": now, "amount": amount}
    first = {"key": key, "tokens": capacity - amount, "at": now, "allowed": 1}
    if amount > capacity:
        return Taken(False, 0.0, float("inf"))
    row = await db.write(
        lambda tx: tx.execute(_take(is_postgres(tx)), {**first, **asked}).one(), f"bucket {key}"
    )
    if row.allowed:
        return Taken(True, row.tokens)
    return Taken(False, row.tokens, (amount - row.tokens) / per_second)


@cache
def _take(postgres: bool) -> Executable:
    cap, rate, now, amount = map(_number, ("cap", "rate", "now", "amount"))
    # A clock that is behind the last taker's gives nothing, and takes nothing away.
    passed = case((now > _table.c.at, now - _table.c.at), else_=0.0)
    refilled = _table.c.tokens + passed * rate
    held = case((refilled > cap, cap), else_=refilled)
    enough = held >= amount
    return (
        insert_on(postgres, _table)
        .on_conflict_do_update(
            index_elements=["key"],
            set_={
                "tokens": case((enough, held - amount), else_=held),
                "at": case((now > _table.c.at, now), else_=_table.c.at),
                "allowed": case((enough, 1), else_=0),
            },
        )
        .returning(_table.c.tokens, _table.c.allowed)
    )


def _number(name: str) -> BindParameter[float]:
    return bindparam(name, type_=Double())
