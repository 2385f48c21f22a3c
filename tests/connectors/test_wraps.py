"""What configuration lays over an upstream's tools: wraps, choices, and where it has drifted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.connectors.mcp import build_upstream, drift
from gateway.model import Override, Problem, UpstreamOperation, Wrap
from tests.connectors.listings import (
    BOOK,
    FIND,
    SOURCE,
    WRAP,
    names,
    reasons,
    source,
    told,
)


def test_wrap_without_a_name_of_its_own_keeps_the_prefixed_name() -> None:
    assert names(BOOK, wraps=[Wrap("Create_booking", None, "token")]) == ["hotel_Create_booking"]


def test_one_tool_wrapped_twice_gives_two_tools() -> None:
    wraps = [
        Wrap("Create_booking", "book", "token"),
        Wrap("Create_booking", "book_for_me", "token"),
    ]
    assert names(BOOK, wraps=wraps) == ["book", "book_for_me"]


def test_parameters_that_the_connection_injects_leave_only_the_schemas_that_have_them() -> None:
    build = build_upstream([BOOK, FIND], source(inject=("room", "tenant")))
    by_name = {tool.name: tool for tool in build.tools}
    book = by_name["hotel_Create_booking"]
    assert book.upstream == UpstreamOperation("Create_booking", inject=("room",))
    assert orjson.loads(book.input_schema)["required"] == ["token"]
    assert by_name["hotel_find"].upstream == UpstreamOperation("find")


def test_schema_without_required_parameters_left_names_none() -> None:
    schema = {"type": "object", "properties": {"token": {}}, "required": ["token"]}
    wrapping = replace(SOURCE, wraps=(Wrap("t", "w", "token"),))
    build = build_upstream([{"name": "t", "inputSchema": schema}], wrapping)
    assert orjson.loads(build.tools[0].input_schema) == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("settings", "kept", "why"),
    [
        ({}, ["hotel_Create_booking", "hotel_find"], []),
        ({"tools": ["find"]}, ["hotel_find"], ["not in `tools`"]),
        ({"tools": ["f*", "Create_*"]}, ["hotel_Create_booking", "hotel_find"], []),
        ({"tools": ["create_*"]}, [], ["not in `tools`"] * 2),
        ({"exclude_tools": ["Create*"]}, ["hotel_find"], ["excluded by `exclude_tools`"]),
        ({"source": source(include=("f*",))}, ["hotel_find"], ["not in `include`"]),
        ({"source": source(exclude=("f*",))}, ["hotel_Create_booking"], ["excluded by `exclude`"]),
        ({"tools": [], "wraps": [WRAP]}, ["book"], ["wrapped as book", "not in `tools`"]),
        (
            {"exclude_tools": ["Create*"], "wraps": [WRAP]},
            ["book", "hotel_find"],
            ["wrapped as book"],
        ),
        (
            {"source": source(exclude=("Create*",)), "wraps": [WRAP]},
            ["hotel_find"],
            ["excluded by `exclude`"],
        ),
        ({"source": source(prefix="")}, ["Create_booking", "find"], []),
    ],
)
def test_configuration_says_which_tools_are_shown(
    settings: dict[str, Any], kept: list[str], why: list[str]
) -> None:
    assert names(BOOK, FIND, **settings) == kept
    assert reasons(BOOK, FIND, **settings) == why


def test_wrapped_tool_keeps_a_name_that_another_tool_has_too() -> None:
    wrap = Wrap("Create_booking", "hotel_find", "token")
    build = build_upstream([FIND, BOOK], replace(SOURCE, wraps=(wrap,)))
    assert [tool.operation for tool in build.tools] == ["Create_booking"]
    assert "another tool is already called hotel_find" in [s.reason for s in build.skipped]


NO_TOOL, NO_PARAMETER = "the upstream has no tool {}", "the upstream's tool has no parameter {}"
NO_MATCH = "{} matches no tool of the upstream"
DRIFTED = source(
    include=("*", "gone"),
    exclude=("old_*",),
    inject=("tenant",),
    operations={"lost": Override(access="read")},
)


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        ({}, []),
        ({"wraps": [WRAP], "tools": ["find"], "exclude_tools": ["Create_*"]}, []),
        ({"wraps": [Wrap("Book", "book")]}, [("error", "wrap.Book", NO_TOOL.format("'Book'"))]),
        (
            {"wraps": [Wrap("Create_booking", "b", "token_", ("mail",))]},
            [
                ("error", "wrap.Create_booking.idempotency_field", NO_PARAMETER.format("'token_'")),
                ("warning", "wrap.Create_booking.inject", NO_PARAMETER.format("'mail'")),
            ],
        ),
        (
            {"tools": ["find", "gone"], "exclude_tools": ["old_*"]},
            [
                ("warning", "tools", NO_MATCH.format("'gone'")),
                ("warning", "exclude_tools", NO_MATCH.format("'old_*'")),
            ],
        ),
        (
            {"source": DRIFTED},
            [
                ("warning", "inject.tenant", "no tool of the upstream has such a parameter"),
                ("warning", "include", NO_MATCH.format("'gone'")),
                ("warning", "exclude", NO_MATCH.format("'old_*'")),
                ("warning", "operations.lost", "matches no tool of the upstream"),
            ],
        ),
    ],
)
def test_drift_names_what_the_upstream_no_longer_has(
    settings: dict[str, Any], problems: list[tuple[Any, str, str]]
) -> None:
    expected = [Problem(*problem, configured=True) for problem in problems]
    assert drift([BOOK, FIND], told(**settings)) == expected
    assert list(build_upstream([BOOK, FIND], told(**settings)).problems) == expected


def test_globs_set_the_access_of_tools_by_either_name() -> None:
    rules = {"*": Override(access="write"), "f*": Override(access="read")}
    build = build_upstream([BOOK, FIND], source(operations={**rules}, wraps=(WRAP,)))
    assert {tool.name: tool.access for tool in build.tools} == {
        "book": "write",
        "hotel_find": "read",
    }
    for name in ("Create_*", "boo?"):
        forbidding = source(operations={name: Override(access="dangerous")}, wraps=(WRAP,))
        build = build_upstream([BOOK, FIND], forbidding)
        assert [tool.name for tool in build.tools] == ["hotel_find"]
        assert build.problems == ()
