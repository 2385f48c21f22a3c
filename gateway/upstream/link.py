"""One session with an upstream at a time: opened, given to callers, opened again when it is lost.

One task per link is the only one that opens and closes its session. It meets the upstream, lets
callers have the session until it is lost, or until nobody has used it for long, and rests before it
tries again: not at all after a session that held, else ever longer, with jitter. Callers wait for
an attempt under way or for a short rest, and are told at once during a long one.

What one upstream lists: its tools, asked for by name, and when they should be asked for again.

Whoever lists the tools is told when to look again: when the upstream says so, when a slow poll
finds another list, and when an upstream that failed can be reached once more. That it can't be
reached is told at once: a session that can't be opened, a look that fails. A look is due whenever a
call or a stream met with something that looks like the end of the upstream.

An upstream tells of changed prompts and resources itself. What it told while there was no session,
or no stream of notices, is lost: so these lists are looked at whenever one is there again, and now
and then since a stream can go deaf. A list that is another one is told as if the upstream had.

What callers want of one link for longer than a request: to hear of updates of resources.

Sessions come and go behind a link, and with them what the upstream was told. So the wishes are kept
here and told again to each new session: up to 2025-11-25 by requests, from 2026-07-28 by a stream
of its own that names every resource. A stream for another set is opened before the old one is
closed, so nothing is missed between the two; what may have been missed while there was no session
is told as if it had just changed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

import structlog

from gateway.connectors.mcp import RawTool, every_page, listing_digest, marks_by_tool
from gateway.errors import GatewayError, Overloaded, Refused, UpstreamFailed, UpstreamRefused
from gateway.model import NO_TLS_FILES, TlsFiles
from gateway.upstream.protocol import (
    METHOD_NOT_FOUND,
    NO_HOOKS,
    Era,
    HeaderMarks,
    Hooks,
    Notice,
    NotOffered,
    Peer,
    RpcFailed,
    SessionGone,
    Spoken,
    timed_out,
    unreachable,
)

MAX_IN_FLIGHT = 128
TELL_SECONDS = 5.0

State = Literal["idle", "connecting", "connected", "resting"]
Sharing = Literal["shared", "principal"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Upstream:
    """How one upstream is reached."""

    name: str  # as messages and logs call it
    transport: Literal["http", "stdio"] = "http"
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    lazy: bool = False
    tls: TlsFiles = NO_TLS_FILES
    timeout_seconds: float = 30.0
    max_call_seconds: float = 600.0  # while a call tells of its progress
    session: Sharing | None = None  # None: each principal's own, if the upstream keeps state
    protocol: Spoken = "auto"


@dataclass(frozen=True, slots=True)
class Pace:
    """How long things take, in seconds."""

    first_rest: float = 1.0
    longest_rest: float = 60.0
    longest_deafness: float = 10.0  # between two attempts to open a stream of notices
    held: float = 10.0  # a session that lived this long was not part of a crash loop
    patience: float = 2.0  # a rest this short is waited for
    poll: float = 60.0
    doubt: float = 5.0  # for an upstream to show that it is alive, and between two such looks
    gather: float = 0.05  # notices of a change that come together are one
    spacing: float = 1.0  # between two reports of a change
    start: float = 60.0  # for a child to come up
    drain: float = 30.0  # at least, for calls under way when the connection is replaced
    idle: float = 1800.0  # after which a principal's own session is ended


class Session(Protocol):
    """What both transports offer."""

    peer: Peer
    lost: asyncio.Event

    async def connect(self, remembered: Era | None, seconds: float, spoken: Spoken) -> None: ...
    async def request(
        self, method: str, params: Mapping[str, Any], *, seconds: float, hooks: Hooks = NO_HOOKS
    ) -> dict[str, Any]: ...
    async def listen(self, opened: Callable[[], None], wanted: Mapping[str, Any] = ...) -> None: ...
    async def close(self) -> None: ...


class Life(Protocol):
    """What goes on around a link's session."""

    def work(self, session: Session) -> Iterable[Coroutine[Any, Any, None]]:
        """What is to be done while this session lives, which has just begun."""

    def failed(self, error: GatewayError) -> None:
        """No session can be opened now."""

    def doubt(self) -> None:
        """What a request met with does not fit what is known of the upstream."""

    def log_level(self) -> str | None:
        """From which level on the upstream is to log, where that is said once a session."""


