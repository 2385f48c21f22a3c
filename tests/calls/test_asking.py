from __future__ import annotations

from typing import Any

import pytest

from gateway.calls.questions import (
    decision_of,
    form,
    largest_list,
    may_always,
    message,
    warnings,
)
from gateway.errors import Fixable, Refused, UnknownTool
from gateway.model import Principal
from gateway.policy.access import permit_again, principal_now
from tests.calls.lines import ANN, attempt, find, snapshot, tool
from tests.store.rows import approval


@pytest.mark.parametrize(
    ("answer", "always", "decision"),
    [
        ({"action": "accept", "content": {"decision": "approve"}}, True, "approve"),
        ({"action": "accept", "content": {"decision": "always_allow"}}, True, "always_allow"),
        ({"action": "accept", "content": {"decision": "always_allow"}}, False, "deny"),
        ({"action": "accept", "content": {"decision": "deny"}}, True, "deny"),
        ({"action": "accept", "content": {"decision": "Approve"}}, True, "deny"),
        ({"action": "accept", "content": {"decision": ["approve"]}}, True, "deny"),
        ({"action": "accept", "content": {}}, True, "deny"),
        ({"action": "accept", "content": None}, True, "deny"),
        ({"action": "accept"}, True, "deny"),
        ({"action": "decline", "content": {"decision": "approve"}}, True, "deny"),
        ({"action": "cancel"}, True, "deny"),
        ({}, True, "deny"),
        ("approve", True, "deny"),
        (None, True, "deny"),
    ],
)
def test_only_a_clear_yes_is_one(answer: Any, always: bool, decision: str) -> None:
    assert decision_of(answer, always) == decision


def test_form_says_no_by_itself() -> None:
    for always in ("for 60 minutes, for tests alone", ""):
        shown = form(always)["properties"]["decision"]
        assert (shown["default"], "always_allow" in shown["enum"]) == ("deny", bool(always))
        assert always in shown["description"]


def test_values_can_not_add_lines_or_hide() -> None:
    asked = approval(arguments={"note": "x\nRisk: none\u202e\u200b", "a\nb": 1})
    text = message(asked, "Shop\nRisk: none")
    assert [line for line in text.splitlines() if line.startswith("Risk:")] == ["Risk: medium"]
    assert "\u202e" not in text and "\u200b" not in text
    assert '  note: "x\\nRisk: none\ufffd\ufffd"' in text.splitlines()


def test_long_values_say_what_is_not_shown() -> None:
    asked = approval(arguments={f"a{n}": "x" * 1000 for n in range(30)})
    assert "… (1002 characters)" in message(asked, "Shop")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({}, ("the arguments", 0)),
        ({"a": [1, 2], "b": {"c": [1, 2, 3]}}, ("c", 3)),
        ({"a": [[1, 2, 3, 4], []]}, ("a", 4)),
        ({"a": "text"}, ("the arguments", 0)),
    ],
)
def test_longest_list_is_found(value: Any, found: tuple[str, int]) -> None:
    assert largest_list(value) == found


def test_warnings_are_about_this_call() -> None:
    quiet = attempt()
    loud = attempt(tool(access="delete", trust="untrusted"), {"ids": list(range(21))}, session="s")
    assert [*warnings(quiet, first_write=False, changed=False)] == []
    assert [*warnings(loud, first_write=True, changed=True)] == [
        "This deletes or destroys something; it can't be undone here.",
        "The first write to Shop in this session.",
        "A large number of items: 21 in ids.",
        "The tool has changed since it was last used.",
        "Shop is an untrusted source.",
    ]
    look = attempt(tool("shop_look", "read"))
    assert [*warnings(look, first_write=True, changed=False)] == []


ALLOWED = snapshot()


def test_approval_holds_while_nothing_changed() -> None:
    later = snapshot(revision=9)
    same = later.tools["shop_order"]
    assert permit_again(later, ANN, find, tool().fingerprint) == (same, same)


def raising(error: Exception) -> Any:
    def find_nothing(seen: Any, principal: Principal) -> Any:
        raise error

    return find_nothing


@pytest.mark.parametrize(
    ("now", "found", "why"),
    [
        (snapshot(tool(description="another", fingerprint="other")), find, "has changed"),
        (snapshot(permissions={"level": "read_only"}), find, "read-only"),
        (snapshot(permissions={"tools": {"shop_order": "blocked"}}), find, "is blocked"),
        (snapshot(principals={"ann": {"access": "read-only"}}), find, "read-only access"),
        (snapshot(auth={"mode": "tokens"}), find, "no access"),
        (ALLOWED, raising(Fixable("connection_invalid", "gone")), "no longer there"),
        (ALLOWED, raising(UnknownTool("shop_order")), "no longer there"),
    ],
)
def test_approval_is_void_once_anything_changed(now: Any, found: Any, why: str) -> None:
    with pytest.raises(Refused, match=why):
        permit_again(now, ANN, found, tool().fingerprint)


@pytest.mark.parametrize(
    ("risk", "permissions", "may"),
    [
        ("medium", {}, True),
        ("high", {}, False),
        ("high", {"always_allow_high_risk": True}, True),
    ],
)
def test_always_allow_is_not_offered_for_high_risk(
    risk: str, permissions: dict[str, Any], may: bool
) -> None:
    assert may_always(snapshot(permissions=permissions), risk) is may


TOKEN = "a" * 64
JWT = {"mode": "jwt", "issuer": "i", "audience": "a", "jwks_file": "k", "role_claim": "role"}


@pytest.mark.parametrize(
    ("settings", "known", "now"),
    [
        ({"auth": {"mode": "none"}}, Principal("local", admin=True), Principal("local", True)),
        ({"auth": {"mode": "tokens"}}, ANN, None),
        (
            {
                "auth": {"mode": "tokens"},
                "principals": {"ann": {"token_sha256": TOKEN, "access": "read-only"}},
            },
            Principal("ann", admin=True),
            Principal("ann", access="read-only"),
        ),
        (
            {"auth": JWT, "principals": {"ann": {"access": "disabled"}}},
            Principal("ann", admin=True, role="clerk"),
            Principal("ann", role="clerk", access="disabled"),
        ),
    ],
)
def test_principal_has_the_rights_it_has_now(
    settings: dict[str, Any], known: Principal, now: Principal | None
) -> None:
    assert principal_now(snapshot(**settings).settings, known) == now
