"""Bytes of unknown origin become a plain definition, or one refusal with its place."""

from __future__ import annotations

import codecs
import json

import pytest

from gateway.errors import DefinitionUnreadable
from gateway.openapi.build import build_openapi
from gateway.openapi.document import read_definition, read_yaml
from tests.definitions import SOURCE, Json, openapi, operation, schema_of, swagger
from tests.raising import raises

PLAIN = {"swagger": "2.0", "info": {"title": "Größe"}, "paths": {}}
TEXT = '{"swagger": "2.0", "info": {"title": "Größe"}, "paths": {}}'


SPELLINGS = {
    "utf-8": TEXT.encode(),
    "byte order mark": codecs.BOM_UTF8 + TEXT.encode(),
    "utf-16 with mark": TEXT.encode("utf-16"),
    "windows-1252": TEXT.encode("cp1252"),
    "trailing comma": TEXT.replace("{}}", "{},}").encode(),
    "properties.swagger": b'{"properties": {"swagger": ' + TEXT.encode() + b"}}",
    "apiDefinitions": b'{"properties": {"apiDefinitions": {"value": ' + TEXT.encode() + b"}}}",
    "yaml": "swagger: '2.0'\ninfo: {title: Größe}\npaths: {}\n".encode(),
}


@pytest.mark.parametrize("raw", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_every_encoding_syntax_and_wrapper_gives_the_same_definition(raw: bytes) -> None:
    assert read_definition(raw) == PLAIN


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        (b'{"a": 99999999999999999999}', {"a": 1e20}),
        (b'{"b": [18446744073709551615, {"c": -9223372036854775809}]}',
         {"b": [2**64 - 1, {"c": -(2.0**63)}]}),
        (b'{"info": {"title": "a\x02b"},}', {"info": {"title": "a b"}}),
    ],
)  # fmt: skip
def test_large_numbers_become_fractions_and_raw_control_characters_spaces(
    raw: bytes, read: Json
) -> None:
    assert read_definition(raw) == read


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "The document is empty."),
        (b" \n ", "The document is empty."),
        (
            b'{"a": 1\n "b": 2}',
            "Not valid JSON or YAML: did not find expected ',' or '}' (line 2, column 5).",
        ),
        (b"[1, 2]", "The document is a list, not an OpenAPI definition."),
        (b"<html></html>", "The document is a web page, not an OpenAPI definition."),
        (b"hello", "The document is plain text, not an OpenAPI definition."),
    ],
    ids=["empty", "blank", "no comma", "list", "page", "text"],
)
def test_what_cannot_be_read_is_refused_in_words(raw: bytes, message: str) -> None:
    with raises(DefinitionUnreadable, message=message):
        read_definition(raw)


SCALARS = {
    "a: no": "no",
    "a: on": "on",
    "a: =": "=",
    "a: 24:00:00": "24:00:00",
    "a: 2001-12-14": "2001-12-14",
    "a: 0o17": 15,
    "a: 0x1F": 31,
    "a: 017": 17,
    "a: 1e3": 1000.0,
    "a: .5": 0.5,
    "a: 1_000": "1_000",
    "a: .inf": ".inf",
    "a: 99999999999999999999": 1e20,
    "a: True": True,
    "a: ~": None,
    "a:": None,
    "a: '1'": "1",
    "a: !!str 1": "1",
    "a: !custom x": "x",
    "a: |\n  two\n  lines\n": "two\nlines\n",
    "a: [&x {b: 1}, *x]": [{"b": 1}, {"b": 1}],
    "a: {<<: {b: 1, c: 1}, c: 2}": {"b": 1, "c": 2},
}


def test_scalars_are_those_of_yaml_1_2() -> None:
    assert {text: read_yaml(text) for text in SCALARS} == {
        text: {"a": value} for text, value in SCALARS.items()
    }


def test_keys_are_texts_as_written_and_the_last_of_twins_wins() -> None:
    assert read_yaml("200: a\non: b\nnull: c\ntrue: d\non: e\n") == {
        "200": "a",
        "on": "e",
        "null": "c",
        "true": "d",
    }


def test_an_alias_within_its_own_anchor_is_refused() -> None:
    with pytest.raises(DefinitionUnreadable, match="stands for nothing before it"):
        read_yaml("a: &a [*a]")


CHOICE = {"name": "kind", "in": "query", "schema": {"type": "string", "enum": ["a", "b"]}}
ANIMAL = {"discriminator": {"propertyName": "kind"}, "properties": {"kind": {"type": "string"}}}
CAT = {"purrs": {"type": "boolean"}}
INTO_A = "#/paths/~1a/put/requestBody/content/application~1json/schema"
NOT_JSON = '{"swagger": "2.0", "paths": {"/a": {"get": {"operationId": "a", "x": 1e999}}}}'


def body(schema: Json) -> Json:
    return {"content": {"application/json": {"schema": schema}}}


@pytest.mark.parametrize(
    "text",
    [
        openapi(
            {
                "/b": {"get": operation(parameters=[{"$ref": "#/paths/~1a/get/parameters/0"}])},
                "/a": {"get": operation(parameters=[CHOICE])},
            }
        ),
        openapi({"/b": {"$ref": "#/paths/~1a", "put": operation()}, "/a": {"get": operation()}}),
        openapi(
            {
                "/a": {"put": operation(requestBody=body({"$ref": "#/components/schemas"}))},
                "/b": {"put": operation(requestBody=body({"properties": {"x": {"$ref": "#"}}}))},
            },
            components={"schemas": {"properties": {"x": {"type": "string"}}, "default": {"a": 1}}},
        ),
        openapi(
            {"/a": {"put": operation(requestBody=body(ANIMAL))}},
            components={"schemas": {"Cat": {"allOf": [{"$ref": INTO_A}], "properties": CAT}}},
        ),
        openapi({"/a": [], "/b": {"get": 1, "PUT": operation()}, "x-c": {"get": operation()}}),
        openapi({"/a": {"get": operation()}}, components=[], responses=1),
        swagger({"/a": {"get": operation(description="x" * 20, maximum=10**30)}}),
        NOT_JSON,
    ],
    ids=["into paths", "a path item with more", "far up", "kinds", "no path items"]
    + ["no components", "large numbers", "not quite JSON"],
)
def test_tools_are_the_same_in_json_and_yaml(text: Json | str) -> None:
    raw = (text if isinstance(text, str) else json.dumps(text)).encode()

    build = build_openapi(raw, SOURCE)

    assert build == build_openapi(b"# a comment, so that this is YAML\n" + raw, SOURCE)
    assert build.tools or build.skipped


def test_the_last_of_twins_wins_on_every_level() -> None:
    text = """{
      "swagger": "2.0",
      "paths": {"/lost": {"get": {"operationId": "lost"}}},
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


def test_what_extends_the_object_that_a_body_is_belongs_to_the_inputs() -> None:
    dog = {"allOf": [{"$ref": "#/components/schemas/Animal"}], "properties": CAT}
    shared = {"First": {}, "Animal": ANIMAL, "Dog": dog}
    definition = openapi(
        {"/a": {"put": operation(requestBody=body({"$ref": "#/components/schemas/Animal"}))}},
        version="3.1.0",
        components={"schemas": shared},
    )
    (tool,) = build_openapi(json.dumps(definition).encode(), SOURCE).tools

    assert list(schema_of(tool)["properties"]) == ["kind", "purrs"]
