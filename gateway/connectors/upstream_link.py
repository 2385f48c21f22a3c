"""One session with an upstream at a time: opened, given to callers, opened again when it is lost.

One task per link is the only one that opens and closes its session. It meets the upstream, lets
callers have the session until it is lost, or until nobody has used it for long, and rests before it
tries again: not at all after a session that held, else ever longer, with jitter. Callers wait for
an attempt under way or for a short rest, and are told at once during a long one.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import structlog

from gateway.connectors.upstream_rpc import (
    NO_HOOKS,
    Era,
    Hooks,
    NotOffered,
    Peer,
    SessionGone,
    Spoken,
    timed_out,
    unreachable,
)
from gateway.errors import GatewayError, Overloaded, Refused, UpstreamFailed, UpstreamRefused
from gateway.model import NO_TLS_FILES, TlsFiles

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
