"""Names that nothing has, and permissions that overrule a stricter config.toml, are told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.catalog.snapshot import Snapshot
from gateway.config.settings import Permissions
from gateway.model import Build, BuiltDefinition
from gateway.policy.access import configuration_problems
from tests.policy.values import connection, snapshot, tool

SHOP = replace(
    connection("shop", tool("shop", "get_book"), replace(tool("shop", "add_book"), capability="w")),
    built=BuiltDefinition(Build("openapi-3.0", "Shop", "https://x.example")),
)


def told(found: Snapshot) -> list[tuple[str, str]]:
    return [(problem.severity, problem.where) for problem in configuration_problems(found)]


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ("[permissions.tools]\nshop_add_book = 'blocked'\nproxy = 'confirm'", []),
        ("[permissions.tools]\nshop_ad_book = 'blocked'", ["permissions.tools.shop_ad_book"]),
        ("[permissions.tools]\n'shop_*' = 'blocked'", ["permissions.tools.shop_*"]),
        (
            "[permissions.auto_approve]\ntools = ['shop_add_book', 'gone']",
            ["permissions.auto_approve.tools"],
        ),
        ("[permissions.tools]\nlater_tool = 'blocked'\nats_list = 'blocked'\nbook = 'blocked'", []),
        (
            "[auth]\nmode = 'none'\n[principals.ann.connections]\nshpo = 'read-only'",
            ["principals.ann.connections"],
        ),
        ("[bundles.all]\nconnections = ['shop', 'shpo']", ["bundles.all.connections"]),
        (
            "[bundles.all]\nconnections = ['shop']\nallow = ['get_*', 'x*', 'add_book']\n"
            "deny = ['ad_book', 'w', '*delete*']",
            ["bundles.all.deny"],
        ),
        ("[bundles.all]\nconnections = ['shop', 'later']\ndeny = ['ad_book']", []),
    ],
)
def test_names_that_nothing_has_are_told(config: str, where: list[str]) -> None:
    wrap: Any = [{"tool": "x", "as": "book"}]
    later = connection("later", kind="mcp", url="http://x.example", wrap=wrap)
    found = snapshot(SHOP, later, config=f"{config}\n[capabilities]\nats = 'later'")
    assert told(found) == [("warning", each) for each in where]


@pytest.mark.parametrize(
    ("written", "put", "where"),
    [
        ("level = 'read_only'", {"level": "execute_with_confirm"}, ["level"]),
        ("level = 'execute_with_confirm'", {"level": "full_access"}, ["level"]),
        ("level = 'full_access'", {"level": "read_only"}, []),
        ("", {}, []),
        ("tools.shop_add_book = 'blocked'", {}, ["tools.shop_add_book"]),
        ("tools.shop_get_book = 'confirm'", {}, ["tools.shop_get_book"]),
        ("tools.shop_add_book = 'confirm'", {}, []),
        ("", {"tools": {"shop_add_book": "allowed"}}, ["tools.shop_add_book"]),
        (
            "level = 'full_access'",
            {"level": "execute_with_confirm", "tools": {"shop_add_book": "allowed"}},
            [],
        ),
        (
            "",
            {"auto_approve": {"enabled": True, "tools": ("shop_add_book",)}},
            ["tools.shop_add_book"],
        ),
        ("always_allow_minutes = 5", {}, ["always_allow_minutes"]),
        ("", {"always_allow_high_risk": True}, ["always_allow_high_risk"]),
        ("self_approval = false", {}, ["self_approval"]),
    ],
)
def test_a_stricter_file_is_told_of_while_other_permissions_are_in_force(
    written: str, put: dict[str, Any], where: list[str]
) -> None:
    found = snapshot(SHOP, config=f"[permissions]\n{written}")
    assert told(found) == []
    found = replace(found, stored_permissions=Permissions.model_validate(put))
    assert told(found) == [("error", f"permissions.{each}") for each in where]
