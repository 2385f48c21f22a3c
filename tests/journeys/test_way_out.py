"""A whole gateway behind a company's proxy, with servers of a private authority beyond it."""

from __future__ import annotations

from pathlib import Path

from mcp.client.client import Client

from tests.certificates import authority
from tests.configs import table
from tests.conftest import OPEN, GatewayMaker
from tests.forward_proxy import forward_proxy, tls_front
from tests.journeys.test_live_configuration import edit
from tests.peers import items_api, provider, until
from tests.peers_mcp import mcp_peer

CLOSED = OPEN.replace('allow = ["127.0.0.1/32"]', "allow = []")


async def test_calls_and_definitions_go_through_the_proxy_as_soon_as_the_file_names_it(
    make_gateway: GatewayMaker, tmp_path: Path
) -> None:
    ca = authority(tmp_path)
    ca.issue("gateway")
    shop = {"kind": "openapi", "spec": "https://shop.test/openapi.json"}
    shop_table = table("connections.shop", **shop, tls={"cert_file": "gateway.pem"})
    gateway = await make_gateway(CLOSED + shop_table)
    async with (
        provider(items_api("https://shop.test")) as peer,
        tls_front(peer.port, ca.server("shop.test", asks_for_client=True)) as port,
        forward_proxy({"shop.test:443": port}, "gate:secret") as proxy,
    ):
        address = f"http://gate:secret@127.0.0.1:{proxy.port}"
        network = f'allow = []\nproxy = "{address}"\nca_file = "ca.pem"'
        edit(gateway.config, CLOSED.replace("allow = []", network) + shop_table)
        await until(lambda: "shop_get_items" in gateway.app.gateway.snapshot.tools)
        async with Client(gateway.mcp) as client:
            result = await client.call_tool("shop_get_items", {"id": "7"})
        assert result.structured_content == {"path": "/items/7", "method": "GET"}
    assert all(head.startswith(b"CONNECT shop.test:443 ") for head in proxy.heads)


async def test_mcp_server_that_asks_for_a_certificate_is_met_with_it(
    make_gateway: GatewayMaker, tmp_path: Path
) -> None:
    ca = authority(tmp_path)
    ca.issue("gateway")
    context = ca.server("books.test", asks_for_client=True)
    async with mcp_peer() as peer, tls_front(int(peer.url.split(":")[2][:-4]), context) as port:
        books = {"kind": "mcp", "url": f"https://127.0.0.1:{port}/mcp"}
        tls = {"ca_file": "ca.pem", "server_name": "books.test"}
        proven = table("connections.books", **books, tls=tls | {"cert_file": "gateway.pem"})
        gateway = await make_gateway(OPEN + proven)
        catalog = gateway.app.gateway
        await until(lambda: "books_echo" in catalog.snapshot.tools)
        async with Client(gateway.mcp) as client:
            result = await client.call_tool("books_echo", {"text": "hi"})
            assert result.structured_content == {"text": "hi"}
            edit(gateway.config, OPEN + table("connections.books", **books, tls=tls))
            await until(lambda: not catalog.snapshot.settings.connections["books"].tls.cert_file)
            assert (await client.call_tool("books_echo", {"text": "hi"})).is_error
