"""One upstream kept in touch with: connected, watched, polled, and connected again when lost.

One task per upstream is the only one that opens and closes its session. It meets the upstream, lets
callers have the session, listens for changes until the session is lost, and rests before it tries
again: not at all after a session that held, else ever longer, with jitter. Callers wait for an
attempt under way or for a short rest, and are told at once during a long one.

Whoever lists the tools is told when to look again: when the upstream says so, when a slow poll
finds another list, and when an upstream that failed can be reached once more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import structlog

from gateway.connectors.upstream_headers import HeaderMarks
from gateway.connectors.upstream_listing import (
    RawTool,
    every_page,
    listing_digest,
    marks_by_tool,
)
from gateway.connectors.upstream_lists import OtherLists
from gateway.connectors.upstream_rpc import (
    HEADER_MISMATCH,
    METHOD_NOT_FOUND,
    NO_HOOKS,
    Era,
    Hooks,
    NotOffered,
    Peer,
    RpcFailed,
    SessionGone,
    timed_out,
    unreachable,
)
from gateway.errors import GatewayError, Overloaded, Refused, UpstreamFailed

MAX_IN_FLIGHT = 128
CHANGED = "notifications/tools/list_changed"

State = Literal["idle", "connecting", "connected", "resting"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take, in seconds."""

    first_rest: float = 1.0
    longest_rest: float = 60.0
    longest_deafness: float = 10.0  # between two attempts to open a stream of notices
    held: float = 10.0  # a session that lived this long was not part of a crash loop
    patience: float = 2.0  # a rest this short is waited for
    poll: float = 60.0
    gather: float = 0.05  # notices of a change that come together are one
    spacing: float = 1.0  # between two reports of a change
    start: float = 60.0  # for a child to come up
    drain: float = 30.0  # for calls under way when the connection is replaced


class Session(Protocol):
    """What both transports offer."""

    peer: Peer
    lost: asyncio.Event
    marks: Mapping[str, HeaderMarks]

    async def connect(self, remembered: Era | None, seconds: float) -> None: ...
    async def request(
        self, method: str, params: Mapping[str, Any], *, seconds: float, hooks: Hooks = NO_HOOKS
    ) -> dict[str, Any]: ...
    async def notify(self, method: str, params: Mapping[str, Any]) -> None: ...
    async def listen(self, opened: Callable[[], None], wanted: Mapping[str, Any] = ...) -> None: ...
    async def close(self) -> None: ...


