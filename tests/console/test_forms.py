"""A schema as a form, and the form as arguments again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.console.tools import form_arguments, form_fields
from gateway.errors import Fixable
from gateway.limits import FORM_FIELDS
from tests.raising import raises

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "note": {"type": "string", "maxLength": 4000},
        "id": {"type": "integer", "description": "Which one."},
        "when": {"type": "string", "format": "date"},
        "size": {"enum": ["s", "m", 3]},
        "fast": {"type": "boolean", "default": False},
        "tags": {"type": "array", "items": {"type": "string"}},
        "owner": {"$ref": "#/$defs/person"},
        "maybe": {"type": ["number", "null"], "examples": [1.5]},
    },
    "required": ["id"],
    "$defs": {
        "person": {
            "type": "object",
            "properties": {
                "name": {"type": "string"},
                "boss": {"$ref": "#/$defs/person"},
            },
            "required": ["name"],
        }
    },
}


def test_each_value_gets_the_control_that_fits() -> None:
    shown = [(f.name, f.control, f.kind, f.required, f.hint) for f in form_fields(SCHEMA)]
    assert shown == [
        ("/id", "number", "number", True, "integer"),
        ("/note", "area", "text", False, "string"),
        ("/when", "text", "date", False, "string"),
        ("/size", "choice", "", False, "any JSON value"),
        ("/fast", "yes_no", "boolean", False, "default: false"),
        ("/tags", "json", "text", False, "a JSON list"),
        ("/owner/name", "text", "text", True, "string"),
        ("/owner/boss", "json", "text", False, "a JSON object"),
        ("/maybe", "number", "number", False, "e.g. 1.5"),
    ]


def test_a_filled_form_means_the_arguments_it_was_made_for() -> None:
    arguments = {
        "id": 7,
        "note": "a\nb",
        "size": 3,
        "fast": False,
        "tags": ["x"],
        "owner": {"name": "Ann", "boss": {"name": "Bob"}},
        "maybe": 1.5,
    }
    form = {field.name: field.value for field in form_fields(SCHEMA, arguments)}
    assert form_arguments(SCHEMA, form) == arguments


def test_what_is_left_empty_is_no_argument() -> None:
    form = {"/id": "1", "/note": " ", "/owner/name": "", "/unknown": "x"}
    assert form_arguments(SCHEMA, form) == {"id": 1}


def test_written_json_goes_before_the_fields() -> None:
    assert form_arguments(SCHEMA, {"/id": "1", "json": '{"id": 2}'}) == {"id": 2}


@pytest.mark.parametrize("form", [{"json": "{"}, {"json": "[1]"}, {"/id": "1", "/tags": "x"}])
def test_what_is_not_json_is_told_where_it_is(form: dict[str, str]) -> None:
    with raises(Fixable, code="invalid_arguments"):
        form_arguments(SCHEMA, form)


def test_a_number_that_is_none_is_left_to_the_check_of_the_call() -> None:
    assert form_arguments(SCHEMA, {"/id": "seven"}) == {"id": "seven"}


def test_a_form_has_a_bounded_number_of_fields() -> None:
    wide = {"type": "object", "properties": {f"p{i}": {} for i in range(1000)}}
    assert len(form_fields(wide)) == FORM_FIELDS


KEYWORDS = ("properties", "$ref", "enum", "required", "maxLength", "format", "examples", "a")
values = st.recursive(
    st.none() | st.integers(-9, 999) | st.sampled_from(["a", "object", "string", "#/$defs/a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.fixed_dictionaries(
            {"type": st.sampled_from(["object", "string", "integer", None, ["null"], 3])},
            optional=dict.fromkeys(KEYWORDS, inner),
        )
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=8), values, max_size=5), values)
def test_no_schema_breaks_the_form(properties: dict[str, Any], definitions: Any) -> None:
    schema = {"type": "object", "properties": properties, "$defs": definitions}
    for field in form_fields(schema, {"a": {}}):
        assert field.name.startswith("/")
