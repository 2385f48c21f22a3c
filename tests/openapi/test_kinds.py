"""Objects that say their kind: alternatives with a mapping, and schemas that extend another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.definitions import Json, only_tool, openapi, operation, schema_of, swagger

TEXT = {"type": "string"}
NUMBER = {"type": "integer"}
MAPPING = {"meow": "#/components/schemas/Cat", "purr": "Cat", "woof": "Dog"}
CAT = {"$ref": "#/$defs/Cat"}
DOG = {"$ref": "#/$defs/Dog"}


@pytest.mark.parametrize("keyword", ["oneOf", "anyOf"])
@pytest.mark.parametrize(
    ("kind_of_a_dog", "discriminator", "alternatives"),
    [
        (
            TEXT,
            {"propertyName": "kind", "mapping": MAPPING},
            [
                {**CAT, "properties": {"kind": {"enum": ["meow", "purr"]}}},
                {**DOG, "properties": {"kind": {"enum": ["woof"]}}},
            ],
        ),
        (
            {"type": "string", "enum": ["dog"]},
            {"propertyName": "kind", "mapping": MAPPING},
            [{**CAT, "properties": {"kind": {"enum": ["meow", "purr"]}}}, DOG],
        ),
        (NUMBER, {"propertyName": "kind", "mapping": {"1": "Dog"}}, [CAT, DOG]),
        (TEXT, {"propertyName": "kind", "mapping": {"x": "Nobody", "y": 5}}, [CAT, DOG]),
        (TEXT, {"propertyName": "kind"}, [CAT, DOG]),
        (TEXT, "kind", [CAT, DOG]),
    ],
)
def test_a_mapping_says_which_value_stands_for_which_alternative(
    keyword: str, kind_of_a_dog: Json, discriminator: Any, alternatives: list[Json]
) -> None:
    schemas = {
        "Pet": {
            keyword: [{"$ref": "#/components/schemas/Cat"}, {"$ref": "#/components/schemas/Dog"}],
            "discriminator": discriminator,
        },
        "Cat": {"type": "object", "properties": {"kind": TEXT}},
        "Dog": {"type": "object", "properties": {"kind": kind_of_a_dog}},
    }
    tool = only_tool(_definition({"$ref": "#/components/schemas/Pet"}, schemas))

    assert schema_of(tool)["$defs"]["Pet"] == {"anyOf": alternatives}


def test_a_body_that_says_its_kind_takes_what_any_kind_has() -> None:
    tool = only_tool(_definition({"$ref": "#/components/schemas/Pet"}, _extended("components")))

    assert schema_of(tool) == {
        "type": "object",
        "properties": {"kind": TEXT, "lives": NUMBER, "size": {}, "tricks": TEXT},
        "required": ["kind"],
        "additionalProperties": False,
    }


def test_a_body_of_swagger_that_says_its_kind_takes_what_any_kind_has() -> None:
    body = {"name": "pet", "in": "body", "schema": {"$ref": "#/definitions/Pet"}}
    definition = swagger({"/a": {"post": operation(parameters=[body])}})
    tool = only_tool({**definition, "definitions": _extended("definitions")})

    assert list(schema_of(tool)["properties"]) == ["kind", "lives", "size", "tricks"]


def test_a_body_of_one_kind_takes_only_what_that_kind_has() -> None:
    tool = only_tool(_definition({"$ref": "#/components/schemas/Cat"}, _extended("components")))

    assert sorted(schema_of(tool)["properties"]) == ["kind", "lives", "size"]
    assert sorted(schema_of(tool)["required"]) == ["kind", "lives"]


def _definition(schema: Json, schemas: Json) -> Json:
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    paths = {"/a": {"post": operation(requestBody=body)}}
    return openapi(paths, components={"schemas": schemas})


def _extended(home: str) -> Json:
    pet = {"$ref": "#/definitions/Pet" if home == "definitions" else "#/components/schemas/Pet"}
    told: Any = "kind" if home == "definitions" else {"propertyName": "kind"}
    cat = {"properties": {"lives": NUMBER, "size": NUMBER}, "required": ["lives"]}
    dog = {"tricks": TEXT, "size": TEXT, "id": {"type": "string", "readOnly": True}}
    return {
        "Pet": {
            "type": "object",
            "discriminator": told,
            "properties": {"kind": TEXT},
            "required": ["kind"],
        },
        "Cat": {"allOf": [pet, cat]},
        "Dog": {"allOf": [pet, {"properties": dog}]},
        "Stone": {"allOf": [{"$ref": "#/nowhere"}, {"properties": {"weight": NUMBER}}]},
    }
