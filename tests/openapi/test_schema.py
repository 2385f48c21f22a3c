"""Schemas of every dialect become JSON Schema 2020-12 that compiles, bundles and ends."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import orjson
import pytest

from gateway.limits import INPUT_BYTES, MAX_WIDTH
from gateway.model import Problem, whole_schema
from tests.definitions import (
    Json,
    an_object,
    built,
    getting,
    only_tool,
    openapi,
    operation,
    posting,
    rules,
    schema_of,
)

STRING = {"type": "string"}


def _definition(schema: Any, schemas: Json | None = None, version: str = "3.0.3") -> Json:
    """A definition whose one tool takes `p` with this schema."""
    parameter = {"name": "p", "in": "query", "schema": schema}
    return getting(parameter, version=version, components={"schemas": schemas or {}})


@pytest.mark.parametrize(("written", "translated"), rules("dialects"))
def test_dialects_become_one(written: Any, translated: Any) -> None:
    assert schema_of(only_tool(_definition(written)))["properties"]["p"] == translated


def test_long_descriptions_of_inputs_are_cut() -> None:
    tool = only_tool(_definition({"description": "word " * 200}))

    assert len(schema_of(tool)["properties"]["p"]["description"]) <= 256


@pytest.mark.parametrize(
    ("version", "translated"),
    [
        ("3.0.3", {"$ref": "#/$defs/S", "description": "d"}),
        ("3.1.0", {"$ref": "#/$defs/S", "description": "d", "maxLength": 3}),
    ],
)
def test_what_stands_beside_a_reference_counts_from_3_1_on(version: str, translated: Json) -> None:
    written = {"$ref": "#/components/schemas/S", "description": "d", "maxLength": 3}
    tool = only_tool(_definition(written, {"S": STRING}, version))

    assert schema_of(tool)["properties"]["p"] == translated


def test_recursion_and_sharing_are_bundled_once_and_only_where_needed() -> None:
    tree = an_object({"left": _ref("My%20Tree"), "leaf": _ref("Leaf")})
    written = {"type": "array", "items": _ref("My Tree")}
    tool = only_tool(_definition(written, {"My Tree": tree, "Leaf": STRING, "Unused": STRING}))

    schema = schema_of(tool)
    assert schema["properties"]["p"]["items"] == {"$ref": "#/$defs/My_Tree"}
    assert sorted(schema["$defs"]) == ["Leaf", "My_Tree"]
    assert schema["$defs"]["My_Tree"]["properties"]["left"] == {"$ref": "#/$defs/My_Tree"}


def test_parts_of_an_object_are_not_closed_to_each_other() -> None:
    closed = an_object({"a": STRING}, additionalProperties=False)
    inline = {"properties": {"b": STRING}, "required": ["b"], "additionalProperties": False}
    written = {"anyOf": [{"allOf": [_ref("A"), inline]}, _ref("A")]}
    tool = only_tool(_definition(written, {"A": closed}))

    schema = schema_of(tool)
    assert schema["$defs"]["A"] == closed
    validator = jsonschema_rs.Draft202012Validator(schema)
    assert validator.is_valid({"p": {"a": "x", "b": "y"}})
    assert not validator.is_valid({"p": {"a": "x", "c": "y"}})


def test_definitions_of_one_name_are_kept_apart() -> None:
    written = {"anyOf": [_ref("S"), _ref("Other/properties/S")]}
    other = {"properties": {"S": {"type": "null"}}}
    tool = only_tool(_definition(written, {"S": STRING, "Other": other}))

    assert schema_of(tool)["$defs"] == {"S": STRING, "S_2": {"type": "null"}}


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("#/components/schemas/None", "reference leads nowhere: #/components/schemas/None"),
        ("#tree", "reference leads nowhere: #tree"),
        ("http://127.0.0.1:1/x", "reference to another document is not followed: "),
        ("file:///etc/hostname", "reference to another document is not followed: "),
        ("#/info/title", "reference leads to something that is no schema: #/info/title"),
        ("#/components/schemas/Loop", "references lead to each other in a circle"),
    ],
)
def test_a_broken_reference_opens_one_place_and_says_so(reference: str, message: str) -> None:
    written = {"$ref": reference, "description": "d"}
    build = built(_definition(written, {"Loop": _ref("Loop")}))

    (tool,) = build.tools
    (problem,) = build.problems
    assert schema_of(tool)["properties"]["p"] == {"description": "d"}
    assert (problem.severity, problem.where) == ("warning", "GET /a")
    assert problem.message.startswith(message)


def test_circles_on_one_level_are_opened_where_they_close() -> None:
    circle = {"A": {"allOf": [_ref("B")], "type": "object"}, "B": {"anyOf": [_ref("A"), STRING]}}
    tool = only_tool(_definition(_ref("A"), circle))

    validator = jsonschema_rs.Draft202012Validator(schema_of(tool))
    assert validator.is_valid({"p": {}})
    assert not validator.is_valid({"p": "text"})


def test_fan_out_on_one_level_is_bounded() -> None:
    doubled = {f"S{n}": {"allOf": [_ref(f"S{n + 1}")] * 2} for n in range(40)}
    build = built(_definition(_ref("S0"), {**doubled, "S40": STRING}))

    (tool,) = build.tools
    assert any("without end" in problem.message for problem in build.problems)
    assert jsonschema_rs.Draft202012Validator(schema_of(tool)).is_valid({"p": "x"})
    assert len(tool.input_schema) < 40 * MAX_WIDTH


CUT = Problem(
    "warning",
    "POST /a",
    "its inputs are too large to list whole: objects deep in them list only what they require; "
    "mcp_get_tool_schema and GET /api/v1/tools/NAME give all",
)


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _level(number: int, words: str, last: bool) -> Json:
    fields = {f"field_{n}": {"type": "integer", "description": words} for n in range(20)}
    below: Json = {} if last else {"next": _ref(f"S{number + 1}")}
    return an_object({**fields, **below}, "field_1", *below, additionalProperties=False)


def test_where_room_is_short_words_go_first_the_deepest_before_others() -> None:
    chain = {f"S{n}": _level(n, "d" * 200, n == 7) for n in range(8)}
    build = built(posting(an_object({"s": _ref("S0")}), required=True, schemas=chain))

    (tool,) = build.tools
    listed, whole = schema_of(tool)["$defs"], orjson.loads(whole_schema(tool))["$defs"]
    assert len(tool.input_schema) < INPUT_BYTES + 1_000
    assert "description" in listed["S0"]["properties"]["field_1"]
    assert listed["S7"] == _level(7, "", True) | {
        "properties": dict.fromkeys((f"field_{n}" for n in range(20)), {"type": "integer"})
    }
    assert {name: part["properties"].keys() for name, part in whole.items()} == {
        name: part["properties"].keys() for name, part in chain.items()
    }
    assert whole["S7"]["properties"]["field_1"]["description"] == "d" * 200
    assert build.problems == ()


def test_where_room_is_shorter_still_deep_objects_name_what_they_require_and_stay_open() -> None:
    chain = {f"S{n}": _level(n, "", n == 39) for n in range(40)}
    build = built(posting(an_object({"s": _ref("S0")}), required=True, schemas=chain))

    (tool,) = build.tools
    schema, whole = schema_of(tool), orjson.loads(whole_schema(tool))
    assert len(tool.input_schema) < INPUT_BYTES + 2_000
    assert len(schema["$defs"]["S3"]["properties"]) == 21
    assert schema["$defs"]["S38"] == {
        "type": "object",
        "required": ["field_1", "next"],
        "properties": {"field_1": {"type": "integer"}, "next": {"$ref": "#/$defs/S39"}},
        "description": "Takes more than is listed here.",
    }
    assert len(whole["$defs"]["S38"]["properties"]) == 21
    assert build.problems == (CUT,)


def test_an_input_too_large_to_keep_whole_is_shown_as_it_is_listed() -> None:
    chain = {f"S{n}": _level(n, "d" * 200, n == 149) for n in range(150)}
    (tool,) = built(posting(an_object({"s": _ref("S0")}), required=True, schemas=chain)).tools
    assert whole_schema(tool) is tool.input_schema


def test_an_inline_body_that_is_too_large_keeps_what_its_deepest_levels_require() -> None:
    def nested(levels: int) -> Json:
        below = {f"n{n}": nested(levels - 1) for n in range(4)} if levels else {}
        properties = {"a": {"type": "integer"}, "b": STRING, **below}
        return an_object(properties, "a", description="d" * 100)

    build = built(posting(nested(5), required=True))

    (tool,) = build.tools
    assert len(tool.input_schema) <= INPUT_BYTES
    deepest = schema_of(tool)["properties"]["n0"]["properties"]["n1"]
    while "n2" in deepest["properties"]:
        deepest = deepest["properties"]["n2"]
    assert (deepest["required"], deepest["properties"]) == (["a"], {"a": {"type": "integer"}})
    assert orjson.loads(whole_schema(tool)) != schema_of(tool)
    assert build.problems == (CUT,)


def _answering(schema: Json, status: str = "200", **shared: Json) -> Json:
    content = {"application/json": {"schema": schema}}
    responses = {status: {"description": "ok", "content": content}}
    return openapi({"/a": {"post": operation(responses=responses)}}, components={"schemas": shared})


def test_answers_keep_what_is_read_only_and_lose_what_is_write_only() -> None:
    secret = {"type": "string", "writeOnly": True}
    answer = an_object({"id": {"type": "string", "readOnly": True}, "secret": secret})
    tool = only_tool(_answering(_ref("A"), "201", A=answer))

    assert orjson.loads(tool.output_schema or b"") == {
        "$ref": "#/$defs/A",
        "$defs": {"A": an_object({"id": STRING})},
    }


def test_an_answer_that_is_too_large_has_no_schema() -> None:
    properties = {f"field_{n}": {"type": "string", "description": "d" * 200} for n in range(400)}
    assert only_tool(_answering(an_object(properties))).output_schema is None


def test_choices_that_are_too_many_to_be_checked_are_told_of() -> None:
    choices = [f"choice-{n:06}" for n in range(1_600)]
    parameter = {"name": "q", "in": "query", "schema": {**STRING, "enum": choices}}
    build = built(getting(parameter))

    assert schema_of(build.tools[0])["properties"] == {"q": STRING}
    words = "the 1,600 choices of an input are too many to be checked"
    assert build.problems == (Problem("info", "GET /a", f"{words}: {choices[:3]}"),)
