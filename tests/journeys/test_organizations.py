"""Admins of an organization are kept to it: what they put, see and decide."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.conftest import GatewayMaker, Running
from tests.console.conftest import visitor
from tests.definitions import openapi, operation
from tests.peers import provider

CONFIG = """
[network]
allow = ["127.0.0.1/32"]
[permissions]
level = "full_access"
[principals.root]
token = "root-token-0123456789"
admin = true
[principals.ann]
token = "ann--token-0123456789"
admin = true
organization = "acme"
[principals.gus]
token = "gus--token-0123456789"
admin = true
organization = "globex"
"""


@asynccontextmanager
async def asking(gateway: Running, token: str) -> AsyncIterator[Any]:
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers) as http:

        async def ask(method: str, path: str, body: Any = None) -> tuple[int, Any]:
            url = f"{gateway.url}/api/v1{path}"
            async with http.request(method, url, json=body) as answer:
                return answer.status, await answer.json()

        yield ask


async def test_an_admin_sees_puts_and_reads_within_its_organization_only(
    make_gateway: GatewayMaker,
) -> None:
    gateway: Running = await make_gateway(CONFIG)
    async with (
        provider() as peer,
        asking(gateway, "root-token-0123456789") as root,
        asking(gateway, "ann--token-0123456789") as ann,
        asking(gateway, "gus--token-0123456789") as gus,
    ):
        shop = {"kind": "openapi", "spec": peer.spec}
        assert (await ann("PUT", "/connections/own", shop))[0] == 200
        _, own = await ann("GET", "/connections/own")
        assert own["settings"]["organization"] == "acme"
        assert (await gus("GET", "/connections/own"))[0] == 404
        assert (await gus("PUT", "/connections/own", shop))[1]["error"]["message"] == (
            "this name can't be used"
        )
        assert (await ann("DELETE", "/connections/own"))[0] == 200
        shop["organization"] = "acme"
        assert (await gus("PUT", "/connections/shop", shop))[0] == 403
        assert (await ann("PUT", "/connections/shop", shop))[0] == 200
        assert (await ann("POST", "/tools/shop_get_items/call", {"arguments": {"id": "1"}}))[
            0
        ] == 200
        seen = {}
        for name, ask in (("root", root), ("ann", ann), ("gus", gus)):
            connections = (await ask("GET", "/connections"))[1]["connections"]
            executions = (await ask("GET", "/executions"))[1]["executions"]
            seen[name] = (len(connections), len(executions))
        assert seen == {"root": (1, 1), "ann": (1, 1), "gus": (0, 0)}
        taken = {**shop, "organization": "globex"}
        assert (await gus("PUT", "/connections/shop", taken))[1]["error"]["message"] == (
            "this name can't be used"
        )
        assert (await gus("DELETE", "/connections/shop"))[0] == 404
        assert (await root("DELETE", "/connections/shop"))[0] == 200


async def test_a_held_change_is_decided_in_the_console_by_admins_of_its_organization_only(
    make_gateway: GatewayMaker,
) -> None:
    gateway: Running = await make_gateway(CONFIG)
    async with (
        provider() as peer,
        asking(gateway, "ann--token-0123456789") as ann,
        visitor(gateway) as stranger,
        visitor(gateway) as own,
    ):
        peer.document = openapi({"/a": {"get": operation(summary="One")}})
        shop = {"kind": "openapi", "spec": peer.spec, "on_change": "hold_all"}
        assert (await ann("PUT", "/connections/own", shop))[0] == 200
        peer.document = openapi({"/a": {"get": operation(summary="Another")}})
        await ann("POST", "/connections/own/refresh")

        async def held() -> list[str]:
            _, found = await ann("GET", "/changes")
            return [each["id"] for each in found["changes"] if each["status"] == "held"]

        [change] = await held()
        await stranger.sign_in("gus--token-0123456789")
        refused = await stranger.post(f"/console/changes/{change}", decision="accept")
        assert (refused.status_code, await held()) == (404, [change])
        await own.sign_in("ann--token-0123456789")
        taken = await own.post(f"/console/changes/{change}", decision="accept")
        assert (taken.status_code, await held()) == (200, [])
