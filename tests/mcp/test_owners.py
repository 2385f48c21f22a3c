"""Whose a name or a URI is, among servers that list them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.errors import UpstreamFailed
from gateway.mcp.pass_through import MAX_ITEMS, REMEMBERED_SECONDS, Owners


class Servers:
    """What each server lists, page by page, and how often it was asked."""

    def __init__(self, **lists: Any) -> None:
        self.lists = lists
        self.asked: list[str] = []
        self.now = 0.0

    async def page(self, server: str, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        self.asked.append(server)
        found = self.lists[server]
        if isinstance(found, Exception):
            raise found
        key = "uriTemplate" if method == "resources/templates/list" else "uri"
        kind = "resourceTemplates" if key == "uriTemplate" else "resources"
        at = int(params.get("cursor", 0))
        page: dict[str, Any] = {kind: [{key: uri} for uri in found[at : at + 2]]}
        return {**page, "nextCursor": str(at + 2)} if at + 2 < len(found) else page


DEAD = UpstreamFailed("upstream_unreachable", "gone")


async def _owner(owners: Owners, servers: Servers, uri: str) -> str | None:
    names = sorted(servers.lists)
    return await owners.owner(names, "resources", dict.fromkeys(names, uri), servers.page)


@pytest.mark.parametrize(
    ("lists", "uri", "owner"),
    [
        ({"a": ["x:1"], "b": ["x:2"]}, "x:2", "b"),
        ({"a": ["x:1"], "b": ["x:1"]}, "x:1", "a"),
        ({"a": ["x:1", "x:2", "x:3"], "b": []}, "x:3", "a"),
        ({"a": DEAD, "b": ["x:1"]}, "x:1", "b"),
        ({"a": DEAD}, "x:1", None),
        ({"a": ["x:1"]}, "x:9", None),
        ({"a": [7, None], "b": ["x:1"]}, "x:1", "b"),
    ],
)
async def test_the_first_server_that_lists_a_uri_owns_it(
    lists: dict[str, Any], uri: str, owner: str | None
) -> None:
    assert await _owner(Owners(), Servers(**lists), uri) == owner


@pytest.mark.parametrize(
    ("uri", "owner"),
    [("a:books/7", "a"), ("b:books/7", "b"), ("c:books/7", None), ("a:" + "7" * 9000, None)],
)
async def test_a_uri_nobody_lists_belongs_to_who_has_a_template_for_it(
    uri: str, owner: str | None
) -> None:
    servers = Servers(a=["a:books/{id}", "a:{+rest"], b=["b:books/{id}"])
    assert await Owners().template_owner(["a", "b"], uri, servers.page) == owner


async def test_lists_are_remembered_until_they_change_or_grow_old() -> None:
    servers = Servers(a=["x:1"])
    owners = Owners(lambda: servers.now)
    for _ in range(3):
        assert await _owner(owners, servers, "x:1") == "a"
    assert servers.asked == ["a"]
    owners.changed("a", "resources")
    await _owner(owners, servers, "x:1")
    assert servers.asked == ["a", "a"]
    servers.now += REMEMBERED_SECONDS + 1
    await _owner(owners, servers, "x:1")
    assert servers.asked == ["a", "a", "a"]


async def test_a_list_that_fails_is_left_out_unless_all_do() -> None:
    servers = Servers(a=DEAD, b=["x:1"])
    found = await Owners().listed(["a", "b"], "resources", servers.page)
    assert found == [("b", [{"uri": "x:1"}])]
    with pytest.raises(UpstreamFailed):
        await Owners().listed(["a"], "resources", servers.page)


async def test_a_list_without_end_is_cut() -> None:
    async def page(server: str, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"resources": [{"uri": f"x:{n}"} for n in range(400)], "nextCursor": "more"}

    [(_, items)] = await Owners().listed(["a"], "resources", page)
    assert len(items) == MAX_ITEMS
