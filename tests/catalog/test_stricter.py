from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.catalog.changes import why_stricter


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


STRING, NUMBER, INTEGER = {"type": "string"}, {"type": "number"}, {"type": "integer"}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"next": {"$ref": "#/$defs/Tree"}, "name": STRING},
}
SHORT = {**TREE, "properties": {**TREE["properties"], "name": {**STRING, "maxLength": 3}}}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (of(a=STRING), of(a=STRING)),
        (of(a=STRING), of(a=STRING, b=STRING)),
        (of(a=INTEGER), of(a=NUMBER)),
        (of(a=STRING), of(a={"type": ["string", "null"]})),
        (of(a={"enum": ["x"]}), of(a={"enum": ["x", "y"]})),
        (of(a={"const": "x"}), of(a={"enum": ["x", "y"]})),
        (of(a={**STRING, "maxLength": 5}), of(a={**STRING, "maxLength": 9})),
        (of(a={**STRING, "minLength": 5}), of(a=STRING)),
        ({**of(a=STRING), "required": ["a"]}, of(a=STRING)),
        (of(a=STRING), {"type": "object", "properties": {}}),
        (of(a={"anyOf": [STRING, NUMBER]}), of(a={"anyOf": [NUMBER, STRING, {"type": "null"}]})),
        (of(a=STRING), of(a={"anyOf": [STRING, NUMBER]})),
        (of(a={**STRING, "pattern": "^a"}), of(a=STRING)),
        (of(a={**STRING, "description": "x"}), of(a={**STRING, "description": "y"})),
        ({**of(a={"$ref": "#/$defs/Tree"}), "$defs": {"Tree": TREE}},
         {**of(a={"$ref": "#/$defs/Baum"}), "$defs": {"Baum": {
             **TREE, "properties": {"next": {"$ref": "#/$defs/Baum"}, "name": STRING}}}}),
        (of(a={"type": "array", "items": INTEGER}), of(a={"type": "array", "items": NUMBER})),
        (of(a=STRING), of(a=True)),
    ],
)  # fmt: skip
def test_wider_or_equal_input_is_not_stricter(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert why_stricter(old, new) is None


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (of(a=STRING), {**of(a=STRING), "required": ["a"]}, "a is now required"),
        (of(a=STRING), of(), "a is no longer accepted"),
        (of(a=STRING), of(a=False), "a is no longer accepted"),
        (of(a=NUMBER), of(a=INTEGER), "a may no longer be number"),
        (of(a={}), of(a=STRING),
         "a may no longer be array or boolean or integer or null or number or object"),
        (of(a={"enum": ["x", "y"]}), of(a={"enum": ["x"]}), "a no longer allows 'y'"),
        (of(a=STRING), of(a={**STRING, "enum": ["x"]}), "a is now limited to certain values"),
        (of(a=STRING), of(a={**STRING, "const": "x"}), "a is now limited to certain values"),
        (of(a=STRING), of(a={**STRING, "maxLength": 9}), "a has a lower maxLength"),
        (of(a={**NUMBER, "minimum": 1}), of(a={**NUMBER, "minimum": 2}), "a has a higher minimum"),
        (of(a=STRING), of(a={**STRING, "pattern": "^a"}), "a must fit another pattern"),
        (of(a=STRING), of(a={**STRING, "format": "email"}), "a must fit another format"),
        (of(a={"anyOf": [STRING, NUMBER]}), of(a={"anyOf": [STRING]}), "a has fewer alternatives"),
        (of(a={"type": "array"}), of(a={"type": "array", "items": STRING}),
         "a[] may no longer be array or boolean or integer or null or number or object"),
        (of(a=of(b=STRING)), of(a={**of(b=STRING), "required": ["b"]}), "a.b is now required"),
        ({"type": "object"}, {"type": "object", "additionalProperties": False},
         "further properties is no longer accepted"),
        ({**of(a={"$ref": "#/$defs/Tree"}), "$defs": {"Tree": TREE}},
         {**of(a={"$ref": "#/$defs/Tree"}), "$defs": {"Tree": SHORT}},
         "a.name has a lower maxLength"),
        ({**of(a=of(t={"$ref": "#/$defs/Tree"})), "$defs": {"Tree": TREE}},
         {**of(a=of(t={"$ref": "#/$defs/Tree"})), "$defs": {"Tree": SHORT}},
         "a.t.name has a lower maxLength"),
        (of(a={"$ref": "https://elsewhere/x"}), of(a={"$ref": "https://elsewhere/y"}),
         "a can't be compared with what it was"),
        (of(a=STRING), of(a={**STRING, "not": {"const": "x"}}), "a must fit another not"),
        (of(a=STRING, b=STRING), {**of(a={**STRING, "maxLength": 1}), "required": ["a"]},
         "a is now required; a has a lower maxLength; b is no longer accepted"),
    ],
)  # fmt: skip
def test_what_got_stricter_is_said(old: dict[str, Any], new: dict[str, Any], reason: str) -> None:
    assert why_stricter(old, new) == reason


SCALARS = st.sampled_from([STRING, NUMBER, INTEGER, {"type": "boolean"}, {"enum": [1, "x"]}, {}])
SCHEMAS = st.recursive(
    SCALARS
    | st.builds(lambda n: {**STRING, "maxLength": n}, st.integers(0, 3))
    | st.builds(lambda n: {**NUMBER, "minimum": n}, st.integers(0, 3)),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner)
        | st.builds(
            lambda properties, required: {
                **of(**properties),
                "required": [name for name in required if name in properties],
            },
            st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            st.lists(st.sampled_from("ab"), unique=True),
        )
    ),
    max_leaves=4,
)
VALUES = st.recursive(
    st.sampled_from([None, True, 0, 1, 2.5, "x", "xxxx"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=4,
)


@given(SCHEMAS, SCHEMAS, VALUES)
def test_value_refused_now_and_good_before_means_stricter(
    old: dict[str, Any], new: dict[str, Any], value: Any
) -> None:
    good = jsonschema_rs.Draft202012Validator(of(a=old)).is_valid({"a": value})
    refused = not jsonschema_rs.Draft202012Validator(of(a=new)).is_valid({"a": value})
    if good and refused:
        assert why_stricter(of(a=old), of(a=new)) is not None
