"""An upstream's own list becomes tools here: named, described, narrowed and wrapped by rules."""

from __future__ import annotations

import math
from typing import Any

import mcp_types
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.connectors.upstream import MAX_SCHEMA_BYTES, NAME_RULE, Wrap, build_upstream, drift
from gateway.model import (
    Access,
    Override,
    Problem,
    Skipped,
    Source,
    Tool,
    UpstreamOperation,
    digest,
)

SOURCE = Source("hotel", "mcp", "Hotel", "hotel_", location="https://mcp.example/path?key=1")
ROOM = {"type": "string", "description": "Which room"}
BOOK_SCHEMA = {
    "type": "object",
    "properties": {"token": {"type": "string"}, "room": ROOM, "email": {"type": "string"}},
    "required": ["token", "room"],
}
BOOK = {"name": "Create_booking", "description": "Books a room.", "inputSchema": BOOK_SCHEMA}
FIND = {"name": "find", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
WRAP = Wrap("Create_booking", "book", "token", ("email",), ("booking_id",))


def source(**changes: Any) -> Source:
    fields = {"display_name": "Hotel", "prefix": "hotel_", **changes}
    return Source("hotel", "mcp", **fields)


def names(*tools: dict[str, Any], **settings: Any) -> list[str]:
    told = settings.pop("source", SOURCE)
    return [tool.name for tool in build_upstream(tools, told, **settings).tools]


def reasons(*tools: dict[str, Any], **settings: Any) -> list[str]:
    told = settings.pop("source", SOURCE)
    return [skipped.reason for skipped in build_upstream(tools, told, **settings).skipped]


def test_upstream_tool_keeps_its_name_its_words_and_its_schema() -> None:
    build = build_upstream([BOOK], SOURCE)
    schema = orjson.dumps(BOOK_SCHEMA)
    entry = orjson.dumps(
        {
            "name": "hotel_Create_booking",
            "title": "Create_booking",
            "description": "[Hotel] Books a room.",
            "inputSchema": BOOK_SCHEMA,
            "annotations": {
                "title": "Create_booking",
                "readOnlyHint": False,
                "destructiveHint": False,
                "idempotentHint": False,
                "openWorldHint": True,
            },
        }
    )
    assert build.tools == (
        Tool(
            name="hotel_Create_booking",
            local_name="Create_booking",
            connection="hotel",
            operation="Create_booking",
            method="",
            path="",
            access="write",
            risk="medium",
            trust="trusted",
            title="Create_booking",
            description="[Hotel] Books a room.",
            input_schema=schema,
            entry=entry,
            tokens=math.ceil(len(entry) / 4.6),
            fingerprint=digest(
                b"\0".join((b"mcp.example", b"none", schema, b"[Hotel] Books a room.", b"write"))
            ),
            upstream=UpstreamOperation("Create_booking"),
            keywords="token room email",
        ),
    )
    assert (build.format, build.title, build.base_url) == ("mcp", "Hotel", "https://mcp.example")


def test_wrapped_tool_fills_in_what_leaves_its_schema_and_hides_the_original() -> None:
    build = build_upstream([BOOK, FIND], SOURCE, [WRAP])
    book, find = build.tools
    assert (book.name, book.local_name, book.operation) == ("book", "book", "Create_booking")
    assert book.description == "[Hotel] Books a room. 🔑 Auto-generates an idempotency token"
    assert orjson.loads(book.input_schema) == {
        "type": "object",
        "properties": {"room": ROOM},
        "required": ["room"],
    }
    assert book.upstream == UpstreamOperation(
        "Create_booking", inject=("email",), idempotency_field="token", record=("booking_id",)
    )
    assert orjson.loads(book.entry)["annotations"]["idempotentHint"] is True
    assert find.name == "hotel_find"
    assert build.skipped == (Skipped("Create_booking", "", "", "wrapped as book"),)
    assert build.problems == ()


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
    build = build_upstream(
        [{"name": "t", "inputSchema": schema}], SOURCE, [Wrap("t", "w", "token")]
    )
    assert orjson.loads(build.tools[0].input_schema) == {"type": "object", "properties": {}}


READS, DELETES = {"readOnlyHint": True}, {"destructiveHint": True}


@pytest.mark.parametrize(
    ("hints", "trust", "configured", "access", "risk"),
    [
        (None, "trusted", None, "write", "medium"),
        ({}, "trusted", None, "write", "medium"),
        (READS, "trusted", None, "read", "none"),
        (DELETES, "trusted", None, "delete", "high"),
        (READS | DELETES, "trusted", None, "read", "none"),
        ({"destructiveHint": False}, "trusted", None, "write", "medium"),
        ({"readOnlyHint": "yes"}, "trusted", None, "write", "medium"),
        ("nonsense", "trusted", None, "write", "medium"),
        (READS, "untrusted", None, "write", "medium"),
        (DELETES, "untrusted", None, "write", "medium"),
        (READS, "untrusted", "read", "read", "none"),
        (READS, "trusted", "delete", "delete", "high"),
        (DELETES, "trusted", "write", "write", "medium"),
    ],
)
def test_access_is_configured_else_hinted_by_who_is_trusted_else_write(
    hints: Any, trust: Any, configured: Access | None, access: Access, risk: str
) -> None:
    tool = {"name": "t", "inputSchema": {"type": "object"}, "annotations": hints}
    operations = {"t": Override(access=configured)} if configured else {}
    made = build_upstream([tool], source(trust=trust, operations=operations)).tools[0]
    told = orjson.loads(made.entry)["annotations"]
    assert (made.access, made.risk) == (access, risk)
    assert (told["readOnlyHint"], told["destructiveHint"]) == (access == "read", access == "delete")


def test_dangerous_tool_is_never_exposed() -> None:
    operations = {"find": Override(access="dangerous")}
    assert reasons(FIND, source=source(operations=operations)) == ["marked dangerous"]


def test_configured_risk_and_description_win() -> None:
    operations = {"find": Override(risk="low", description="Looks for rooms.")}
    tool = build_upstream([FIND], source(operations=operations)).tools[0]
    assert (tool.risk, tool.description) == ("low", "[Hotel] Looks for rooms.")


def with_schema(schema: Any) -> dict[str, Any]:
    return {"name": "t", "inputSchema": schema}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ({"inputSchema": {"type": "object"}}, "its name is not a string"),
        ({"name": 7, "inputSchema": {"type": "object"}}, "its name is not a string"),
        ({"name": "t"}, 'its input schema is not of `"type": "object"`'),
        (with_schema({}), 'its input schema is not of `"type": "object"`'),
        (with_schema({"type": "array"}), 'its input schema is not of `"type": "object"`'),
        (
            with_schema({"type": "object", "properties": []}),
            "its input schema's `properties` is not an object",
        ),
        (
            with_schema({"type": "object", "properties": {"a": {"type": "strin"}}}),
            "its schema is not a valid JSON Schema: ",
        ),
        (
            with_schema({"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/"}}}),
            "its schema is not a valid JSON Schema: ",
        ),
        (
            with_schema({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}),
            "its schema is not a valid JSON Schema: ",
        ),
        (
            with_schema({"type": "object", "description": "x" * MAX_SCHEMA_BYTES}),
            "its schema has 262178 bytes, the limit is 262144",
        ),
        (with_schema(nested(200)), "its schema is nested too deeply"),
        (
            with_schema({"type": "object", "properties": {"a": {"x-mcp-header": "A"}}}),
            "`x-mcp-header` of 'a' is not on a string, integer or boolean",
        ),
        (
            {"name": "two words", "inputSchema": {"type": "object"}},
            f"its name is not allowed: {NAME_RULE}",
        ),
        (
            {"name": "x" * 123, "inputSchema": {"type": "object"}},
            f"its name is not allowed: {NAME_RULE}",
        ),
    ],
)
def test_malformed_tool_is_skipped_with_a_reason_and_the_rest_stay(
    tool: dict[str, Any], reason: str
) -> None:
    build = build_upstream([tool, FIND], SOURCE)
    assert [made.name for made in build.tools] == ["hotel_find"]
    assert [skipped.reason[: len(reason)] for skipped in build.skipped] == [reason]


