"""What is chosen while the store is being read again is newer than what was read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

from gateway.catalog.catalog import Catalog
from gateway.catalog.discover import Discoverer
from gateway.config.settings import Permissions, Settings
from gateway.model import BuiltDefinition
from gateway.store.catalog import StoredCatalog, StoredState, choose_access
from gateway.store.database import Database
from gateway.store.secrets import Seal
from tests.peers import soon

NOBODY = cast(Discoverer, None)  # there is no connection to be discovered


class Slow(StoredCatalog):
    """A store whose reading takes until somebody lets it end."""

    def __init__(self, db: Database, seal: Seal) -> None:
        super().__init__(db, seal)
        self.has_read, self.may_end = asyncio.Event(), asyncio.Event()

    async def load(self, known: Mapping[str, BuiltDefinition]) -> StoredState:
        stored = await super().load(known)
        self.has_read.set()
        await self.may_end.wait()
        return stored


@asynccontextmanager
async def reading(folder: Path) -> AsyncIterator[tuple[Slow, Catalog, asyncio.Task[list[str]]]]:
    """A catalog that has read its store, and has not yet taken over what it read."""
    async with Database(f"sqlite:///{folder}/store.db") as db:
        store = Slow(db, Seal(["a key of this test"]))
        catalog = Catalog(Settings(), NOBODY, store)
        taking = asyncio.create_task(catalog.apply(Settings()))
        await store.has_read.wait()
        yield store, catalog, taking


async def test_a_choice_made_meanwhile_is_not_taken_back(tmp_path: Path) -> None:
    async with reading(tmp_path) as (store, catalog, taking):
        await catalog.rights.choose("ann", "shop", "read-only")
        await catalog.rights.put_permissions(Permissions(level="read_only"), by="ann")
        store.may_end.set()
        await taking

        assert catalog.current.choices == {("ann", "shop"): "read-only"}
        assert catalog.current.permissions.level == "read_only"


async def test_what_was_passed_over_for_it_is_taken_with_the_next_look(tmp_path: Path) -> None:
    async with reading(tmp_path) as (store, catalog, taking):
        await catalog.rights.choose("ann", "shop", "read-only")
        await choose_access(store.db, "bob", "shop", "disabled")  # as another process would
        store.may_end.set()
        await taking
        changed = asyncio.Event()
        catalog.on_change(changed.set)
        following = asyncio.create_task(catalog.follow())
        await soon(changed.wait())
        following.cancel()

        assert catalog.current.choices == {
            ("ann", "shop"): "read-only",
            ("bob", "shop"): "disabled",
        }
