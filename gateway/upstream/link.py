"""One session with an upstream at a time: opened, given to callers, opened again when it is lost.

One task per link opens and closes its session. It meets the upstream, lets callers have the session
until it is lost, or until no caller has used it for long, and rests before it tries again: not at
all after a session that held, else ever longer, with jitter. Callers wait for an attempt under way
or for a short rest, and fail at once during a long one.

What callers want for longer than a request, to hear of updates of resources, is kept here and told
again to each new session: up to 2025-11-25 by requests, from 2026-07-28 by a stream that names all
resources. What may have been missed while there was no session is told as if it had just changed.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import structlog

from gateway import limits
from gateway.errors import GatewayError, Overloaded, Refused, UpstreamFailed, UpstreamRefused
from gateway.upstream import protocol
from gateway.upstream.protocol import NO_HOOKS, Hooks, Notice, Peer, SessionGone, unreachable_error
from gateway.upstream.session import Session, Upstream, end_tasks, wait_for_event

State = Literal["idle", "connecting", "connected", "resting"]

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pace:
    """The times that a link waits, in seconds."""

    first_rest: float = limits.REST_SECONDS
    longest_rest: float = limits.LONGEST_REST_SECONDS
    stable: float = limits.HELD_SECONDS  # a session that lived this long was not in a crash loop
    patience: float = limits.MOMENT_SECONDS  # a rest this short is waited for
    poll: float = limits.LONGEST_REST_SECONDS  # between two looks at an upstream's lists
    doubt: float = limits.DOUBT_SECONDS  # for an upstream to show that it is alive
    spacing: float = limits.REST_SECONDS  # between two reports of a change
    unused: float = limits.UNUSED_SECONDS  # after which a principal's own session is ended


@dataclass(frozen=True, slots=True)
class LinkCallbacks:
    """The functions that a link calls back, and its pace."""

    new_session: Callable[[], Session]
    notice: Notice
    log_level: Callable[[], str | None]
    pace: Pace


class Link(ABC):
    """The connection to one upstream, of one principal or of all."""

    def __init__(
        self, upstream: Upstream, callbacks: LinkCallbacks, *, lazy: bool, peer: Peer | None = None
    ) -> None:
        self.name = upstream.name
        self.upstream = upstream
        self.peer = peer  # at first as another link met it
        self.error: GatewayError | None = None
        self.state: State = "idle"
        self.last_used = asyncio.get_running_loop().time()
        self.hearing = asyncio.Event()  # notices are heard, as far as the upstream has any
        self.watches = Watches(self, callbacks.notice)
        http = upstream.transport == "http"
        self.connect_seconds = upstream.timeout_seconds if http else limits.LONGEST_REST_SECONDS
        self._retry_on_demand = http  # a new attempt is cheap: a call may cut a rest short
        self._callbacks = callbacks
        self._lazy = lazy
        self._pace = callbacks.pace
        self._loop = asyncio.get_running_loop()
        self._session: Session | None = None  # the session that callers may use
        self._current: Session | None = None  # the session to be closed
        self._was_lost = False  # whether the last session had come up before it ended
        self._attempt: asyncio.Future[Session | GatewayError] = self._loop.create_future()
        self._demand = asyncio.Event()
        self._nudge = asyncio.Event()
        self._rests_from = self._rests_until = 0.0
        self._calls = 0
        self._no_calls = asyncio.Event()
        self._no_calls.set()
        self._keeper = asyncio.create_task(self._keep_session(), name=f"upstream {self.name}")

    # What goes on around a session differs between the link that lists and those of principals.

    @abstractmethod
    def work(self, session: Session) -> Iterable[Coroutine[Any, Any, None]]:
        """The work to do while this session lives, which has just begun."""

    @abstractmethod
    def report_failure(self, error: GatewayError) -> None:
        """Reports that no session can be opened now."""

    @abstractmethod
    def doubt(self) -> None:
        """Asks to check the upstream: a request met with something unexpected."""

    def unused_seconds_left(self) -> float | None:
        """The seconds until the session ends as unused; None: it goes on."""
        return None

    @property
    def is_idle(self) -> bool:
        """Whether no call and no watch of a resource needs the session now."""
        return not self._calls and not self.watches.principals

    def __enter__(self) -> None:
        """Begins a call, which lasts also while a person answers its question."""
        if self._calls >= limits.MAX_PENDING:
            raise Overloaded("busy", f"{self.name} has too many calls under way", "Try again.")
        self._calls += 1
        self._no_calls.clear()

    def __exit__(self, *_: object) -> None:
        self.last_used = self._loop.time()
        self._calls -= 1
        if not self._calls:
            self._no_calls.set()

    async def request(
        self, method: str, params: Mapping[str, Any], seconds: float, hooks: Hooks = NO_HOOKS
    ) -> dict[str, Any]:
        """The result of a caller's request, which may show that the upstream is gone or back."""
        try:
            result = await self.ask(method, params, self._loop.time() + seconds, hooks)
        except UpstreamFailed as error:
            if self.error is None and _may_be_gone(error):
                self.doubt()
            raise
        if self.error is not None:
            self.doubt()
        return result

    async def ask(
        self, method: str, params: Mapping[str, Any], ends: float, hooks: Hooks = NO_HOOKS
    ) -> dict[str, Any]:
        """The result of one request; `ends` is in the loop's own time."""
        for _ in range(2):
            session = await self.ready(ends)
            seconds = max(0.001, ends - self._loop.time())
            try:
                return await session.request(method, params, seconds=seconds, hooks=hooks)
            except SessionGone:  # nothing was done: once more, on a new session
                session.lost.set()
        raise unreachable_error(self.name, "does not keep its sessions", sent=False)

    async def ready(self, ends: float) -> Session:
        """The session, when there is one that the upstream still knows."""
        if self._session is not None and not self._session.lost.is_set():
            return self._session
        seconds = ends - self._loop.time()
        try:
            async with asyncio.timeout_at(ends):
                return await self._wait_for_session()
        except TimeoutError:
            raise protocol.timeout_error(self.name, seconds, sent=False) from None

    async def tell_log_level(self, session: Session | None = None) -> None:
        """Says from which level on to log, where that is said once a session."""
        session, level = session or self._session, self._callbacks.log_level()
        if session is None or level is None or session.peer.era == "2026":
            return
        if "logging" in session.peer.capabilities:
            with suppress(GatewayError, SessionGone):  # it logs too much or too little, no more
                params = {"level": level}
                await session.request("logging/setLevel", params, seconds=limits.DOUBT_SECONDS)

    async def listen(
        self,
        session: Session,
        on_open: Callable[[], None],
        filters: Mapping[str, Any] = protocol.LISTEN_FILTER,
    ) -> None:
        """Keeps a stream of notices open, where the upstream has one."""

        def note_open() -> None:
            self.hearing.set()
            on_open()

        failures = 0
        while not session.lost.is_set():
            began = self._loop.time()
            try:
                await session.listen(note_open, filters)
            except protocol.NotOffered:
                self.hearing.set()
                return
            except SessionGone:
                session.lost.set()
                return
            except GatewayError as error:
                self.doubt()
                log.debug("upstream_stream_lost", upstream=self.name, reason=error.message)
            failures = 0 if self._loop.time() - began >= self._pace.stable else failures + 1
            await asyncio.sleep(pause_seconds(failures, self._pace.first_rest, self._pace.stable))

    async def retire(self) -> None:
        """Closes once the calls under way are done, or when they had their time."""
        self.watches.principals.clear()
        try:
            async with asyncio.timeout(self.upstream.max_call_seconds):
                await self._no_calls.wait()
        except TimeoutError:
            log.warning("upstream_calls_cut_off", upstream=self.name, calls=self._calls)
        await self.close()

    async def close(self) -> None:
        """Ends the session and every task; returns when nothing is left."""
        await end_tasks(self._keeper)
        if self._current is not None:
            await self._current.close()
        self._conclude(unreachable_error(self.name, "was disconnected", sent=False))

    async def _wait_for_session(self) -> Session:
        self._demand.set()
        if self._attempt.done():
            self._check_rest()
            self._attempt = self._loop.create_future()
        outcome = await asyncio.shield(self._attempt)
        if isinstance(outcome, GatewayError):
            raise _copy_error(outcome)
        return outcome

    def _check_rest(self) -> None:
        """During a long rest there is no use in waiting, unless the rest may be cut short."""
        now = self._loop.time()
        short = self._rests_until - now <= self._pace.patience
        if self.state != "resting" or self.error is None or (short and self._was_lost):
            return
        if not self._retry_on_demand or now - self._rests_from < self._pace.first_rest:
            raise _copy_error(self.error)
        self._nudge.set()

    async def _keep_session(self) -> None:
        failures = 0
        while True:
            if self._lazy:
                await self._demand.wait()
            lifetime = await self._live()
            failures = 0 if lifetime >= self._pace.stable else failures + 1
            self._was_lost = lifetime > 0
            await self._rest(
                pause_seconds(failures, self._pace.first_rest, self._pace.longest_rest)
            )

    async def _live(self) -> float:
        """One session from beginning to end: how long it held, 0 if it never came up."""
        self.state = "connecting"
        if self._attempt.done():
            self._attempt = self._loop.create_future()
        session = self._current = self._callbacks.new_session()
        try:
            await session.connect(self.peer.era if self.peer else None, self.connect_seconds)
            self.peer = session.peer
            return await self._serve(session)
        except SessionGone:
            self._fail(unreachable_error(self.name, "does not keep its sessions", sent=False))
        except GatewayError as error:
            self._fail(error)
        except Exception:  # the keeper must live on, whatever an upstream makes us stumble over
            log.exception("upstream_connect_broke", upstream=self.name)
            self._fail(unreachable_error(self.name, "can't be connected to", sent=False))
        finally:
            await session.close()
        return 0.0

    def _fail(self, error: GatewayError) -> None:
        self.error = error
        self._conclude(error)
        own_words = isinstance(error, UpstreamRefused)  # which may quote what was sent
        reason = error.code if own_words else error.message
        log.info("upstream_unreachable", upstream=self.name, reason=reason)
        self.report_failure(error)

    async def _serve(self, session: Session) -> float:
        began = self._loop.time()
        await self.tell_log_level(session)
        self._session = session
        self.state, self.error = "connected", None
        self.hearing.clear()
        self._conclude(session)
        log.info("upstream_connected", upstream=self.name, version=session.peer.version)
        work = (*self.work(session), self.watches.tell_session(session))
        tasks = [asyncio.create_task(each) for each in work]
        try:
            while not session.lost.is_set() and (seconds := self.unused_seconds_left()) != 0:
                await wait_for_event(session.lost, seconds)
        finally:
            self._session = None  # from now on no caller is given it
            await end_tasks(*tasks)
        if session.lost.is_set():
            self.error = unreachable_error(self.name, "ended the connection", sent=False)
        return self._loop.time() - began

    async def _rest(self, seconds: float) -> None:
        self.state = "resting"
        self._rests_from = self._loop.time()
        self._rests_until = self._rests_from + seconds
        if self._lazy and self._attempt.done() and not self.watches.principals:  # no caller waits
            self._demand.clear()
        if seconds > self._pace.patience and self.error is not None:
            self._conclude(self.error)
        await wait_for_event(self._nudge, seconds)
        self._nudge.clear()
        self.state = "idle"

    def _conclude(self, outcome: Session | GatewayError) -> None:
        if not self._attempt.done():
            self._attempt.set_result(outcome)


