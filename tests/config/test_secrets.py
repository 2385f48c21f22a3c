"""A connection's secrets, echoed by its API in whatever dress, reach nobody."""

from __future__ import annotations

from aiohttp import web
from mcp.client.client import Client

from gateway.config.connection import secrets_of
from gateway.config.file import parse_connection
from tests.callers import own_call
from tests.conftest import Running
from tests.peers import provider

TOKEN = "s3cr3t-t0k3n-0123456789"


CHARSETS = ("utf-8", "utf-16", "utf-16-le", "utf-7", "cp037", "unicode_escape", "latin-1")


async def test_no_charset_carries_a_token_out(gateway: Running) -> None:
    async def echo(request: web.Request) -> web.Response:
        charset, status = request.path.rpartition("/")[2].split("_in_")[::-1]
        said = f'{{"you sent": "{request.headers["Authorization"]}"}}'.encode(charset)
        headers = {"Content-Type": f"application/json; charset={charset}"}
        return web.Response(body=said, status=int(status), headers=headers)

    auth = {"type": "bearer", "token": TOKEN}
    async with provider() as peer, Client(gateway.mcp) as client:
        put = {"name": "shop", "kind": "openapi", "spec": peer.spec, "auth": auth}
        await own_call(client, "put_connection", **put)
        peer.answer = echo
        told = [
            (await client.call_tool("shop_get_items", {"id": f"{status}_in_{charset}"}))
            for charset in CHARSETS
            for status in (200, 404)
        ]
        past = await own_call(client, "list_executions")
    assert len(peer.requests) == len(told)
    assert TOKEN not in str(past) + "".join(result.model_dump_json() for result in told)


def test_every_place_where_settings_hold_a_secret_is_known() -> None:
    settings = parse_connection(
        "shop",
        {
            "kind": "openapi",
            "spec": "https://shop.example/openapi.json?api_key=of-the-address&page=2",
            "headers": {"X-Auth-Key": "of-a-header", "X-Team": "hr"},
            "inject": {"tenant": {"id": ["of-an-injection"]}},
            "auth": {"type": "basic", "username": "user-name", "password": "of-the-login"},
        },
    )
    assert secrets_of(settings) == {
        *("of-the-address", "of-a-header", "of-an-injection"),
        *("user-name", "of-the-login", "user-name:of-the-login"),
    }