class Link:
    """The connection to one upstream, of one principal or of all."""

    def __init__(
        self,
        settings: Upstream,
        new_session: Callable[[], Session],
        life: Life,
        pace: Pace,
        *,
        lazy: bool,
        met: Peer | None = None,  # the upstream, by another link
        ends_idle: bool = False,
        after: Collection[asyncio.Task[None]] = (),  # what must be over before a session is opened
    ) -> None:
        self.name = settings.name
        self.peer = met
        self.error: GatewayError | None = None
        self.state: State = "idle"
        self.hearing = asyncio.Event()  # notices are heard, as far as the upstream has any
        self.ends_idle = ends_idle
        self.holders = 0  # who would miss the session, beside requests under way
        http = settings.transport == "http"
        self.connect_seconds = settings.timeout_seconds if http else pace.start
        self._retry_on_demand = http  # a new attempt is cheap: a call may cut a rest short
        self._spoken = settings.protocol
        self._longest = settings.max_call_seconds
        self._new_session = new_session
        self._life = life
        self._lazy = lazy
        self._after = after
        self._pace = pace
        self._loop = asyncio.get_running_loop()
        self._session: Session | None = None  # the one callers may use
        self._current: Session | None = None  # the one to be closed
        self._waited_for = False
        self._attempt: asyncio.Future[Session | GatewayError] = self._loop.create_future()
        self._wanted = asyncio.Event()
        self._nudged = asyncio.Event()
        self._rests_from = self._rests_until = 0.0
        self._in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.used = self._loop.time()
        self._keeper = asyncio.create_task(self._keep(), name=f"upstream {self.name}")

    @property
    def is_idle(self) -> bool:
        """Whether ending the session takes nothing from anybody but what it remembers."""
        return not self._in_flight and not self.holders

    async def request(
        self, method: str, params: Mapping[str, Any], seconds: float, hooks: Hooks = NO_HOOKS
    ) -> dict[str, Any]:
        """The result of one request, on a session that the upstream still knows."""
        if self._in_flight >= MAX_IN_FLIGHT:
            raise Overloaded("busy", f"{self.name} has too many calls under way", "Try again.")
        self._in_flight += 1
        self._idle.clear()
        try:
            found = await self.ask(method, params, self._loop.time() + seconds, hooks)
        except UpstreamFailed as error:
            if self.error is None and _may_be_gone(error):
                self._life.doubt()
            raise
        finally:
            self.used = self._loop.time()
            self._in_flight -= 1
            if not self._in_flight:
                self._idle.set()
        if self.error is not None:
            self._life.doubt()
        return found

    async def ask(
        self, method: str, params: Mapping[str, Any], ends: float, hooks: Hooks = NO_HOOKS
    ) -> dict[str, Any]:
        """The same for what is no call; `ends` is in the loop's own time."""
        for _ in range(2):
            session = await self.ready(ends)
            try:
                return await session.request(method, params, seconds=self._left(ends), hooks=hooks)
            except SessionGone:  # nothing was done: once more, on a new session
                session.lost.set()
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

    def nudge(self) -> None:
        """Tries again now, where an attempt costs little."""
        if self.state == "resting" and self._retry_on_demand:
            self._nudged.set()

    def meet_again(self) -> None:
        """Meets the upstream anew, where it keeps nothing that would be lost."""
        if self._session is not None and not self._session.peer.keeps_state:
            self._session.lost.set()

    async def tell_log_level(self) -> None:
        """Says from which level on to log to a session that has been told another."""
        if self._session is not None:
            await self._tell_log_level(self._session)

    async def listen(self, session: Session, opened: Callable[[], None] = lambda: None) -> None:
        """Keeps a stream of notices open, where the upstream has one."""

        def is_open() -> None:
            self.hearing.set()
            opened()

        failures = 0
        while not session.lost.is_set():
            began = self._loop.time()
            try:
                await session.listen(opened=is_open)
            except NotOffered:
                self.hearing.set()
                return
            except SessionGone:
                session.lost.set()
                return
            except GatewayError as error:
                self._life.doubt()
                log.debug("upstream_stream_lost", upstream=self.name, reason=error.message)
            failures = 0 if self._loop.time() - began >= self._pace.held else failures + 1
            await asyncio.sleep(pause(failures, self._pace.first_rest, self._pace.longest_deafness))

    async def retire(self) -> None:
        """Closes once the calls under way are done, or when they had their time."""
        try:
            async with asyncio.timeout(max(self._pace.drain, self._longest)):
                await self._idle.wait()
        except TimeoutError:
            log.warning("upstream_calls_cut_off", upstream=self.name, calls=self._in_flight)
        await self.close()

    async def close(self) -> None:
        """Ends the session and every task; returns when nothing is left."""
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        if self._current is not None:
            await self._current.close()
        self._conclude(unreachable(self.name, "was disconnected", sent=False))

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
            await self._rest(pause(failures, self._pace.first_rest, self._pace.longest_rest))

    async def _live(self) -> float:
        """One session from beginning to end: how long it held, 0 if it never came up."""
        self.state = "connecting"
        if self._attempt.done():
            self._attempt = self._loop.create_future()
        if self._after:
            await asyncio.wait(self._after)
            self._after = ()
        session = self._current = self._new_session()
        try:
            era = self.peer.era if self.peer else None
            await session.connect(era, self.connect_seconds, self._spoken)
            self.peer = session.peer
            await self._tell_log_level(session)
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

    async def _tell_log_level(self, session: Session) -> None:
        level, peer = self._life.log_level(), session.peer
        if level is not None and peer.era == "handshake" and "logging" in peer.capabilities:
            with suppress(GatewayError, SessionGone):  # it logs too much or too little, no more
                await session.request("logging/setLevel", {"level": level}, seconds=TELL_SECONDS)

    def _failed(self, error: GatewayError) -> None:
        self.error = error
        self._conclude(error)
        log.info("upstream_unreachable", upstream=self.name, reason=error.message)
        self._life.failed(error)

    async def _serve(self, session: Session) -> float:
        began = self._loop.time()
        self._session = session
        self.state, self.error = "connected", None
        self.hearing.clear()
        self._conclude(session)
        log.info("upstream_connected", upstream=self.name, version=session.peer.version)
        tasks = [asyncio.create_task(one) for one in self._life.work(session)]
        over: list[asyncio.Task[Any]] = [asyncio.create_task(session.lost.wait())]
        if self.ends_idle:
            over.append(asyncio.create_task(self._until_idle()))
        try:
            await asyncio.wait(over, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._session = None
            for task in (*tasks, *over):
                task.cancel()
            await asyncio.gather(*tasks, *over, return_exceptions=True)
        if session.lost.is_set():
            self.error = unreachable(self.name, "ended the connection", sent=False)
        return self._loop.time() - began

    async def _until_idle(self) -> None:
        """Returns when nobody has used the session for long; from then on nobody is given it."""
        while (left := self._idle_left()) > 0:  # noqa: ASYNC110 - it is time that passes
            await asyncio.sleep(left)
        self._session = None

    def _idle_left(self) -> float:
        if not self.is_idle:
            return self._pace.idle
        return self.used + self._pace.idle - self._loop.time()

    async def _rest(self, seconds: float) -> None:
        self.state = "resting"
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


def pause(failures: int, first: float, longest: float) -> float:
    """None after success; then 1, 2, 4 … times the first, each cut by up to half at random."""
    if not failures:
        return 0.0
    return float(min(longest, first * 2 ** min(failures - 1, 16)) * random.uniform(0.5, 1))


def _may_be_gone(error: UpstreamFailed) -> bool:
    """Whether the upstream did not answer, or something in front of it did."""
    if isinstance(error, UpstreamRefused):
        return False
    return error.code != "upstream_error" or "status" in error.details


def _again(error: GatewayError) -> GatewayError:
    """The same failure for another caller, of whose request nothing was sent."""
    if isinstance(error, Refused):
        return Refused(error.code, error.message, error.hint, **error.details)
    told = UpstreamFailed(error.code, error.message, error.hint, **error.details)
    told.sent = False
    return told


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


MAX_URIS = 5000
WISH_SECONDS = 10.0
HEAR_SECONDS = 2.0
FIRST_REST = 0.25
LONGEST_REST = 30.0
HELD_SECONDS = 1.0  # what lasted so long was no failure
UPDATED = "notifications/resources/updated"


class Standing:
    """The resources that are watched over one link."""

    def __init__(self, link: Link, notice: Notice) -> None:
        self._link = link
        self._notice = notice
        self._uris: dict[str, set[str]] = {}  # and the principals that watch each
        self._held: frozenset[str] = frozenset()  # what the upstream has been told of
        self._missed: frozenset[str] = frozenset()  # what nobody was listening for, for a while
        self._changed = asyncio.Event()
        self._moved = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def subscribe(self, uri: str, principal: str, seconds: float) -> None:
        """Has updates of a resource told; returns when the upstream knows of it."""
        if len(self._uris) >= MAX_URIS and uri not in self._uris:
            raise Overloaded("busy", f"{self._link.name} is watched for too many resources")
        ends = asyncio.get_running_loop().time() + seconds
        self._link.holders += 1
        try:
            session = await self._link.ready(ends)
            if session.peer.era == "handshake":  # a refusal is the caller's to read
                await self._link.request("resources/subscribe", {"uri": uri}, seconds)
            self._want(uri, principal)
            async with asyncio.timeout_at(ends), self._moved:
                await self._moved.wait_for(lambda: uri in self._held)
        except BaseException as error:
            self.unsubscribe(uri, principal)
            if isinstance(error, TimeoutError):
                raise timed_out(self._link.name, seconds, sent=True) from None
            raise
        finally:
            self._link.holders -= 1
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAR_SECONDS):
                await self._link.hearing.wait()

    def unsubscribe(self, uri: str, principal: str) -> None:
        """A principal wants no more updates of this resource."""
        watching = self._uris.get(uri, set())
        watching.discard(principal)
        if not watching and self._uris.pop(uri, None) is not None:
            self._link.holders -= 1
            self._changed.set()

    async def close(self) -> None:
        """Stops; what the upstream was told ends with its session."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _want(self, uri: str, principal: str) -> None:
        if uri not in self._uris:
            self._uris[uri] = set()
            self._link.holders += 1
        self._uris[uri].add(principal)
        self._changed.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep(), name=f"standing {self._link.name}")

    async def _keep(self) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        while self._uris:
            began = loop.time()
            try:
                session = await self._link.ready(began + WISH_SECONDS)
                self._missed, self._held = self._missed | self._held, frozenset()
                await (self._listen if session.peer.era == "modern" else self._tell)(session)
            except (GatewayError, SessionGone, NotOffered) as error:
                log.info("upstream_wishes_wait", upstream=self._link.name, error=str(error))
            failures = 0 if loop.time() - began >= HELD_SECONDS else failures + 1
            if failures:
                await asyncio.sleep(min(LONGEST_REST, FIRST_REST * 2 ** min(failures - 1, 16)))

    async def _tell(self, session: Session) -> None:
        """Up to 2025-11-25: one request a wish, as wishes come and go."""
        while not session.lost.is_set():
            self._changed.clear()
            wanted = frozenset(self._uris)
            for uri in wanted - self._held:
                await _asked(session, "resources/subscribe", {"uri": uri})
            for uri in self._held - wanted:
                await _asked(session, "resources/unsubscribe", {"uri": uri})
            await self._holds(wanted)
            await _first_of(self._changed.wait, session.lost.wait)

    async def _listen(self, session: Session) -> None:
        """From 2026-07-28: one stream for all resources."""
        streams: list[asyncio.Task[bool]] = []
        loop = asyncio.get_running_loop()
        try:
            while not session.lost.is_set():
                self._changed.clear()
                began = loop.time()
                wanted, opened = frozenset(self._uris), asyncio.Event()
                if wanted:
                    listening = session.listen(opened.set, {"resourceSubscriptions": [*wanted]})
                    streams.append(asyncio.create_task(_until_over(listening)))
                    await _first_of(opened.wait, session.lost.wait, streams[-1])
                    await _end(streams[:-1])
                    del streams[:-1]
                    if not opened.is_set():
                        return
                else:
                    await _end(streams)
                    streams.clear()
                await self._holds(wanted)
                await _first_of(self._changed.wait, session.lost.wait, *streams)
                brief = loop.time() - began < HELD_SECONDS
                if any(one.done() and (brief or not one.result()) for one in streams):
                    return  # cut off: anew, after a rest
        finally:
            await _end(streams)

    async def _holds(self, wanted: frozenset[str]) -> None:
        async with self._moved:
            self._held = wanted
            self._moved.notify_all()
        missed, self._missed = self._missed, frozenset()
        for uri in wanted & missed:
            self._notice(UPDATED, {"uri": uri})


async def _asked(session: Session, method: str, params: Mapping[str, Any]) -> None:
    with suppress(RpcFailed):  # it does not want to; who asked first has read why
        await session.request(method, params, seconds=WISH_SECONDS)


async def _until_over(listening: Coroutine[Any, Any, None]) -> bool:
    """Whether a stream came to its own end; False: it was cut off."""
    try:
        await listening
    except (GatewayError, SessionGone, NotOffered):
        return False
    return True


async def _first_of(*work: Callable[[], Awaitable[Any]] | asyncio.Task[bool]) -> None:
    tasks = [one if isinstance(one, asyncio.Task) else asyncio.ensure_future(one()) for one in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        own = [task for task, one in zip(tasks, work, strict=True) if task is not one]
        await _end(own)


async def _end(tasks: list[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
