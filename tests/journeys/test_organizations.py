"""Admins of an organization are kept to it: what they put, see and decide."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.callers import Api, api
from tests.configs import LOCAL, principal, token_of
from tests.conftest import GatewayMaker, Running
from tests.console.conftest import visitor
from tests.definitions import openapi, operation
from tests.journeys.confirming import FREELY
from tests.peers import provider

ADMINS = (
    principal("root", admin=True)
    + principal("ann", admin=True, organization="acme")
    + principal("gus", admin=True, organization="globex")
)
TAKEN = "this name can't be used"


@pytest.fixture
async def gateway(make_gateway: GatewayMaker) -> Running:
    return await make_gateway(f"{ADMINS}{LOCAL}[permissions]\n{FREELY}\n")


@pytest.fixture
async def admins(gateway: Running) -> AsyncIterator[list[Api]]:
    async with AsyncExitStack() as stack:
        names = ("root", "ann", "gus")
        yield [await stack.enter_async_context(api(gateway.url, name)) for name in names]


async def test_an_admin_sees_puts_and_reads_within_its_organization_only(
    admins: list[Api],
) -> None:
    root, ann, gus = admins
    async with provider() as peer:
        shop = {"kind": "openapi", "spec": peer.spec}
        assert (await ann("PUT", "/connections/own", shop))[0] == 200
        _, own = await ann("GET", "/connections/own")
        assert own["settings"]["organization"] == "acme"
        assert (await gus("GET", "/connections/own"))[0] == 404
        assert (await gus("PUT", "/connections/own", shop))[1]["error"]["message"] == TAKEN
        assert (await ann("DELETE", "/connections/own"))[0] == 200
        shop["organization"] = "acme"
        assert (await gus("PUT", "/connections/shop", shop))[0] == 403
        assert (await ann("PUT", "/connections/shop", shop))[0] == 200
        assert (await ann.call("shop_get_items", id="1"))[0] == 200
        seen = []
        for ask in admins:
            connections = (await ask("GET", "/connections"))[1]["connections"]
            executions = (await ask("GET", "/executions"))[1]["executions"]
            seen.append((len(connections), len(executions)))
        assert seen == [(1, 1), (1, 1), (0, 0)]
        taken = {**shop, "organization": "globex"}
        assert (await gus("PUT", "/connections/shop", taken))[1]["error"]["message"] == TAKEN
        assert (await gus("DELETE", "/connections/shop"))[0] == 404
        assert (await root("DELETE", "/connections/shop"))[0] == 200
        # What was done under the name stays acme's, and with it the name.
        assert (await gus("PUT", "/connections/shop", taken))[1]["error"]["message"] == TAKEN
        assert (await ann("PUT", "/connections/shop", shop))[0] == 200


async def test_a_held_change_is_decided_in_the_console_by_admins_of_its_organization_only(
    gateway: Running, admins: list[Api]
) -> None:
    _, ann, _ = admins
    async with provider() as peer, visitor(gateway) as stranger, visitor(gateway) as own:
        peer.document = openapi({"/a": {"get": operation(summary="One")}})
        shop = {"kind": "openapi", "spec": peer.spec, "on_change": "hold_all"}
        assert (await ann("PUT", "/connections/own", shop))[0] == 200
        peer.document = openapi({"/a": {"get": operation(summary="Another")}})
        await ann("POST", "/connections/own/refresh")

        async def held() -> list[str]:
            _, found = await ann("GET", "/changes")
            return [each["id"] for each in found["changes"] if each["status"] == "held"]

        [change] = await held()
        await stranger.sign_in(token_of("gus"))
        refused = await stranger.post(f"/console/changes/{change}", decision="accept")
        assert (refused.status_code, await held()) == (404, [change])
        await own.sign_in(token_of("ann"))
        taken = await own.post(f"/console/changes/{change}", decision="accept")
        assert (taken.status_code, await held()) == (200, [])
