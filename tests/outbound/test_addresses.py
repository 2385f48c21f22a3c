from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import Fixable
from gateway.outbound.addresses import is_permitted, networks
from gateway.outbound.client import locate

PUBLIC = """8.8.8.8 1.1.1.1 172.32.0.1 100.128.0.1 2606:4700:4700::1111 ::ffff:8.8.8.8
2002:808:808::1 64:ff9b::808:808""".split()
OTHERS = """10.1.2.3 172.16.0.1 192.168.1.1 169.254.169.254 100.64.0.1 224.0.0.1 240.0.0.1
255.255.255.255 198.18.0.1 ::ffff:10.0.0.1 fe80::1 fe80::1%eth0 fc00::1 ff02::1 2001:db8::1
2001::1 2002:a00:1::1 64:ff9b::a9fe:a9fe 64:ff9b:1::808:808""".split()


@pytest.mark.parametrize("address", [*PUBLIC, *OTHERS])
def test_only_public_addresses_are_permitted(address: str) -> None:
    assert is_permitted(ipaddress.ip_address(address), ()) is (address in PUBLIC)


def test_address_inside_an_allowed_network_is_permitted() -> None:
    allowed = networks(["10.0.0.0/8", "fd00::/8", "127.0.0.1"])
    inside = ["10.1.2.3", "::ffff:10.1.2.3", "64:ff9b::a01:203", "fd00::1", "127.0.0.1"]
    outside = ["192.168.0.1", "fe80::1", "127.0.0.2", "::1"]
    judged = {a: is_permitted(ipaddress.ip_address(a), allowed) for a in inside + outside}
    assert judged == dict.fromkeys(inside, True) | dict.fromkeys(outside, False)


def test_international_host_is_dialled_by_its_ascii_name() -> None:
    assert str(locate("https://bücher.example/é?é")) == (
        "https://xn--bcher-kva.example/%C3%A9?%C3%A9"
    )


_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="#"), max_size=20)
_HOSTS = ["api.example.com", "API.example.com:8443", "127.1", "[2001:db8::1]", "bücher.example:80"]


@given(st.sampled_from(_HOSTS), st.just("/") | _TEXT.map("/{}".format), _TEXT)
def test_path_and_query_reach_the_wire_as_they_are_spelled(
    host: str, path: str, query: str
) -> None:
    try:
        target = locate(f"http://{host}{path}?{query}")
    except Fixable:
        return  # a control character
    path, _, rest = f"{path}?{query}".partition("?")
    kept = path.isascii() and rest.isascii() and " " not in path + rest
    asked = target.raw_path_qs
    assert asked.isascii() and asked.isprintable() and " " not in asked
    assert not kept or asked == (f"{path}?{rest}" if rest else path)
    assert str(target) == f"http://{target.raw_authority}{asked}"