@pytest.mark.parametrize(
    ("settings", "kept", "why"),
    [
        ({}, ["hotel_Create_booking", "hotel_find"], []),
        ({"allow": ["find"]}, ["hotel_find"], ["not in `tools`"]),
        ({"allow": ["f*", "Create_*"]}, ["hotel_Create_booking", "hotel_find"], []),
        ({"allow": ["create_*"]}, [], ["not in `tools`"] * 2),
        ({"exclude": ["Create*"]}, ["hotel_find"], ["excluded by `exclude_tools`"]),
        ({"source": source(include=("f*",))}, ["hotel_find"], ["not in `include`"]),
        ({"source": source(exclude=("f*",))}, ["hotel_Create_booking"], ["excluded by `exclude`"]),
        ({"allow": [], "wraps": [WRAP]}, ["book"], ["wrapped as book", "not in `tools`"]),
        ({"exclude": ["Create*"], "wraps": [WRAP]}, ["book", "hotel_find"], ["wrapped as book"]),
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


def test_name_listed_twice_counts_once() -> None:
    other = {**FIND, "description": "Another"}
    build = build_upstream([FIND, other], SOURCE)
    assert [tool.description for tool in build.tools] == ["[Hotel] find"]
    assert reasons(FIND, other) == ["the upstream lists this name twice"]


def test_wrapped_tool_keeps_a_name_that_another_tool_has_too() -> None:
    wrap = Wrap("Create_booking", "hotel_find", "token")
    build = build_upstream([FIND, BOOK], SOURCE, [wrap])
    assert [tool.operation for tool in build.tools] == ["Create_booking"]
    assert "another tool is already called hotel_find" in [s.reason for s in build.skipped]


def test_hidden_characters_leave_the_description() -> None:
    tool = {**FIND, "description": "Finds\u200b a \u202eroom\U000e0041.\x07\r\nYes\ufe0f."}
    assert build_upstream([tool], SOURCE).tools[0].description == "[Hotel] Finds a room.\nYes."


def test_long_description_is_cut_and_the_note_stays() -> None:
    tool = {**BOOK, "description": "word " * 1000}
    description = (
        build_upstream([tool], source(max_description_chars=80), [WRAP]).tools[0].description
    )
    assert len(description) <= 80
    assert description.startswith("[Hotel] word word")
    assert description.endswith("… 🔑 Auto-generates an idempotency token")


def test_connection_that_is_not_authenticated_says_so() -> None:
    description = build_upstream([FIND], source(authenticated=False)).tools[0].description
    assert description == "[Hotel] find ⚠ Hotel is not authenticated yet."


def test_title_is_the_upstreams_own() -> None:
    titled = {**FIND, "title": " Find\u200b a room "}
    hinted = {**FIND, "annotations": {"title": "Search"}}
    assert build_upstream([titled], SOURCE).tools[0].title == "Find a room"
    assert build_upstream([hinted], SOURCE).tools[0].title == "Search"


@pytest.mark.parametrize(
    "schema",
    [
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {"a": {"$ref": "#/definitions/a"}, "b": {"items": [{"type": "null"}]}},
            "definitions": {"a": {"type": "string"}},
            "additionalProperties": False,
        },
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {"tree": {"$ref": "#/$defs/node"}},
            "$defs": {"node": {"type": "object", "properties": {"sub": {"$ref": "#/$defs/node"}}}},
        },
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x)"}}},
    ],
)
def test_schema_of_any_draft_survives_as_it_is(schema: dict[str, Any]) -> None:
    tool = build_upstream([with_schema(schema)], SOURCE).tools[0]
    assert tool.input_schema == orjson.dumps(schema)
    assert orjson.loads(tool.entry)["inputSchema"] == schema


