"""A definition that changes under us: what is risky is held, shown, accepted or rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.callers import api
from tests.conftest import Running, two_gateways
from tests.journeys.confirming import FREELY, Shop, config, orders_api, shop_on
from tests.journeys.conftest import ShopMaker
from tests.journeys.test_live_configuration import edit
from tests.peers import Provider, provider, soon, until

UNTRUSTED = 'trust = "untrusted"'


async def held(shop: Shop) -> list[dict[str, Any]]:
    return list((await shop.root("GET", "/changes?status=held"))[1]["changes"])


async def accept_all(shop: Shop) -> None:
    for change in await held(shop):
        assert (await shop.root("POST", f"/changes/{change['id']}/accept"))[0] == 200


def with_host(document: dict[str, Any], url: str) -> dict[str, Any]:
    return {**document, "servers": [{"url": url}]}


async def test_another_host_is_held_for_untrusted_connections_until_accepted(
    make_shop: ShopMaker,
) -> None:
    shop = await make_shop(FREELY, connection=UNTRUSTED)
    ann, root, peer = shop.ann, shop.root, shop.peer
    async with provider() as other:
        peer.document = with_host(peer.document, other.url)
        report = await shop.refresh()
        assert report["held"] == ["shop_cancel_order", "shop_get_order", "shop_place_order"]
        first = next(c for c in await held(shop) if c["tool"] == "shop_get_order")
        assert first == {
            "id": first["id"],
            "connection": "shop",
            "operation": "getOrder",
            "tool": "shop_get_order",
            "kind": "changed",
            "class": "risky",
            "reason": f"the host changed from {peer.url} to {other.url}",
            "status": "held",
            "at": first["at"],
            "by": "root",
            "decided_at": None,
        }
        assert (await ann("GET", "/changes"))[0] == 403
        raw = {"connection": "shop", "method": "GET", "path": "/secrets"}
        await ann.call("shop_get_order", id="7")
        await ann("POST", "/proxy", raw)
        assert (len(peer.requests), other.requests) == (2, [])
        status, accepted = await root("POST", f"/changes/{first['id']}/accept")
        assert (status, accepted["status"], accepted["by"]) == (200, "accepted", "root")
        await ann.call("shop_get_order", id="7")
        assert [path for _, path, _ in other.requests] == ["/orders/7"]
        assert (await root("POST", f"/changes/{first['id']}/reject"))[0] == 409
        assert (await root("POST", "/changes/none/accept"))[0] == 404
        assert len(await held(shop)) == 2


RULES = [
    ('operations = { getOrder = { access = "dangerous" } }', None),
    ('operations = { "get*" = { access = "delete" } }', "delete"),
    ('exclude = ["getOrder"]', None),
    ('include = ["place*", "cancel*"]', None),
]


async def test_what_an_operator_says_holds_for_a_tool_whose_change_is_held_and_accepted(
    make_shop: ShopMaker,
) -> None:
    shop = await make_shop(FREELY, connection=UNTRUSTED)
    peer = shop.peer

    def served() -> str | None:
        tool = shop.app.gateway.snapshot.tools.get("shop_get_order")
        return tool.access if tool else None

    async def serves(access: str | None) -> None:
        await until(lambda: served() == access)

    for number, (rule, access) in enumerate(RULES):
        peer.document = with_host(peer.document, f"{peer.url}/v{number}")
        await shop.refresh()
        edit(shop.config, config(peer, FREELY, connection=f"{UNTRUSTED}\n{rule}"))
        await serves(access)
        await shop.refresh()
        assert served() == access
        await accept_all(shop)
        assert served() == access
        edit(shop.config, config(peer, FREELY, connection=UNTRUSTED))
        await serves("read")


async def test_accepted_tool_is_served_at_once_and_clients_are_told(make_shop: ShopMaker) -> None:
    shop = await make_shop(FREELY, connection='on_change = "hold_all"')
    get = shop.peer.document["paths"]["/orders/{id}"]["get"]
    async with shop.agent("ann", "2026-07-28") as ann:
        get = {**get, "summary": "Look up an order"}
        shop.peer.document = orders_api(shop.peer.url, getOrder=get)
        await shop.refresh()
        [change] = await held(shop)
        assert (change["class"], change["reason"]) == ("safe", "the description changed")
        async with ann.listen(tools_list_changed=True) as told:
            await accept_all(shop)
            await soon(anext(aiter(told)))
        [tool] = [t for t in (await ann.list_tools()).tools if t.name == "shop_get_order"]
    assert tool.description == "[Orders] Look up an order"


async def test_rejected_change_stays_out_and_is_not_told_again(make_shop: ShopMaker) -> None:
    shop = await make_shop(FREELY, connection=UNTRUSTED)
    paths = shop.peer.document["paths"]
    paths["/users"] = {"delete": {"operationId": "wipe", "responses": {}}}
    assert (await shop.refresh())["held"] == ["shop_wipe"]
    [change] = await held(shop)
    assert (change["kind"], change["reason"]) == ("added", "a new delete operation")
    _, rejected = await shop.root("POST", f"/changes/{change['id']}/reject")
    assert rejected["status"] == "rejected"
    paths["/more"] = {"get": {"operationId": "more", "responses": {}}}
    assert (await shop.refresh())["added"] == ["shop_more"]
    assert await held(shop) == []
    _, tools = await shop.root("GET", "/tools")
    assert "shop_wipe" not in {tool["name"] for tool in tools["tools"]}
    _, history = await shop.root("GET", "/changes?connection=shop")
    assert [(c["tool"], c["status"]) for c in history["changes"]] == [
        ("shop_more", "applied"),
        ("shop_wipe", "rejected"),
    ]


async def test_trusted_connections_take_changes_over_and_record_them(make_shop: ShopMaker) -> None:
    shop = await make_shop(FREELY)
    paths = shop.peer.document["paths"]
    del paths["/orders/{id}"]["delete"]
    [media] = paths["/orders"]["post"]["requestBody"]["content"].values()
    media["schema"]["required"] = ["book", "notes"]
    report = await shop.refresh()
    assert report == report | {
        "removed": ["shop_cancel_order"],
        "changed": ["shop_place_order"],
        "held": [],
    }
    _, history = await shop.root("GET", "/changes")
    assert {(c["tool"], c["class"], c["reason"], c["status"]) for c in history["changes"]} == {
        ("shop_cancel_order", "breaking", "the operation is gone", "applied"),
        ("shop_place_order", "breaking", "notes is now required", "applied"),
    }


def urls(gateway: Running) -> set[str]:
    tools = gateway.app.gateway.snapshot.connections["shop"].tools
    return {tool.http.base_url for tool in tools if tool.http}


async def test_restart_other_settings_and_a_failed_refresh_keep_what_is_held(
    tmp_path: Path, peer: Provider
) -> None:
    text = config(peer, FREELY, connection=UNTRUSTED)
    path = tmp_path / "config.toml"
    async with provider() as other:
        async with shop_on(path, peer, text) as shop:
            peer.document = with_host(peer.document, other.url)
            await shop.refresh()
            before = await held(shop)
        async with shop_on(path, peer, text) as shop:
            assert (urls(shop), await held(shop)) == ({peer.url}, before)
            peer.raw = b"not a definition"
            assert (await shop.refresh())["status"] == "failing"
            peer.raw = None
            assert (await shop.refresh())["status"] == "connected"
            assert (urls(shop), await held(shop)) == ({peer.url}, before)
        shorter = text + "\n[limits]\nmax_description_chars = 64\n"
        async with shop_on(path, peer, shorter) as shop:
            await until(lambda: bool(shop.app.gateway.snapshot.tools))
            assert (urls(shop), await held(shop)) == ({peer.url}, before)
            await accept_all(shop)
            assert urls(shop) == {other.url}
        async with shop_on(path, peer, shorter) as shop:
            assert (urls(shop), await held(shop)) == ({other.url}, [])


async def test_held_credential_is_not_used_before_it_is_accepted(
    make_shop: ShopMaker, peer: Provider
) -> None:
    def secured(name: str) -> dict[str, Any]:
        scheme = {"type": "apiKey", "name": name, "in": "header"}
        security = {"components": {"securitySchemes": {name: scheme}}, "security": [{name: []}]}
        return orders_api(peer.url) | security

    peer.document = secured("X-Key")
    auth = 'auth = { type = "api-key", value = "the-secret-key" }'
    shop = await make_shop(FREELY, connection=f"{UNTRUSTED}\n{auth}")
    await shop.ann.call("shop_get_order", id="7")
    peer.document = secured("X-Other")
    assert len((await shop.refresh())["held"]) == 3
    await shop.ann.call("shop_get_order", id="7")
    reasons = {change["reason"] for change in await held(shop)}
    assert reasons == {"the definition asks for another credential"}
    await accept_all(shop)
    await shop.ann.call("shop_get_order", id="7")
    sent = [("X-Key" in headers, "X-Other" in headers) for headers in peer.headers]
    assert sent == [(True, False), (True, False), (False, True)]


async def test_change_accepted_on_one_gateway_is_served_by_the_other(
    tmp_path: Path, peer: Provider
) -> None:
    text = config(peer, FREELY, connection=UNTRUSTED)
    async with (
        provider() as other,
        two_gateways(tmp_path, text, f"sqlite:///{tmp_path}/g.db") as (one, two),
        api(one.url, "root") as root,
    ):
        peer.document = with_host(peer.document, other.url)
        await root("POST", "/connections/shop/refresh")
        assert (urls(one), urls(two)) == ({peer.url}, {peer.url})
        for change in (await root("GET", "/changes?status=held"))[1]["changes"]:
            await root("POST", f"/changes/{change['id']}/accept")
        await until(lambda: urls(two) == {other.url})
