"""Admins of an organization are kept to it: what they put, see and decide."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, insert, update

from gateway.limits import STORE_ROWS
from gateway.store import tables
from gateway.store.database import values
from gateway.store.tables import ClientGrant
from tests.callers import Api, api, client
from tests.configs import LOCAL, principal, table, token_of
from tests.conftest import GatewayMaker, Running
from tests.console.conftest import visitor
from tests.definitions import openapi, operation
from tests.journeys.confirming import FREELY
from tests.journeys.test_live_configuration import edit
from tests.peers import Provider, look_until, provider, until
from tests.store import rows
from tests.web.test_identity import AUDIENCE, ISSUER, RSA_KEY, jwk, signed

ADMINS = (
    principal("root", admin=True)
    + principal("ann", admin=True, organization="acme")
    + principal("gus", admin=True, organization="globex")
)
BASE = f"{ADMINS}{LOCAL}[permissions]\n{FREELY}\n"
TAKEN = "this name can't be used"


@pytest.fixture
async def gateway(make_gateway: GatewayMaker) -> Running:
    return await make_gateway(BASE)


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


@pytest.mark.parametrize("way", ["put", "deleted", "damaged", "edited", "removed"])
async def test_what_was_done_for_an_organization_does_not_go_with_the_connection(
    way: str, make_gateway: GatewayMaker
) -> None:
    bot = principal("bot", organization="acme")
    confirmed = '[permissions]\ntools = { shop_order = "confirm", shop_get = "allowed" }\n'
    base = f"{ADMINS}{bot}{LOCAL}{confirmed}"
    async with provider() as peer, AsyncExitStack() as stack:
        get, post = operation(operationId="get"), operation(operationId="order")
        peer.document = openapi({"/orders": {"get": get, "post": post}})
        shop = {"kind": "openapi", "spec": peer.spec, "base_url": peer.url}
        of_acme, of_globex = ({**shop, "organization": name} for name in ("acme", "globex"))
        in_file = way in ("edited", "removed")
        gateway = await make_gateway(base + table("connections.shop", **of_acme) * in_file)
        root, ann, gus, caller = [
            await stack.enter_async_context(api(gateway.url, name))
            for name in ("root", "ann", "gus", "bot")
        ]
        if not in_file:
            assert (await root("PUT", "/connections/shop", of_acme))[0] == 200
        assert (await caller.call("shop_get"))[0] == 200
        assert (await caller.call("shop_order"))[0] == 202
        assert (await ann.decide("always_allow"))[0] == 200
        get["summary"] = "Get orders"
        await ann("POST", "/connections/shop/refresh")

        async def seen(ask: Api) -> list[int]:
            paths = ("executions", "standing-grants", "changes")
            return [len((await ask("GET", f"/{p}"))[1].get(p.replace("-", "_"), ())) for p in paths]

        assert await seen(ann) == [2, 1, 1]
        [grant] = (await ann("GET", "/standing-grants"))[1]["standing_grants"]
        call = (await ann("GET", "/executions"))[1]["executions"][0]
        match way:
            case "put":
                assert (await root("PUT", "/connections/shop", of_globex))[0] == 200
            case "edited":
                edit(gateway.config, base + table("connections.shop", **of_globex))
            case "removed":
                edit(gateway.config, base)
                await until(lambda: "shop" not in gateway.app.gateway.snapshot.connections)
            case "damaged":
                await gateway.app.gateway.db.write(_damage)
                await gateway.app.gateway.catalog.apply(gateway.app.gateway.snapshot.settings)
                assert (await gus("GET", "/connections/shop"))[0] == 404
        if way in ("deleted", "damaged"):
            assert (await root("DELETE", "/connections/shop"))[0] == 200
        if way in ("deleted", "damaged", "removed"):
            assert (await gus("PUT", "/connections/shop", shop))[0] == 200
        await look_until(lambda: gus("GET", "/connections/shop"), lambda found: found[0] == 200)
        assert await seen(gus) == [0, 0, 0]
        assert (await gus("GET", f"/executions/{call['id']}"))[0] == 404
        assert (await gus("DELETE", f"/standing-grants/{grant['id']}"))[0] == 404
        assert await seen(ann) == [0, 0, 0]
        assert await seen(root) == [2, 1, 1]
        assert await seen(caller) == [2, 1, 0]
        assert (await gus.call("shop_get"))[0] == 200
        assert await seen(gus) == [1, 0, 0]


def _damage(tx: Connection) -> None:
    tx.execute(update(tables.connections).values(settings=b"no seal"))


async def test_nobodys_own_rows_are_hidden_behind_those_of_others(
    make_gateway: GatewayMaker,
) -> None:
    own = table("connections.own", kind="openapi", spec="http://127.0.0.1:9/", organization="acme")
    zoe = principal("zoe", organization="acme")
    gateway = await make_gateway(f"{ADMINS}{zoe}{LOCAL}{own}")
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
    given = (*paths, "grants")
    for name, asked in [("ann", given), ("zoe", (*paths[1:2], "grants")), ("gus", given)]:
        async with api(gateway.url, name) as ask:
            assert (await ask("DELETE", f"/grants/{STORE_ROWS:04}"))[0] == 404  # the admin's of all
            for path in asked:
                _, answer = await ask("GET", f"/{path}")
                found.append((name, [row["id"] for row in answer[path.replace("-", "_")]]))
    own_ids = [("ann", [f"{STORE_ROWS:04}"]), *[("ann", ["0000"])] * 3]
    assert found == [*own_ids, ("zoe", ["0000"]), ("zoe", ["0000"]), *[("gus", [])] * 4]


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


class Moving:
    """A connection that changes hands, and words."""

    def __init__(self, way: str, peer: Provider, gateway: Running) -> None:
        self.way, self.peer, self.gateway = way, peer, gateway
        self.operation = operation(operationId="get", summary="First")
        peer.document = openapi({"/orders": {"get": self.operation}})

    async def give(self, root: Api, owner: Api, **settings: Any) -> None:
        """Puts it, or writes it into config.toml, with these settings; waits for its tool."""
        settings |= {"kind": "openapi", "spec": self.peer.spec, "base_url": self.peer.url}
        if self.way == "put":
            assert (await root("PUT", "/connections/shop", settings))[0] == 200
        else:
            edit(self.gateway.config, BASE + table("connections.shop", **settings))
        await look_until(lambda: owner("GET", "/tools/shop_get"), lambda found: found[0] == 200)

    async def change(self, by: Api) -> dict[str, Any]:
        """The report of a refresh that finds other words."""
        self.operation["summary"] += " and more"
        return dict((await by("POST", "/connections/shop/refresh"))[1])


async def changes_of(ask: Api) -> list[tuple[str, str]]:
    return [(each["id"], each["status"]) for each in (await ask("GET", "/changes"))[1]["changes"]]


@pytest.mark.parametrize("way", ["put", "edited"])
async def test_a_held_change_goes_with_the_connection_to_those_who_have_it_now(
    way: str, gateway: Running, admins: list[Api]
) -> None:
    root, ann, gus = admins
    async with provider() as peer:
        shop = Moving(way, peer, gateway)
        await shop.give(root, ann, organization="acme", on_change="hold_all")
        assert (await shop.change(ann))["held"] == ["shop_get"]
        [(id, _)] = await changes_of(ann)
        assert (await gus("POST", f"/changes/{id}/accept"))[0] == 404
        await shop.give(root, gus, organization="globex", on_change="hold_all")
        assert await changes_of(ann) == []
        [(id, status)] = await changes_of(gus)
        assert (status, await changes_of(root)) == ("held", [(id, "held")])
        tasks = [(await each("GET", "//health"))[1]["todo"] for each in (ann, gus)]
        assert [[task["kind"] for task in each] for each in tasks] == [[], ["change"]]
        assert (await ann("POST", f"/changes/{id}/accept"))[0] == 404
        assert (await gus("POST", f"/changes/{id}/accept"))[0] == 200
        assert (await gus("GET", "/tools/shop_get"))[1]["description"] == "[Shop] First and more"
        assert await changes_of(gus) == [(id, "accepted")]
        await shop.give(root, ann, organization="acme", on_change="hold_all")
        assert await changes_of(ann) == await changes_of(gus) == []
        assert await changes_of(root) == [(id, "accepted")]


@pytest.mark.parametrize("way", ["deleted", "removed", "accepting"])
async def test_nothing_is_held_any_more_where_all_that_was_found_is_served(
    way: str, gateway: Running, admins: list[Api]
) -> None:
    root, ann, gus = admins
    async with provider() as peer:
        shop = Moving("edited" if way == "removed" else "put", peer, gateway)
        await shop.give(root, ann, organization="acme", on_change="hold_all")
        assert (await shop.change(ann))["held"] == ["shop_get"]
        match way:
            case "deleted":
                assert (await root("DELETE", "/connections/shop"))[0] == 200
            case "removed":
                edit(gateway.config, BASE)
                await until(lambda: "shop" not in gateway.app.gateway.snapshot.connections)
                shop.way = "put"
                await shop.give(gus, gus)
            case "accepting":
                await shop.give(ann, ann, on_change="accept")
        left = [[status for _, status in await changes_of(each)] for each in admins]
        assert left == ([["applied"], ["applied"], []] if way == "accepting" else [[], [], []])


async def test_in_the_console_nobody_sees_more_changes_than_admins_of_their_organization(
    make_gateway: GatewayMaker,
) -> None:
    users = principal("pat", organization="globex") + principal("zoe")
    gateway = await make_gateway(BASE + users)
    async with provider() as peer, AsyncExitStack() as stack:
        shop = Moving("put", peer, gateway)
        names = ("root", "ann", "gus")
        root, ann, gus = [await stack.enter_async_context(api(gateway.url, n)) for n in names]
        for owner, whose in ((ann, {"organization": "acme"}), (gus, {"organization": "globex"})):
            await shop.give(root, owner, **whose)
            assert (await shop.change(owner))["changed"] == ["shop_get"]
        await shop.give(root, root)
        assert (await shop.change(root))["changed"] == ["shop_get"]
        seen = {}
        for name in (*names, "pat", "zoe"):
            person = await stack.enter_async_context(visitor(gateway))
            await person.sign_in(token_of(name))
            file = (await person.get("/console/connections/shop?format=json")).json()
            page = (await person.get("/console/connections/shop")).text
            seen[name] = [change["by"] for change in file["changes"]]
            assert page.count('class="change ') == len(seen[name])
        own = {"ann": ["root", "ann"], "gus": ["root", "gus"], "pat": ["root", "gus"]}
        assert seen == {"root": ["root", "gus", "ann"], **own, "zoe": ["root"]}


async def sign_ins(ask: Api) -> set[tuple[str, str]]:
    """Whose sign-ins to what an admin is listed."""
    _, found = await ask("GET", "/sign-ins")
    return {(each["owner"], each["connection"]) for each in found["sign_ins"]}


@pytest.mark.parametrize("mode", ["tokens", "jwt"])
async def test_admins_see_and_end_the_sign_ins_of_their_own_people_whatever_the_settings(
    mode: str, make_gateway: GatewayMaker, tmp_path: Path
) -> None:
    organizations = {"root": None, "ann": "acme", "gus": "globex", "bot": "acme", "rob": "globex"}
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [jwk(RSA_KEY)]}), encoding="utf-8")
    claims = {"organization_claim": "org", "admin_claim": "boss", "jwks_file": str(keys)}
    by_token = table("auth", mode="jwt", issuer=ISSUER, audience=AUDIENCE, **claims) + LOCAL
    users = principal("bot", organization="acme") + principal("rob", organization="globex")
    gateway = await make_gateway(BASE + users if mode == "tokens" else by_token)
    async with provider() as peer, AsyncExitStack() as stack:
        people = []
        for name, of in organizations.items():
            people.append(await stack.enter_async_context(api(gateway.url, name)))
            if mode == "jwt":
                token = signed(sub=name, org=of, boss=name in ("root", "ann", "gus"))
                people[-1].http.headers["authorization"] = f"Bearer {token}"
        root, ann, gus, bot, rob = people

        async def put(ask: Api, name: str = "shop", **settings: Any) -> None:
            auth = {"type": "bearer", "per": "user"}
            values = {"kind": "openapi", "spec": peer.spec, "auth": auth} | settings
            assert (await ask("PUT", f"/connections/{name}", values))[0] == 200

        await put(ann)
        await put(root, "all")
        for who, what in ((bot, "shop"), (bot, "all"), (rob, "all")):
            assert (await who("PUT", f"/credentials/{what}", {"token": "a-key-of-ours"}))[0] == 200
        of_acme, of_globex = {("bot", "shop"), ("bot", "all")}, {("rob", "all")}
        assert (await sign_ins(ann), await sign_ins(gus)) == (of_acme, of_globex)
        await put(root, organization="globex")
        assert (await sign_ins(ann), await sign_ins(gus)) == ({("bot", "all")}, of_globex)
        for ask, what in ((gus, "shop?owner=bot"), (gus, "all?owner=bot"), (ann, "all?owner=rob")):
            assert (await ask("DELETE", f"/sign-ins/{what}"))[0] == 404
        await put(root, organization="acme")
        for other in ({"base_url": f"{peer.url}/v2"}, {"auth": {"type": "none"}}):
            await put(ann, **other)
            assert (await sign_ins(ann), await sign_ins(gus)) == (of_acme, of_globex)
        assert await sign_ins(root) == of_acme | of_globex
        assert (await ann("DELETE", "/sign-ins/shop?owner=bot"))[0] == 200
        await put(ann)
        _, own = await bot("GET", "/credentials")
        still = {each["connection"] for each in own["credentials"] if each["signed_in"]}
        assert still == {"all"}


PEOPLE = principal("bot", organization="acme") + principal("rob", organization="globex")
NAMES = ("root", "ann", "gus", "bot", "rob")


async def test_permissions_are_for_admins_of_no_organization(make_gateway: GatewayMaker) -> None:
    rules = {"shop_get": "blocked", "all_get": "confirm", "gone": "blocked", "proxy": "confirm"}
    auto = {"enabled": True, "tools": ["shop_get", "all_get"]}
    async with provider() as peer, AsyncExitStack() as stack:
        peer.document = openapi({"/orders": {"get": operation(operationId="get")}})
        shops = peer.table(organization="acme") + peer.table("all")
        written = table("permissions", tools=rules, auto_approve=auto)
        gateway = await make_gateway(f"{ADMINS}{PEOPLE}{LOCAL}{written}{shops}")
        asks = [await stack.enter_async_context(api(gateway.url, name)) for name in NAMES]
        everything = {"tools": {"shop_get": "allowed"}, "level": "full_access"}
        for method, body in (("PUT", everything), ("DELETE", None)):
            refused = [await ask(method, "/permissions", body) for ask in asks[1:]]
            assert {(status, answer["error"]["code"]) for status, answer in refused} == {
                (403, "access_denied")
            }
        seen = [(await ask("GET", "/permissions"))[1] for ask in asks]
        shown = [(set(each["tools"]), each["auto_approve"]["tools"]) for each in seen]
        of_acme = ({"shop_get", "all_get", "proxy"}, ["shop_get", "all_get"])
        of_globex = ({"all_get", "proxy"}, ["all_get"])
        assert shown == [({*rules}, auto["tools"]), of_acme, of_globex, of_acme, of_globex]
        gus = await stack.enter_async_context(visitor(gateway))
        await gus.sign_in(token_of("gus"))
        page = (await gus.get("/console/access")).text
        assert "all_get" in page and "shop_get" not in page
        assert (await gus.post("/console/permissions", level="full_access")).status_code == 403
        rule = {"tool": "shop_get", "rule": "allowed"}
        assert (await gus.post("/console/permissions/tools", **rule)).status_code == 403
        assert (await asks[0]("GET", "/permissions"))[1] == seen[0]
        assert (await asks[0]("PUT", "/permissions", everything))[0] == 200


async def test_what_is_for_everybody_is_for_admins_of_no_organization_to_change(
    gateway: Running, admins: list[Api]
) -> None:
    root, _, gus = admins
    async with provider() as peer, visitor(gateway) as person:
        shop = Moving("put", peer, gateway)
        await shop.give(root, root, on_change="hold_all")
        assert (await shop.change(root))["held"] == ["shop_get"]
        [(id, _)] = await changes_of(gus)
        paths = [f"/changes/{id}/accept", f"/changes/{id}/reject"]
        asked = [("POST", path) for path in paths] + [("DELETE", "/connections/shop")]
        refused = [await gus(*each) for each in asked]
        assert [(s, each["error"]["code"]) for s, each in refused] == [(403, "access_denied")] * 3
        async with client(gateway.url, "gus") as mcp:
            answer = await mcp.call_tool("delete_connection", {"name": "shop"})
            assert answer.is_error and "for everybody" in str(answer.content)
        await person.sign_in(token_of("gus"))
        page = "/console/connections/shop"
        for action in (f"{page}/delete", f"/console/changes/{id}"):
            assert (await person.post(action, decision="accept")).status_code == 403
        assert (await person.get(f"{page}/edit")).status_code == 403
        shown = (await person.get(page)).text
        assert "shop" in shown and "/delete" not in shown and "/edit" not in shown
        assert await changes_of(root) == [(id, "held")]
        status, found = await gus("GET", "/connections/shop")
        assert status == 200 and "settings" not in found
        assert "settings" in (await root("GET", "/connections/shop"))[1]
        assert (await root("POST", f"/changes/{id}/accept"))[0] == 200
        assert (await root("DELETE", "/connections/shop"))[0] == 200


async def test_calls_of_what_is_for_everybody_are_seen_by_admins_of_their_callers(
    make_gateway: GatewayMaker,
) -> None:
    async with provider() as peer, AsyncExitStack() as stack:
        peer.document = openapi({"/orders": {"post": operation(operationId="order")}})
        gateway = await make_gateway(f"{ADMINS}{PEOPLE}{LOCAL}{peer.table(base_url=peer.url)}")
        asks = [await stack.enter_async_context(api(gateway.url, name)) for name in NAMES]
        root, ann, gus, bot, rob = asks
        calls = [(await ask.call("shop_order"))[1]["execution_id"] for ask in (root, bot, rob)]
        waiting = {each["principal"]: each["id"] for each in await root.pending(3)}

        async def seen(path: str) -> list[list[str]]:
            key, rows = path.replace("-", "_"), []
            for ask in (root, ann, gus):
                found = (await ask("GET", f"/{path}"))[1][key]
                rows.append(sorted(each["principal"] for each in found))
            return rows

        everybody = ["bot", "rob", "root"]
        assert await seen("approvals") == await seen("executions") == [everybody, ["bot"], ["rob"]]
        for admin, whose, call in ((gus, "bot", calls[1]), (ann, "root", calls[0])):
            assert (await admin("GET", f"/executions/{call}"))[0] == 404
            assert (await admin("DELETE", f"/executions/{call}"))[0] == 404
            for decision in ("approve", "deny", "always_allow"):
                assert (await admin.decide(decision, waiting[whose]))[0] == 404
        person = await stack.enter_async_context(visitor(gateway))
        await person.sign_in(token_of("gus"))
        cards = (await person.get("/console/approvals")).text
        assert waiting["rob"] in cards and waiting["bot"] not in cards
        for admin, whose in ((ann, "bot"), (gus, "rob"), (root, "root")):
            assert (await admin.decide("always_allow", waiting[whose]))[0] == 200
        grants = {"standing-grants": [everybody, ["bot"], ["rob"]]}
        assert {path: await seen(path) for path in grants} == grants
        # What a gateway recorded that did not note callers' organizations could be anybody's.
        for call in calls:
            await root.execution(call, "completed")
        unsaid = update(tables.executions).values(organization=None)
        await gateway.app.gateway.db.write(lambda tx: tx.execute(unsaid).rowcount)
        assert await seen("executions") == [everybody, [], []]
        assert (await gus("GET", f"/executions/{calls[1]}"))[0] == 404
        assert (await bot("GET", f"/executions/{calls[1]}"))[0] == 200


async def test_files_of_the_machine_are_for_admins_of_no_organization(
    gateway: Running, admins: list[Api], tmp_path: Path
) -> None:
    root, _, gus = admins
    document = json.dumps(openapi({"/orders": {"get": operation(operationId="get")}}))
    there = tmp_path / "secret.json"
    there.write_text(document, encoding="utf-8")
    shop = {"kind": "openapi", "base_url": "http://127.0.0.1:9"}
    answers = set()
    for source in (
        {"spec": str(there)},
        {"spec": f"{tmp_path}/none.json"},
        {"kind": "manifest", "manifest": f"{tmp_path}/none.toml"},
        {"spec": document, "tls": {"ca_file": str(there)}},
        {"spec": document, "tls": {"cert_file": f"{tmp_path}/none.pem"}},
    ):
        values = {**shop, **source} if "kind" not in source else source
        for method, path in (("POST", "/connections/preview"), ("PUT", "/connections/own")):
            status, answer = await gus(method, path, values)
            answers.add((status, answer["error"]["code"], answer["error"]["message"]))
    words = "an organization's admin may not name files of the gateway's machine"
    assert answers == {(403, "access_denied", words)}
    assert (await gus("PUT", "/connections/own", {**shop, "spec": document}))[0] == 200
    assert (await root("POST", "/connections/preview", {**shop, "spec": str(there)}))[0] == 200
    assert (await root("PUT", "/connections/shop", {**shop, "spec": str(there)}))[0] == 200
