"""Admins of an organization are kept to it: what they put, see and decide."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
from sqlalchemy import Connection, insert

from gateway.limits import STORE_ROWS
from gateway.store import tables
from gateway.store.database import values
from gateway.store.tables import ClientGrant
from tests.callers import Api, api
from tests.configs import LOCAL, principal, table, token_of
from tests.conftest import GatewayMaker, Running
from tests.console.conftest import visitor
from tests.definitions import openapi, operation
from tests.journeys.confirming import FREELY
from tests.peers import provider
from tests.store import rows

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


async def test_nobodys_own_rows_are_hidden_behind_those_of_others(
    make_gateway: GatewayMaker,
) -> None:
    own = table("connections.own", kind="openapi", spec="http://127.0.0.1:9/", organization="acme")
    gateway = await make_gateway(f"{ADMINS}{principal('zoe')}{LOCAL}{own}")
    now = time.time()

    def put(tx: Connection) -> None:
        # Lists begin with the newest, but that of calls that wait with the oldest.
        for n, at in [(0, "own"), *((n, "other") for n in range(1, STORE_ROWS + 1))]:
            place = {"connection": at, "created_at": now, "expires_at": now + 600.0}
            id, person = f"{n:04}", "zoe" if at == "own" else "root"
            waiting = rows.approval(**place, id=f"{STORE_ROWS - n:04}", execution_id=id)
            standing = rows.grant(**place, id=id, principal=person, client=id)
            tx.execute(insert(tables.approvals), values(waiting))
            tx.execute(insert(tables.standing_grants), values(standing))
            tx.execute(insert(tables.changes), values(rows.change(id=id, connection=at)))
            given = ClientGrant(id, id, "c", "c", person, {}, "", "", "", now, now, now + 600.0)
            tx.execute(insert(tables.oauth_grants), values(given))

    await gateway.app.gateway.db.write(put)
    paths = ("approvals", "standing-grants", "changes")
    found = []
    for name, asked in [("ann", paths), ("zoe", (*paths[1:2], "grants")), ("gus", paths)]:
        async with api(gateway.url, name) as ask:
            for path in asked:
                _, answer = await ask("GET", f"/{path}")
                found.append((name, [row["id"] for row in answer[path.replace("-", "_")]]))
    own_ids = [("ann", [f"{STORE_ROWS:04}"]), ("ann", ["0000"]), ("ann", ["0000"])]
    assert found == [*own_ids, ("zoe", ["0000"]), ("zoe", ["0000"]), *[("gus", [])] * 3]


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
