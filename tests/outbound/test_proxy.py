"""Everything through a forward proxy, which resolves names and wants a login."""

from __future__ import annotations

import threading
import traceback
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import GatewayError, Refused
from gateway.outbound.client import Egress, NoAnswer
from tests.certificates import authority
from tests.forward_proxy import ForwardProxy, forward_proxy
from tests.outbound.exchanges import ask, names
from tests.raising import raises
from tests.raw_server import always, answer, once, raw_server

LOGIN = "gate:p@ss word"
SECRET = "p@ss word"
QUOTED = "gate:p%40ss%20word"


# A name server behind a firewall: it knows the proxy and names of this network.
INSIDE = {
    "proxy.test": ["127.0.0.1"],
    "inside.test": ["10.0.0.7"],
    "outside.test": ["93.184.216.34"],
    "both.test": ["93.184.216.34 10.0.0.1"],
}


def through(proxy: ForwardProxy, login: str = QUOTED, **options: Any) -> Egress:
    at = f"{login}@" if login else ""
    return Egress(proxy=f"http://{at}proxy.test:{proxy.port}", lookup=names(INSIDE), **options)


async def test_http_goes_through_the_proxy_which_needs_no_entry_in_allow() -> None:
    path = "/a//b/../%2e%2E/x%2Fy?a=b+c&d=%20e&f=[g]"
    async with (
        raw_server(always(answer(b"hi"))) as server,
        forward_proxy({"far.test": server.port}, LOGIN) as proxy,
        through(proxy) as egress,
    ):
        reply = await ask(egress, f"http://far.test{path}", "POST", [("X-A", "1")], b"{}")
    assert reply.body == b"hi"
    assert proxy.heads[0].startswith(
        f"POST http://far.test{path} HTTP/1.1\r\nHost: far.test\r\n".encode()
    )
    # What the proxy passed on: its login stays with it.
    assert b"proxy-authorization" not in server.requests[0].lower()
    assert server.requests[0].endswith(b"\r\n\r\n{}")


async def test_https_goes_through_a_tunnel_to_the_name_which_only_the_proxy_knows(
    tmp_path: Path,
) -> None:
    ca = authority(tmp_path)
    async with (
        raw_server(always(answer(b"hi")), ca.server("far.test")) as server,
        forward_proxy({"far.test:443": server.port}, LOGIN) as proxy,
        through(proxy, ca_file=str(ca.file)) as egress,
    ):
        for _ in range(2):
            assert (await ask(egress, "https://far.test/x?secret=1")).body == b"hi"
    (head,) = proxy.heads  # one tunnel for both, and nothing of the request in it
    assert head.startswith(b"CONNECT far.test:443 HTTP/1.1\r\n") and b"secret" not in head
    assert b"User-Agent: dynamic-mcp-gateway\r\n" in head
    assert b"proxy-authorization" not in server.requests[0].lower()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://0x7f.1/",
        "https://[::1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://inside.test/",
        "https://inside.test/",
        "http://proxy.test:3128/",
        "http://both.test/",  # the proxy would pick
    ],
)
async def test_address_is_judged_before_anything_reaches_the_proxy(url: str) -> None:
    async with forward_proxy({}) as proxy, through(proxy) as egress:
        for attempt in (ask(egress, url), egress.check(url)):
            with raises(Refused, code="access_denied"):
                await attempt
    assert proxy.heads == []


async def test_allowed_address_goes_through_the_proxy_too() -> None:
    async with (
        raw_server(always(answer(b"hi"))) as server,
        forward_proxy({"inside.test": server.port}) as proxy,
        through(proxy, "", allow=["10.0.0.0/8"]) as egress,
    ):
        assert (await ask(egress, "http://inside.test/")).body == b"hi"


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("login", ["", "gate:wrong"])
async def test_login_that_the_proxy_refuses_is_named_and_nothing_was_sent(
    scheme: str, login: str
) -> None:
    hosts = {"far.test": 1, "far.test:443": 1}
    async with forward_proxy(hosts, LOGIN) as proxy, through(proxy, login) as egress:
        with raises(
            NoAnswer, message="The proxy does not accept the gateway's credentials.", sent=False
        ):
            await ask(egress, f"{scheme}://far.test/", "POST")


async def test_proxy_that_can_not_connect_is_named_and_nothing_was_sent() -> None:
    async with forward_proxy({}, LOGIN) as proxy, through(proxy) as egress:
        await egress.check("https://nowhere.test/")  # left to the proxy
        with raises(NoAnswer, message="The proxy did not connect to the server.", sent=False):
            await ask(egress, "https://nowhere.test/", "POST")


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:1", "http://nowhere.test:3128"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_proxy_that_is_not_there_is_named_and_nothing_was_sent(
    proxy: str, scheme: str
) -> None:
    async with Egress(proxy=proxy, lookup=names(INSIDE)) as egress:
        with raises(NoAnswer, message="The proxy could not be reached.", sent=False):
            await ask(egress, f"{scheme}://far.test/", "POST")


async def test_deadline_while_a_name_is_judged_is_known_to_have_sent_nothing() -> None:
    released = threading.Event()

    def lookup(*_: Any) -> list[Any]:
        released.wait(5)
        return []

    async with Egress(proxy="http://127.0.0.1:1", lookup=lookup) as egress:
        with raises(NoAnswer, code="upstream_timeout", sent=False):
            await ask(egress, "http://far.test/", "POST", deadline=0.1)
        released.set()


async def test_password_of_the_proxy_is_in_no_error() -> None:
    async with raw_server(once(b"not HTTP\r\n\r\n")) as server:
        address = f"http://{QUOTED}@127.0.0.1:{server.port}"
        async with Egress(proxy=address, lookup=names(INSIDE)) as egress:
            for url in ("http://far.test/", "https://far.test/", "http://10.0.0.1/"):
                with pytest.raises(GatewayError) as failure:
                    await ask(egress, url)
                shown = "".join(traceback.format_exception(failure.value)) + repr(failure.value)
                assert SECRET not in shown and QUOTED not in shown
                assert "Z2F0ZTpwQHNz" not in shown  # as the header has it


async def test_proxy_is_changed_and_left_out_while_the_gateway_runs() -> None:
    async with (
        raw_server(always(answer(b"hi"))) as server,
        forward_proxy({"far.test": server.port, f"127.0.0.1:{server.port}": server.port}) as one,
        forward_proxy({"far.test": server.port}) as other,
        through(one, "") as egress,
    ):
        await ask(egress, "http://far.test/")
        egress.follow([], f"http://proxy.test:{other.port}", None)
        await ask(egress, "http://far.test/")
        assert (len(one.heads), len(other.heads)) == (1, 1)
        egress.follow(["127.0.0.1"], None, None)
        assert (await ask(egress, server.url)).body == b"hi"
    assert (len(one.heads), len(other.heads)) == (1, 1)