class Link:
    """The connection to one upstream."""

    def __init__(
        self,
        name: str,
        new_session: Callable[[], Session],
        *,
        lazy: bool,
        connect_seconds: float,
        retry_on_demand: bool,  # a new attempt is cheap: a call may cut a rest short
        changed: Callable[[], None],
        beside: OtherLists,
        pace: Pace,
    ) -> None:
        self.name = name
        self.peer: Peer | None = None
        self.error: GatewayError | None = None
        self.state: State = "idle"
        self._new_session = new_session
        self._lazy = lazy
        self._connect_seconds = connect_seconds
        self._retry_on_demand = retry_on_demand
        self._pace = pace
        self._report = changed
        self._beside = beside
        self._loop = asyncio.get_running_loop()
        self._session: Session | None = None  # the one callers may use
        self._current: Session | None = None  # the one to be closed
        self._waited_for = False
        self._attempt: asyncio.Future[Session | GatewayError] = self._loop.create_future()
        self._wanted = asyncio.Event()
        self._nudged = asyncio.Event()
        self._look = asyncio.Event()
        self._rests_from = self._rests_until = 0.0
        self._owed = False  # the lister's last attempt failed, or it may have missed something
        self._listed: str | None = None
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._reported = self._loop.time() - pace.spacing
        self._timer: asyncio.TimerHandle | None = None
        self._keeper = asyncio.create_task(self._keep(), name=f"upstream {name}")

    async def request(
        self, method: str, params: Mapping[str, Any], seconds: float, hooks: Hooks = NO_HOOKS
    ) -> dict[str, Any]:
        """The result of one request, on a session that the upstream still knows."""
        if self._in_flight >= MAX_IN_FLIGHT:
            raise Overloaded("busy", f"{self.name} has too many calls under way", "Try again.")
        self._in_flight += 1
        self._idle.clear()
        try:
            return await self._request(method, params, self._loop.time() + seconds, hooks)
        finally:
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()

    async def notify(self, method: str, params: Mapping[str, Any], seconds: float) -> None:
        """Tells the upstream something that has no answer."""
        session = await self.ready(self._loop.time() + seconds)
        try:
            async with asyncio.timeout(seconds):
                await session.notify(method, params)
        except TimeoutError:
            raise timed_out(self.name, seconds, sent=True) from None

    async def list_tools(self, seconds: float) -> list[RawTool]:
        """The upstream's tools now, every page of them."""
        try:
            tools = await self._list(seconds)
        except GatewayError:
            self._owed = True
            self._look.set()
            raise
        self._listed, self._owed = listing_digest(tools), False
        return tools

    def changed(self) -> None:
        """Reports soon that the tools may have changed: a burst once, and once a second at most."""
        if self._timer is None:
            since = self._loop.time() - self._reported
            delay = max(self._pace.gather, self._pace.spacing - since)
            self._timer = self._loop.call_later(delay, self._report_now)

    async def retire(self) -> None:
        """Closes once the calls under way are done, or when they had their time."""
        try:
            async with asyncio.timeout(self._pace.drain):
                await self._idle.wait()
        except TimeoutError:
            log.warning("upstream_calls_cut_off", upstream=self.name, calls=self._in_flight)
        await self.close()

    async def close(self) -> None:
        """Ends the session and every task; returns when nothing is left."""
        if self._timer is not None:
            self._timer.cancel()
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        if self._current is not None:
            await self._current.close()
        self._conclude(unreachable(self.name, "was disconnected", sent=False))

    def _report_now(self) -> None:
        self._timer = None
        self._reported = self._loop.time()
        self._report()

    async def _request(
        self, method: str, params: Mapping[str, Any], ends: float, hooks: Hooks
    ) -> dict[str, Any]:
        for last in (False, True):
            session = await self.ready(ends)
            try:
                return await session.request(method, params, seconds=self._left(ends), hooks=hooks)
            except SessionGone:  # nothing was done: once more, on a new session
                session.lost.set()
            except RpcFailed as error:
                if error.rpc_code != HEADER_MISMATCH or method != "tools/call" or last:
                    raise
                await self._list(self._left(ends))  # refused unread: learn what it wants repeated
        raise unreachable(self.name, "does not keep its sessions", sent=False)

    async def ready(self, ends: float) -> Session:
        """The session, when there is one; `ends` is in the loop's own time."""
        if self._session is not None and not self._session.lost.is_set():
            return self._session
        seconds = self._left(ends)
        try:
            async with asyncio.timeout_at(ends):
                return await self._connected()
        except TimeoutError:
            raise timed_out(self.name, seconds, sent=False) from None

    async def _connected(self) -> Session:
        self._wanted.set()
        if self._attempt.done():
            self._check_rest()
            self._attempt = self._loop.create_future()
        found = await asyncio.shield(self._attempt)
        if isinstance(found, GatewayError):
            raise _again(found)
        return found

    def _check_rest(self) -> None:
        """During a long rest there is no use in waiting, unless the rest may be cut short."""
        now = self._loop.time()
        short = self._rests_until - now <= self._pace.patience
        if self.state != "resting" or self.error is None or (short and self._waited_for):
            return
        if not self._retry_on_demand or now - self._rests_from < self._pace.first_rest:
            raise _again(self.error)
        self._nudged.set()

    def _left(self, ends: float) -> float:
        return max(0.001, ends - self._loop.time())

    async def _keep(self) -> None:
        failures = 0
        while True:
            if self._lazy:
                await self._wanted.wait()
            lived = await self._live()
            failures = 0 if lived >= self._pace.held else failures + 1
            self._waited_for = lived > 0  # after a lost session, not after a failed attempt
            await self._rest(_pause(failures, self._pace.first_rest, self._pace.longest_rest))

    async def _live(self) -> float:
        """One session from beginning to end: how long it held, 0 if it never came up."""
        self.state = "connecting"
        if self._attempt.done():
            self._attempt = self._loop.create_future()
        session = self._current = self._new_session()
        try:
            await session.connect(self.peer.era if self.peer else None, self._connect_seconds)
            return await self._serve(session)
        except SessionGone:
            self._failed(unreachable(self.name, "does not keep its sessions", sent=False))
        except GatewayError as error:
            self._failed(error)
        except Exception:  # the keeper must live on, whatever an upstream makes us stumble over
            log.exception("upstream_connect_broke", upstream=self.name)
            self._failed(unreachable(self.name, "can't be connected to", sent=False))
        finally:
            await session.close()
        return 0.0

    def _failed(self, error: GatewayError) -> None:
        self.error = error
        self._conclude(error)
        log.info("upstream_unreachable", upstream=self.name, reason=error.message)

    async def _serve(self, session: Session) -> float:
        began = self._loop.time()
        self._session = session
        self.state, self.error, self.peer = "connected", None, session.peer
        self._conclude(session)
        if self._owed:
            self._look.set()
        log.info("upstream_connected", upstream=self.name, version=session.peer.version)
        work = (self._watch(session), self._poll(session), self._beside.watch(session))
        tasks = [asyncio.create_task(one) for one in work]
        try:
            await session.lost.wait()
        finally:
            self._session = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self.error = unreachable(self.name, "ended the connection", sent=False)
        return self._loop.time() - began

    async def _rest(self, seconds: float) -> None:
        self.state = "resting"
        self._owed = True
        self._rests_from = self._loop.time()
        self._rests_until = self._rests_from + seconds
        if self._lazy and self._attempt.done():  # nobody waits
            self._wanted.clear()
        if seconds > self._pace.patience and self.error is not None:
            self._conclude(self.error)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nudged.wait()
        self._nudged.clear()
        self.state = "idle"

    def _conclude(self, found: Session | GatewayError) -> None:
        if not self._attempt.done():
            self._attempt.set_result(found)

    async def _watch(self, session: Session) -> None:
        """Keeps a stream of notices open, where the upstream has one."""
        failures = 0
        while not session.lost.is_set():
            began = self._loop.time()
            try:
                await session.listen(opened=self._look_again)
            except NotOffered:
                return
            except SessionGone:
                session.lost.set()
                return
            except GatewayError as error:
                log.debug("upstream_stream_lost", upstream=self.name, reason=error.message)
            failures = 0 if self._loop.time() - began >= self._pace.held else failures + 1
            pause = _pause(failures, self._pace.first_rest, self._pace.longest_deafness)
            await asyncio.sleep(pause)

    def _look_again(self) -> None:
        self._look.set()
        self._beside.again.set()

    async def _poll(self, session: Session) -> None:
        """Looks now and then, since a stream can go deaf, and more often while a look is owed."""
        failures = 0
        while True:
            pause = _pause(failures, self._pace.first_rest, self._pace.poll)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause or self._pace.poll * random.uniform(0.8, 1)):
                    await self._look.wait()
            self._look.clear()
            if self._listed is None and not self._owed:
                continue
            try:
                found = listing_digest(await self._list(self._connect_seconds))
            except GatewayError as error:
                failures += 1
                self._owed, self.error = True, error
                continue
            failures, self.error = 0, None
            if self._owed or found != self._listed:
                self._owed = False
                self.changed()

    async def _list(self, seconds: float) -> list[RawTool]:
        ends = self._loop.time() + seconds
        tools = await every_page(lambda params: self._page(params, ends), self.name)
        if self._session is not None:
            self._session.marks = marks_by_tool(tools)
        return tools

    async def _page(self, params: Mapping[str, Any], ends: float) -> dict[str, Any]:
        for attempt in range(2):
            try:
                return await self._request("tools/list", params, ends, NO_HOOKS)
            except RpcFailed as error:
                offered = self.peer is None or "tools" in self.peer.capabilities
                if error.rpc_code != METHOD_NOT_FOUND or offered:
                    raise
                return {"tools": []}
            except UpstreamFailed as error:
                # A kept connection may have been closed just then, and a list can be asked again.
                if error.code != "upstream_unreachable" or not error.sent or attempt:
                    raise
        raise AssertionError("the second attempt returns or raises")


def _pause(failures: int, first: float, longest: float) -> float:
    """None after success; then 1, 2, 4 … times the first, each cut by up to half at random."""
    if not failures:
        return 0.0
    return float(min(longest, first * 2 ** min(failures - 1, 16)) * random.uniform(0.5, 1))


def _again(error: GatewayError) -> GatewayError:
    """The same failure for another caller, of whose request nothing was sent."""
    if isinstance(error, Refused):
        return Refused(error.code, error.message, error.hint, **error.details)
    told = UpstreamFailed(error.code, error.message, error.hint, **error.details)
    told.sent = False
    return told
