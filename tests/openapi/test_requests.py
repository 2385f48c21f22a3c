"""From a definition to the wire: what callers are asked for is sent, and what is sent is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gateway.calls.request import build_request
from gateway.outbound.client import Request
from tests.definitions import (
    Json,
    an_object,
    built,
    getting,
    http_of,
    only_tool,
    openapi,
    operation,
    rules,
    schema_of,
    swagger,
)

STRING = {"type": "string"}


def _sent(definition: Json, arguments: Mapping[str, Any], **source: Any) -> Request:
    """The one tool's request, without the host."""
    request = build_request(http_of(only_tool(definition, **source)), arguments)
    assert request.url.startswith("https://api.shop.example/v1")
    return Request(request.method, request.url[27:], request.headers, request.body)


# --- keys -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("auth", "asked", "key"),
    [
        ({"auth_type": "api-key", "auth_name": "key"}, ["id", "token"], ("key", "query")),
        ({"auth_type": "api-key", "auth_name": "token"}, ["id", "key"], ("token", "query")),
        ({"auth_type": "bearer"}, ["id", "key", "token"], (None, None)),
        ({"auth_type": "api-key"}, ["id", "key", "token"], (None, None)),
    ],
)
def test_of_two_keys_the_one_that_the_connection_has_is_not_asked_for(
    auth: Json, asked: list[str], key: tuple[str, str]
) -> None:
    needed = {"in": "query", "required": True, "schema": STRING}
    schemes = {n: {"type": "apiKey", "in": "query", "name": n} for n in ("key", "token")}
    parameters = ({"name": name, **needed} for name in ("id", "key", "token"))
    build = built(getting(*parameters, components={"securitySchemes": schemes}), **auth)

    assert schema_of(build.tools[0])["required"] == asked
    assert (build.auth_name, build.auth_in) == key
    doubts = [p for p in build.problems if "several API keys" in p.message]
    assert bool(doubts) == (auth == {"auth_type": "api-key"})


# --- addresses ------------------------------------------------------------------------------------


def test_a_fragment_tells_operations_apart_and_is_not_sent() -> None:
    paths = {
        "/files/{id}": {"put": operation(operationId="put_file")},
        "/files/{id}#add_shared_link": {"put": operation(operationId="put_link")},
        "/files/{id}?what#remove?now={now}": {"put": operation(operationId="put_nothing")},
        "/#Target=Shop.Open": {"put": operation()},
    }
    build = built(openapi(paths))
    requests = [build_request(tool.http, {"id": "7"}) for tool in build.tools if tool.http]

    assert build.skipped == ()
    urls = [request.url.removeprefix("https://api.shop.example/v1") for request in requests]
    assert urls == ["/files/7", "/files/7", "/files/7?what=", "/"]
    assert [tool.path for tool in build.tools] == list(paths)


@pytest.mark.parametrize(("path", "declared", "asked", "address"), rules("queries"))
def test_variables_in_a_query_are_parameters(
    path: str, declared: list[tuple[str, str, bool]], asked: dict[str, bool], address: str | None
) -> None:
    parameters = (
        {"name": name, "in": place, "required": required, "schema": STRING}
        for name, place, required in declared
    )
    definition = getting(*parameters, path=path)
    schema = schema_of(only_tool(definition))

    assert {name: name in schema.get("required", ()) for name in schema["properties"]} == asked
    sent = _sent(definition, dict.fromkeys(asked, "1")).url
    assert address is None or sent == address
    if not any(asked.values()):
        assert _sent(definition, {}).url == "/a"


def test_a_value_in_a_query_stays_in_its_place() -> None:
    definition = getting(path="/a?f=x eq '{x}'&q={q}")

    assert _sent(definition, {"x": "'&q=2#", "q": "&f=1"}).url == (
        "/a?f=x%20eq%20'%27%26q%3D2%23'&q=%26f%3D1"
    )


# --- headers --------------------------------------------------------------------------------------


def _header(name: str, **more: Any) -> Json:
    return {"name": name, "in": "header", "type": "string", **more}


INTERNAL = {"x-ms-visibility": "internal"}
CALLER = {"name": "body", "in": "body", "schema": {"type": "object", "properties": {"a": STRING}}}


@pytest.mark.parametrize(("parameters", "arguments", "headers"), rules("headers"))
def test_headers_that_swagger_2_names_are_sent(
    parameters: list[Json], arguments: Json, headers: Json
) -> None:
    definition = swagger({"/a": {"post": operation(parameters=parameters)}})

    assert dict(_sent(definition, arguments).headers) == headers
    assert set(arguments) <= set(schema_of(only_tool(definition))["properties"])


