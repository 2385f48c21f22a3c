"""Objects that say their kind: alternatives with a mapping, and schemas that extend another."""

from __future__ import annotations

from typing import Any

import pytest

from tests.definitions import Json, an_object, only_tool, posting, schema_of, swagger

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
            keyword: [_ref("Cat"), _ref("Dog")],
            "discriminator": discriminator,
        },
        "Cat": an_object({"kind": TEXT}),
        "Dog": an_object({"kind": kind_of_a_dog}),
    }
    tool = only_tool(posting(_ref("Pet"), schemas=schemas))

    assert schema_of(tool)["$defs"]["Pet"] == {"anyOf": alternatives}


@pytest.mark.parametrize("home", ["components/schemas", "definitions"])
def test_a_body_that_says_its_kind_takes_what_any_kind_has(home: str) -> None:
    make = swagger if home == "definitions" else None
    definition = posting(_ref("Pet", home), make=make, required=True)
    shared = {"components": {"schemas": _extended(home)}, "definitions": _extended(home)}
    tool = only_tool({**definition, **shared})

    properties = {"kind": TEXT, "lives": NUMBER, "size": {}, "tricks": TEXT}
    assert schema_of(tool) == an_object(properties, "kind", additionalProperties=False)


def test_a_body_of_one_kind_takes_only_what_that_kind_has() -> None:
    tool = only_tool(posting(_ref("Cat"), required=True, schemas=_extended("components/schemas")))

    assert sorted(schema_of(tool)["properties"]) == ["kind", "lives", "size"]
    assert sorted(schema_of(tool)["required"]) == ["kind", "lives"]


def _ref(name: str, home: str = "components/schemas") -> Json:
    return {"$ref": f"#/{home}/{name}"}


def _extended(home: str) -> Json:
    pet = _ref("Pet", home)
    told: Any = "kind" if home == "definitions" else {"propertyName": "kind"}
    cat = {"properties": {"lives": NUMBER, "size": NUMBER}, "required": ["lives"]}
    dog = {"tricks": TEXT, "size": TEXT, "id": {"type": "string", "readOnly": True}}
    return {
        "Pet": an_object({"kind": TEXT}, "kind", discriminator=told),
        "Cat": {"allOf": [pet, cat]},
        "Dog": {"allOf": [pet, {"properties": dog}]},
        "Stone": {"allOf": [{"$ref": "#/nowhere"}, {"properties": {"weight": NUMBER}}]},
    }
