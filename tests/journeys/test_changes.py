"""A definition that changes under us: what is risky is held, shown, accepted or rejected."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.conftest import GatewayMaker, Running, gateway_on, two_gateways
from tests.journeys.confirming import FREELY, Api, api, client, config, orders_api
from tests.journeys.test_live_configuration import edit
from tests.peers import Provider, provider, until

UNTRUSTED = 'trust = "untrusted"'


async def refreshed(root: Api) -> dict[str, Any]:
    status, report = await root("POST", "/connections/shop/refresh")
    assert status == 200
    return dict(report)


async def held(root: Api) -> list[dict[str, Any]]:
    return list((await root("GET", "/changes?status=held"))[1]["changes"])


def with_host(document: dict[str, Any], url: str) -> dict[str, Any]:
    return {**document, "servers": [{"url": url}]}


async def test_another_host_is_held_for_untrusted_connections_until_accepted(
    make_gateway: GatewayMaker, peer: Provider
) -> None:
    async with provider() as other:
        shop: Running = await make_gateway(config(peer, FREELY, connection=UNTRUSTED))
        async with api(shop.url, "root") as root, api(shop.url, "ann") as ann:
            peer.document = with_host(peer.document, other.url)
            report = await refreshed(root)
            assert report["held"] == ["shop_cancel_order", "shop_get_order", "shop_place_order"]
            changes = await held(root)
            first = next(c for c in changes if c["tool"] == "shop_get_order")
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
            body = {"arguments": {"id": "7"}}
            raw = {"connection": "shop", "method": "GET", "path": "/secrets"}
            await ann("POST", "/tools/shop_get_order/call", body)
            await ann("POST", "/proxy", raw)
            assert (len(peer.requests), other.requests) == (2, [])
            status, accepted = await root("POST", f"/changes/{first['id']}/accept")
            assert (status, accepted["status"], accepted["by"]) == (200, "accepted", "root")
            await ann("POST", "/tools/shop_get_order/call", body)
            assert [path for _, path, _ in other.requests] == ["/orders/7"]
            assert (await root("POST", f"/changes/{first['id']}/reject"))[0] == 409
            assert (await root("POST", "/changes/none/accept"))[0] == 404
            assert len(await held(root)) == 2


RULES = [
    ('operations = { getOrder = { access = "dangerous" } }', None),
    ('operations = { "get*" = { access = "delete" } }', "delete"),
    ('exclude = ["getOrder"]', None),
    ('include = ["place*", "cancel*"]', None),
]


async def test_what_an_operator_says_holds_for_a_tool_whose_change_is_held_and_accepted(
    make_gateway: GatewayMaker, peer: Provider
) -> None:
    shop: Running = await make_gateway(config(peer, FREELY, connection=UNTRUSTED))

    def served() -> str | None:
        tool = shop.app.gateway.snapshot.tools.get("shop_get_order")
        return tool.access if tool else None

    async def serves(access: str | None) -> None:
        await until(lambda: served() == access)

    async with api(shop.url, "root") as root:
        for number, (rule, access) in enumerate(RULES):
            peer.document = with_host(peer.document, f"{peer.url}/v{number}")
            await refreshed(root)
            edit(shop.config, config(peer, FREELY, connection=f"{UNTRUSTED}\n{rule}"))
            await serves(access)
            await refreshed(root)
            assert served() == access
            for change in await held(root):
                await root("POST", f"/changes/{change['id']}/accept")
            assert served() == access
            edit(shop.config, config(peer, FREELY, connection=UNTRUSTED))
            await serves("read")


async def test_accepted_tool_is_served_at_once_and_clients_are_told(
    make_gateway: GatewayMaker, peer: Provider
) -> None:
    shop: Running = await make_gateway(config(peer, FREELY, connection='on_change = "hold_all"'))
    operation = orders_api(peer.url)["paths"]["/orders/{id}"]["get"]
    async with api(shop.url, "root") as root, client(shop.url, "ann", "2026-07-28") as ann:
        peer.document = orders_api(peer.url, getOrder={**operation, "summary": "Look up an order"})
        await refreshed(root)
        [change] = await held(root)
        assert (change["class"], change["reason"]) == ("safe", "the description changed")
        async with ann.listen(tools_list_changed=True) as told:
            await root("POST", f"/changes/{change['id']}/accept")
            async with asyncio.timeout(15):
                await anext(aiter(told))
        [tool] = [t for t in (await ann.list_tools()).tools if t.name == "shop_get_order"]
    assert tool.description == "[Orders] Look up an order"


async def test_rejected_change_stays_out_and_is_not_told_again(
    make_gateway: GatewayMaker, peer: Provider
) -> None:
    shop: Running = await make_gateway(config(peer, FREELY, connection=UNTRUSTED))
    document = orders_api(peer.url)
    document["paths"]["/users"] = {"delete": {"operationId": "wipe", "responses": {}}}
    async with api(shop.url, "root") as root:
        peer.document = document
        assert (await refreshed(root))["held"] == ["shop_wipe"]
        [change] = await held(root)
        assert (change["kind"], change["reason"]) == ("added", "a new delete operation")
        assert (await root("POST", f"/changes/{change['id']}/reject"))[1]["status"] == "rejected"
        document["paths"]["/more"] = {"get": {"operationId": "more", "responses": {}}}
        peer.document = document
        assert (await refreshed(root))["added"] == ["shop_more"]
        assert await held(root) == []
        _, tools = await root("GET", "/tools")
        _, history = await root("GET", "/changes?connection=shop")
    assert "shop_wipe" not in {tool["name"] for tool in tools["tools"]}
    assert [(c["tool"], c["status"]) for c in history["changes"]] == [
        ("shop_more", "applied"),
        ("shop_wipe", "rejected"),
    ]


async def test_trusted_connections_take_changes_over_and_record_them(
    make_gateway: GatewayMaker, peer: Provider
) -> None:
    shop: Running = await make_gateway(config(peer, FREELY))
    document = orders_api(peer.url)
    del document["paths"]["/orders/{id}"]["delete"]
    document["paths"]["/orders"]["post"]["requestBody"]["content"]["application/json"]["schema"][
        "required"
    ] = ["book", "notes"]
    async with api(shop.url, "root") as root:
        peer.document = document
        report = await refreshed(root)
        _, history = await root("GET", "/changes")
    assert (report["removed"], report["changed"], report["held"]) == (
        ["shop_cancel_order"],
        ["shop_place_order"],
        [],
    )
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
        async with gateway_on(path, text) as shop, api(shop.url, "root") as root:
            peer.document = with_host(peer.document, other.url)
            await refreshed(root)
            before = await held(root)
        async with gateway_on(path, text) as shop, api(shop.url, "root") as root:
            assert (urls(shop), await held(root)) == ({peer.url}, before)
            peer.raw = b"not a definition"
            assert (await refreshed(root))["status"] == "failing"
            peer.raw = None
            assert (await refreshed(root))["status"] == "connected"
            assert (urls(shop), await held(root)) == ({peer.url}, before)
        shorter = text + "\n[limits]\nmax_description_chars = 64\n"
        async with gateway_on(path, shorter) as shop, api(shop.url, "root") as root:
            await until(lambda: bool(shop.app.gateway.snapshot.tools))
            assert (urls(shop), await held(root)) == ({peer.url}, before)
            for change in before:
                assert (await root("POST", f"/changes/{change['id']}/accept"))[0] == 200
            assert urls(shop) == {other.url}
        async with gateway_on(path, shorter) as shop, api(shop.url, "root") as root:
            assert (urls(shop), await held(root)) == ({other.url}, [])


async def test_held_credential_is_not_used_before_it_is_accepted(
    make_gateway: GatewayMaker, peer: Provider
) -> None:
    def secured(name: str) -> dict[str, Any]:
        scheme = {"type": "apiKey", "name": name, "in": "header"}
        return {
            **orders_api(peer.url),
            "components": {"securitySchemes": {name: scheme}},
            "security": [{name: []}],
        }

    peer.document = secured("X-Key")
    auth = 'auth = { type = "api-key", value = "the-secret-key" }'
    text = config(peer, FREELY, connection=f"{UNTRUSTED}\n{auth}")
    shop: Running = await make_gateway(text)
    async with api(shop.url, "root") as root, api(shop.url, "ann") as ann:
        call = ("POST", "/tools/shop_get_order/call", {"arguments": {"id": "7"}})
        await ann(*call)
        peer.document = secured("X-Other")
        assert len((await refreshed(root))["held"]) == 3
        await ann(*call)
        reasons = {change["reason"] for change in await held(root)}
        for change in await held(root):
            await root("POST", f"/changes/{change['id']}/accept")
        await ann(*call)
    assert reasons == {"the definition asks for another credential"}
    assert [("X-Key" in headers, "X-Other" in headers) for headers in peer.headers] == [
        (True, False),
        (True, False),
        (False, True),
    ]


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
        await refreshed(root)
        assert (urls(one), urls(two)) == ({peer.url}, {peer.url})
        for change in await held(root):
            await root("POST", f"/changes/{change['id']}/accept")
        await until(lambda: urls(two) == {other.url})
