"""Whether an upstream's prompts and resources changed while nobody could hear it say so.

An upstream tells of such changes itself. What it told while there was no session, or no stream of
notices, is lost: so its lists are looked at whenever one is there again, and now and then since a
stream can go deaf. A list that is another one is told as if the upstream had.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from gateway.connectors.upstream_listing import every_page, listing_digest
from gateway.connectors.upstream_rpc import Notice, SessionGone
from gateway.errors import GatewayError

if TYPE_CHECKING:  # the link has one of these
    from gateway.connectors.upstream_link import Session

LIST_SECONDS = 10.0
LISTS: Mapping[str, Mapping[str, str]] = {
    "prompts": {"prompts": "prompts/list"},
    "resources": {
        "resources": "resources/list",
        "resourceTemplates": "resources/templates/list",
    },
}


def list_changed(kind: str) -> str:
    """The notice that says so."""
    return f"notifications/{kind}/list_changed"


class OtherLists:
    """What one upstream lists beside tools, as it was when last looked at."""

    def __init__(self, name: str, notice: Notice, seconds: float) -> None:
        self.again = asyncio.Event()
        self._name = name
        self._notice = notice
        self._seconds = seconds
        self._known: dict[str, str] = {}  # digests, by kind

    def told(self, method: str) -> bool:
        """Whether the upstream has just said that one of these lists is another now."""
        kind = next((kind for kind in LISTS if method == list_changed(kind)), None)
        if kind is not None:
            self._known.pop(kind, None)
        return kind is not None

    async def watch(self, session: Session) -> None:
        """Compares when a session begins, when told to look, and every so often."""
        while True:
            self.again.clear()
            await self._compare(session)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await self.again.wait()

    async def _compare(self, session: Session) -> None:
        for kind in LISTS:
            offered = session.peer.capabilities.get(kind)
            if not isinstance(offered, dict) or offered.get("listChanged") is not True:
                continue  # who does not tell of changes is not asked for them
            try:
                found = await self._digest(session, kind)
            except (GatewayError, SessionGone):
                return  # at the next look
            known = self._known.get(kind)
            self._known[kind] = found
            if known is not None and known != found:
                self._notice(list_changed(kind), {})

    async def _digest(self, session: Session, kind: str) -> str:
        digests = []
        for of, method in LISTS[kind].items():
            page = partial(session.request, method, seconds=LIST_SECONDS)
            digests.append(listing_digest(await every_page(page, self._name, of)))
        return " ".join(digests)
