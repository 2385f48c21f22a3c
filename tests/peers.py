"""The far side: a small real REST provider whose definition and answers a test can turn."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
from aiohttp import web

from tests.configs import table
from tests.definitions import openapi, operation

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Guard = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
T = TypeVar("T")


@dataclass
class Provider:
    """What it serves, and what it was asked."""

    port: int = 0
    document: Any = field(default_factory=dict)
    raw: bytes | None = None  # instead of the document
    answer: Answer | None = None
    etags: bool = True
    requests: list[tuple[str, str, bytes]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    definition_status: list[int] = field(default_factory=list)  # what each fetch was answered
    fetches: list[tuple[str, dict[str, str]]] = field(default_factory=list)  # path and headers
    guard: Guard | None = None  # asked first whenever the definition is fetched

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def spec(self) -> str:
        return f"{self.url}/openapi.json"

    def table(self, name: str = "shop", **more: Any) -> str:
        """The connection that leads here."""
        return table(f"connections.{name}", kind="openapi", spec=self.spec, **more)

    def sent(self, method: str = "POST") -> int:
        """How many requests of this kind it was sent."""
        return sum(1 for found, _, _ in self.requests if found == method)

    async def definition(self, request: web.Request) -> web.StreamResponse:
        self.fetches.append((request.raw_path, dict(request.headers)))
        if self.guard is not None and (answer := await self.guard(request)) is not None:
            return answer
        raw = orjson.dumps(self.document) if self.raw is None else self.raw
        etag = f'"{hashlib.sha256(raw).hexdigest()[:12]}"'
        fresh = self.etags and request.headers.get("If-None-Match") == etag
        self.definition_status.append(304 if fresh else 200)
        headers = {"ETag": etag} if self.etags else {}
        if fresh:
            return web.Response(status=304, headers=headers)
        return web.Response(body=raw, content_type="application/json", headers=headers)

    async def any(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append((request.method, request.raw_path, body))
        self.headers.append(dict(request.headers))
        if self.answer is not None:
            return await self.answer(request)
        return web.json_response({"path": request.path, "method": request.method})


@asynccontextmanager
async def provider(document: Any = None) -> AsyncIterator[Provider]:
    """A provider on a free port; `document` gets its address as server where it names none."""
    peer = Provider()
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.router.add_get("/openapi.json", peer.definition)
    app.router.add_route("*", "/{rest:.*}", peer.any)
    async with listening(app) as peer.port:
        peer.document = document if document is not None else items_api(peer.url)
        yield peer


@asynccontextmanager
async def listening(app: web.Application) -> AsyncIterator[int]:
    """The port of this machine at which the application is served."""
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    assert runner.server
    server = await asyncio.get_running_loop().create_server(runner.server, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await stop_accepting(server)
        await runner.cleanup()


async def stop_accepting(*servers: asyncio.Server) -> None:
    """Closes servers once whoever was being taken in is a connection.

    asyncio loses the socket of a client that it accepted just before its server was closed.
    """
    for listener in [each for server in servers for each in server.sockets]:
        asyncio.get_running_loop().remove_reader(listener)
    for _ in range(3):
        await asyncio.sleep(0)
    for server in servers:
        server.close()


def items_api(url: str, *names: str, **extra: Any) -> dict[str, Any]:
    """An OpenAPI definition with one GET operation for each name (default: items)."""
    text = {"schema": {"type": "string"}}
    paths = {}
    for name in names or ("items",):
        id_, q = {"name": "id", "in": "path", "required": True}, {"name": "q", "in": "query"}
        get = operation(operationId=f"get_{name}", parameters=[id_ | text, q | text])
        paths[f"/{name}/{{id}}"] = {"get": get | {"summary": f"Get {name}"}}
    info = {"title": "Items", "version": "1"}
    return openapi({**paths, **extra}, servers=[{"url": url}], info=info)


async def until(condition: Callable[[], bool], seconds: float = 60.0, pause: float = 0.005) -> None:
    """Waits for something that another task makes true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what makes it true has no event to give
            await asyncio.sleep(pause)


async def soon(work: Awaitable[T]) -> T:
    """What comes of this, which takes long only where something hangs."""
    async with asyncio.timeout(60):
        return await work


async def look_until(look: Callable[[], Awaitable[T]], enough: Callable[[T], object] = bool) -> T:
    """What is seen once it is enough: for what another process or task makes so."""
    async with asyncio.timeout(60):
        while not enough(seen := await look()):  # noqa: ASYNC110 - it has no event to give
            await asyncio.sleep(0.02)
    return seen
