"""Allow, ask or refuse: a word about the tool first, then the level."""

from __future__ import annotations

import pytest

from gateway.config.settings import Permissions
from gateway.policy.access import decide
from tests.policy.values import tool


@pytest.mark.parametrize(
    ("level", "word", "auto", "outcomes"),
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
    level: str, word: str | None, auto: bool, outcomes: str
) -> None:
    tools = [tool("shop", name) for name in ("get_book", "add_book", "del_book")]
    names = [each.name for each in tools]
    permissions = Permissions.model_validate(
        {
            "level": level,
            "tools": dict.fromkeys(names, word) if word else {},
            "auto_approve": {"enabled": auto, "tools": tuple(names)},
        }
    )
    decided = [decide(each, permissions) for each in tools]
    assert " ".join(decision.outcome for decision in decided) == outcomes
    assert all(decision.reason for decision in decided)
