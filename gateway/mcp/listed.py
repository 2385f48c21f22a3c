"""What a client that does not list again is told with its results: that its tools are others now.

The store has the list that each client was last given. A process looks there once for each client
and view, so that a call between two changes costs one comparison: `known` has, for each client, the
view it was looked at for and what results say of it, which mostly is nothing. A line of text is
added once for each change; what programs read is in every result until the client lists.
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
from gateway.store.database import Database
from gateway.store.listed import Contents, ListHolder, keep_list, last_list, tell_first

CHANGED_META = "gateway/tools_changed"


class HeldList(Struct, frozen=True):
    """What is known of a client, for one view."""

    digest: str
    revision: int
    has_list: bool = False
    changed: Mapping[str, Any] | None = None  # since its list; None: nothing, or it never had one


class Listings:
    """The lists that clients have."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.known: LRUCache[ListHolder, HeldList] = LRUCache(MAX_REMEMBERED)

    def begin(self, client: ListHolder, view: View, revision: int) -> None:
        """The client is a new one: it has no list, and the store need not be asked."""
        self.known[client] = HeldList(view.digest, revision)

    def note(self, client: ListHolder, view: View, revision: int) -> None:
        """The client is given this list."""
        self.known[client] = HeldList(view.digest, revision, has_list=True)
        keep_list(self._db, client, view.digest, lambda: contents_of(view), time.time())

    def hear(self, payload: str) -> None:
        """A client was given a list, by whichever process; after a break, perhaps all were."""
        if payload:
            self.known.pop(ListHolder(*orjson.loads(payload)), None)
        else:
            self.known.clear()

    async def tell(self, client: ListHolder, view: View, revision: int, result: Result) -> Result:
        """The result of a call that began on this view, with what its client is to be told."""
        known, first = self.known.get(client), False
        if "content" not in result:
            return result  # it asks the client something, and is no answer yet
        if known is not None and known.revision > revision:
            return result  # the client may have been told of what came after the call began
        if known is None or known.digest != view.digest:
            known, first = await self._look(client, view, revision)
        if known.changed is None:
            return result
        meta = {CHANGED_META: known.changed}
        if first:
            return with_line(result, _words(known.changed, view), meta)
        return {**result, "_meta": {**result.get("_meta", {}), **meta}}

    async def _look(self, client: ListHolder, view: View, revision: int) -> tuple[HeldList, bool]:
        """What the store knows of a client, and whether it is told of this view for the first
        time; of its calls at the same time only one looks."""
        nothing = self.known[client] = HeldList(view.digest, revision)
        try:
            async with asyncio.timeout(MOMENT_SECONDS):
                await self._db.settle()  # the client may have listed just now
                last = await last_list(self._db, client)
        except (GatewayError, TimeoutError):  # looked for again, but not by each call of an outage
            asyncio.get_running_loop().call_later(MOMENT_SECONDS, self.known.pop, client, None)
            return nothing, False
        held = self.known.get(client)
        if held is None:  # it was heard of meanwhile: what was read may be old
            return await self._look(client, view, revision)
        if last is None or held is not nothing:
            return nothing, False
        id, contents = last
        if id == view.digest:
            self.known[client] = HeldList(view.digest, revision, has_list=True)
            return nothing, False
        changed = compare_lists(contents, contents_of(view)) | {"revision": revision}
        known = self.known[client] = HeldList(view.digest, revision, changed=changed)
        return known, await self._is_first(client, view.digest)

    async def _is_first(self, client: ListHolder, digest: str) -> bool:
        """Whether no process has told the client of this view."""
        with suppress(GatewayError, TimeoutError):
            async with asyncio.timeout(MOMENT_SECONDS):
                return await tell_first(self._db, client, digest)
        return False


def contents_of(view: View) -> Contents:
    """The names that a view lists, each with what tells its entry from others."""
    return {name: each.hex() for name, each in zip(view.names, view.digests, strict=True)}


def compare_lists(old: Contents, new: Contents) -> dict[str, Any]:
    """The names that came, went and changed; where they are very many, how many are not named."""
    both = old.keys() & new.keys()
    found = {
        "added": sorted(new.keys() - both),
        "removed": sorted(old.keys() - both),
        "changed": sorted(name for name in both if old[name] != new[name]),
    }
    told: dict[str, Any] = {kind: names[:MAX_TOLD_NAMES] for kind, names in found.items()}
    more = sum(len(names) for names in found.values()) - sum(map(len, told.values()))
    return told | ({"more": more} if more else {})


def _words(changed: Mapping[str, Any], view: View) -> str:
    counts = ", ".join(f"{len(changed[kind])} {kind}" for kind in ("added", "removed", "changed"))
    said = f"Your list of tools is an old one ({counts})."
    if "list_dynamic_tools" in view.own:
        return f"{said} list_dynamic_tools names those there are, call_dynamic_tool calls them."
    if "mcp_list_tools" in view.own:
        return f"{said} mcp_list_tools names those there are, mcp_call_tool calls them."
    return f"{said} List them again."
