"""What tests of upstreams share: a real way out, a quick pace, and an ear for changes."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from gateway.outbound.client import Egress
from gateway.upstream.link import Pace
from gateway.upstream.protocol import NO_HOOKS, Hooks
from gateway.upstream.registry import Upstreams
from gateway.upstream.session import Upstream

STDIO_PEER = str(Path(__file__).parents[1] / "stdio_peer.py")
QUICK = Pace(first_rest=0.05, longest_rest=0.2, stable=0.5, patience=0.5, poll=30.0, spacing=0.05)


OPTIONS = {"hooks", "principal", "deadline"}
both_eras = pytest.mark.parametrize("era", ["2026", "2025"])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def modern(message: dict[str, Any], **results: Any) -> Response:
    """A server that knows discover, an empty tools/list, and what the test adds."""
    known = {
        "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}},
        "tools/list": {"tools": []},
        **results,
    }
    head = {"jsonrpc": "2.0", "id": message.get("id")}
    if message["method"] not in known:
        return JSONResponse({**head, "error": {"code": -32601, "message": "?"}}, 404)
    return JSONResponse({**head, "result": known[message["method"]]})


def http(name: str, url: str, **changes: Any) -> Upstream:
    return Upstream(name, "http", url=url, **{"timeout_seconds": 60.0, **changes})


def stdio(name: str, *args: str, **changes: Any) -> Upstream:
    fields = {"timeout_seconds": 60.0, "args": (STDIO_PEER, *args), **changes}
    return Upstream(name, "stdio", command=sys.executable, **fields)


class CalledUpstreams(Upstreams):
    """Upstreams with a short way to call a tool."""

    async def call(
        self,
        name: str,
        tool: str,
        arguments: Mapping[str, Any],
        hooks: Hooks = NO_HOOKS,
        *,
        principal: str | None = None,
        deadline: float | None = None,
        **said: Any,
    ) -> dict[str, Any]:
        params = {"name": tool, "arguments": arguments, **said}
        return await self.request(
            name, "tools/call", params, principal=principal, deadline=deadline, hooks=hooks
        )

    async def text(self, tool: str, name: str = "up", **more: Any) -> str:
        """The text that a tool answers with; what is no option of a call is an argument."""
        options = {key: more.pop(key) for key in OPTIONS & more.keys()}
        return text_of(await self.call(name, tool, more, **options))

    async def pid(self, principal: str | None = None) -> int:
        """The process that a stdio server of tests is for a principal."""
        return int(await self.text("pid", principal=principal))

    async def __aenter__(self) -> CalledUpstreams:
        return self


@asynccontextmanager
async def upstreams(
    *settings: Upstream, authorize: Any = None, pace: Pace = QUICK
) -> AsyncIterator[CalledUpstreams]:
    """Upstreams behind the gateway's real way out, at a quick pace."""
    async with (
        Egress(["127.0.0.1/32"]) as egress,
        CalledUpstreams(egress, authorize, pace) as ups,
    ):
        for one in settings:
            ups.replace(one.name, one)
        yield ups


def asking(elicit: Any) -> Any:
    """Asks the questions of an upstream one by one, if there is someone to ask."""

    async def ask(questions: Mapping[str, Any]) -> Mapping[str, Any]:
        return {key: await elicit(question["params"]) for key, question in questions.items()}

    return None if elicit is None else ask


class Told:
    """Hears which upstreams changed."""

    def __init__(self, ups: Upstreams) -> None:
        self.names: list[str] = []
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        ups.on_tools_changed = self._hear

    def _hear(self, name: str) -> None:
        self.names.append(name)
        self._queue.put_nowait(name)

    async def next(self, seconds: float = 60.0) -> str:
        async with asyncio.timeout(seconds):
            return await self._queue.get()


class Heard:
    """What upstreams tell of this kind, one notice at a time: whose it is, and what it says."""

    def __init__(self, ups: Upstreams, kind: str) -> None:
        self.notices: asyncio.Queue[tuple[str | None, Mapping[str, Any]]] = asyncio.Queue()
        self._kind = f"notifications/{kind}"
        ups.on_notification = self._hear

    def _hear(self, name: str, whose: str | None, method: str, params: Mapping[str, Any]) -> None:
        if method == self._kind:
            self.notices.put_nowait((whose, params))

    async def next(self, seconds: float = 60.0) -> tuple[str | None, Mapping[str, Any]]:
        async with asyncio.timeout(seconds):
            return await self.notices.get()


def text_of(result: dict[str, Any]) -> str:
    content = result["content"]
    assert isinstance(content, list) and len(content) == 1
    return str(content[0]["text"])


def running(pid: int) -> bool:
    """Whether a process lives; one that only waits to be reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