def test_output_schema_is_passed_as_it_is() -> None:
    schema = {"type": "object", "properties": {"rooms": {"type": "array"}}}
    tool = build_upstream([{**FIND, "outputSchema": schema}], SOURCE).tools[0]
    assert tool.output_schema == orjson.dumps(schema)
    assert orjson.loads(tool.entry)["outputSchema"] == schema


@pytest.mark.parametrize(
    "schema", [{"type": "array"}, {}, [], "x", {"type": "object", "required": 1}]
)
def test_output_schema_that_would_fail_the_list_is_left_out_and_reported(schema: Any) -> None:
    build = build_upstream([{**FIND, "outputSchema": schema}], SOURCE)
    assert build.tools[0].output_schema is None
    assert "outputSchema" not in orjson.loads(build.tools[0].entry)
    assert build.problems == (
        Problem("info", "hotel_find", "its output schema can't be listed and is left out"),
    )


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        ({}, []),
        ({"wraps": [WRAP], "allow": ["find"], "exclude": ["Create_*"]}, []),
        (
            {"wraps": [Wrap("Book", "book")]},
            [Problem("error", "wrap.Book", "the upstream has no tool 'Book'")],
        ),
        (
            {"wraps": [Wrap("Create_booking", "b", "idempotency", ("mail",))]},
            [
                Problem(
                    "error",
                    "wrap.Create_booking.idempotency_field",
                    "the upstream's tool has no parameter 'idempotency'",
                ),
                Problem(
                    "warning",
                    "wrap.Create_booking.inject",
                    "the upstream's tool has no parameter 'mail'",
                ),
            ],
        ),
        (
            {"allow": ["find", "gone"], "exclude": ["old_*"]},
            [
                Problem("warning", "tools", "'gone' matches no tool of the upstream"),
                Problem("warning", "exclude_tools", "'old_*' matches no tool of the upstream"),
            ],
        ),
    ],
)
def test_drift_names_what_the_upstream_no_longer_has(
    settings: dict[str, Any], problems: list[Problem]
) -> None:
    assert drift([BOOK, FIND], **settings) == problems
    assert list(build_upstream([BOOK, FIND], SOURCE, **settings).problems) == problems


