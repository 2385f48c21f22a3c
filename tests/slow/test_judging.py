"""The judge of requests finds what is wrong, and nothing else."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.definitions import openapi, operation, swagger
from tests.slow.generating import WAYS, made_up
from tests.slow.judging import Sent, faults
from tests.slow.reading import Definition

BOOK = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "pages": {"type": "integer", "nullable": True},
        "id": {"type": "string", "readOnly": True},
    },
    "required": ["title", "id"],
    "additionalProperties": False,
}
PARAMETERS = [
    {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}},
    {"name": "tags", "in": "query", "schema": {"type": "array", "items": {"type": "integer"}}},
    {"name": "sort", "in": "query", "required": True, "schema": {"enum": ["up", "down"]}},
    {"name": "X-Trace", "in": "header", "schema": {"type": "boolean"}},
]
BODY = {"required": True, "content": {"application/json": {"schema": BOOK}}}
BOOKS = openapi({"/books/{id}#put": {"put": operation(parameters=PARAMETERS, requestBody=BODY)}})
JSON = ("Content-Type", "application/json")
TITLE = b'{"title":"x"}'


@pytest.mark.parametrize(
    ("path", "headers", "body", "kinds"),
    [
        ("/books/7?sort=up&tags=1&tags=2", [JSON], TITLE, []),
        ("/books/7?sort=up", [JSON, ("x-trace", "true")], b'{"title":"7","pages":null}', []),
        ("/books/x?sort=up", [JSON], TITLE, ["path"]),
        ("/book/7?sort=up", [JSON], TITLE, ["path"]),
        ("/books/7", [JSON], TITLE, ["query"]),
        ("/books/7?sort=left", [JSON], TITLE, ["query"]),
        ("/books/7?sort=up&tags=x", [JSON], TITLE, ["query"]),
        ("/books/7?sort=up&more=1", [JSON], TITLE, ["undeclared"]),
        ("/books/7?sort=up", [JSON, ("X-Trace", "yes")], TITLE, ["header"]),
        ("/books/7?sort=up", [JSON, ("X-Other", "1")], TITLE, ["undeclared"]),
        ("/books/7?sort=up", [], b"", ["body"]),
        ("/books/7?sort=up", [JSON], b'{"title":7}', ["body"]),
        ("/books/7?sort=up", [JSON], b'{"pages":7}', ["body"]),
        ("/books/7?sort=up", [JSON], b'{"title":"x","more":1}', ["body"]),
        ("/books/7?sort=up", [("Content-Type", "text/plain")], TITLE, ["media type"]),
    ],
)
def test_what_a_definition_does_not_allow_is_found(
    path: str, headers: list[tuple[str, str]], body: bytes, kinds: list[str]
) -> None:
    definition = Definition(orjson.dumps(BOOKS))

    found = faults(definition, "PUT", "/books/{id}#put", Sent("PUT", path, headers, body))

    assert [fault.kind for fault in found] == kinds
    assert list(definition.operations()) == [("PUT", "/books/{id}#put")]


@pytest.mark.parametrize(
    ("body", "kinds"), [(b'{"a":1,"b":2}', []), (b'{"a":1,"b":"x"}', ["body"])]
)
def test_closed_parts_of_a_whole_are_open_to_each_other(body: bytes, kinds: list[str]) -> None:
    parts = [
        {"properties": {name: {"type": "integer"}}, "additionalProperties": False} for name in "ab"
    ]
    content = {"application/json": {"schema": {"allOf": parts}}}
    acting = {"/a": {"post": operation(requestBody={"content": content})}}
    definition = Definition(orjson.dumps(openapi(acting)))
    sent = Sent("POST", "/a", [JSON], body)

    assert [fault.kind for fault in faults(definition, "POST", "/a", sent)] == kinds


@pytest.mark.parametrize(
    ("body", "kinds"), [(b"a=1&b=x&b=y", []), (b"b=x", ["body"]), (b"a=x", ["body"])]
)
def test_forms_are_read_by_their_fields(body: bytes, kinds: list[str]) -> None:
    fields = [
        {"name": "a", "in": "formData", "type": "integer", "required": True},
        {"name": "b", "in": "formData", "type": "array", "collectionFormat": "multi", "items": {}},
    ]
    definition = Definition(orjson.dumps(swagger({"/a": {"post": operation(parameters=fields)}})))
    sent = Sent("POST", "/a", [("Content-Type", "application/x-www-form-urlencoded")], body)

    assert [fault.kind for fault in faults(definition, "POST", "/a", sent)] == kinds


@pytest.mark.parametrize("way", WAYS)
def test_arguments_fit_the_schema_they_are_made_up_from(way: Any) -> None:
    schema = {
        "type": "object",
        "properties": {
            "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]+$"},
            "count": {"type": "integer", "minimum": 3, "multipleOf": 2},
            "tree": {"$ref": "#/$defs/Tree"},
            "either": {"anyOf": [{"const": 1}, {"type": "array", "minItems": 1}]},
        },
        "required": ["code", "tree"],
        "dependentRequired": {"count": ["either"]},
        "additionalProperties": False,
        "$defs": {
            "Tree": {
                "type": "object",
                "properties": {"left": {"$ref": "#/$defs/Tree"}, "name": {"type": "string"}},
                "required": ["name"],
            }
        },
    }
    made = made_up(schema, way, 1)

    assert made is not None and made == made_up(schema, way, 1)
    assert way != "required" or made.keys() == {"code", "tree"}
    assert (
        made_up({"type": "object", "required": ["a"], "properties": {"a": False}}, way, 1) is None
    )