class Watches:
    """The resources that principals watch over one link."""

    def __init__(self, link: Link, notice: Notice) -> None:
        self.principals: dict[str, set[str]] = {}  # by resource
        self._link = link
        self._notice = notice
        self._told_uris: frozenset[str] = frozenset()  # what the upstream was last told of
        self._change = asyncio.Event()
        self._told_condition = asyncio.Condition()

    async def subscribe(self, uri: str, principal: str, seconds: float) -> None:
        """Watches a resource for a principal; returns when the upstream knows of it."""
        ends = asyncio.get_running_loop().time() + seconds
        self.principals.setdefault(uri, set()).add(principal)
        try:
            with self._link:
                session = await self._link.ready(ends)
                if session.peer.era == "2025":  # a refusal is the caller's to read
                    await self._link.request("resources/subscribe", {"uri": uri}, seconds)
                    self._told_uris |= {uri}
                self._change.set()
                async with asyncio.timeout_at(ends), self._told_condition:
                    await self._told_condition.wait_for(lambda: uri in self._told_uris)
        except BaseException as error:
            self.unsubscribe(uri, principal)
            if isinstance(error, TimeoutError):
                raise protocol.timeout_error(self._link.name, seconds, sent=True) from None
            raise
        await wait_for_event(self._link.hearing, limits.MOMENT_SECONDS)

    def unsubscribe(self, uri: str, principal: str) -> None:
        """Ends a principal's watch of a resource."""
        watching = self.principals.get(uri, set())
        watching.discard(principal)
        if not watching and self.principals.pop(uri, None) is not None:
            self._change.set()

    async def tell_session(self, session: Session) -> None:
        """Tells a session that has just begun what is watched, as wishes come and go."""
        missed, self._told_uris = self._told_uris, frozenset()
        streams: list[asyncio.Task[None]] = []
        try:
            while True:
                self._change.clear()
                uris = frozenset(self.principals)
                if session.peer.era == "2026":
                    await self._renew_stream(session, uris, streams)
                else:
                    await self._tell_wishes(session, uris)
                async with self._told_condition:
                    self._told_uris = uris
                    self._told_condition.notify_all()
                self._tell_missed(uris & missed)
                missed = frozenset()
                await self._change.wait()
        finally:
            await end_tasks(*streams)

    async def _tell_wishes(self, session: Session, uris: frozenset[str]) -> None:
        """Up to 2025-11-25: one request for each wish that is new or over."""
        requests = [("resources/subscribe", uri) for uri in uris - self._told_uris]
        requests += [("resources/unsubscribe", uri) for uri in self._told_uris - uris]
        for method, uri in requests:
            with suppress(GatewayError, SessionGone):  # the first caller to ask has read why
                await session.request(method, {"uri": uri}, seconds=limits.HELD_SECONDS)

    async def _renew_stream(
        self, session: Session, uris: frozenset[str], streams: list[asyncio.Task[None]]
    ) -> None:
        """From 2026-07-28: one stream for all; the next is opened before the old one ends."""
        old = tuple(streams)
        if uris:
            opening = asyncio.Event()
            tell = partial(self._note_open, uris, opening)
            filters = {"resourceSubscriptions": [*uris]}
            streams.append(asyncio.create_task(self._link.listen(session, tell, filters)))
            await opening.wait()
        await end_tasks(*old)
        del streams[: len(old)]

    def _note_open(self, uris: frozenset[str], opening: asyncio.Event) -> None:
        if opening.is_set():  # the stream was cut off, and is there again
            self._tell_missed(uris)
        opening.set()

    def _tell_missed(self, uris: Iterable[str]) -> None:
        for uri in uris:
            self._notice(protocol.UPDATED, {"uri": uri})


def pause_seconds(failures: int, first: float, longest: float) -> float:
    """No pause after success; then 1, 2, 4 … times the first, each cut by up to half at random."""
    if not failures:
        return 0.0
    return float(min(longest, first * 2 ** min(failures - 1, 16)) * random.uniform(0.5, 1))


def _may_be_gone(error: UpstreamFailed) -> bool:
    """Whether the upstream did not answer, or something in front of it did."""
    if isinstance(error, UpstreamRefused):
        return False
    return error.code != "upstream_error" or "status" in error.details


def _copy_error(error: GatewayError) -> GatewayError:
    """The same failure for another caller, of whose request nothing was sent."""
    if isinstance(error, Refused):
        return Refused(error.code, error.message, error.hint, **error.details)
    return UpstreamFailed(error.code, error.message, error.hint, sent=False, **error.details)