def test_override_of_a_tool_that_is_gone_is_reported() -> None:
    build = build_upstream([FIND], source(operations={"gone": Override(access="read")}))
    assert build.problems == (
        Problem("warning", "operations.gone", "the upstream has no such tool"),
    )


def test_fingerprint_changes_with_what_was_approved_and_with_nothing_else() -> None:
    def fingerprint(tool: dict[str, Any], told: Source) -> str:
        return build_upstream([tool], told).tools[0].fingerprint

    same = fingerprint(FIND, SOURCE)
    moved = source(location="https://other.example/path")
    path = source(location="https://mcp.example/elsewhere")
    assert fingerprint({**FIND, "_meta": {"a": 1}}, path) == same
    changed = {
        fingerprint(FIND, moved),
        fingerprint({**FIND, "description": "Other"}, SOURCE),
        fingerprint({**FIND, "inputSchema": {"type": "object", "minProperties": 1}}, SOURCE),
        fingerprint({**FIND, "annotations": {}}, SOURCE),
        fingerprint(FIND, source(location="npx")),
    }
    assert len(changed | {same}) == 6


@given(st.permutations([BOOK, FIND, {"name": "a", "inputSchema": {"type": "object"}}]))
def test_order_of_the_upstreams_list_does_not_matter(tools: list[dict[str, Any]]) -> None:
    assert names(*tools) == ["hotel_Create_booking", "hotel_a", "hotel_find"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
schemas = st.fixed_dictionaries(
    {"type": st.just("object") | json_values},
    optional={"properties": json_values, "required": json_values, "$defs": json_values},
)
tools_of_any_kind = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "b", "two words"]) | json_values,
        "title": json_values,
        "description": json_values,
        "inputSchema": schemas | json_values,
        "outputSchema": schemas | json_values,
        "annotations": json_values,
    },
)


@given(st.lists(tools_of_any_kind, max_size=4))
def test_whatever_an_upstream_lists_every_tool_is_valid_or_skipped(
    listing: list[dict[str, Any]],
) -> None:
    build = build_upstream(listing, SOURCE, [Wrap("a", "wrapped", "token")])
    for tool in build.tools:
        mcp_types.Tool.model_validate(orjson.loads(tool.entry), by_name=False)
    reported = len(build.tools) + len(build.skipped)
    assert len(listing) <= reported <= len(listing) + 1  # a wrapped original is reported twice
