"""Tells a client in its results that its tools have changed since it listed them.

The store has the list that each client was last given. A process looks there once for each client
and view, so that a call between two changes costs one comparison: `by_client` remembers for each
client the digest of the view that it was last checked against, and the changes that its results
tell of; mostly there are none. A line of text is added once for each change; what programs read is
in every result until the client lists.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import orjson
from cachetools import LRUCache
from msgspec import Struct

from gateway.calls.record import with_line
from gateway.errors import GatewayError
from gateway.limits import MAX_REMEMBERED, MAX_TOLD_NAMES, MOMENT_SECONDS
from gateway.model import Result
from gateway.policy.view import View
from gateway.store.client_lists import Contents, ListHolder, keep_list, last_list, mark_told
from gateway.store.database import Database

CHANGED_META = "gateway/tools_changed"


class ListState(Struct, frozen=True):
    """The facts that this process knows about a client's list, for one view."""

    digest: str
    revision: int
    has_list: bool = False
    changes: Mapping[str, Any] | None = None  # since its list; None: nothing, or it never had one


class ClientLists:
    """The lists that clients have."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.by_client: LRUCache[ListHolder, ListState] = LRUCache(MAX_REMEMBERED)

    def begin(self, client: ListHolder, view: View, revision: int) -> None:
        """Notes that a client is new: it has no list, and the store need not be asked."""
        self.by_client[client] = ListState(view.digest, revision)

    def note(self, client: ListHolder, view: View, revision: int) -> None:
        """Notes that the client is given this list."""
        self.by_client[client] = ListState(view.digest, revision, has_list=True)
        keep_list(self._db, client, view.digest, lambda: list_contents(view), time.time())

    def hear(self, payload: str) -> None:
        """Forgets a client that some process gave a list; after a break, all clients."""
        if payload:
            self.by_client.pop(ListHolder(*orjson.loads(payload)), None)
        else:
            self.by_client.clear()

    async def tell(self, client: ListHolder, view: View, revision: int, result: Result) -> Result:
        """The result of a call that began on this view, with news of its client's tools."""
        state, is_first = self.by_client.get(client), False
        if "content" not in result:
            return result  # a question to the client, not yet an answer
        if state is not None and state.revision > revision:
            return result  # the client may have been told of a later view than this call's
        if state is None or state.digest != view.digest:
            state, is_first = await self._load(client, view, revision)
        if state.changes is None:
            return result
        meta = {CHANGED_META: state.changes}
        if is_first:
            return with_line(result, _describe_changes(state.changes, view), meta)
        return {**result, "_meta": {**result.get("_meta", {}), **meta}}

    async def _load(self, client: ListHolder, view: View, revision: int) -> tuple[ListState, bool]:
        """What the store knows of a client's list, and whether the client is told of this view for
        the first time; of a client's calls at the same time only one looks."""
        empty = self.by_client[client] = ListState(view.digest, revision)
        try:
            async with asyncio.timeout(MOMENT_SECONDS):
                await self._db.settle()  # the client may have listed just now
                last = await last_list(self._db, client)
        except (GatewayError, TimeoutError):  # looked up again, but not by each call of an outage
            asyncio.get_running_loop().call_later(MOMENT_SECONDS, self.by_client.pop, client, None)
            return empty, False
        current = self.by_client.get(client)
        if current is None:  # a signal came meanwhile: the list that was read may be old
            return await self._load(client, view, revision)
        if last is None or current is not empty:
            return empty, False
        id, contents = last
        if id == view.digest:
            self.by_client[client] = ListState(view.digest, revision, has_list=True)
            return empty, False
        changes = compare_lists(contents, list_contents(view)) | {"revision": revision}
        state = self.by_client[client] = ListState(view.digest, revision, changes=changes)
        return state, await self._is_first(client, view.digest)

    async def _is_first(self, client: ListHolder, digest: str) -> bool:
        """Whether no process has told the client of this view."""
        with suppress(GatewayError, TimeoutError):
            async with asyncio.timeout(MOMENT_SECONDS):
                return await mark_told(self._db, client, digest)
        return False


def list_contents(view: View) -> Contents:
    """The names that a view lists, each with the digest of its entry."""
    return {name: digest.hex() for name, digest in zip(view.names, view.digests, strict=True)}


def compare_lists(old: Contents, new: Contents) -> dict[str, Any]:
    """The names that came, went and changed; where they are very many, how many are not named."""
    both = old.keys() & new.keys()
    changes = {
        "added": sorted(new.keys() - both),
        "removed": sorted(old.keys() - both),
        "changed": sorted(name for name in both if old[name] != new[name]),
    }
    excerpt: dict[str, Any] = {kind: names[:MAX_TOLD_NAMES] for kind, names in changes.items()}
    unnamed = sum(len(names) for names in changes.values()) - sum(map(len, excerpt.values()))
    return excerpt | ({"more": unnamed} if unnamed else {})


def _describe_changes(changes: Mapping[str, Any], view: View) -> str:
    counts = ", ".join(f"{len(changes[kind])} {kind}" for kind in ("added", "removed", "changed"))
    sentence = f"Your list of tools is an old one ({counts})."
    if "list_dynamic_tools" in view.own_names:
        return f"{sentence} list_dynamic_tools names those there are, call_dynamic_tool calls them."
    if "mcp_list_tools" in view.own_names:
        return f"{sentence} mcp_list_tools names those there are, mcp_call_tool calls them."
    return f"{sentence} List them again."
