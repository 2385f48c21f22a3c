"""The judge of requests finds what is wrong, and nothing else."""

from __future__ import annotations

import orjson
import pytest

from tests.definitions import an_object, openapi, operation, swagger
from tests.slow.judging import Sent, faults
from tests.slow.reading import Definition

PROPERTIES = {
    "title": {"type": "string"},
    "pages": {"type": "integer", "nullable": True},
    "id": {"type": "string", "readOnly": True},
}
BOOK = an_object(PROPERTIES, "title", "id", additionalProperties=False)
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
