"""What callers want of one link for longer than a request: to hear of updates of resources.

Sessions come and go behind a link, and with them what the upstream was told. So the wishes are kept
here and told again to each new session: up to 2025-11-25 by requests, from 2026-07-28 by a stream
of its own that names every resource. A stream for another set is opened before the old one is
closed, so nothing is missed between the two; what may have been missed while there was no session
is told as if it had just changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import structlog

from gateway.connectors.upstream_link import Link, Session
from gateway.connectors.upstream_rpc import Notice, NotOffered, RpcFailed, SessionGone, timed_out
from gateway.errors import GatewayError, Overloaded

MAX_URIS = 5000
TELL_SECONDS = 10.0
HEAR_SECONDS = 2.0
FIRST_REST = 0.25
LONGEST_REST = 30.0
HELD_SECONDS = 1.0  # what lasted so long was no failure
UPDATED = "notifications/resources/updated"

log = structlog.get_logger(__name__)


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
                session = await self._link.ready(began + TELL_SECONDS)
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
        await session.request(method, params, seconds=TELL_SECONDS)


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
