"""Plain schemas: nothing that clients choke on, and what fits one fits the whole or is told why."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.arguments import check_arguments
from gateway.errors import Fixable
from gateway.plain import forms_of, plain_schema
from gateway.web.own_tools import OWN_TOOLS
from tests.definitions import an_object
from tests.plainness import not_plain
from tests.slow.generating import made_up

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}
TREE = an_object({"name": TEXT, "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}})
CARD = an_object({"kind": {"const": "card"}, "number": TEXT}, "kind", "number")
BANK = an_object({"kind": {"const": "bank"}, "iban": TEXT}, "kind", "iban")


def of(schema: Any, **beside: Any) -> Any:
    """A property's schema, made plain."""
    return plain_schema({**an_object({"a": schema}), **beside})["properties"].get("a", "gone")


@pytest.mark.parametrize(
    "schema, plain",
    [
        ({"type": ["string", "null"]}, TEXT),
        ({"enum": ["x", None]}, {"type": "string", "enum": ["x"]}),
        ({"const": 3}, {"type": "integer", "enum": [3]}),
        (True, {}),
        (False, "gone"),
        ({"type": "array"}, {"type": "array", "items": {}}),
        ({"type": "array", "items": False}, {"type": "array", "items": {}, "maxItems": 0}),
        ({"allOf": [{"minimum": 1}, {"minimum": 3, "type": "integer"}]}, NUMBER | {"minimum": 3}),
        ({"anyOf": [TEXT, {"type": "null"}]}, TEXT),
        (
            {"anyOf": [NUMBER, TEXT], "description": "A or b."},
            TEXT | {"description": "A or b. One of: integer; or string"},
        ),
        (
            {"oneOf": [CARD, BANK]},
            {
                "type": "object",
                "description": 'One of: kind = "card", number; or kind = "bank", iban',
                "properties": {
                    "kind": {"type": "string", "enum": ["card", "bank"]},
                    "number": TEXT,
                    "iban": TEXT,
                },
                "required": ["kind"],
            },
        ),
        (
            {"type": "object", "additionalProperties": TEXT, "patternProperties": {"^x": NUMBER}},
            {"type": "object", "additionalProperties": True},
        ),
        (
            {"type": "object", "properties": {"b": TEXT}, "if": {}, "then": {"required": ["b"]}},
            an_object({"b": TEXT}),
        ),
        ({"type": "array", "prefixItems": [TEXT, TEXT]}, {"type": "array", "items": TEXT}),
        ({"$ref": "#/$defs/nowhere"}, {}),
        ({"$ref": "https://elsewhere.example/schema"}, {}),
        ({"not": TEXT}, {}),
    ],
)
def test_each_thing_is_said_plainly(schema: Any, plain: Any) -> None:
    assert of(schema) == plain


def test_recursion_is_spelled_out_and_ends_in_an_open_object() -> None:
    tree = of({"$ref": "#/$defs/Tree"}, **{"$defs": {"Tree": TREE}})
    inner = tree["properties"]["children"]["items"]["properties"]["children"]["items"]
    assert tree["properties"]["name"] == TEXT
    assert inner == {"type": "object"}


def test_alternatives_at_the_top_are_told_in_words() -> None:
    plain = plain_schema(
        {**an_object({"a": TEXT, "b": TEXT}), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}
    )
    assert plain == an_object({"a": TEXT, "b": TEXT}) | {"description": "One of: a; or b"}


def test_size_and_work_are_bounded_where_references_multiply() -> None:
    every = {f"p{n}": {"$ref": f"#/$defs/d{n}"} for n in range(12)}
    around = [{"$ref": f"#/$defs/d{n}"} for n in range(12)]
    defs = {f"d{n}": {**an_object(every), "anyOf": [an_object(every), *around]} for n in range(12)}
    schema = {**an_object(every), "$defs": defs}
    plain = plain_schema(schema)
    assert not list(not_plain(plain))
    assert len(orjson.dumps(plain)) <= 4 * len(orjson.dumps(schema))
    deep: Any = {}
    for _ in range(3_000):
        deep = {"allOf": [deep]}
    assert plain_schema(an_object({"a": deep}))["type"] == "object"


def test_the_gateways_own_tools_are_plain_for_everybody() -> None:
    assert {tool.name: forms_of(tool.entry) for tool in OWN_TOOLS if forms_of(tool.entry)} == {}


NAMES = st.sampled_from(["a", "b", "c"])
LEAVES = st.sampled_from(
    [
        *({"type": kind} for kind in ("string", "integer", "number", "boolean", "null")),
        {"type": ["string", "null"]},
        {"type": ["integer", "string"]},
        {"enum": ["x", "y", None]},
        {"const": "x"},
        {"type": "string", "minLength": 2, "maxLength": 5},
        {"type": "integer", "minimum": 3, "maximum": 9},
        {"$ref": "#/$defs/D"},
        {"$ref": "#/$defs/E"},
        {"not": {"enum": ["x"]}},
        True,
        {},
    ]
)


def _wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some, named = st.lists(inner, min_size=1, max_size=3), st.dictionaries(NAMES, inner, max_size=3)
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": named},
            optional={
                "required": st.lists(NAMES, max_size=2, unique=True),
                "additionalProperties": st.one_of(st.booleans(), inner),
                "dependentRequired": st.just({"a": ["b"]}),
                "dependentSchemas": st.dictionaries(NAMES, inner, max_size=1),
                "minProperties": st.just(1),
                "patternProperties": st.dictionaries(st.just("^x"), inner, max_size=1),
                "propertyNames": st.just({"maxLength": 8}),
                "unevaluatedProperties": st.just(False),
            },
        ),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner},
            optional={"prefixItems": some, "contains": inner, "minItems": st.just(1)},
        ),
        *(st.fixed_dictionaries({key: some}) for key in ("anyOf", "oneOf", "allOf")),
        st.fixed_dictionaries({"if": inner, "then": inner}, optional={"else": inner}),
    )


SCHEMAS = st.recursive(LEAVES, _wider, max_leaves=8)


@given(named=st.dictionaries(NAMES, SCHEMAS, min_size=1, max_size=3), d=SCHEMAS, e=SCHEMAS)
def test_what_fits_the_plain_schema_fits_the_whole_or_is_told_why(
    named: dict[str, Any], d: Any, e: Any
) -> None:
    whole = {**an_object(named), "$defs": {"D": d, "E": e}}
    plain = plain_schema(whole)
    assert list(not_plain(plain)) == []
    jsonschema_rs.Draft202012Validator(plain)
    for way in ("required", "all", "random"):
        arguments = made_up(plain, way, way)
        if arguments is None:
            continue
        try:
            check_arguments(orjson.dumps(whole), arguments)
        except Fixable as refusal:
            told = refusal.as_dict()
            assert told["problems"], told
            for words in (problem["message"] for problem in told["problems"]):
                assert words.strip() and "schema" not in words.lower(), words
                assert not any(key in words for key in ("anyOf", "oneOf", "$ref", "allOf")), words
