"""The former names of tools: a client that listed a tool calls it by its old name for a while.

A name is kept with the operation that it was the name of (`snapshot.operation_of`), never with
another name, so that it can't lead to anything else. It counts while that operation is served under
another name and no tool has this one; once another operation has it, it is forgotten for good.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from gateway.catalog.changes import former_names
from gateway.catalog.snapshot import Snapshot, operation_of
from gateway.model import BuiltDefinition, Tool
from gateway.store.catalog import StoredCatalog
from gateway.store.tables import FormerName


class FormerNames:
    """The former names that this process knows; the store has all of them."""

    def __init__(self, stored: StoredCatalog) -> None:
        self._stored = stored
        self.by_name: dict[tuple[str, str], FormerName] = {}  # by connection, name; never mutated

    def take(self, stored: Iterable[FormerName], before: dict[tuple[str, str], FormerName]) -> None:
        """Takes over the stored names, and keeps those added since the store was read."""
        added = {key: each for key, each in self.by_name.items() if before.get(key) is not each}
        self.by_name = {(each.connection, each.name): each for each in stored} | added

    def add(self, names: Iterable[FormerName]) -> None:
        """Adds names that have been stored."""
        self.by_name = self.by_name | {(each.connection, each.name): each for each in names}

    def drop(self, connection: str) -> None:
        """Forgets the names of a connection that is deleted."""
        self.by_name = {key: each for key, each in self.by_name.items() if key[0] != connection}

    async def keep_renames(
        self, current: Snapshot, name: str, before: BuiltDefinition, after: BuiltDefinition
    ) -> None:
        """Keeps the names that a connection's tools lose because its settings changed.

        The new names are not stored with the definition, so that each start finds the same renames
        once more: a former name counts from when it was first found.
        """
        renames = await asyncio.to_thread(former_names, name, before, after, time.time())
        if new := [each for each in served_names(current, renames) if not self._has(each)]:
            await self._stored.keep_former_names(new)
            self.add(new)

    def _has(self, name: FormerName) -> bool:
        old = self.by_name.get((name.connection, name.name))
        return old is not None and old.operation == name.operation

    def forget_taken(self, current: Snapshot) -> None:
        """Forgets the names that another operation has now."""
        stale = [each for each in self.by_name.values() if _is_taken(current, each)]
        if stale:
            self._stored.forget_former_names(stale)
            self.by_name = {key: each for key, each in self.by_name.items() if each not in stale}


def served_names(current: Snapshot, names: Sequence[FormerName]) -> list[FormerName]:
    """The names in `names` under which their connection serves tools now."""
    if not names or names[0].connection not in current.connections:
        return list(names)  # at a start nothing is served yet
    return [each for each in names if _holder(current, each) is not None]


def _is_taken(current: Snapshot, name: FormerName) -> bool:
    """Whether the name is that of another operation."""
    if name.name not in current.tools:
        return False
    tool, state = _holder(current, name), current.connections.get(name.connection)
    if tool is None or state is None or state.built is None:
        return True
    return operation_of(state.built, tool) != name.operation


def _holder(current: Snapshot, name: FormerName) -> Tool | None:
    """The tool of this name, if it belongs to the same connection."""
    tool = current.tools.get(name.name)
    return tool if tool is not None and tool.connection == name.connection else None
