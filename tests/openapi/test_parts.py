"""A definition in JSON is read part by part, and nobody can tell from its tools."""

from __future__ import annotations

import codecs
import json

import orjson
import pytest

from gateway.errors import DefinitionUnreadable
from gateway.openapi.bodies import Surroundings, taken_body
from gateway.openapi.build import build_openapi
from gateway.openapi.document import Document, Operation, open_document, operations
from gateway.openapi.inputs import ArgumentNames, parameters, request_body
from gateway.openapi.reading import Parts, PartUnreadable, read_in_parts
from gateway.openapi.schema import Schemas
from tests.definitions import SOURCE, Json, built, openapi, operation, schema_of, swagger

MANY = 300  # so many that ids of what was let go are given out again
CHOICE = {"name": "kind", "in": "query", "schema": {"type": "string", "enum": ["a", "b"]}}
ANIMAL = {"discriminator": {"propertyName": "kind"}, "properties": {"kind": {"type": "string"}}}
CAT = {"purrs": {"type": "boolean"}}
INTO_A = "#/paths/~1a/put/requestBody/content/application~1json/schema"


def body(schema: Json) -> Json:
    return {"content": {"application/json": {"schema": schema}}}


def opened(definition: Json) -> tuple[Document, Parts]:
    document = open_document(read_in_parts(orjson.dumps(definition)))
    paths = document.root["paths"]
    assert isinstance(paths, Parts)
    return document, paths


@pytest.mark.parametrize(
    "definition",
    [
        openapi(
            {
                "/later": {"get": operation(parameters=[{"$ref": "#/paths/~1a/get/parameters/0"}])},
                "/a": {
                    "get": operation(parameters=[CHOICE]),
                    "put": operation(parameters=[{"$ref": "#/paths/~1a/get/parameters/0"}]),
                },
                "/earlier": {
                    "get": operation(parameters=[{"$ref": "#/paths/~1a/get/parameters/0"}])
                },
            }
        ),
        openapi({"/a": {"get": operation(parameters=[CHOICE])}, "/b": {"$ref": "#/paths/~1a"}}),
        openapi({"/b": {"$ref": "#/paths/~1a", "put": operation()}, "/a": {"get": operation()}}),
        openapi(
            {
                "/a": {"put": operation(requestBody=body({"$ref": "#/components/schemas"}))},
                "/b": {"put": operation(requestBody=body({"properties": {"x": {"$ref": "#"}}}))},
                "/c": {"put": operation(requestBody=body({"default": {"$ref": "#/paths"}}))},
            },
            components={"schemas": {"properties": {"x": {"type": "string"}}, "default": {"a": 1}}},
        ),
        openapi(
            {"/a": {"put": operation(requestBody=body(ANIMAL))}},
            components={"schemas": {"Cat": {"allOf": [{"$ref": INTO_A}], "properties": CAT}}},
        ),
        openapi({"/a": [], "/b": {"get": 1, "PUT": operation()}, "x-c": {"get": operation()}}),
        openapi({"/a": {"get": operation()}}, components=[], responses=1),
        swagger(
            {"/a": {"parameters": [{"$ref": "#/parameters/p"}], "get": operation()}},
            parameters={"p": {"name": "p", "in": "query", "type": "integer"}},
        ),
        swagger({"/a": {"get": operation(description="x" * 20, maximum=10**30)}}),
    ],
    ids=[
        "into paths",
        "a path item",
        "a path item with more",
        "far up",
        "kinds",
    ]
    + ["no path items", "no components", "shared parameters", "large numbers"],
)
def test_in_parts_or_as_a_whole_the_tools_are_the_same(definition: Json) -> None:
    raw = json.dumps(definition).encode()
    as_a_whole = b"# a comment, so that this is YAML\n" + raw

    assert isinstance(read_in_parts(raw), Parts)
    assert build_openapi(raw, SOURCE) == build_openapi(as_a_whole, SOURCE)


@pytest.mark.parametrize(
    "text",
    [
        '{"swagger": "2.0", "paths": {"/a": {"get": {"operationId": "a", "x": 1e999}}}}',
        '{"swagger": "2.0", "paths": {"/a": {"get": {"operationId": "a"}}}, "info": 1e999}',
        '{"swagger": "2.0", "paths": {"/a": {"get": {"operationId": "a"}}}, "definitions": 1e999}',
        '{"swagger": "2.0", "paths": {"/a": {"parameters": [{"$ref": "#/parameters/p"}],'
        ' "get": {}}}, "parameters": {"p": {"in": "query", "name": "p", "default": 1e999}}}',
    ],
)
def test_a_part_that_json_does_not_know_is_read_as_yaml_with_the_rest(text: str) -> None:
    raw = text.encode()

    assert build_openapi(raw, SOURCE) == build_openapi(b"# a comment\n" + raw, SOURCE)


def test_a_part_in_a_wrong_encoding_is_refused_with_its_place() -> None:
    raw = b'{"swagger": "2.0", "paths": {"/a": {"get": {"operationId": "a", "summary": "\xff"}}}}'
    document = open_document(read_in_parts(codecs.BOM_UTF8 + raw))
    with pytest.raises(PartUnreadable):
        list(operations(document))

    with pytest.raises(DefinitionUnreadable, match="invalid leading UTF-8 octet"):
        build_openapi(codecs.BOM_UTF8 + raw, SOURCE)


