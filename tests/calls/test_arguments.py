from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.calls.arguments import check_arguments, fitting_arguments
from gateway.errors import Fixable
from gateway.model import Tool, UpstreamOperation
from tests.definitions import only_tool, openapi, operation
from tests.raising import raises

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["title"],
    "properties": {
        "title": {"type": "string", "maxLength": 5},
        "count": {"type": "integer", "minimum": 1},
        "price": {"type": ["number", "null"]},
        "kind": {"enum": ["book", "map"]},
        "when": {"type": "string", "format": "date"},
        "code": {"type": "string", "pattern": "^(?=a)a+$"},
        "password": {"type": "integer"},
        "any": True,
        "author": {"$ref": "#/$defs/Author"},
        "owner": {"anyOf": [{"type": "string"}, {"$ref": "#/$defs/Author"}]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "$defs": {
        "Author": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "friend": {"$ref": "#/$defs/Author"}},
        }
    },
}
TEXT = orjson.dumps(SCHEMA)


def problems_of(arguments: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(Fixable) as refusal:
        check_arguments(TEXT, arguments)
    assert refusal.value.code == "invalid_arguments"
    return [(p["path"], p["message"]) for p in refusal.value.details["problems"]]


@pytest.mark.parametrize(
    "arguments",
    [
        {"title": "x"},
        {"title": "x", "count": 1.0},
        {"title": "x", "count": 2**63},
        {"title": "x", "price": None},
        {"title": "x", "when": "not a date"},
        {"title": "x", "code": "aa"},
        {"title": "é😀éé", "owner": {"name": "n", "friend": {"name": "m"}}},
        {"title": "x", "any": {"deep": [1, None]}},
    ],
)
def test_arguments_that_fit_pass(arguments: dict[str, Any]) -> None:
    check_arguments(TEXT, arguments)


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        ({}, [("/title", "is required")]),
        ({"title": 5}, [("/title", '5 is not of type "string"')]),
        ({"title": "x" * 6}, [("/title", '"xxxxxx" is longer than 5 characters')]),
        ({"title": "x", "count": 1.5}, [("/count", '1.5 is not of type "integer"')]),
        ({"title": "x", "count": True}, [("/count", 'true is not of type "integer"')]),
        ({"title": "x", "count": "1"}, [("/count", '"1" is not of type "integer"')]),
        ({"title": "x", "count": 0}, [("/count", "0 is less than the minimum of 1")]),
        ({"title": "x", "kind": "cd"}, [("/kind", '"cd" is not one of "book" or "map"')]),
        ({"title": "x", "titel": 1}, [("/titel", "is not known; did you mean 'title'?")]),
        ({"title": "x", "qqqq": 1}, [("/qqqq", "is not known")]),
        (
            {"title": "x", "password": "hunter2"},
            [("/password", 'the value is not of type "integer"')],
        ),
        (
            {"title": "x", "author": {"Name": "n"}},
            [
                ("/author/Name", "is not known; did you mean 'name'?"),
                ("/author/name", "is required"),
            ],
        ),
        ({"title": "x", "owner": 5}, [("/owner", "5 is not string or object")]),
        ({"title": "x", "owner": {"name": 5}}, [("/owner/name", '5 is not of type "string"')]),
        ({"title": "x", "tags": ["a", 1]}, [("/tags/1", '1 is not of type "string"')]),
        (
            {"count": 0, "kind": 1, "zz": 1},
            [
                ("/title", "is required"),
                ("/count", "0 is less than the minimum of 1"),
                ("/kind", '1 is not one of "book" or "map"'),
                ("/zz", "is not known"),
            ],
        ),
    ],
)
def test_every_problem_is_named_with_its_place(
    arguments: dict[str, Any], problems: list[tuple[str, str]]
) -> None:
    assert sorted(problems_of(arguments)) == sorted(problems)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["price", "any"])
def test_numbers_that_json_does_not_have_are_refused(name: str, number: float) -> None:
    assert problems_of({"title": "x", name: number}) == [("", "holds a number that JSON can't")]


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels else []


@pytest.mark.parametrize("value", ["\ud800", 2**64, nested(300)])
def test_what_we_could_not_write_as_json_is_refused(value: Any) -> None:
    words = "is nested too deeply, or holds half a character or a number of over 64 bits"
    assert problems_of({"title": "x", "any": value}) == [("", words)]


def test_problems_and_the_values_in_them_are_bounded() -> None:
    problems = problems_of({"title": "x" * 10_000, "tags": list(range(1000))})
    assert len(problems) == 20
    assert all(len(message) <= 600 for _, message in problems)


def test_no_reference_is_fetched() -> None:
    schema = orjson.dumps({"$ref": "http://127.0.0.1:1/schema.json"})
    with raises(Fixable, code="connection_invalid"):
        check_arguments(schema, {})


def upstream_tool(**schema: Any) -> Tool:
    """A tool of an MCP server, whose schema is as the server wrote it."""
    text = orjson.dumps({"type": "object", **schema})
    return replace(
        only_tool(openapi({"/a": {"get": operation()}})),
        input_schema=text,
        http=None,
        upstream=UpstreamOperation("search"),
    )


