"""Effective access: the whole table, and who may know of a connection."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.config.settings import Permissions
from gateway.model import Level, Principal
from gateway.policy.access import decide, level, visible_tools
from tests.policy.values import connection, snapshot, tool

TOOLS = [tool("shop", name) for name in ("get_book", "add_book", "del_book", "nuke_shop")]
ALL = {"shop_get_book", "shop_add_book", "shop_del_book"}
READS = {"shop_get_book"}


LEVELS: list[Level] = ["disabled", "read-only", "read-write"]  # each allows more


@pytest.mark.parametrize("admin", LEVELS)
@pytest.mark.parametrize("user", LEVELS)
def test_effective_access_is_the_smaller_of_the_two(admin: Level, user: Level) -> None:
    now = snapshot(connection("shop", *TOOLS[:3], access=admin))
    principal = Principal("ann", access=user)
    effective = min(admin, user, key=LEVELS.index)
    assert level(now, principal, now.connections["shop"]) == effective
    shown = {"read-write": ALL, "read-only": READS, "disabled": set()}[effective]
    tools = visible_tools(now, principal, now.connections["shop"])
    assert {each.name for each in tools} == shown


@pytest.mark.parametrize(
    ("default", "for_shop", "chosen", "expected"),
    [
        ("read-write", None, None, "read-write"),
        ("read-only", None, None, "read-only"),
        ("read-only", "read-write", None, "read-write"),
        ("read-write", "read-only", None, "read-only"),
        ("read-write", "read-write", "disabled", "disabled"),
        ("disabled", "disabled", "read-only", "read-only"),
    ],
)
def test_a_choice_goes_before_the_connections_table_and_that_before_the_default(
    default: Level, for_shop: Level | None, chosen: Level | None, expected: Level
) -> None:
    choices: dict[tuple[str, str], Level] = {("ann", "shop"): chosen} if chosen else {}
    now = snapshot(connection("shop", *TOOLS[:3]), choices=choices)
    principal = Principal("ann", access=default, connections={"shop": for_shop} if for_shop else {})
    assert level(now, principal, now.connections["shop"]) == expected


@pytest.mark.parametrize(
    ("owner", "organization", "known"),
    [
        (None, None, True),
        (None, "acme", True),
        ("acme", "acme", True),
        ("acme", "other", False),
        ("acme", None, True),  # an admin of no organization looks after all of them
    ],
)
def test_a_connection_of_another_organization_does_not_exist(
    owner: str | None, organization: str | None, known: bool
) -> None:
    settings = {"organization": owner} if owner else {}
    now = snapshot(connection("shop", *TOOLS[:3], **settings))
    principal = Principal("ann", admin=True, organization=organization)
    assert (level(now, principal, now.connections["shop"]) is not None) is known
    assert bool(visible_tools(now, principal, now.connections["shop"])) is known


def test_a_connection_that_is_switched_off_shows_nothing() -> None:
    now = snapshot(connection("shop", *TOOLS[:3], enabled=False))
    assert visible_tools(now, Principal("ann"), now.connections["shop"]) == ()


@pytest.mark.parametrize(
    ("allowed", "word", "auto", "outcomes"),
    [
        ("read_only", None, False, "allow block block"),
        ("execute_with_confirm", None, False, "allow confirm confirm"),
        ("full_access", None, False, "allow allow allow"),
        ("read_only", "allowed", False, "allow allow allow"),
        ("full_access", "confirm", False, "confirm confirm confirm"),
        ("full_access", "blocked", False, "block block block"),
        ("execute_with_confirm", None, True, "allow allow allow"),
        ("full_access", "confirm", True, "allow allow allow"),
        ("full_access", "blocked", True, "block block block"),
        ("read_only", None, True, "allow block block"),
    ],
)
def test_a_read_a_write_and_a_delete_are_decided(
    allowed: str, word: str | None, auto: bool, outcomes: str
) -> None:
    names = [each.name for each in TOOLS[:3]]
    permissions = Permissions.model_validate(
        {
            "level": allowed,
            "tools": dict.fromkeys(names, word) if word else {},
            "auto_approve": {"enabled": auto, "tools": tuple(names)},
        }
    )
    decided = [decide(each, permissions) for each in TOOLS[:3]]
    assert " ".join(decision.outcome for decision in decided) == outcomes
    assert all(decision.reason for decision in decided)


@pytest.mark.parametrize("rule", ["blocked", "confirm", "allowed"])
@pytest.mark.parametrize("name", ["shop_get_book", "ats_read_book"])
def test_a_rule_against_one_name_of_an_operation_holds_for_its_other_names(
    name: str, rule: str
) -> None:
    book = replace(tool("shop", "get_book"), capability="read_book", entry=b'{"name":""}')
    rules = f'[capabilities]\nats = "shop"\n[permissions.tools]\n{name} = "{rule}"'
    now = snapshot(connection("shop", book), config=rules)

    outcomes = [decide(each, now.permissions).outcome for each in now.tools.values()]
    assert outcomes == [{"blocked": "block", "allowed": "allow"}.get(rule, rule)] * 2
