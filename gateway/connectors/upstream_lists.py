"""What one upstream lists: its tools, asked for by name, and when they should be asked for again.

Whoever lists the tools is told when to look again: when the upstream says so, when a slow poll
finds another list, and when an upstream that failed can be reached once more. That it can't be
reached is told at once: a session that can't be opened, a look that fails. A look is due whenever a
call or a stream met with something that looks like the end of the upstream.

An upstream tells of changed prompts and resources itself. What it told while there was no session,
or no stream of notices, is lost: so these lists are looked at whenever one is there again, and now
and then since a stream can go deaf. A list that is another one is told as if the upstream had.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from gateway.connectors.upstream_headers import HeaderMarks
from gateway.connectors.upstream_link import Link, Pace, Session, Upstream, pause
from gateway.connectors.upstream_listing import (
    RawTool,
    every_page,
    listing_digest,
    marks_by_tool,
)
from gateway.connectors.upstream_rpc import METHOD_NOT_FOUND, Notice, RpcFailed, SessionGone
from gateway.errors import GatewayError, UpstreamFailed

LIST_SECONDS = 10.0
LISTS: Mapping[str, Mapping[str, str]] = {
    "prompts": {"prompts": "prompts/list"},
    "resources": {
        "resources": "resources/list",
        "resourceTemplates": "resources/templates/list",
    },
}
TOOLS_CHANGED = "notifications/tools/list_changed"
CHANGED: Mapping[str, str] = {f"notifications/{kind}/list_changed": kind for kind in LISTS}


class Lists:
    """The lists of one upstream, and the session over which they come."""

    def __init__(
        self,
        settings: Upstream,
        new_session: Callable[[Lists], Session],
        pace: Pace,
        *,
        changed: Callable[[], None],  # the tools should be listed again
        troubled: Callable[[GatewayError], None],  # they can't be
        notice: Notice,
        log_level: Callable[[Lists], str | None],
    ) -> None:
        self.marks: dict[str, HeaderMarks] = {}  # of tools that want arguments repeated as headers
        self.log_level = partial(log_level, self)
        self.is_over = False
        self._pace = pace
        self._report = changed
        self._troubled = troubled
        self._notice = notice
        self._loop = asyncio.get_running_loop()
        self._look = asyncio.Event()
        self._look_beside = asyncio.Event()
        self._owed = False  # the lister's last attempt failed, or it may have missed something
        self._doubted = False
        self._listed: str | None = None
        self._known: dict[str, str] = {}  # digests of the other lists
        self._reported = self._loop.time() - pace.spacing
        self._looked = self._loop.time() - pace.doubt
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
        self.link = Link(settings, partial(new_session, self), self, pace, lazy=settings.lazy)

    async def list_tools(self, seconds: float) -> list[RawTool]:
        """The upstream's tools now, every page of them."""
        try:
            tools = await self.read_tools(seconds)
        except GatewayError:
            self._owed = True
            self._look.set()
            raise
        self._listed, self._owed, self.link.error = listing_digest(tools), False, None
        return tools

    async def read_tools(self, seconds: float) -> list[RawTool]:
        """The same, for who does not take them over."""
        ends = self._loop.time() + seconds
        tools = await every_page(lambda params: self._page(params, ends), self.link.name)
        self.marks.clear()
        self.marks.update(marks_by_tool(tools))
        return tools

    def changed(self) -> None:
        """Reports soon that the tools may have changed: a burst once, and once a second at most."""
        since = self._loop.time() - self._reported
        self._later(self._report_now, max(self._pace.gather, self._pace.spacing - since))

    def take_note(self, method: str) -> bool:
        """Whether a notice of the upstream says that one of its lists is another now."""
        if method == TOOLS_CHANGED:
            self.changed()
        elif method in CHANGED:
            self._known.pop(CHANGED[method], None)  # to know it as it is now
            self._look_beside.set()
            self._notice(method, {})
        return method == TOOLS_CHANGED or method in CHANGED

    def owe(self) -> None:
        """Reports when the upstream can be reached: what is known of it may be old."""
        self._owed = True

    def doubt(self) -> None:
        """Looks whether the upstream is there, now or a few seconds after the last time."""
        self._later(self._look_now, max(0.0, self._looked + self._pace.doubt - self._loop.time()))

    def failed(self, error: GatewayError) -> None:
        """See `Life`."""
        self._owed = True
        if not self.is_over:  # else others serve the connection by now
            self._troubled(error)

    def work(self, session: Session) -> Iterable[Coroutine[Any, Any, None]]:
        """See `Life`."""
        self._look_again()
        return self.link.listen(session, self._look_again), self._poll(), self._poll_beside(session)

    def stop(self) -> None:
        """Reports nothing any more."""
        self.is_over = True
        for timer in self._timers.values():
            timer.cancel()

    def _later(self, what: Callable[[], None], seconds: float) -> None:
        if what not in self._timers:
            self._timers[what] = self._loop.call_later(seconds, what)

    def _report_now(self) -> None:
        del self._timers[self._report_now]
        self._reported = self._loop.time()
        self._report()

    def _look_now(self) -> None:
        del self._timers[self._look_now]
        self._doubted = True
        self._look.set()
        self.link.nudge()

    def _look_again(self) -> None:
        self._look.set()
        self._look_beside.set()

    async def _poll(self) -> None:
        """Looks now and then, since a stream can go deaf, and more often while a look is owed."""
        failures = 0
        while True:
            rest = pause(failures, self._pace.first_rest, self._pace.poll)
            with suppress(TimeoutError):
                async with asyncio.timeout(rest or self._pace.poll * random.uniform(0.8, 1)):
                    await self._look.wait()
            self._look.clear()
            if self._listed is not None or self._owed or self._doubted:
                failures = 0 if await self._compare() else failures + 1

    async def _compare(self) -> bool:
        """Whether the tools can be listed; what this shows is told."""
        doubted, self._doubted, self._looked = self._doubted, False, self._loop.time()
        most = self.link.connect_seconds
        try:
            tools = await self.read_tools(min(self._pace.doubt, most) if doubted else most)
        except GatewayError as error:
            self.link.error = error
            self.failed(error)
            if error.code == "upstream_error":  # it may be another one by now
                self.link.meet_again()
            return False
        self.link.error = None
        if self._owed or self._listed not in (None, listing_digest(tools)):
            self._owed = False
            self.changed()
        return True

    async def _page(self, params: Mapping[str, Any], ends: float) -> dict[str, Any]:
        for attempt in range(2):
            try:
                return await self.link.ask("tools/list", params, ends)
            except RpcFailed as error:
                offered = self.link.peer is None or "tools" in self.link.peer.capabilities
                if error.rpc_code != METHOD_NOT_FOUND or offered:
                    raise
                return {"tools": []}
            except UpstreamFailed as error:
                # A kept connection may have been closed just then, and a list can be asked again.
                if error.code != "upstream_unreachable" or not error.sent or attempt:
                    raise
        raise AssertionError("the second attempt returns or raises")

    async def _poll_beside(self, session: Session) -> None:
        """Compares prompts and resources when a session begins, when told to, and now and then."""
        while True:
            self._look_beside.clear()
            with suppress(GatewayError, SessionGone):  # at the next look
                await self._compare_beside(session)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pace.poll):
                    await self._look_beside.wait()

    async def _compare_beside(self, session: Session) -> None:
        for kind in LISTS:
            offered = session.peer.capabilities.get(kind)
            if not isinstance(offered, dict) or offered.get("listChanged") is not True:
                continue  # who does not tell of changes is not asked for them
            found = await self._digest(session, kind)
            known = self._known.get(kind)
            self._known[kind] = found
            if known is not None and known != found:
                self._notice(f"notifications/{kind}/list_changed", {})

    async def _digest(self, session: Session, kind: str) -> str:
        digests = []
        for of, method in LISTS[kind].items():
            page = partial(session.request, method, seconds=LIST_SECONDS)
            digests.append(listing_digest(await every_page(page, self.link.name, of)))
        return " ".join(digests)
