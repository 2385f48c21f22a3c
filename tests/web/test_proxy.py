from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.blocklist import decodings
from gateway.errors import Fixable, GatewayError, Refused
from gateway.web.proxy import plain_path


@pytest.mark.parametrize(
    ("path", "plain", "query"),
    [
        ("/orders", "/orders", {}),
        ("orders/7", "/orders/7", {}),
        ("/", "/", {}),
        ("/a/../b/./c", "/b/c", {}),
        ("/orders/", "/orders/", {}),
        ("/orders?x=1&y=&x=2", "/orders", {"x": ["1", "2"], "y": ""}),
        ("/a%20b/c%2Fd", "/a%20b/c%2Fd", {}),
        ("/orders/{id}", "/orders/%7Bid%7D", {}),
    ],
)
def test_path_is_made_plain(path: str, plain: str, query: dict[str, Any]) -> None:
    assert plain_path(path) == (plain, query)


CLIMBING = """/../users /a/../../users /%2e%2e/users /a/%252e%252e/users /..;/users
/a/..%2fusers""".split()
WRONG = [
    "http://elsewhere/x",
    "/x\r\nHost: elsewhere",
    "/a\\..\\b",
    "/a#b",
    "/a b",
    "/" + "a" * 5000,
]


@pytest.mark.parametrize(
    ("path", "error"),
    [*((path, Refused) for path in CLIMBING), *((path, Fixable) for path in WRONG)],
)
def test_path_that_leaves_its_place_is_refused(path: str, error: type[GatewayError]) -> None:
    with pytest.raises(error):
        plain_path(path)


@given(st.lists(st.sampled_from(["a", "..", ".", "%2e%2e", "%2E.", "%252e%252e", "b;c", ""])))
def test_no_reading_of_a_plain_path_climbs(segments: list[str]) -> None:
    try:
        plain, _ = plain_path("/" + "/".join(segments))
    except GatewayError:
        return
    for text in decodings(plain):
        assert not {"..", "."} & set(text.split("/"))
