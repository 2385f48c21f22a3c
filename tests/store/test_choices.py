from __future__ import annotations

from gateway.store.catalog import (
    StoredPermissions,
    choose_access,
    delete_permissions,
    load_choices,
    load_permissions,
    put_permissions,
)
from gateway.store.cluster import current_revision
from gateway.store.database import Database


async def test_latest_choice_of_each_principal_holds(db: Database) -> None:
    revisions = [
        await choose_access(db, "ann", "demo", "read-only"),
        await choose_access(db, "ann", "demo", "disabled"),
        await choose_access(db, "ann", "other", "read-write"),
        await choose_access(db, "bob", "demo", "read-only"),
    ]

    assert revisions == [1, 2, 3, 4]
    assert await load_choices(db) == {
        "ann": {"demo": "disabled", "other": "read-write"},
        "bob": {"demo": "read-only"},
    }


async def test_permissions_hold_until_they_are_deleted(db: Database) -> None:
    assert await load_permissions(db) is None

    await put_permissions(db, {"level": "read_only"}, by="ann", now=5.0)
    put = await put_permissions(db, {"level": "full_access"}, by="bob", now=6.0)

    assert put == StoredPermissions({"level": "full_access"}, 2, 6.0, "bob")
    assert await load_permissions(db) == put
    assert [await delete_permissions(db), await delete_permissions(db)] == [3, None]
    assert await load_permissions(db) is None
    assert await current_revision(db) == 3
