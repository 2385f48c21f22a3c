"""What a principal sees at an address: bundles narrow, routes deny, names stay unique."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.catalog.snapshot import assemble
from gateway.config.settings import Settings
from gateway.model import OWN_TOOL_NAMES, Principal, Tool, ViewAddress
from gateway.policy.view import View, make_view, why_hidden, why_own_hidden
from gateway.web.own_tools import OWN_TOOLS
from tests.configs import table
from tests.policy.values import connection, snapshot, tool

SHOP = connection("shop", *(tool("shop", n) for n in ("get_book", "add_book", "del_book")))
DESK = connection("desk", *(tool("desk", n) for n in ("get_seat", "add_seat")))

EVERYTHING = "desk_add_seat desk_get_seat shop_add_book shop_del_book shop_get_book"
AUTO: dict[str, Any] = {"mode": "auto"}
BUNDLES: dict[str, dict[str, Any]] = {
    "all_shop": {"connections": ["shop"]},
    "reading": {"connections": ["shop", "desk"], "allow": ["get_*"]},
    "no_deletes": {"connections": ["shop"], "deny": ["del_*"]},
    "hidden": {"mode": "meta", "connections": ["desk"]},
    "small": {"connections": ["desk"], "token_budget": 20, **AUTO},
    "large": {"connections": ["shop"], "token_budget": 29, **AUTO},
}
CONFIG = (
    "".join(table(f"bundles.{name}", **values) for name, values in BUNDLES.items())
    + table("roles.clerk", bundles=["reading"])
    + table("roles.chief", bundles=list(BUNDLES))
    + table("roles.nobody")
    + table("routes.opening.clerk", morning=["reading"])
)


OWN = ViewAddress()


def seen(role: str | None, address: ViewAddress = OWN, admin: bool = False) -> View:
    now = snapshot(SHOP, DESK, config=CONFIG)
    return make_view(now, Principal("ann", admin=admin, role=role), address, OWN_TOOLS)


def bundles(*names: str) -> ViewAddress:
    return ViewAddress("bundles", names)


@pytest.mark.parametrize("pattern", ["get_book", "read_*"])
def test_a_bundle_denies_an_operation_under_all_its_names(pattern: str) -> None:
    book = replace(tool("shop", "get_book"), capability="read_book")
    bundle = table("bundles.b", connections=["shop"], deny=[pattern])
    now = snapshot(connection("shop", book), config=f'{bundle}[capabilities]\nats = "shop"')
    assert set(now.tools) == {"shop_get_book", "ats_read_book"}
    assert not make_view(now, Principal("ann"), bundles("b"), OWN_TOOLS).direct_tools


@pytest.mark.parametrize(
    ("role", "address", "direct", "meta"),
    [
        (None, OWN, EVERYTHING, ""),
        ("clerk", ViewAddress(), "desk_get_seat shop_get_book", ""),
        ("nobody", ViewAddress(), "", ""),
        ("chief", bundles("all_shop"), "shop_add_book shop_del_book shop_get_book", ""),
        ("chief", bundles("all_shop", "no_deletes"), "shop_add_book shop_get_book", ""),
        ("chief", bundles("reading", "no_deletes"), "desk_get_seat shop_get_book", ""),
        ("chief", bundles("hidden"), "", "desk_add_seat desk_get_seat"),
        ("chief", bundles("hidden", "reading"), "shop_get_book", "desk_get_seat"),
        ("chief", bundles("small"), "desk_add_seat desk_get_seat", ""),
        ("chief", bundles("large"), "", "shop_add_book shop_del_book shop_get_book"),
        ("clerk", bundles("all_shop"), "", ""),
        ("clerk", bundles("reading", "all_shop"), "", ""),
        ("chief", bundles("unknown"), "", ""),
        ("clerk", ViewAddress("step", ("opening", "morning")), "desk_get_seat shop_get_book", ""),
        ("clerk", ViewAddress("step", ("opening", "evening")), "", ""),
        ("clerk", ViewAddress("step", ("closing", "morning")), "", ""),
        ("chief", ViewAddress("step", ("opening", "morning")), "", ""),
        (None, ViewAddress("step", ("opening", "morning")), "", ""),
    ],
    ids=str,
)
def test_bundles_roles_and_routes_decide_what_is_seen(
    role: str | None, address: ViewAddress, direct: str, meta: str
) -> None:
    found = seen(role, address)
    assert " ".join(sorted(found.direct_tools)) == direct
    assert " ".join(sorted(found.meta_tools)) == meta


MORNING = ViewAddress("step", ("opening", "morning"))
EVERYWHERE = [OWN, MORNING, bundles("unknown"), bundles("large")]
EVERYWHERE += [bundles(one, other) for one in BUNDLES for other in BUNDLES]


@pytest.mark.parametrize("role", [None, "clerk", "chief", "nobody"])
@pytest.mark.parametrize("trust", ["trusted", "untrusted"])
def test_whatever_is_not_listed_has_a_reason_and_nothing_else_has(role: str, trust: str) -> None:
    desk = replace(DESK, settings=DESK.settings.model_copy(update={"trust": trust}))
    now = snapshot(SHOP, desk, config=CONFIG, choices={("ann", "shop"): "read-only"})
    ann = Principal("ann", role=role)
    for address in EVERYWHERE:
        found = make_view(now, ann, address, OWN_TOOLS)
        for each in now.tools.values():
            said = why_hidden(now, ann, found, now.connections[each.connection], each)
            assert bool(said) == (each.name not in found.direct_tools), (address, each.name, said)
        for own in OWN_TOOLS:
            said = why_own_hidden(own, now, ann, found)
            assert not said or own.name not in found.own_names or own.audience == "meta"
            assert said or own.name in found.own_names
        if trust == "untrusted" and "reading" in found.bundle_ids:
            said = why_hidden(now, ann, found, desk, None)
            assert said.startswith("desk is untrusted: bundle ")


def test_the_gateways_own_tools_are_listed_where_they_belong() -> None:
    admins = {"put_connection", "delete_connection", "refresh_tools"}
    meta = {"mcp_list_tools", "mcp_search_tools", "mcp_get_tool_schema", "mcp_call_tool"}
    assert seen(None).own_names >= {"list_dynamic_tools", "list_connections", "read_result"}
    assert not seen(None).own_names & (admins | meta)
    assert seen(None, admin=True).own_names >= admins
    assert seen("chief", bundles("all_shop")).own_names == {"read_result"}
    assert seen("chief", bundles("hidden")).own_names == {"read_result", *meta}
    assert seen("clerk", ViewAddress("step", ("opening", "evening"))).own_names == frozenset()


def paged(names: list[str], size: int, cursor: str | None = None) -> tuple[list[str], str | None]:
    """One page of a list with these tools beside the gateway's own."""
    shop = connection("shop", *(tool("shop", name) for name in names))
    shown = make_view(snapshot(shop), Principal("ann"), OWN, OWN_TOOLS).page(cursor, size)
    assert shown is not None
    page = orjson.loads(b"{%b}" % shown)
    return [entry["name"] for entry in page["tools"]], page.get("nextCursor")


