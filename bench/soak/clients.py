"""One client of a soak: who it is, how it asks, and what it makes of the answers.

An answer is expected or it is not. Errors that an errand provokes, or that another errand's fault
brings with it, are named where they are asked for; anything else is noted and spoils the run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
import httpx2

from bench.processes import token_of
from bench.soak.world import World
from tests.mcp.speakers import Era, Refusal, Speaker

MAX_PROBLEMS = 20
REQUEST_SECONDS = 15.0
# What a caller may meet while its upstream is restarted, or others fill its places.
UPSTREAM_DOWN = frozenset(
    "upstream_unreachable upstream_error upstream_timeout outcome_unknown circuit_open "
    "not_connected busy rate_limited".split()
)


@dataclass(slots=True)
class Tally:
    """What was done, and what should not have been answered."""

    done: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)  # rows that were given reason for, by table
    codes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    unexpected: int = 0
    gave_up: int = 0  # errands whose client did not wait any longer: a busy machine, or a hang

    def expect_result(self) -> None:
        """A large answer is kept."""
        self.left["results"] += 1

    def complain(self, what: str) -> None:
        self.unexpected += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(what[:400])


@dataclass(slots=True)
class Client:
    """One of the fifty."""

    world: World
    principal: str
    era: Era
    http: aiohttp.ClientSession
    chance: Random
    tally: Tally

    def speaker(self, path: str = "/mcp") -> Speaker:
        return Speaker(self.http, self.world.url + path, self.era)

    async def call(
        self, speaker: Speaker, tool: str, *, may_fail: Collection[str] = (), **arguments: Any
    ) -> dict[str, Any]:
        """The structured content of a tool's answer, or its error where that may be."""
        params = {"name": tool, "arguments": arguments}
        try:
            result = await speaker.request("tools/call", params)
        except Refusal as refusal:
            code = f"rpc {refusal.error.get('code')}"
            found: dict[str, Any] = {"error": {"code": code, **refusal.error}}
        else:
            found = result.get("structuredContent") or {}
            if not result.get("isError"):
                return found
        code = str(found.get("error", {}).get("code") or "upstream's own")
        self.tally.codes[code] += 1
        if code not in may_fail:
            self.tally.complain(f"{tool}: {found}")
        return found

    async def rest(
        self, method: str, path: str, body: Any = None, *, ok: Collection[int] = (200,)
    ) -> Any:
        """The JSON of a REST answer."""
        url = f"{self.world.url}/api/v1{path}"
        async with self.http.request(method, url, json=body) as response:
            text = await response.text()
            if response.status not in ok:
                self.tally.complain(f"{method} {path}: {response.status} {text}")
            return await response.json() if response.status < 300 else {}


Errand = Callable[[Client], Awaitable[None]]


@asynccontextmanager
async def client(
    world: World, principal: str, era: Era, tally: Tally, chance: Random
) -> AsyncIterator[Client]:
    """A client with connections of its own."""
    headers = {"authorization": f"Bearer {token_of(principal)}"}
    timeout = aiohttp.ClientTimeout(total=None, sock_read=REQUEST_SECONDS)
    jar = aiohttp.CookieJar(unsafe=True)  # ours is an address without a name
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, cookie_jar=jar) as http:
        yield Client(world, principal, era, http, chance, tally)


async def repeat(one: Client, errand: Errand, pause: float, over: asyncio.Event) -> None:
    """Run an errand again and again, with pauses, until it is over."""
    while not over.is_set():
        await once(one, errand)
        try:
            async with asyncio.timeout(one.chance.uniform(0, 2 * pause)):
                await over.wait()
        except TimeoutError:
            continue


async def once(one: Client, errand: Errand) -> None:
    """Run an errand; whatever it did not expect is noted."""
    name = errand.__name__
    try:
        await errand(one)
    except Exception as error:
        _note(one.tally, name, error)
    one.tally.done[name] += 1


def _note(tally: Tally, name: str, error: BaseException) -> None:
    while isinstance(error, BaseExceptionGroup):  # the SDK's client wraps what went wrong
        error = error.exceptions[0]
    if isinstance(error, TimeoutError | httpx2.TimeoutException):
        tally.gave_up += 1
    else:
        tally.complain(f"{name}: {type(error).__name__}: {error}")
