"""The names that tools had: a client that listed them calls them by these for a while.

A name is kept with the operation that it was the name of (`snapshot.operation_of`), never with
another name, so that it can't lead to anything else. It counts while that operation is served under
another name and nobody else has this one; once another operation has it, it is forgotten for good.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence

from gateway.catalog.changes import former_names
from gateway.catalog.snapshot import Snapshot, operation_of
from gateway.model import Found, Tool
from gateway.store.catalog import StoredCatalog
from gateway.store.tables import FormerName


class FormerNames:
    """Those that this process knows of; the store has all."""

    def __init__(self, stored: StoredCatalog) -> None:
        self._stored = stored
        self.known: dict[tuple[str, str], FormerName] = {}  # by connection and name; never changed

    def take(self, stored: Iterable[FormerName], before: dict[tuple[str, str], FormerName]) -> None:
        """Takes over what is stored, and keeps what was added since it was read."""
        added = {key: each for key, each in self.known.items() if before.get(key) is not each}
        self.known = {(each.connection, each.name): each for each in stored} | added

    def add(self, names: Iterable[FormerName]) -> None:
        """Adds what has been stored."""
        self.known = self.known | {(each.connection, each.name): each for each in names}

    def drop(self, connection: str) -> None:
        """Forgets a connection's: it is deleted."""
        self.known = {key: each for key, each in self.known.items() if key[0] != connection}

    async def compare(self, current: Snapshot, name: str, before: Found, after: Found) -> None:
        """Keeps the names that other settings take from a connection's tools.

        What they are called now is not stored with the definition, so that a start finds the same
        once more: then the name counts from when it was first found.
        """
        found = await asyncio.to_thread(former_names, name, before, after, time.time())
        renamed = served_names(current, found)
        new = [each for each in renamed if not self._knows(each)]
        if new:
            await self._stored.keep_former(new)
            self.add(new)

    def _knows(self, name: FormerName) -> bool:
        known = self.known.get((name.connection, name.name))
        return known is not None and known.operation == name.operation

    def let_go(self, current: Snapshot) -> None:
        """Forgets the names that lead somewhere else now."""
        taken = [each for each in self.known.values() if _is_taken(current, each)]
        if taken:
            self._stored.forget_former(taken)
            self.known = {key: each for key, each in self.known.items() if each not in taken}


def served_names(current: Snapshot, names: Sequence[FormerName]) -> list[FormerName]:
    """Those of these names under which tools of their connection are served."""
    if not names or names[0].connection not in current.connections:
        return list(names)  # at a start nothing is served yet
    return [each for each in names if _holder(current, each) is not None]


def _is_taken(current: Snapshot, name: FormerName) -> bool:
    """Whether the name is that of another operation."""
    if name.name not in current.tools:
        return False
    tool, state = _holder(current, name), current.connections.get(name.connection)
    if tool is None or state is None or state.found is None:
        return True
    return operation_of(state.found, tool) != name.operation


def _holder(current: Snapshot, name: FormerName) -> Tool | None:
    """The tool of this name, if it is the same connection's."""
    tool = current.tools.get(name.name)
    return tool if tool is not None and tool.connection == name.connection else None