def test_a_header_that_names_a_form_makes_the_body_one() -> None:
    header = _header("Content-Type", default="application/x-www-form-urlencoded", **INTERNAL)
    definition = swagger({"/a": {"post": operation(parameters=[header, CALLER])}})

    assert _sent(definition, {"a": "x y"}).body == b"a=x%20y"


def test_a_form_says_its_own_media_type() -> None:
    fields = [{"name": "a", "in": "formData", "type": "string"}]
    header = _header("Content-Type", default="multipart/form-data", required=True)
    definition = swagger({"/a": {"post": operation(parameters=[header, *fields])}})

    assert list(schema_of(only_tool(definition))["properties"]) == ["a"]
    (kind,) = [v for k, v in _sent(definition, {"a": "x"}).headers if k == "Content-Type"]
    assert kind.startswith("multipart/form-data; boundary=")


@pytest.mark.parametrize("name", ["Accept-Encoding", "Host", "content-length", "Type Card"])
@pytest.mark.parametrize("make", [swagger, openapi])
def test_headers_that_cannot_be_sent_are_not_offered(name: str, make: Any) -> None:
    tool = only_tool(getting(_header(name, schema=STRING), make=make))
    assert schema_of(tool)["properties"] == {}


# --- what is empty --------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "schema", "least"), rules("nonempty"))
def test_what_must_be_there_can_not_be_empty(place: str, schema: Json, least: Json) -> None:
    path = "/a/{p}" if place == "path" else "/a"
    parameter = {"name": "p", "in": place, "required": True, "schema": schema}
    shared = {"schemas": {"Filter": an_object({"a": STRING})}}
    tool = only_tool(getting(parameter, path=path, components=shared))

    listed = schema_of(tool)["properties"]["p"]
    assert {key: listed[key] for key in listed if key.startswith("min")} == least


# --- bytes ----------------------------------------------------------------------------------------

BYTES = {"type": "string", "format": "binary"}


@pytest.mark.parametrize(
    ("more", "media_type", "body"),
    [
        ({}, "application/octet-stream", b"\x00\x01"),
        ({"consumes": []}, "application/octet-stream", b"\x00\x01"),
        ({"consumes": ["*/*"]}, "application/octet-stream", b"\x00\x01"),
        ({"consumes": ["application/json", "image/png"]}, "image/png", b"\x00\x01"),
        ({"consumes": ["application/json"]}, "application/json", b'"AAE="'),  # it insists
    ],
)
def test_a_body_of_bytes_is_sent_as_bytes(more: Json, media_type: str, body: bytes) -> None:
    parameters = [{"name": "file", "in": "body", "required": True, "schema": BYTES}]
    definition = swagger({"/a": {"put": operation(parameters=parameters, **more)}})

    sent = _sent(definition, {"body": "AAE="})

    assert (dict(sent.headers)["Content-Type"], sent.body) == (media_type, body)


# --- what the connection fills in -----------------------------------------------------------------


def test_what_is_injected_by_its_wire_name_is_sent_whatever_the_argument_is_called() -> None:
    body = {"type": "object", "properties": {"app id": STRING, "x": STRING, "id": STRING}}
    parameters = [
        {"name": "$top", "in": "query", "schema": {"type": "integer"}},
        {"name": "filter[app]", "in": "query", "required": True, "schema": STRING},
        {"name": "X-Tenant Id".replace(" ", "-"), "in": "header", "schema": STRING},
        {"name": "id", "in": "query", "schema": STRING},
    ]
    content = {"application/json": {"schema": body}}
    definition = openapi(
        {"/a": {"post": operation(parameters=parameters, requestBody={"content": content})}}
    )
    inject = {"$top": 5, "filter[app]": "é", "x-tenant-id": "t", "app id": "7", "id": "9"}

    sent = _sent(definition, {"x": "1", **inject}, inject=tuple(inject))

    assert list(schema_of(only_tool(definition, inject=tuple(inject)))["properties"]) == ["x"]
    assert sent.url == "/a?$top=5&filter%5Bapp%5D=%C3%A9&id=9"
    assert ("X-Tenant-Id", "t") in sent.headers
    assert sent.body == b'{"app id":"7","x":"1","id":"9"}'


# --- names ----------------------------------------------------------------------------------------


def test_names_that_differ_in_a_comparison_tell_which() -> None:
    wires = ["Date", "Date<", "Date>", "Date<=", "n[>=]", "<id>"]
    definition = getting(*({"name": name, "in": "query", "schema": STRING} for name in wires))

    listed = list(schema_of(only_tool(definition))["properties"])
    assert listed == ["Date", "Date_lt", "Date_gt", "Date_lte", "n_gte", "id"]
    assert _sent(definition, {"Date_lt": "1", "Date_gt": "2"}).url == "/a?Date%3C=1&Date%3E=2"