@pytest.mark.parametrize("size", [1, 3, 7, 50, 2000])
def test_pages_put_together_are_the_list(size: int) -> None:
    listed, cursor = paged([f"get_{n}" for n in range(60)], size)
    assert len(listed) <= size
    while cursor:
        page, cursor = paged([f"get_{n}" for n in range(60)], size, cursor)
        assert 0 < len(page) <= size
        listed += page
    own = seen(None).own_names
    assert listed == [*sorted(own), *sorted(f"shop_get_{n}" for n in range(60))]


@given(
    st.lists(st.sets(st.sampled_from([f"get_{n}" for n in range(30)])), min_size=1, max_size=40),
    st.integers(1, 12),
)
def test_while_tools_come_and_go_none_is_listed_twice_and_none_that_stays_is_left_out(
    worlds: list[set[str]], size: int
) -> None:
    stays, listed, cursor = {"get_4", "get_17"}, list[str](), None
    for names in [*worlds, *worlds[-1:] * 60]:
        page, cursor = paged(sorted(names | stays), size, cursor)
        listed += page
        if cursor is None:
            break
    assert cursor is None
    assert len(listed) == len(set(listed))
    assert {*seen(None).own_names, *(f"shop_{name}" for name in stays)} <= set(listed)


@pytest.mark.parametrize(
    "wrong", ["0", "500", "", "²", "shop_get_1", "tool:", "tool:a b", "own:\n"]
)
def test_a_cursor_that_was_never_given_is_refused(wrong: str) -> None:
    assert seen(None).page(wrong, 7) is None


