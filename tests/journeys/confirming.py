"""A shop whose orders need a person's word, a gateway before it, and callers with tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web
from mcp.client.client import Client
from mcp.client.context import ClientRequestContext
from mcp.client.session import ElicitationFnT
from mcp_types import ElicitRequestParams, ElicitResult

from tests.callers import Api, api, client
from tests.configs import LOCAL, principal
from tests.conftest import Running, gateway_on
from tests.definitions import an_object, openapi, operation
from tests.peers import Provider
from tests.processes import gateway_process

FREELY = 'level = "full_access"'
IDEMPOTENT = 'idempotency_header = "Idempotency-Key"'
ORDER = {"book": "Emma"}
CALL = "/tools/shop_place_order/call"
NAMES = ("ann", "bob", "root", "eve")


def orders_api(url: str, **operations: dict[str, Any]) -> dict[str, Any]:
    """A definition with a read, a write and a delete; `operations` replaces operations by id."""
    id_ = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    text = {"type": "string"}
    body = an_object({"book": text, "notes": {"type": "array", "items": text}}, "book")
    known = {
        "getOrder": operation(summary="Get an order", parameters=[id_]),
        "placeOrder": operation(summary="Place an order", **taking(body)),
        "cancelOrder": operation(summary="Cancel an order", parameters=[id_]),
    } | operations
    get, place, cancel = ({**known[id], "operationId": id} for id in list(known)[:3])
    paths = {"/orders": {"post": place}, "/orders/{id}": {"get": get, "delete": cancel}}
    info = {"title": "Orders", "version": "1"}
    return openapi(paths, servers=[{"url": url}], info=info)


def taking(schema: dict[str, Any], kind: str = "application/json") -> dict[str, Any]:
    """What an operation says that takes such a body."""
    return {"requestBody": {"required": True, "content": {kind: {"schema": schema}}}}


def config(
    peer: Provider,
    permissions: str = "",
    more: str = "",
    connection: str = "",
    *,
    seconds: float = 20,
    **roles: str,
) -> str:
    """Two callers, two admins, and the shop; a role is given by the name of who has it."""
    rules = f"[permissions]\ntimeout_seconds = {seconds}\n{permissions}\n"
    return f"{principals(**roles)}{LOCAL}{rules}{peer.table()}{connection}\n{more}\n"


def principals(**roles: str) -> str:
    return "".join(
        principal(
            name, admin=name in ("root", "eve"), **({"role": roles[name]} if name in roles else {})
        )
        for name in NAMES
    )


@dataclass(frozen=True)
class Shop(Running):
    """A gateway before the shop, and everybody's way to its REST API."""

    peer: Provider
    ann: Api
    bob: Api
    root: Api
    eve: Api

    def agent(
        self,
        name: str = "ann",
        mode: str = "legacy",
        answer: ElicitationFnT | None = None,
        called: str = "mcp",
    ) -> AbstractAsyncContextManager[Client]:
        """A client of this principal; `answer` answers what it is asked."""
        return client(self.url, name, mode, answer, called)

    async def refresh(self) -> dict[str, Any]:
        """What a refresh of the shop reports."""
        status, report = await self.root("POST", "/connections/shop/refresh")
        assert status == 200
        return dict(report)


@asynccontextmanager
async def shop_on(file: Path, peer: Provider, text: str) -> AsyncIterator[Shop]:
    async with gateway_on(file, text) as made, AsyncExitStack() as stack:
        apis = [await stack.enter_async_context(api(made.url, name)) for name in NAMES]
        yield Shop(made.app, made.port, made.config, peer, *apis)


class Gate:
    """Holds requests to the shop still until the test lets them go."""

    def __init__(self, peer: Provider) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        peer.answer = self.answer

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.entered.set()
        await self.release.wait()
        return web.json_response({"placed": True})


@asynccontextmanager
async def serving(folder: Path, name: str) -> AsyncIterator[tuple[Any, Api]]:
    """`gateway serve` on the folder's configuration, and the REST API of a principal."""
    async with (
        gateway_process(folder / "config.toml") as (process, url),
        api(url, name) as rest,
    ):
        yield process, rest


def answering(decision: str | None, asked: list[ElicitRequestParams]) -> ElicitationFnT:
    """Decides so whenever asked; None dismisses the question."""

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params)
        if decision is None:
            return ElicitResult(action="cancel")
        return ElicitResult(action="accept", content={"decision": decision})

    return answer
