"""The link that lists what an upstream has, and the links of principals beside it.

The catalog is told when to list the tools again: when the upstream says so, when a slow poll
finds another list, and when an upstream that failed can be reached once more. That it can't be
reached is told at once: a session that can't be opened, a look that fails. A look is due whenever a
call or a stream met with something that looks like the end of the upstream.

An upstream tells of changed prompts and resources itself. What it told while there was no session,
or no stream of notices, is lost: so these lists are looked at too, and a changed one is told as
if the upstream had told it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map
from mcp_types import METHOD_NOT_FOUND

from gateway.errors import GatewayError, UpstreamFailed
from gateway.limits import HELD_SECONDS
from gateway.upstream import protocol
from gateway.upstream.link import Link, LinkCallbacks, pause_seconds
from gateway.upstream.protocol import RawTool, SessionGone, every_page
from gateway.upstream.session import Session, Sharing, Upstream, wait_for_event

LISTS: Mapping[str, Mapping[str, str]] = {
    "prompts": {"prompts": "prompts/list"},
    "resources": {"resources": "resources/list", "resourceTemplates": "resources/templates/list"},
}
TOOLS_CHANGED = "notifications/tools/list_changed"
CHANGED: Mapping[str, str] = {f"notifications/{kind}/list_changed": kind for kind in LISTS}


class ListingLink(Link):
    """The link over which an upstream's lists come."""

    def __init__(
        self,
        upstream: Upstream,
        callbacks: LinkCallbacks,
        *,
        on_change: Callable[[], None],  # the tools should be listed again
        on_trouble: Callable[[GatewayError], None],  # they can't be listed
    ) -> None:
        super().__init__(upstream, callbacks, lazy=upstream.lazy)
        self.param_headers: dict[str, Mapping[tuple[str, ...], str]] = {}  # by tool
        self.is_over = False
        self._on_change = on_change
        self._on_trouble = on_trouble
        self._look = asyncio.Event()
        self.report_due = False  # since the tools could not be listed or may be old
        self._has_doubt = False
        self._tool_digest: str | None = None
        self._digests: dict[str, str] = {}  # digests of the other lists
        pace, now = callbacks.pace, self._loop.time()
        self._reported = now - pace.spacing  # when a change was last reported
        self._looked = now - pace.doubt  # when the tools were last looked at
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}

    @property
    def sharing(self) -> Sharing | None:
        """Whether principals share a session; None: not known before the upstream is met."""
        if self.upstream.session is not None:
            return self.upstream.session
        if self.upstream.transport == "stdio":
            return "principal"
        return None if self.peer is None else "principal" if self.peer.keeps_state else "shared"

    async def list_tools(self, ends: float) -> list[RawTool]:
        """The upstream's tools now, every page of them."""
        try:
            tools = await self.read_tools(ends - self._loop.time())
        except GatewayError:
            self.report_due = True
            self._look.set()
            raise
        self._tool_digest, self.report_due, self.error = protocol.listing_digest(tools), False, None
        return tools

    async def read_tools(self, seconds: float) -> list[RawTool]:
        """The upstream's tools now, for callers that do not take them over."""
        tools = await every_page(partial(self._page, self._loop.time() + seconds), self.name)
        self.param_headers.clear()
        for tool in tools:
            schema = tool.get("inputSchema")
            if find_invalid_x_mcp_header(schema) is None and (headers := x_mcp_header_map(schema)):
                self.param_headers[str(tool.get("name"))] = headers
        return tools

    def report_change(self) -> None:
        """Reports soon that the tools may have changed: a burst once, and once a second at most."""
        since = self._loop.time() - self._reported
        self._later(self._report_now, max(self._pace.spacing / 20, self._pace.spacing - since))

    def take_note(self, method: str) -> bool:
        """Whether a notice says that one of the upstream's lists changed; a change is passed on."""
        if method == TOOLS_CHANGED:
            self.report_change()
        elif method in CHANGED:
            self._digests.pop(CHANGED[method], None)  # the next look takes it as it is
            self._look.set()
            self._callbacks.notice(method, {})
        return method == TOOLS_CHANGED or method in CHANGED

    def doubt(self) -> None:
        """Looks whether the upstream is there, now or a few seconds after the last time."""
        self._later(self._look_now, max(0.0, self._looked + self._pace.doubt - self._loop.time()))

    def report_failure(self, error: GatewayError) -> None:
        """Tells that the tools can't be listed."""
        self.report_due = True
        self.tell_trouble(error)

    def tell_trouble(self, error: GatewayError) -> None:
        """Tells why the upstream can't be listed or called."""
        if not self.is_over:  # else another link serves the connection by now
            self._on_trouble(error)

    def work(self, session: Session) -> Iterable[Coroutine[Any, Any, None]]:
        """Hears of changes, and looks for them."""
        self._look.set()
        return self.listen(session, self._look.set), self._poll(session)

    def stop(self) -> None:
        """Reports nothing any more."""
        self.is_over = True
        for timer in self._timers.values():
            timer.cancel()

    def _later(self, action: Callable[[], None], seconds: float) -> None:
        if action not in self._timers:
            self._timers[action] = self._loop.call_later(seconds, action)

    def _report_now(self) -> None:
        del self._timers[self._report_now]
        self._reported = self._loop.time()
        self._on_change()

    def _look_now(self) -> None:
        del self._timers[self._look_now]
        self._has_doubt = True
        self._look.set()
        if self.state == "resting" and self._retry_on_demand:
            self._nudge.set()

    async def _poll(self, session: Session) -> None:
        """Looks now and then, since a stream can go deaf, and more often while a look is owed."""
        failures = 0
        while True:
            rest = pause_seconds(failures, self._pace.first_rest, self._pace.poll)
            await wait_for_event(self._look, rest or self._pace.poll * random.uniform(0.8, 1))
            self._look.clear()
            if self._tool_digest is not None or self.report_due or self._has_doubt:
                failures = 0 if await self._compare_tools() else failures + 1
            if not failures:
                with suppress(GatewayError, SessionGone, TimeoutError):  # at the next look
                    async with asyncio.timeout(HELD_SECONDS):
                        await self._compare_other_lists(session)

    async def _compare_tools(self) -> bool:
        """Whether the tools can be listed; a change or a failure is reported."""
        had_doubt, self._has_doubt, self._looked = self._has_doubt, False, self._loop.time()
        limit = self.connect_seconds
        try:
            tools = await self.read_tools(min(self._pace.doubt, limit) if had_doubt else limit)
        except GatewayError as error:
            self.error = error
            self.report_failure(error)
            session = self._session
            if error.code == "upstream_error" and session and not session.peer.keeps_state:
                session.lost.set()  # another server may answer there by now
            return False
        self.error = None
        if self.report_due or self._tool_digest not in (None, protocol.listing_digest(tools)):
            self.report_due = False
            self.report_change()
        return True

    async def _page(self, ends: float, params: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return await self.ask("tools/list", params, ends)
        except protocol.RpcFailed as error:
            has_tools = self.peer is None or "tools" in self.peer.capabilities
            if error.rpc_code != METHOD_NOT_FOUND or has_tools:
                raise
            return {"tools": []}
        except UpstreamFailed as error:
            # A kept connection may have been closed just then, and a list can be asked for again.
            if error.code != "upstream_unreachable" or not error.sent:
                raise
            return await self.ask("tools/list", params, ends)

    async def _compare_other_lists(self, session: Session) -> None:
        for kind, methods in LISTS.items():
            capability = session.peer.capabilities.get(kind)
            if not isinstance(capability, dict) or capability.get("listChanged") is not True:
                continue  # an upstream that does not tell of changes is not asked for them
            digests = ""
            for key, method in methods.items():
                page = partial(session.request, method, seconds=HELD_SECONDS)
                digests += protocol.listing_digest(await every_page(page, self.name, key))
            before = self._digests.get(kind)
            self._digests[kind] = digests
            if before is not None and before != digests:
                self._callbacks.notice(f"notifications/{kind}/list_changed", {})


class OwnLink(Link):
    """A principal's own link, beside the one that lists."""

    def __init__(self, lister: ListingLink, callbacks: LinkCallbacks) -> None:
        super().__init__(lister.upstream, callbacks, lazy=True, peer=lister.peer)
        self.lister = lister
        self.is_troubled = False

    async def check(self, ends: float) -> None:
        """Raises the reason why the principal has no session."""
        try:
            await self.ready(ends)
        except UpstreamFailed as error:
            raise _explain_failure(error) from error

    def doubt(self) -> None:
        """Has the link that lists look whether the upstream is there."""
        self.lister.doubt()

    def report_failure(self, error: GatewayError) -> None:
        """Tells that the principal can't be served."""
        self.is_troubled = True
        self.lister.tell_trouble(error if self.lister.error else _explain_failure(error))

    def unused_seconds_left(self) -> float:
        """A session that no call and no watch needs ends after a while."""
        unused = self._loop.time() - self.last_used if self.is_idle else 0.0
        return max(0.0, self._pace.unused - unused)

    def work(self, session: Session) -> Iterable[Coroutine[Any, Any, None]]:
        """Hears what concerns the principal; the link that lists learns that there is a session."""
        if self.is_troubled:
            self.is_troubled = False
            self.lister.report_change()
        if self.lister.error is not None:
            self.lister.doubt()
        if session.peer.era == "2026":  # it sends only notices that a request asked for
            self.hearing.set()
            return ()
        return (self.listen(session, lambda: None),)


def _explain_failure(error: GatewayError) -> GatewayError:
    """An upstream that lists its tools can't be used: more is known than the error says."""
    problem = f"A principal's session can't be opened beside the one that lists: {error.message}"
    remedy = 'For a server that can only run once, set session = "shared".'
    return UpstreamFailed(error.code, f"{problem.rstrip('.')}. {remedy}")
