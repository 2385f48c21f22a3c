"""Arguments against the schema of a tool: what fits, is filled in, or would take for ever."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from gateway.calls.arguments import check_arguments, fitting_arguments
from gateway.errors import Fixable
from gateway.model import Tool, UpstreamOperation
from tests.definitions import an_object, only_tool, openapi, operation
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


def checked(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    check_arguments(orjson.dumps(schema), arguments)


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


BESIDE_A_TITLE: list[tuple[dict[str, Any], str, str]] = [
    ({"title": 5}, "/title", '5 is not of type "string"'),
    ({"title": "x" * 6}, "/title", '"xxxxxx" is longer than 5 characters'),
    ({"count": 1.5}, "/count", '1.5 is not of type "integer"'),
    ({"count": True}, "/count", 'true is not of type "integer"'),
    ({"count": "1"}, "/count", '"1" is not of type "integer"'),
    ({"count": 0}, "/count", "0 is less than the minimum of 1"),
    ({"kind": "cd"}, "/kind", '"cd" is not one of "book" or "map"'),
    ({"titel": 1}, "/titel", "is not known; did you mean 'title'?"),
    ({"qqqq": 1}, "/qqqq", "is not known"),
    ({"password": "hunter2"}, "/password", 'the value is not of type "integer"'),
    ({"owner": 5}, "/owner", "5 is not string or object"),
    ({"owner": {"name": 5}}, "/owner/name", '5 is not of type "string"'),
    ({"tags": ["a", 1]}, "/tags/1", '1 is not of type "string"'),
]


@pytest.mark.parametrize(("arguments", "path", "words"), BESIDE_A_TITLE)
def test_a_problem_is_named_with_its_place(
    arguments: dict[str, Any], path: str, words: str
) -> None:
    assert problems_of({"title": "x", **arguments}) == [(path, words)]


def test_every_problem_is_named() -> None:
    assert problems_of({}) == [("/title", "is required")]
    assert sorted(problems_of({"count": 0, "kind": 1, "zz": 1})) == [
        ("/count", "0 is less than the minimum of 1"),
        ("/kind", '1 is not one of "book" or "map"'),
        ("/title", "is required"),
        ("/zz", "is not known"),
    ]
    assert sorted(problems_of({"title": "x", "author": {"Name": "n"}})) == [
        ("/author/Name", "is not known; did you mean 'name'?"),
        ("/author/name", "is required"),
    ]


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
    with raises(Fixable, code="connection_invalid"):
        checked({"$ref": "http://127.0.0.1:1/schema.json"}, {})


def upstream_tool(**schema: Any) -> Tool:
    """A tool of an MCP server, whose schema is as the server wrote it."""
    text = orjson.dumps({"type": "object"} | schema)
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
        ({"properties": {"n": {"oneOf": OVERLAPPING, "anyOf": [{"minimum": 1}]}}}, {"n": 1}),
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
WEIGHT = an_object({"n": {"type": "integer"}, "unit": UNIT}, "n", "unit")
OPTIONS = an_object({"unit": UNIT}, "unit")
KG = {"unit": "kg"}


@pytest.mark.parametrize(
    ("schema", "given", "filled"),
    [
        (OPTIONS, {}, KG),
        (OPTIONS, {"unit": "g"}, {"unit": "g"}),
        ({"properties": {"unit": UNIT}}, {}, {}),
        (an_object({"unit": {"$ref": "#/$defs/U"}}, "unit") | {"$defs": {"U": UNIT}}, {}, KG),
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
        (an_object({"o": {"$ref": "#/$defs/O"}}, "o") | {"$defs": {"O": OPTIONS}}, {}, {"o": KG}),
        (an_object({"o": {**OPTIONS, "default": {}}}, "o"), {}, {"o": KG}),
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


N = {"$ref": "#/$defs/N"}


def recursive(**more: Any) -> dict[str, Any]:
    return {"properties": {"v": N}, "$defs": {"N": {"type": "object", **more}}}


def twice(key: str, **inner: Any) -> dict[str, Any]:
    return recursive(properties={"v": N}, **{key: [inner, inner]})


def chain(keyword: str, levels: int) -> dict[str, Any]:
    """Each part twice the next, without going in a circle."""
    parts: dict[str, Any] = {
        f"S{n}": {keyword: [{"$ref": f"#/$defs/S{n + 1}"}] * 2} for n in range(levels)
    }
    return {
        "properties": {"v": {"$ref": "#/$defs/S0"}},
        "$defs": {**parts, f"S{levels}": {"type": "string"}},
    }


def below(levels: int, inside: Any = 1) -> Any:
    for _ in range(levels):
        inside = {"v": inside}
    return {"v": inside}


WORD = {"$anchor": "n", "allOf": [{"properties": {"v": {"$ref": "#n"}}}] * 2}
PLACE = {"$id": "http://a.example/n", "allOf": [{"properties": {"v": {"$ref": "n"}}}] * 2}
HOSTILE = {
    "anyOf": twice("anyOf", properties={"v": N}),
    "oneOf": twice("oneOf", properties={"v": N}),
    "allOf": twice("allOf", properties={"v": N}),
    "patterns": recursive(patternProperties={"v": N, "^v": N, ".": N}),
    "not": recursive(properties={"v": N}, **{"not": {"properties": {"v": N}}}),
    "if": recursive(properties={"v": N}, **{"if": {"properties": {"v": N}}}),
    "dependent": recursive(properties={"v": N}, dependentSchemas={"v": {"properties": {"v": N}}}),
    "anchor": {"properties": {"v": WORD}},
    "place": {
        "properties": {"v": {**PLACE, "allOf": [{"properties": {"v": N}}] * 2}},
        **twice("allOf", properties={"v": N}),
    },
    "root": {
        "properties": {"v": {"$ref": "#"}},
        "allOf": [{"properties": {"v": {"$ref": "#"}}}] * 2,
    },
    "encoded": {
        "properties": {"v": {"$ref": "#/%24defs/a~1b"}},
        "$defs": {"a/b": {"anyOf": [{"properties": {"v": {"$ref": "#/$defs/a~1b"}}}] * 3}},
    },
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("inside", [1, {}, [], "x"])
def test_what_multiplies_with_every_level_passes_or_is_refused_at_once(
    name: str, inside: Any
) -> None:
    try:
        checked(HOSTILE[name], below(40, inside))
    except Fixable as refusal:
        assert "nested too deeply to be checked" in refusal.message


@pytest.mark.parametrize("keyword", ["anyOf", "allOf", "oneOf"])
def test_references_that_only_multiply_are_refused_for_any_value(keyword: str) -> None:
    with pytest.raises(Fixable, match="nested too deeply to be checked"):
        checked(chain(keyword, 40), {"v": "x"})
    checked(chain(keyword, 8), {"v": "x"})


LISTS = recursive(properties={"v": {"type": "array", "items": N}})
PLAIN = {"type": ["string", "number", "boolean", "null"]}
ANY_PART = [PLAIN, {"type": "array", "items": N}, {"type": "object", "additionalProperties": N}]
ANYTHING = {"properties": {"v": N}, "$defs": {"N": {"anyOf": ANY_PART}}}
LIST_OF_N = {"type": "array", "items": N}
PARTS = [an_object({"and": LIST_OF_N}, "and"), an_object({"or": LIST_OF_N}, "or")]
PARTS.append(an_object({"is": {"type": "string"}}, "is"))
FILTER = {"properties": {"v": N}, "$defs": {"N": {"oneOf": PARTS}}}


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        (recursive(properties={"v": N}), below(60, {})),
        (LISTS, {"v": {"v": [{"v": []}] * 3_000}}),
        (ANYTHING, {"v": [[n, str(n), {"a": [n]}] for n in range(3_000)]}),
        (FILTER, {"v": {"and": [{"or": [{"is": "a"}] * 50}, {"and": [{"is": "b"}]}] * 20}}),
        (twice("anyOf", properties={"v": N}), below(5, {})),
    ],
    ids=["deep", "lists", "anything", "filter", "a little"],
)
def test_schemas_that_refer_to_themselves_are_checked_as_ever(
    schema: dict[str, Any], arguments: dict[str, Any]
) -> None:
    checked(schema, arguments)