OVERLAPPING = [{"type": "integer"}, {"type": "number"}]


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        ({"properties": {"n": {"oneOf": OVERLAPPING}}}, {"n": 1}),
        (
            {"properties": {"n": {"oneOf": OVERLAPPING, "anyOf": [{"minimum": 1}]}}},
            {"n": 1},
        ),
        ({"properties": {"oneOf": {"type": "string"}}}, {"oneOf": "x"}),
        ({"$defs": {"N": {"oneOf": OVERLAPPING}}, "items": {"$ref": "#/$defs/N"}}, {}),
    ],
)
def test_alternatives_may_overlap(schema: Any, arguments: dict[str, Any]) -> None:
    assert fitting_arguments(upstream_tool(**schema), arguments) == (arguments, [])


def test_alternatives_of_which_none_fits_are_refused_with_what_comes_nearest() -> None:
    with pytest.raises(Fixable) as refusal:
        fitting_arguments(upstream_tool(properties={"n": {"oneOf": OVERLAPPING}}), {"n": "x"})
    assert refusal.value.details["problems"] == [
        {"path": "/n", "message": '"x" is not integer or number'}
    ]


UNIT = {"type": "string", "default": "kg"}
WEIGHT = {"type": "object", "properties": {"n": {"type": "integer"}, "unit": UNIT}} | {
    "required": ["n", "unit"]
}
OPTIONS = {"type": "object", "properties": {"unit": UNIT}, "required": ["unit"]}


@pytest.mark.parametrize(
    ("schema", "given", "filled"),
    [
        ({"properties": {"unit": UNIT}, "required": ["unit"]}, {}, {"unit": "kg"}),
        ({"properties": {"unit": UNIT}, "required": ["unit"]}, {"unit": "g"}, {"unit": "g"}),
        ({"properties": {"unit": UNIT}}, {}, {}),
        (
            {
                "properties": {"unit": {"$ref": "#/$defs/U"}},
                "required": ["unit"],
                "$defs": {"U": UNIT},
            },
            {},
            {"unit": "kg"},
        ),
        (
            {"properties": {"w": {"type": "array", "prefixItems": [WEIGHT], "items": WEIGHT}}},
            {"w": [{"n": 1}, {"n": 2}]},
            {"w": [{"n": 1, "unit": "kg"}, {"n": 2, "unit": "kg"}]},
        ),
        (
            {"properties": {"a": True, "unit": UNIT}, "dependentRequired": {"a": ["unit"]}},
            {"a": 1},
            {"a": 1, "unit": "kg"},
        ),
        (
            {"additionalProperties": {"oneOf": [{"type": "string"}, WEIGHT]}},
            {"x": {"n": 1}, "y": "z"},
            {"x": {"n": 1, "unit": "kg"}, "y": "z"},
        ),
        (
            {
                "properties": {"o": {"$ref": "#/$defs/O"}},
                "required": ["o"],
                "$defs": {"O": OPTIONS},
            },
            {},
            {"o": {"unit": "kg"}},
        ),
        (
            {"properties": {"o": {**OPTIONS, "default": {}}}, "required": ["o"]},
            {},
            {"o": {"unit": "kg"}},
        ),
    ],
)
def test_what_is_required_and_has_a_default_is_filled_in(
    schema: Any, given: dict[str, Any], filled: dict[str, Any]
) -> None:
    assert fitting_arguments(upstream_tool(**schema), given) == (filled, [])


def test_of_two_alternatives_the_one_that_fits_is_filled_in() -> None:
    circle = {"kind": {"const": "circle", "default": "circle"}, "r": {"type": "integer"}}
    square = {"kind": {"const": "square", "default": "square"}, "side": {"type": "integer"}}
    branches = [
        {"properties": circle, "required": ["kind", "r"], "additionalProperties": False},
        {"properties": square, "required": ["kind", "side"], "additionalProperties": False},
    ]
    tool = upstream_tool(properties={"shape": {"oneOf": branches}})

    filled, _ = fitting_arguments(tool, {"shape": {"side": 2}})
    assert filled == {"shape": {"side": 2, "kind": "square"}}


def test_an_object_of_which_something_is_left_to_ask_for_is_asked_for() -> None:
    parts: dict[str, Any] = {"w": WEIGHT, "itself": {"$ref": "#"}}
    tool = upstream_tool(properties=parts, required=["w", "itself"])

    with raises(Fixable, problems=["/w", "/itself"]):
        fitting_arguments(tool, {})


def test_a_default_that_does_not_fit_is_no_help() -> None:
    tool = upstream_tool(properties={"n": {"type": "integer", "default": "x"}}, required=["n"])

    with pytest.raises(Fixable, match="/n"):
        fitting_arguments(tool, {})


def test_filling_in_comes_to_an_end() -> None:
    node: dict[str, Any] = {"type": "object", "properties": {"x": UNIT}, "required": ["x"]}
    below = [{"$ref": "#/$defs/N"}, {"$ref": "#/$defs/N"}, {"type": "null"}]
    node["properties"] |= {"a": {"anyOf": below}, "b": {"anyOf": below}}
    tool = upstream_tool(properties={"n": {"$ref": "#/$defs/N"}}, **{"$defs": {"N": node}})
    value: dict[str, Any] = {}
    for _ in range(12):
        value = {"a": value, "b": value}

    with pytest.raises(Fixable):
        fitting_arguments(tool, {"n": value})
