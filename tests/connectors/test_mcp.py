"""An upstream's own list becomes tools here: named, described and checked by rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mcp_types
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema.validators import validator_for

from gateway.connectors.mcp import NAME_RULE, build_upstream
from gateway.limits import MAX_TOOL_BYTES
from gateway.model import Access, Override, Problem, Source, Wrap
from tests.connectors.listings import (
    BOOK,
    FIND,
    SOURCE,
    WRAP,
    names,
    source,
    with_schema,
)
from tests.definitions import golden, shown


def test_a_list_becomes_whole_tools_as_they_are_and_as_they_are_wrapped() -> None:
    change = {**BOOK, "name": "Change_booking", "description": "Changes a booking."}
    build = build_upstream([BOOK, FIND, change], replace(SOURCE, wraps=(WRAP,)))

    assert shown(build) == golden("hotel")


PLAIN = {"type": "object"}
READS, DELETES = {"readOnlyHint": True}, {"destructiveHint": True}
NOT_READS, NOT_DELETES = {"readOnlyHint": False}, {"destructiveHint": False}


@pytest.mark.parametrize(
    ("hints", "trust", "configured", "access", "risk", "told"),
    [
        (None, "trusted", None, "write", "medium", None),
        ({}, "trusted", None, "write", "medium", None),
        (READS, "trusted", None, "read", "none", READS),
        (DELETES, "trusted", None, "delete", "high", DELETES),
        (READS | DELETES, "trusted", None, "read", "none", READS | DELETES),
        (NOT_DELETES, "trusted", None, "write", "medium", NOT_DELETES),
        (NOT_READS, "trusted", None, "write", "medium", NOT_READS),
        ({"readOnlyHint": "yes"}, "trusted", None, "write", "medium", None),
        ({"title": "T", "openWorldHint": False, "made_up": True}, "trusted", None, "write",
         "medium", {"title": "T", "openWorldHint": False}),
        ("nonsense", "trusted", None, "write", "medium", None),
        (READS, "untrusted", None, "write", "medium", None),
        (DELETES, "untrusted", None, "write", "medium", None),
        (READS, "untrusted", "read", "read", "none", READS),
        (READS, "trusted", "delete", "delete", "high", NOT_READS | DELETES),
        (DELETES, "trusted", "write", "write", "medium", NOT_READS | NOT_DELETES),
        (DELETES, "trusted", "read", "read", "none", READS | NOT_DELETES),
        (None, "trusted", "read", "read", "none", READS),
        (None, "trusted", "write", "write", "medium", NOT_READS),
        (None, "trusted", "delete", "delete", "high", NOT_READS | DELETES),
    ],
)  # fmt: skip
def test_hints_and_access_are_configured_else_those_of_a_trusted_upstream_and_never_made_up(
    hints: Any, trust: Any, configured: Access | None, access: Access, risk: str, told: Any
) -> None:
    tool = {"name": "t", "inputSchema": PLAIN, "annotations": hints}
    operations = {"t": Override(access=configured)} if configured else {}
    made = build_upstream([tool], source(trust=trust, operations=operations)).tools[0]
    assert (made.access, made.risk) == (access, risk)
    assert orjson.loads(made.entry).get("annotations") == told


@pytest.mark.parametrize(
    ("given", "shown", "told"),
    [
        ({}, "find", (None, None)),
        ({"title": "Find\u200b it"}, "Find it", ("Find it", None)),
        ({"title": " "}, "find", (None, None)),
        ({"annotations": {"title": "Finder"}}, "Finder", (None, "Finder")),
        ({"title": "One", "annotations": {"title": "Two"}}, "One", ("One", "Two")),
    ],
)
def test_a_title_is_the_upstreams_own_or_absent(
    given: dict[str, Any], shown: str, told: tuple[str | None, str | None]
) -> None:
    tool = {"name": "find", "inputSchema": PLAIN, **given}
    made = build_upstream([tool], SOURCE).tools[0]
    entry = orjson.loads(made.entry)
    assert made.title == shown
    assert (entry.get("title"), entry.get("annotations", {}).get("title")) == told


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


NO_OBJECT = 'its input schema is not of `"type": "object"`'
INVALID = "its schema is not a valid JSON Schema: "
NO_HEADER = "property 'a': x-mcp-header is only permitted on integer/string/boolean"


def taking(a: Any) -> dict[str, Any]:
    """A tool whose one input has this schema."""
    return with_schema({"type": "object", "properties": {"a": a}})


@pytest.mark.parametrize(
    ("tool", "reason"),
    [
        ({"inputSchema": PLAIN}, "its name is not a string"),
        ({"name": 7, "inputSchema": PLAIN}, "its name is not a string"),
        ({"name": "t"}, NO_OBJECT),
        (with_schema({}), NO_OBJECT),
        (with_schema({"type": "array"}), NO_OBJECT),
        (with_schema({**PLAIN, "properties": []}), "its input schema's `properties` is not an"),
        (taking({"type": "strin"}), INVALID),
        (taking({"$ref": "http://127.0.0.1:9/"}), INVALID),
        (taking({"$ref": "#/$defs/none"}), INVALID),
        (
            with_schema({**PLAIN, "description": "x" * MAX_TOOL_BYTES}),
            "its schema has 524322 bytes, the limit is 524288",
        ),
        (with_schema(nested(200)), "its schema is nested too deeply"),
        (taking({"x-mcp-header": "A"}), NO_HEADER),
        ({**FIND, "name": "t", "execution": {"taskSupport": "required"}}, "it only runs as a task"),
        ({**FIND, "name": "never"}, "marked dangerous"),
        (FIND, "the upstream lists this name twice"),
        ({"name": "two words", "inputSchema": PLAIN}, f"its name is not allowed: {NAME_RULE}"),
        ({"name": "x" * 123, "inputSchema": PLAIN}, f"its name is not allowed: {NAME_RULE}"),
    ],
)
def test_malformed_tool_is_skipped_with_a_reason_and_the_rest_stay(
    tool: dict[str, Any], reason: str
) -> None:
    forbidden = {"never": Override(access="dangerous")}
    build = build_upstream([FIND, tool], source(operations=forbidden))
    assert [made.name for made in build.tools] == ["hotel_find"]
    assert [skipped.reason[: len(reason)] for skipped in build.skipped] == [reason]


@pytest.mark.parametrize(
    "execution", [{"taskSupport": "optional"}, {"taskSupport": "forbidden"}, ["required"]]
)
def test_a_tool_that_may_run_without_a_task_stays(execution: Any) -> None:
    assert names({**FIND, "execution": execution}) == ["hotel_find"]


INVISIBLE = "Finds\u200b a \u202eroom\U000e0041.\x07\r\nYes\ufe0f."
CONFIGURED = {"find": Override(risk="low", description="Looks for rooms.")}
KEY = "🔑 Auto-generates an idempotency token"


@pytest.mark.parametrize(
    ("tool", "settings", "risk", "description"),
    [
        (FIND, {}, "none", "[Hotel] find"),
        ({**FIND, "description": INVISIBLE}, {}, "none", "[Hotel] Finds a room.\nYes."),
        (FIND, {"operations": CONFIGURED}, "low", "[Hotel] Looks for rooms."),
        (FIND, {"authenticated": False}, "none", "[Hotel] find ⚠ Hotel is not authenticated yet."),
        (
            {**BOOK, "description": "word " * 1000},
            {"max_description_chars": 60, "wraps": (WRAP,)},
            "medium",
            f"[Hotel] word word wor… {KEY}",
        ),
    ],
)
def test_words_and_risk_are_configured_else_the_upstreams_and_all_visible(
    tool: dict[str, Any], settings: dict[str, Any], risk: str, description: str
) -> None:
    made = build_upstream([tool], source(**settings)).tools[0]
    assert (made.risk, made.description) == (risk, description)


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


RESULT_ID: Any = {"truncated": True, "bytes": 9, "result_id": "r", "preview": "…"}
ERROR: Any = {"error": {"code": "busy", "message": "Later."}}
STRICT: dict[str, Any] = {
    "type": "object",
    "properties": {"rooms": {"type": "array", "items": {"$ref": "#/$defs/Room"}}},
    "required": ["rooms"],
    "additionalProperties": False,
    "$defs": {"Room": {"type": "object", "required": ["nr"]}},
}
ROOMS = {"rooms": [{"nr": 7}]}


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (STRICT, ROOMS, [{}, {"rooms": [{}]}, {**ROOMS, "more": 1}]),
        (STRICT | {"$schema": "http://json-schema.org/draft-07/schema#"}, ROOMS, [{}]),
        (STRICT | {"title": "Rooms", "x-mark": True}, ROOMS, [{}]),
        (
            {"type": "object", "properties": {"error": {"type": "string"}, "bytes": {}},
             "required": ["error"]},
            {"error": "none"},
            [{}, {"error": 7}],
        ),
        ({"type": "object", "anyOf": [{"required": ["a"]}]}, {"a": 1}, [{"b": 1}]),
        ({"type": "object", "$ref": "#/$defs/A", "$defs": {"A": {"required": ["a"]}}},
         {"a": 1}, [{"b": 1}]),
        ({"type": "object", "maxProperties": 1, "propertyNames": {"enum": ["a"]}},
         {"a": 1}, [{"b": 1}]),
        ({"type": "object", "properties": {"a": {}}, "unevaluatedProperties": False},
         {"a": 1}, [{"b": 1}]),
        ({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["nr"]},
         {"nr": 1, "next": {"nr": 2}}, [{}, {"nr": 1, "next": 2}]),
    ],
)  # fmt: skip
def test_a_listed_output_schema_allows_the_upstreams_answers_and_the_gateways_own(
    schema: dict[str, Any], right: Any, wrong: list[Any]
) -> None:
    tool = build_upstream([{**FIND, "outputSchema": schema}], SOURCE).tools[0]
    assert tool.output_schema == orjson.dumps(schema)
    listed = orjson.loads(tool.entry)["outputSchema"]
    checks = validator_for(listed)(listed)
    assert all(checks.is_valid(answer) for answer in (right, RESULT_ID, ERROR))
    assert not any(checks.is_valid(answer) for answer in wrong)


def test_clients_find_the_types_of_an_answer_where_the_upstream_has_them() -> None:
    tool = build_upstream([{**FIND, "outputSchema": STRICT | {"x-mark": True}}], SOURCE).tools[0]
    listed = orjson.loads(tool.entry)["outputSchema"]
    kept = ("type", "properties", "$defs", "x-mark")
    assert {key: listed[key] for key in kept} == {
        **{key: STRICT[key] for key in kept if key in STRICT},
        "x-mark": True,
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {},
        [],
        "x",
        {"type": "object", "required": 1},
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/patternProperties/x"}},
            "patternProperties": {"x": {}},
        },
    ],  # fmt: skip
)
def test_output_schema_that_would_fail_the_list_is_left_out_and_reported(schema: Any) -> None:
    build = build_upstream([{**FIND, "outputSchema": schema}], SOURCE)
    assert build.tools[0].output_schema is None
    assert "outputSchema" not in orjson.loads(build.tools[0].entry)
    assert build.problems == (
        Problem("info", "hotel_find", "its output schema can't be listed and is left out"),
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


@given(st.permutations([BOOK, FIND, {"name": "a", "inputSchema": PLAIN}]))
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


# Each example compiles schemas, and a busy machine is slow to make them up.
@given(st.lists(tools_of_any_kind, max_size=4))
def test_whatever_an_upstream_lists_every_tool_is_valid_or_skipped(
    listing: list[dict[str, Any]],
) -> None:
    build = build_upstream(listing, replace(SOURCE, wraps=(Wrap("a", "wrapped", "token"),)))
    for tool in build.tools:
        mcp_types.Tool.model_validate(orjson.loads(tool.entry), by_name=False)
    reported = len(build.tools) + len(build.skipped)
    assert len(listing) <= reported <= len(listing) + 1  # a wrapped original is reported twice


ICON = {"src": "https://hotel.example/i.png", "mimeType": "image/png", "sizes": ["48x48"]}


@pytest.mark.parametrize(
    ("trust", "given", "passed"),
    [
        ("trusted", {"icons": [ICON]}, {"icons": [ICON]}),
        ("trusted", {"_meta": {"ui/place": "side"}}, {"_meta": {"ui/place": "side"}}),
        ("trusted", {"_meta": {"gateway/status": "done"}}, {}),
        (
            "trusted",
            {"icons": [7, {}, {"src": "file:///etc"}, ICON, {**ICON, "sizes": "48x48"}]},
            {"icons": [ICON]},
        ),
        ("trusted", {"icons": "none", "_meta": []}, {}),
        ("trusted", {"icons": [{"src": "data:image/png;base64," + "A" * 40_000}]}, {}),
        ("trusted", {"_meta": {"big": "x" * 40_000}}, {}),
        ("untrusted", {"icons": [ICON], "_meta": {"ui/place": "side"}}, {}),
    ],
)
def test_icons_and_meta_of_a_trusted_upstream_are_passed_on_within_bounds(
    trust: Any, given: dict[str, Any], passed: dict[str, Any]
) -> None:
    plain, made = build_upstream(
        [FIND, {**FIND, **given, "name": "other"}], source(trust=trust)
    ).tools
    entry = orjson.loads(made.entry)
    assert {name: entry.get(name) for name in ("icons", "_meta") if name in entry} == passed
    assert abs(made.tokens - plain.tokens) <= 1
    mcp_types.Tool.model_validate(entry, by_name=False)
