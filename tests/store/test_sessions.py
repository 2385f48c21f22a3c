from __future__ import annotations

from gateway.store.cluster import end_session, ended_sessions
from gateway.store.database import Database


async def test_ended_sessions_are_known_until_they_expire(db: Database) -> None:
    for id, expires_at in (("s1", 10.0), ("s2", 20.0), ("s2", 30.0)):
        await end_session(db, id, expires_at)

    assert await ended_sessions(db, 9.0, 100) == ["s1", "s2"]
    assert await ended_sessions(db, 10.0, 100) == ["s2"]
    assert await ended_sessions(db, 9.0, 1) == ["s2"]