def test_the_digest_changes_exactly_with_the_list() -> None:
    assert seen(None).digest == seen(None).digest
    assert seen(None).digest != seen("clerk").digest
    assert seen(None).digest != seen(None, admin=True).digest
    assert seen("clerk").digest != seen("clerk", ViewAddress("step", ("opening", "morning"))).digest


@pytest.mark.parametrize(
    ("bundle", "reached"),
    [
        ('mode = "meta"\nallow = ["get_*"]', {"wild_get_x"}),
        ('mode = "meta"', set()),
        ('mode = "auto"\nallow = ["get_*"]', set()),
        ('allow = ["get_*"]', set()),
    ],
)
def test_an_untrusted_connection_is_reached_by_meta_bundles_that_name_tools(
    bundle: str, reached: set[str]
) -> None:
    wild = connection("wild", tool("wild", "get_x"), trust="untrusted")
    now = snapshot(wild, config=f'[bundles.b]\nconnections = ["wild"]\n{bundle}')
    found = make_view(now, Principal("ann"), bundles("b"), OWN_TOOLS)
    assert {*found.direct_tools, *found.meta_tools} == reached


def test_no_connection_takes_a_name_of_the_gateway_or_of_another() -> None:
    mine = tool("shop", "get_book")
    thief = connection("thief", mine, tool("thief", "get_x"))
    impostor = connection("imp", *(_named(tool("imp", "get_y"), n) for n in OWN_TOOL_NAMES))
    now = assemble(1, Settings(), [SHOP, thief, impostor])
    assert now.tools["shop_get_book"].connection == "shop"
    assert [t.name for t in now.connections["thief"].tools] == ["thief_get_x"]
    assert now.connections["imp"].tools == ()
    assert {problem.severity for problem in now.connections["imp"].problems} == {"error"}
    assert len(now.connections["imp"].skipped) == len(OWN_TOOL_NAMES)


def test_the_names_of_the_gateways_own_tools_are_known_to_connectors() -> None:
    assert {own.name for own in OWN_TOOLS} == OWN_TOOL_NAMES


@pytest.mark.parametrize(
    ("name", "settings", "listed"),
    [
        ("bare", {"prefix": ""}, "shop_get_nothing"),
        ("bare", {"prefix": ""}, "given"),
        ("bare", {"prefix": ""}, "books_get"),
        ("sho", {"prefix": "sho"}, "shop_get_nothing"),
        ("shop_x", {}, "shop_x_y_get"),
    ],
    ids=["a prefix", "a given name", "a capability", "the longer prefix", "a name in a name"],
)
def test_what_a_connection_may_come_to_have_is_never_anothers(
    name: str, settings: dict[str, Any], listed: str
) -> None:
    config = '[capabilities]\nbooks = "shop"\n[connections.shop]\nkind = "openapi"\nspec = "x.yaml"'
    wraps = [{"tool": "make", "as": "given"}]
    thief = connection(name, _named(tool(name, "get_y"), listed), **settings)
    owners = (
        connection("shop"),
        connection("shop-x-y"),
        connection("zoo", kind="mcp", url="https://x.example", wrap=wraps),
    )
    now = snapshot(thief, *owners, config=config)
    assert now.tools == {}
    assert [problem.severity for problem in now.connections[name].problems] == ["error"]


def test_a_connection_that_is_put_takes_no_name_of_a_configured_one() -> None:
    configured = connection("shop", _named(tool("shop", "get_y"), "shop_new_get_y"))
    put = replace(connection("shop-new", tool("shop_new", "get_y")), origin="stored")
    assert snapshot(configured, put).tools["shop_new_get_y"].connection == "shop"


def _named(one: Tool, name: str) -> Tool:
    return replace(one, name=name)
