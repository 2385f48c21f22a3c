"""What tests of upstreams share: a real way out, a quick pace, and an ear for changes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from gateway.model import NO_TLS_FILES, TlsFiles
from gateway.outbound.client import Egress, Request
from gateway.upstream.http import Headers, Streamed
from gateway.upstream.link import Pace, Upstream
from gateway.upstream.registry import Upstreams

STDIO_PEER = str(Path(__file__).parents[1] / "stdio_peer.py")
QUICK = Pace(
    first_rest=0.05, longest_rest=0.2, held=0.5, patience=0.5, poll=30.0, gather=0.01, spacing=0.05
)


def http(name: str, url: str, **changes: Any) -> Upstream:
    return Upstream(name, "http", url=url, **{"timeout_seconds": 5.0, **changes})


def stdio(name: str, *args: str, **changes: Any) -> Upstream:
    fields = {"timeout_seconds": 5.0, "args": (STDIO_PEER, *args), **changes}
    return Upstream(name, "stdio", command=sys.executable, **fields)


@asynccontextmanager
async def upstreams(*settings: Upstream, **options: Any) -> AsyncIterator[Upstreams]:
    """Upstreams behind the gateway's real way out, at a quick pace."""
    options.setdefault("pace", QUICK)
    async with (
        Egress(["127.0.0.1/32"]) as egress,
        Upstreams(_Way(egress), **options) as ups,
    ):
        for one in settings:
            ups.replace(one.name, one)
        yield ups


def asking(elicit: Any) -> Any:
    """Asks the questions of an upstream one by one, if there is someone to ask."""

    async def ask(questions: Mapping[str, Any]) -> Mapping[str, Any]:
        return {key: await elicit(question["params"]) for key, question in questions.items()}

    return None if elicit is None else ask


class _Way:
    def __init__(self, egress: Egress) -> None:
        self._egress = egress

    def __call__(
        self,
        method: str,
        url: str,
        headers: Headers,
        body: bytes | None,
        deadline: float,
        tls: TlsFiles = NO_TLS_FILES,
    ) -> AbstractAsyncContextManager[Streamed]:
        request = Request(method, url, tuple(headers), body)
        return self._egress.open(request, deadline=deadline, tls=tls)


class Told:
    """Hears which upstreams changed."""

    def __init__(self, ups: Upstreams) -> None:
        self.names: list[str] = []
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        ups.on_tools_changed(self._hear)

    def _hear(self, name: str) -> None:
        self.names.append(name)
        self._queue.put_nowait(name)

    async def next(self, seconds: float = 2.0) -> str:
        async with asyncio.timeout(seconds):
            return await self._queue.get()


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
