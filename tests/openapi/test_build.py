"""Whole definitions become whole tools: every field, so that an added or lost one shows."""

from __future__ import annotations

import mcp_types
import orjson
import pytest

from gateway.errors import DefinitionUnreadable
from gateway.model import (
    Build,
    Override,
    Problem,
    Source,
    decode_build,
    encode_build,
)
from gateway.openapi.build import build_openapi
from tests.definitions import (
    FIXTURES,
    Json,
    built,
    golden,
    only_tool,
    openapi,
    operation,
    shown,
)

BOOKS = Source("books", "openapi", "Book shop", "books_", auth_type="api-key")
MAIL = Source("mail", "arm", "Mailbox", "mail_")


def _build(name: str, source: Source) -> Build:
    return build_openapi((FIXTURES / "openapi" / name).read_bytes(), source)


@pytest.mark.parametrize(("name", "source"), [("bookshop.yaml", BOOKS), ("mailbox.json", MAIL)])
def test_a_definition_becomes_whole_valid_tools_that_survive_the_way_between_processes(
    name: str, source: Source
) -> None:
    build = _build(name, source)

    assert shown(build) == golden(name.partition(".")[0])
    for tool in build.tools + build.hidden:
        entry = mcp_types.Tool.model_validate_json(tool.entry)
        assert entry.input_schema == orjson.loads(tool.input_schema)
    assert decode_build(encode_build(build)) == build


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
