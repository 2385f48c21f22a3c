"""Whole definitions become whole tools: every field, so that an added or lost one shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import mcp_types
import orjson
import pytest

from gateway.errors import DefinitionUnreadable
from gateway.model import (
    Access,
    Body,
    Build,
    Field,
    HttpOperation,
    Override,
    Parameter,
    Problem,
    Skipped,
    Source,
    Tool,
    decode_build,
    encode_build,
)
from gateway.openapi.build import build_openapi
from tests.definitions import (
    Json,
    an_object,
    built,
    only_tool,
    openapi,
    operation,
    schema_of,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "openapi"
BOOKS = Source("books", "openapi", "Book shop", "books_", auth_type="api-key")
MAIL = Source("mail", "arm", "Mailbox", "mail_")


def _build(name: str, source: Source) -> Build:
    return build_openapi((FIXTURES / name).read_bytes(), source)


def _whole(tool: Tool, schema: Json, annotations: Json) -> Tool:
    """The tool as it must be serialised, given its schema and annotations as values."""
    text = orjson.dumps(schema)
    entry = orjson.dumps(
        {
            "name": tool.name,
            "title": tool.title,
            "description": tool.description,
            "inputSchema": schema,
            "annotations": annotations,
        }
    )
    return replace(tool, input_schema=text, entry=entry)


def test_an_ordinary_definition_becomes_whole_tools() -> None:
    get, put = _build("bookshop.yaml", BOOKS).tools

    isbn = {
        "type": "string",
        "pattern": "^[0-9]{13}$",
        "description": "The book's number.",
        "minLength": 1,
    }
    fields = {
        "type": "array",
        "items": {"type": "string", "enum": ["title", "price", "no"]},
        "description": "What to tell of it.",
    }
    expected = Tool(
        name="books_books_get_one",
        local_name="books_get_one",
        connection="books",
        operation="books/get-one",
        method="GET",
        path="/books/{isbn}",
        access="read",
        risk="none",
        trust="trusted",
        title="One book",
        description="[Book shop] One book — Everything the shop knows about one book.",
        input_schema=b"",
        entry=b"",
        tokens=123,
        fingerprint=get.fingerprint,
        http=HttpOperation(
            "GET",
            "https://books.example/v1",
            "/books/{isbn}",
            (
                Parameter("isbn", "path", "isbn"),
                Parameter("fields", "query", "fields", "form", explode=False),
            ),
        ),
        output_schema=(
            b'{"$ref":"#/$defs/Book","$defs":{"Book":{"type":"object","properties":{'
            b'"isbn":{"type":"string"},"title":{"type":"string","minLength":1},'
            b'"price":{"type":["number","null"],"exclusiveMinimum":0},'
            b'"sequel":{"$ref":"#/$defs/Book","description":"The book after this one."}},'
            b'"required":["isbn","title"]}}}'
        ),
        keywords="books isbn fields",
        security="apiKey header X-Key",
    )
    assert get == _whole(
        expected,
        an_object({"isbn": isbn, "fields": fields}, "isbn", additionalProperties=False),
        {
            "title": "One book",
            "readOnlyHint": True,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": True,
        },
    )
    book = {
        "title": {"type": "string", "minLength": 1},
        "price": {"type": ["number", "null"], "exclusiveMinimum": 0},
        "sequel": {"$ref": "#/$defs/Book", "description": "The book after this one."},
    }
    closed: Json = {"additionalProperties": False, "$defs": {"Book": an_object(book, "title")}}
    assert schema_of(put) == an_object({"isbn": isbn, **book}, "isbn", "title", **closed)


def test_a_connector_definition_becomes_whole_tools() -> None:
    build = _build("mailbox.json", MAIL)
    send, listing = build.tools

    assert send.http == HttpOperation(
        "POST",
        "https://mail.example/apim/mailbox",
        "/v2/Mail",
        body=Body(
            "application/json",
            (Field("To", "To"), Field("Subject", "Subject"), Field("Importance", "Importance")),
            required=True,
            constants={"IsHtml": True},
            all_but=frozenset({"To", "Subject", "Importance"}),
        ),
    )
    level = {"type": "string", "enum": ["0", "1"], "description": "Values: 0 = Low, 1 = Normal."}
    sent = {"To": {"type": "string", "format": "email"}, "Subject": {"type": "string"}}
    properties = {**sent, "Importance": level}
    assert schema_of(send) == an_object(properties, *sent, additionalProperties=False)
    assert listing.http == HttpOperation(
        "GET",
        "https://mail.example/apim/mailbox",
        "/Folders/{folderId}/Mail",
        (
            Parameter("folderId", "path", "folderId", double_encoded=True),
            Parameter("mailbox", "query", "mailbox", "form"),
            Parameter("api-version", "query", None, "form", constant="1"),
        ),
    )
    assert orjson.loads(listing.input_schema)["properties"]["folderId"] == {
        "type": "string",
        "title": "Folder",
        "description": "Which folder. (lookup_values knows more, given mailbox.)",
        "minLength": 1,
    }
    assert orjson.loads(listing.lookups) == {
        "folderId": {
            "x-ms-dynamic-values": {
                "operationId": "ListFolders",
                "value-path": "Id",
                "value-title": "Name",
                "parameters": {"mailbox": {"parameter": "mailbox"}},
            }
        }
    }
    assert [tool.name for tool in build.tools] == ["mail_send_email_v2", "mail_list_mail"]
    assert [tool.name for tool in build.hidden] == ["mail_list_folders"]
    trigger = "a trigger: it starts workflows and can't be called"
    internal, older = "internal: meant for look-ups only", "an older revision of SendEmailV2"
    rows: list[tuple[str, str, str, str, Access]] = [
        ("ListFolders", "GET", "/Folders", internal, "read"),
        ("OnNewEmail", "GET", "/Mail/OnNewEmail", trigger, "read"),
        ("SendEmail", "POST", "/Mail", older, "write"),
    ]
    names = ("mail_list_folders", "mail_on_new_email", "mail_send_email")
    assert build.skipped == tuple(
        Skipped(id, method, f"/{{connectionId}}{path}", reason, access, name, build.base_url)
        for (id, method, path, reason, access), name in zip(rows, names, strict=True)
    )


@pytest.mark.parametrize("name", ["bookshop.yaml", "mailbox.json"])
def test_tools_are_valid_for_the_protocol_and_survive_the_way_between_processes(name: str) -> None:
    build = _build(name, BOOKS)

    for tool in build.tools + build.hidden:
        entry = mcp_types.Tool.model_validate_json(tool.entry)
        assert entry.input_schema == orjson.loads(tool.input_schema)
    assert decode_build(encode_build(build)) == build
    assert _build(name, BOOKS) == build


READ, WRITE, DELETE = ("read", "none"), ("write", "medium"), ("delete", "high")


@pytest.mark.parametrize(
    ("method", "override", "access_and_risk"),
    [
        ("get", Override(), READ),
        ("head", Override(), READ),
        ("post", Override(), WRITE),
        ("put", Override(), WRITE),
        ("patch", Override(), WRITE),
        ("delete", Override(), DELETE),
        ("post", Override(access="read"), READ),
        ("post", Override(access="delete"), DELETE),
        ("post", Override(access="read", risk="low"), ("read", "low")),
    ],
)
def test_access_goes_by_method_unless_it_is_configured(
    method: str, override: Override, access_and_risk: tuple[str, str]
) -> None:
    tool = only_tool(openapi({"/a": {method: operation()}}), operations={"act": override})

    assert (tool.access, tool.risk) == access_and_risk


def test_a_configured_description_wins() -> None:
    override = Override(description="Search\u200b for things.")
    tool = only_tool(openapi({"/a": {"post": operation()}}), operations={"act": override})

    assert tool.description == "[Shop] Search for things."


def test_a_safe_operation_is_read_only_to_clients_and_keeps_its_access() -> None:
    tool = only_tool(openapi({"/a": {"post": operation(**{"x-ms-safe-operation": True})}}))

    assert tool.access == "write"
    assert orjson.loads(tool.entry)["annotations"]["readOnlyHint"] is True


@pytest.mark.parametrize(
    ("words", "description"),
    [
        ({"summary": "Sum", "description": "Long."}, "[Shop] Sum — Long."),
        ({"summary": "Sum"}, "[Shop] Sum"),
        ({"description": "Long."}, "[Shop] Long."),
        ({"summary": "Sum", "description": "Sum of it."}, "[Shop] Sum of it."),
        ({}, "[Shop] GET /a"),
        ({"summary": "A\u202eb\u200b\U000e0041c"}, "[Shop] Abc"),
    ],
)
def test_descriptions_say_who_and_what(words: Json, description: str) -> None:
    assert only_tool(openapi({"/a": {"get": operation(**words)}})).description == description


def test_the_fingerprint_changes_with_what_a_person_approved() -> None:
    def fingerprint(more: Json | None = None, **changes: object) -> str:
        definition = openapi({"/a": {"get": operation(**(more or {}))}})
        return only_tool(definition, **changes).fingerprint

    parameters = [{"name": "a", "in": "query", "schema": {}}]
    different = [
        fingerprint(),
        fingerprint({"summary": "x"}),
        fingerprint({"parameters": parameters}),
        fingerprint({"security": [{"key": []}]}),
        fingerprint(base_url="https://other.example"),
        fingerprint(auth_type="bearer"),
        fingerprint(operations={"act": Override(access="write")}),
    ]
    assert len(set(different)) == len(different)
    assert fingerprint({"tags": ["x"]}) == fingerprint()


@pytest.mark.parametrize(
    ("version", "format_name"),
    [
        ({"swagger": "2.0"}, "swagger-2.0"),
        ({"swagger": 2.0}, "swagger-2.0"),
        ({"openapi": "3.0.0"}, "openapi-3.0"),
        ({"openapi": "3.1.1"}, "openapi-3.1"),
        ({"openapi": "3.2.0"}, "openapi-3.1"),
    ],
)
def test_versions_are_made_out(version: Json, format_name: str) -> None:
    assert built({**version, "paths": {}}).format == format_name


@pytest.mark.parametrize("version", [{}, {"swagger": "1.2"}, {"openapi": "4.0"}, {"openapi": []}])
def test_unknown_versions_are_refused(version: Json) -> None:
    with pytest.raises(DefinitionUnreadable, match="Not an OpenAPI definition we know"):
        built({**version, "paths": {}})


def test_a_definition_without_operations_says_so() -> None:
    said = Problem("warning", "paths", "it has no operations, so there are no tools")
    assert said in built(openapi({})).problems