def test_the_last_of_twins_wins_on_every_level() -> None:
    text = """{
      "swagger": "2.0",
      "paths": {"/lost": {"get": {"operationId": "lost"}}},
      "definitions": {"x": {"properties": {"lost": {}}}},
      "definitions": {"x": {"properties": {"lost": {}}}, "x": {"properties": {"kept": {}}}},
      "paths": {
        "/a": {"get": {"operationId": "lost"}},
        "/a": {
          "put": {"operationId": "lost"},
          "put": {"parameters": [
            {"in": "body", "name": "b", "schema": {"$ref": "#/definitions/x"}}
          ]}
        }
      }
    }"""

    (tool,) = build_openapi(text.encode(), SOURCE).tools

    assert (tool.method, tool.path, list(schema_of(tool)["properties"])) == ("PUT", "/a", ["kept"])


def test_no_operation_is_given_what_was_remembered_of_another() -> None:
    schemes = {f"s{n}": {"type": "apiKey", "in": "header", "name": f"K{n}"} for n in range(MANY)}
    paths = {
        f"/things{n}": {
            "put": operation(
                operationId=f"put{n}",
                parameters=[{"name": "q", "in": "query", "schema": {"const": n}}],
                requestBody=body(
                    {"discriminator": {"propertyName": "k"}, "properties": {"b": {"const": -n}}}
                ),
                security=[{f"s{n}": []}],
            )
        }
        for n in range(MANY)
    }

    build = built(openapi(paths, components={"securitySchemes": schemes}))

    assert [(tool.path, schema_of(tool)["properties"], tool.security) for tool in build.tools] == [
        (f"/things{n}", {"q": {"const": n}, "b": {"const": -n}}, f"apiKey header K{n}")
        for n in range(MANY)
    ]


def test_microsofts_marks_are_seen_in_every_path() -> None:
    paths: Json = {}
    for n in range(MANY):
        rule = {"operationId": f"find{n}", "value-path": "id", "value-title": "name"}
        found = {"name": "q", "in": "query", "type": "string", "x-ms-dynamic-values": rule}
        paths[f"/things{n}"] = {"get": operation(operationId=f"get{n}", parameters=[found])}
        paths[f"/found{n}"] = {
            "get": operation(operationId=f"find{n}", **{"x-ms-visibility": "internal"})
        }

    build = built(swagger(paths))

    assert [tool.operation for tool in build.tools] == [f"get{n}" for n in range(MANY)]
    assert [tool.operation for tool in build.hidden] == [f"find{n}" for n in range(MANY)]


def test_path_items_are_let_go_unless_a_reference_leads_there() -> None:
    document, paths = opened(
        openapi(
            {
                "/a": {"get": operation(parameters=[CHOICE])},
                "/b": {"$ref": "#/paths/~1a"},
                "/c": {"get": operation()},
                "/d": {"get": operation()},
            }
        )
    )

    found = {each.path: each for each in operations(document) if not isinstance(each, tuple)}

    assert [path for path in paths if paths.keeps(path)] == ["/a"]
    assert found["/b"].raw is paths["/a"]["get"]
    assert found["/c"].raw is not paths["/c"]["get"]


def test_what_is_remembered_of_a_path_item_goes_with_it_and_the_rest_stays() -> None:
    shared = {"$ref": "#/components/parameters/shared"}
    document, _ = opened(
        openapi(
            {f"/{n}": {"get": operation(parameters=[CHOICE, shared])} for n in range(3)},
            components={"parameters": {"shared": {"in": "query", "name": "s", "schema": {}}}},
        )
    )
    schemas = Schemas(document, "input", lambda severity, message: None)
    kept = document.root["components"]["parameters"]["shared"]["schema"]

    for each in operations(document):
        assert not isinstance(each, tuple)
        schemas.translate(each.raw["parameters"][0]["schema"])
        schemas.translate(kept)

    assert [set(memo) for memo in document.memos if memo] == [{id(kept)}]


@pytest.mark.parametrize("reference", ["#animal", "#/components/schemas/Animal"])
def test_an_anchor_leads_to_the_same_schema_as_a_pointer(reference: str) -> None:
    dog = {"allOf": [{"$ref": "#/components/schemas/Animal"}], "properties": CAT}
    shared = {"First": {}, "Animal": {"$anchor": "animal", **ANIMAL}, "Dog": dog}
    definition = openapi(
        {"/a": {"put": operation(requestBody=body({"$ref": reference}))}},
        version="3.1.0",
        components={"schemas": shared},
    )
    (tool,) = build_openapi(orjson.dumps(definition), SOURCE).tools

    assert list(orjson.loads(tool.input_schema)["properties"]) == ["kind", "purrs"]


def test_nothing_is_remembered_of_fields_that_are_put_together_for_a_form() -> None:
    fields = [{"name": f"f{n}", "in": "formData", "type": "string"} for n in range(3)]
    paths = {f"/{n}": {"post": operation(parameters=fields)} for n in range(5)}
    document = open_document(read_in_parts(orjson.dumps(swagger(paths))))
    schemas = Schemas(document, "input", lambda severity, message: None)
    for each in operations(document):
        assert isinstance(each, Operation)
        written = request_body(document, each, parameters(document, each))
        assert written is not None
        around = Surroundings(document, schemas, SOURCE, each.method)
        taken = taken_body(around, written, ArgumentNames())
        assert [slot.argument for slot in taken.slots] == ["f0", "f1", "f2"]

    assert [len(memo) for memo in document.memos] == [0, 0, 0, 0]
