"""Parameters and bodies become one flat object, and the wire keeps its own names and forms."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model import MEDIA_TYPE_PATTERN, Body, Field, Parameter
from gateway.openapi.inputs import ArgumentNames
from tests.definitions import (
    Json,
    built,
    only_tool,
    openapi,
    operation,
    schema_of,
    skip_reasons,
    swagger,
)

STRING = {"type": "string"}


def _with_parameters(*parameters: Json, path: str = "/a", **more: Any) -> Json:
    return openapi({path: {"get": operation(parameters=list(parameters), **more)}})


def _with_body(content: Json, method: str = "post", **more: Any) -> Json:
    return openapi({"/a": {method: operation(requestBody={"content": content, **more})}})


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ({"in": "query"}, Parameter("p", "query", "p", "form", True)),
        ({"in": "query", "explode": False}, Parameter("p", "query", "p", "form", False)),
        (
            {"in": "query", "style": "spaceDelimited"},
            Parameter("p", "query", "p", "spaceDelimited", False),
        ),
        (
            {"in": "query", "style": "pipeDelimited", "explode": False},
            Parameter("p", "query", "p", "pipeDelimited", False),
        ),
        (
            {"in": "query", "style": "deepObject", "explode": True},
            Parameter("p", "query", "p", "deepObject", True),
        ),
        (
            {"in": "query", "allowReserved": True},
            Parameter("p", "query", "p", "form", True, reserved=True),
        ),
        ({"in": "header"}, Parameter("p", "header", "p", "simple", False)),
        ({"in": "cookie"}, Parameter("p", "cookie", "p", "form", True)),
        ({"in": "path"}, Parameter("p", "path", "p", "simple", False)),
        ({"in": "path", "style": "label"}, Parameter("p", "path", "p", "label", False)),
        (
            {"in": "path", "style": "matrix", "explode": True},
            Parameter("p", "path", "p", "matrix", True),
        ),
        (
            {"in": "path", "x-ms-url-encoding": "double"},
            Parameter("p", "path", "p", "simple", False, double_encoded=True),
        ),
        (
            {"in": "query", "content": {"application/json": {"schema": STRING}}},
            Parameter("p", "query", "p", "form", True, media_type="application/json"),
        ),
    ],
)
def test_styles_of_openapi_3(written: Json, sent: Parameter) -> None:
    path = "/a/{p}" if written["in"] == "path" else "/a"
    tool = only_tool(_with_parameters({"name": "p", "schema": STRING, **written}, path=path))

    assert tool.http is not None
    assert tool.http.parameters == (sent,)
    nonempty = {"minLength": 1} if sent.place == "path" else {}
    assert schema_of(tool)["properties"] == {"p": STRING | nonempty}


@pytest.mark.parametrize(
    ("written", "sent"),
    [
        ({"in": "query"}, Parameter("p", "query", "p", "form", False)),
        (
            {"in": "query", "collectionFormat": "multi"},
            Parameter("p", "query", "p", "form", True),
        ),
        (
            {"in": "query", "collectionFormat": "ssv"},
            Parameter("p", "query", "p", "spaceDelimited", False),
        ),
        (
            {"in": "query", "collectionFormat": "tsv"},
            Parameter("p", "query", "p", "tabDelimited", False),
        ),
        (
            {"in": "query", "collectionFormat": "pipes"},
            Parameter("p", "query", "p", "pipeDelimited", False),
        ),
        ({"in": "header"}, Parameter("p", "header", "p", "simple", False)),
    ],
)
def test_collection_formats_of_swagger(written: Json, sent: Parameter) -> None:
    array = {"type": "array", "items": STRING}
    parameters = [{"name": "p", **array, **written}]
    tool = only_tool(swagger({"/a": {"get": operation(parameters=parameters)}}))

    assert tool.http is not None
    assert tool.http.parameters == (sent,)
    assert schema_of(tool)["properties"] == {"p": array}


def test_operation_parameters_override_those_of_the_path() -> None:
    shared = [
        {"name": "a", "in": "query", "schema": STRING},
        {"name": "b", "in": "query", "schema": STRING},
    ]
    own = [{"name": "a", "in": "query", "required": True, "schema": {"type": "integer"}}]
    tool = only_tool(openapi({"/a": {"parameters": shared, "get": operation(parameters=own)}}))

    assert schema_of(tool) == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": STRING},
        "required": ["a"],
        "additionalProperties": False,
    }


def test_encoded_pointers_and_references_to_references_are_followed() -> None:
    components = {
        "parameters": {
            "a/b": {"$ref": "#/components/parameters/c%20d"},
            "c d": {"name": "e~f", "in": "query", "schema": STRING},
        }
    }
    listed = [{"$ref": "#/components/parameters/a~1b"}]
    tool = only_tool(openapi({"/a": {"get": operation(parameters=listed)}}, components=components))

    assert tool.http is not None
    assert [each.name for each in tool.http.parameters] == ["e~f"]


@pytest.mark.parametrize(
    ("parameters", "arguments"),
    [
        ([("query", "$filter"), ("query", "items[]")], ["filter", "items"]),
        ([("query", "Subscription Id"), ("query", "prefix:x")], ["Subscription_Id", "prefix_x"]),
        ([("query", "name"), ("header", "name")], ["name", "header_name"]),
        ([("header", "name"), ("query", "name")], ["name", "header_name"]),
        ([("query", "id"), ("query", "ID")], ["id", "query_ID"]),
        ([("query", "id"), ("query", "ID"), ("query", "Id")], ["id", "query_ID", "query_Id_2"]),
        ([("query", "größe"), ("query", "数据")], ["gr_e", "query"]),
        ([("query", "x" * 80)], ["x" * 64]),
        ([("header", "Accept"), ("header", "authorization"), ("header", "X")], ["X"]),
    ],
)
def test_argument_names_are_spelled_for_clients_and_told_apart(
    parameters: list[tuple[str, str]], arguments: list[str]
) -> None:
    written = [{"name": name, "in": place, "schema": STRING} for place, name in parameters]

    assert list(schema_of(only_tool(_with_parameters(*written)))["properties"]) == arguments


@given(st.lists(st.tuples(st.sampled_from(["path", "query", "body"]), st.text(max_size=80))))
def test_arguments_are_always_distinct_and_within_bounds(wanted: list[tuple[str, str]]) -> None:
    names = ArgumentNames()
    taken = [names.take(name, place) for place, name in wanted]

    assert len({name.lower() for name in taken}) == len(taken)
    assert all(re.fullmatch("[A-Za-z0-9_.-]{1,64}", name) for name in taken)


def test_a_body_property_gives_way_to_a_parameter_of_its_name() -> None:
    body = {"type": "object", "properties": {"id": STRING, "name": STRING}, "required": ["id"]}
    paths = {
        "/a/{id}": {
            "put": operation(
                parameters=[{"name": "id", "in": "path", "schema": STRING}],
                requestBody={"content": {"application/json": {"schema": body}}, "required": True},
            )
        }
    }
    tool = only_tool(openapi(paths))

    assert schema_of(tool)["required"] == ["id", "body_id"]
    assert tool.http is not None
    assert tool.http.body == Body(
        "application/json",
        (Field("body_id", "id"), Field("name", "name")),
        required=True,
        all_but=frozenset({"id", "body_id", "name"}),
    )


def test_variables_nobody_declared_are_required_texts() -> None:
    tool = only_tool(_with_parameters(path="/a/{b}"))

    assert schema_of(tool)["required"] == ["b"]
    assert tool.http is not None
    assert tool.http.parameters == (Parameter("b", "path", "b"),)


def test_a_fixed_query_in_the_path_is_always_sent() -> None:
    tool = only_tool(_with_parameters(path="/a?b=c"))

    assert tool.http is not None
    assert tool.path == "/a?b=c"
    assert tool.http.path == "/a"
    assert tool.http.parameters == (
        Parameter("b", "query", style="form", explode=True, constant="c"),
    )


def test_internal_parameters_are_sent_by_default_or_left_out() -> None:
    internal = {"in": "query", "type": "string", "x-ms-visibility": "internal"}
    parameters = [
        {"name": "api-version", "default": "v1", **internal},
        {"name": "unused", **internal},
        {"name": "needed", "required": True, **internal},
    ]
    tool = only_tool(swagger({"/a": {"get": operation(parameters=parameters)}}))

    assert list(schema_of(tool)["properties"]) == ["needed"]
    assert tool.http is not None
    assert tool.http.parameters == (
        Parameter("api-version", "query", None, "form", constant="v1"),
        Parameter("unused", "query", None, "form"),
        Parameter("needed", "query", "needed", "form"),
    )


def test_injected_names_are_not_asked_for_but_stay_bound() -> None:
    body = {"type": "object", "properties": {"tenant": STRING, "x": STRING}}
    paths = {
        "/a": {
            "post": operation(
                parameters=[{"name": "org", "in": "query", "required": True, "schema": STRING}],
                requestBody={"content": {"application/json": {"schema": body}}},
            )
        }
    }
    tool = only_tool(openapi(paths), inject=("tenant", "org"))

    assert list(schema_of(tool)["properties"]) == ["x"]
    assert "required" not in schema_of(tool)
    assert tool.http is not None and tool.http.body is not None
    assert [each.argument for each in tool.http.parameters] == ["org"]
    assert [each.argument for each in tool.http.body.fields] == ["tenant", "x"]


@pytest.mark.parametrize(
    ("auth", "asked"),
    [
        ({}, ["X-Key", "token", "q"]),
        ({"auth_type": "api-key"}, ["token", "q"]),
        ({"auth_type": "api-key", "auth_name": "token", "auth_in": "query"}, ["X-Key", "q"]),
        ({"auth_type": "bearer"}, ["X-Key", "token", "q"]),
        ({"headers": ("x-KEY",)}, ["token", "q"]),
        ({"idempotency_header": "x-key"}, ["X-Key", "token", "q"]),  # only writes have a token
    ],
)
def test_what_the_connection_sends_itself_is_nobodys_to_fill_in(
    auth: Json, asked: list[str]
) -> None:
    schemes = {"key": {"type": "apiKey", "in": "header", "name": "x-key"}}
    written = [("header", "X-Key"), ("query", "token"), ("query", "q")]
    parameters = [{"name": name, "in": place, "schema": STRING} for place, name in written]
    definition = openapi(
        {"/a": {"get": operation(parameters=parameters)}}, components={"securitySchemes": schemes}
    )

    properties = schema_of(only_tool(definition, **auth))["properties"]

    assert sorted(properties) == sorted(asked)


@pytest.mark.parametrize(
    ("definition_path", "declared", "called", "asked"),
    [
        ("/{connectionId}/v2/Mail", {"x-ms-visibility": "internal"}, "/v2/Mail", []),
        ("/{connectionId}/v2/Mail", None, "/v2/Mail", []),
        ("//{connectionId}today/{x}", None, "/today/{x}", ["x"]),
        ("/{connectionId}/v2", {"x-ms-summary": "Id"}, "/{connectionId}/v2", ["connectionId"]),
        ("/all/{connectionId}", None, "/all/{connectionId}", ["connectionId"]),
    ],
)
def test_a_connection_id_is_hidden_only_where_it_is_microsofts(
    definition_path: str, declared: Json | None, called: str, asked: list[str]
) -> None:
    parameter = {"name": "connectionId", "in": "path", "type": "string", "required": True}
    parameters = [{**parameter, **declared}] if declared is not None else []
    definition = swagger(
        {definition_path: {"get": operation(parameters=parameters)}}, **{"x-ms-capabilities": {}}
    )
    tool = only_tool(definition)

    assert tool.http is not None
    assert (tool.path, tool.http.path) == (definition_path, called)
    assert list(schema_of(tool)["properties"]) == asked


FIELDS = {"type": "object", "properties": {"a": STRING, "b": STRING}, "required": ["a"]}


@pytest.mark.parametrize(
    ("types", "chosen"),
    [
        (["application/xml", "application/json"], "application/json"),
        (["text/plain", "application/vnd.shop+json"], "application/vnd.shop+json"),
        (["multipart/form-data", "application/x-www-form-urlencoded"], None),
        (["application/octet-stream", "multipart/form-data"], "multipart/form-data"),
        (["application/octet-stream", "text/plain"], "text/plain"),
        (["image/png", "application/octet-stream"], "application/octet-stream"),
        (["image/png"], "image/png"),
        (["*/*"], "application/json"),
    ],
)
def test_the_media_type_that_says_most_is_chosen(types: list[str], chosen: str | None) -> None:
    tool = only_tool(_with_body({kind: {"schema": FIELDS} for kind in types}))

    assert tool.http is not None and tool.http.body is not None
    assert tool.http.body.media_type == (chosen or "application/x-www-form-urlencoded")


@pytest.mark.parametrize(
    ("content", "body", "properties"),
    [
        (
            {"application/json": {"schema": {"type": "array", "items": STRING}}},
            Body("application/json", whole="body"),
            {"body": {"type": "array", "items": STRING}},
        ),
        (
            {"application/json": {"schema": {"type": "object"}}},
            Body("application/json", whole="body"),
            {"body": {"type": "object"}},
        ),
        (
            {"application/json": {"schema": {"additionalProperties": STRING, "type": "object"}}},
            Body("application/json", whole="body"),
            {"body": {"type": "object", "additionalProperties": STRING}},
        ),
        (
            {"application/json": {"schema": {"oneOf": [FIELDS, STRING]}}},
            Body("application/json", whole="body"),
            {"body": {"anyOf": [FIELDS, STRING]}},
        ),
        (
            {"application/xml": {"schema": FIELDS}},
            Body("application/xml", whole="body", xml={"name": "root"}),
            {"body": {**FIELDS, "description": "The body, as application/xml."}},
        ),
        (
            {"application/yaml": {"schema": FIELDS}},
            Body("application/yaml", whole="body"),
            {"body": {**FIELDS, "description": "The body, as application/yaml."}},
        ),
        (
            {"text/plain": {"schema": {"type": "string", "maxLength": 3, "description": "Few."}}},
            Body("text/plain", whole="body"),
            {"body": {"type": "string", "maxLength": 3, "description": "Few."}},
        ),
        (
            {"text/csv": {}},
            Body("text/csv", whole="body"),
            {"body": {"type": "string", "description": "The body, as text/csv."}},
        ),
        (
            {"application/x-www-form-urlencoded": {"schema": {"type": "array", "items": STRING}}},
            Body("application/x-www-form-urlencoded", whole="body"),
            {"body": {"type": "object"}},
        ),
        (
            {"application/x-www-form-urlencoded": {"schema": {"oneOf": [FIELDS, STRING]}}},
            Body("application/x-www-form-urlencoded", whole="body"),
            {"body": {"type": "object", "anyOf": [FIELDS, STRING]}},
        ),
        (
            {"application/octet-stream": {}},
            Body("application/octet-stream", whole="body", binary=True),
            {
                "body": {
                    "type": "string",
                    "contentEncoding": "base64",
                    "description": "The body, as application/octet-stream in base64.",
                }
            },
        ),
        (
            {"application/x-www-form-urlencoded": {"schema": {"type": "object", "properties": {}}}},
            None,
            {},
        ),
        (
            {
                "application/x-www-form-urlencoded": {
                    "schema": FIELDS,
                    "encoding": {"b": {"style": "deepObject", "explode": True}},
                }
            },
            Body(
                "application/x-www-form-urlencoded",
                (Field("a", "a"), Field("b", "b", style="deepObject", explode=True)),
                all_but=frozenset({"a", "b"}),
            ),
            {"a": STRING, "b": STRING},
        ),
        (
            {
                "application/x-www-form-urlencoded": {
                    "schema": FIELDS,
                    "encoding": {
                        "a": {"contentType": "application/json"},
                        "b": {"contentType": "application/json", "style": "form"},
                    },
                }
            },
            Body(
                "application/x-www-form-urlencoded",
                (Field("a", "a", media_type="application/json"), Field("b", "b")),
                all_but=frozenset({"a", "b"}),
            ),
            {"a": STRING, "b": STRING},
        ),
        (
            {"application/x-ndjson": {"schema": STRING}},
            Body("application/x-ndjson", whole="body"),
            {"body": {"type": "string", "description": "The body, as application/x-ndjson."}},
        ),
    ],
)
def test_bodies_are_taken_apart_or_taken_whole(
    content: Json, body: Body | None, properties: Json
) -> None:
    tool = only_tool(_with_body(content))

    assert tool.http is not None
    assert tool.http.body == body
    assert schema_of(tool)["properties"] == properties


def test_files_are_base64_with_a_name_of_their_own() -> None:
    binary = {"type": "string", "format": "binary"}
    schema = {
        "type": "object",
        "properties": {
            "photo": {**binary, "description": "A photo."},
            "pages": {"type": "array", "items": binary},
            "meta": {"type": "object"},
        },
    }
    encoding = {
        "meta": {"contentType": "application/json"},
        "pages": {"contentType": "image/*, application/pdf, to be ignored"},
    }
    tool = only_tool(_with_body({"multipart/form-data": {"schema": schema, "encoding": encoding}}))

    base64 = {"type": "string", "contentEncoding": "base64"}
    assert schema_of(tool)["properties"] == {
        "photo": {**base64, "description": "A photo."},
        "photo_filename": {"type": "string", "description": "File name of photo."},
        "photo_content_type": {
            "type": "string",
            "pattern": MEDIA_TYPE_PATTERN,
            "description": "Media type of photo, if not as the file name says.",
        },
        "pages": {"type": "array", "items": base64},
        "pages_filename": {
            "type": "array",
            "items": {"type": "string"},
            "description": "File name of pages.",
        },
        "pages_content_type": {
            "type": "array",
            "items": {"type": "string", "pattern": MEDIA_TYPE_PATTERN},
            "description": "Media type of pages: image/*, application/pdf.",
        },
        "meta": {"type": "object"},
    }
    assert tool.http is not None
    assert tool.http.body == Body(
        "multipart/form-data",
        (
            Field("photo", "photo", True, "photo_filename", "photo_content_type"),
            Field(
                "pages",
                "pages",
                True,
                "pages_filename",
                "pages_content_type",
                media_type="image/*, application/pdf",
            ),
            Field("meta", "meta", media_type="application/json"),
        ),
        all_but=frozenset(schema_of(tool)["properties"]),
    )


@pytest.mark.parametrize(
    ("written", "part_type", "file", "media_type"),
    [
        ({"contentMediaType": "image/png"}, None, True, "image/png"),
        ({}, "image/png, image/jpeg", True, "image/png, image/jpeg"),
        ({"type": "string"}, "application/octet-stream", True, "application/octet-stream"),
        ({"type": "array", "items": {}}, "image/*", True, "image/*"),
        ({"type": "string", "format": "binary"}, "text/csv", True, "text/csv"),
        ({"type": "string"}, "text/csv", False, "text/csv"),
        ({"type": "string", "contentEncoding": "base64"}, "image/png", False, "image/png"),
        ({"type": "object"}, "application/octet-stream", False, "application/octet-stream"),
        ({"type": "string"}, "image/png\r\nX: y", False, None),
    ],
)
def test_encoding_says_which_parts_are_files_and_of_what_type(
    written: Json, part_type: str | None, file: bool, media_type: str | None
) -> None:
    schema = {"type": "object", "properties": {"part": written}}
    encoding = {} if part_type is None else {"part": {"contentType": part_type}}
    tool = only_tool(_with_body({"multipart/form-data": {"schema": schema, "encoding": encoding}}))

    assert tool.http is not None and tool.http.body is not None
    [field] = tool.http.body.fields
    assert (field.file, field.media_type) == (file, media_type)


def test_a_property_of_the_api_keeps_its_name_beside_a_file() -> None:
    properties = {"f": {"type": "string", "format": "binary"}, "f_content_type": STRING}
    schema = {"type": "object", "properties": properties}
    tool = only_tool(_with_body({"multipart/form-data": {"schema": schema}}))

    assert tool.http is not None and tool.http.body is not None
    assert tool.http.body.fields == (
        Field("f", "f", file=True, file_name_argument="f_filename"),
        Field("f_content_type", "f_content_type"),
    )


def test_form_fields_of_swagger_are_a_form_and_with_a_file_multipart() -> None:
    text = {"name": "t", "in": "formData", "type": "string", "required": True}
    file = {"name": "f", "in": "formData", "type": "file"}
    form = only_tool(swagger({"/a": {"post": operation(parameters=[text])}}))
    multipart = only_tool(swagger({"/a": {"post": operation(parameters=[text, file])}}))

    assert form.http is not None and multipart.http is not None
    assert form.http.body == Body(
        "application/x-www-form-urlencoded",
        (Field("t", "t", explode=False),),
        required=True,
        all_but=frozenset({"t"}),
    )
    assert multipart.http.body == Body(
        "multipart/form-data",
        (
            Field("t", "t", explode=False),
            Field("f", "f", True, "f_filename", "f_content_type", explode=False),
        ),
        required=True,
        all_but=frozenset({"t", "f", "f_filename", "f_content_type"}),
    )


def test_all_of_an_object_body_is_flattened() -> None:
    base = {"type": "object", "properties": {"id": STRING, "name": STRING}, "required": ["name"]}
    body = {"allOf": [{"$ref": "#/components/schemas/Base"}, {"properties": {"age": STRING}}]}
    definition = _with_body({"application/json": {"schema": body}}, required=True)
    tool = only_tool({**definition, "components": {"schemas": {"Base": base}}})

    assert schema_of(tool) == {
        "type": "object",
        "properties": {"age": STRING, "id": STRING, "name": STRING},
        "required": ["name"],
        "additionalProperties": False,
    }


def test_hidden_body_properties_are_constants_and_read_only_ones_absent() -> None:
    schema = {
        "type": "object",
        "required": ["kind", "id", "text"],
        "properties": {
            "kind": {"type": "string", "default": "html", "x-ms-visibility": "internal"},
            "id": {"type": "string", "readOnly": True},
            "text": STRING,
        },
    }
    parameters = [{"in": "body", "name": "message", "schema": schema}]
    tool = only_tool(swagger({"/a": {"post": operation(parameters=parameters)}}))

    assert schema_of(tool) == {
        "type": "object",
        "properties": {"text": STRING},
        "required": ["text"],
        "additionalProperties": False,
    }
    assert tool.http is not None
    assert tool.http.body == Body(
        "application/json",
        (Field("text", "text"),),
        required=True,
        constants={"kind": "html"},
        all_but=frozenset({"text"}),
    )


def test_a_hidden_body_is_made_of_its_defaults() -> None:
    schema = {"properties": {"fields": {"type": "string", "default": "true"}}}
    body = {"in": "body", "name": "b", "schema": schema, "x-ms-visibility": "internal"}
    tool = only_tool(swagger({"/a": {"post": operation(parameters=[body])}}))

    assert schema_of(tool)["properties"] == {}
    assert tool.http is not None
    assert tool.http.body == Body("application/json", required=True, constants={"fields": "true"})


def test_the_designers_placeholder_is_not_a_property() -> None:
    schema = {
        "type": "object",
        "properties": {"dynamicProperties": {}},
        "x-ms-dynamic-schema": {"operationId": "x"},
    }
    body = {"in": "body", "name": "b", "schema": schema}
    tool = only_tool(swagger({"/a": {"post": operation(parameters=[body])}}))

    assert tool.http is not None
    assert tool.http.body == Body("application/json", whole="body")


def test_important_inputs_come_first_and_advanced_ones_last() -> None:
    parameters = [
        {"name": name, "in": "query", "type": "string", "x-ms-visibility": visibility}
        for name, visibility in [("a", "advanced"), ("b", "none"), ("c", "important")]
    ]
    tool = only_tool(swagger({"/a": {"get": operation(parameters=parameters)}}))

    assert list(schema_of(tool)["properties"]) == ["c", "b", "a"]


def test_an_operation_with_two_bodies_is_skipped() -> None:
    bodies = [{"in": "body", "name": name, "schema": STRING} for name in "ab"]
    build = built(swagger({"/a": {"post": operation(parameters=bodies)}}))

    assert [skipped.reason for skipped in build.skipped] == ["it has more than one body"]


DETOURS = [
    {"name": "X-HTTP-Method-Override", "in": "header", "required": True, "type": "string"},
    {"name": "x_original_url", "in": "header", "type": "string"},
    {"name": "_method", "in": "query", "type": "string"},
    {
        "name": "x-http-method",
        "in": "header",
        "type": "string",
        "default": "DELETE",
        "x-ms-visibility": "internal",
    },
    {"name": "q", "in": "query", "type": "string"},
]


@pytest.mark.parametrize("kind", ["openapi", "arm"])
def test_what_could_make_the_request_another_one_is_left_out_with_a_reason(kind: str) -> None:
    build = built(swagger({"/a": {"get": operation(parameters=DETOURS)}}), kind=kind)
    (tool,) = build.tools
    assert list(schema_of(tool)["properties"]) == ["q"]
    assert "required" not in schema_of(tool)
    assert tool.http is not None
    assert [given.name for given in tool.http.parameters] == ["q"]
    told = [problem for problem in build.problems if "is left out" in problem.message]
    assert [(p.severity, p.where, p.message.partition(":")[0]) for p in told] == [
        ("warning", "GET /a", "_method (query) is left out"),
        ("warning", "GET /a", "X-HTTP-Method-Override (header) is left out"),
        ("warning", "GET /a", "x_original_url (header) is left out"),
        ("warning", "GET /a", "x-http-method (header) is left out"),
    ]


@pytest.mark.parametrize(
    "media_type",
    ["application/json", "multipart/form-data", "application/x-www-form-urlencoded"],
)
def test_a_body_does_not_say_the_method_either(media_type: str) -> None:
    properties = {
        "_method": {"type": "string"},
        "__METHOD": {"type": "string", "default": "DELETE", "x-ms-visibility": "internal"},
        "book": {"type": "string"},
    }
    schema = {"type": "object", "properties": properties, "required": ["_method"]}
    body = {"content": {media_type: {"schema": schema}}, "required": True}
    tool = only_tool(openapi({"/a": {"post": operation(requestBody=body)}}))
    assert list(schema_of(tool)["properties"]) == ["book"]
    assert tool.http is not None and tool.http.body is not None
    assert [field.name for field in tool.http.body.fields] == ["book"]
    assert tool.http.body.constants == {}


def test_what_an_operator_injects_is_sent() -> None:
    definition = swagger({"/a": {"post": operation(parameters=DETOURS[:1])}})
    tool = only_tool(definition, inject=("X-HTTP-Method-Override",))
    assert schema_of(tool)["properties"] == {}
    assert tool.http is not None
    assert [given.name for given in tool.http.parameters] == ["X-HTTP-Method-Override"]


def test_an_operation_whose_path_says_another_method_is_skipped() -> None:
    build = built(swagger({"/a?_method=delete": {"get": operation()}}))
    reason = "its path has _method in it, which makes it another request"
    assert skip_reasons(build) == {"act": reason}
