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
    an_object,
    body_of,
    built,
    getting,
    http_of,
    only_tool,
    openapi,
    operation,
    posting,
    schema_of,
    swagger,
)

STRING = {"type": "string"}
LIST = {"type": "array", "items": STRING}
JSON, MULTIPART = "application/json", "multipart/form-data"
FORM = "application/x-www-form-urlencoded"
AS_JSON = {"contentType": JSON}
TEXTS = {"type": "object", "additionalProperties": STRING}
BINARY = {"type": "string", "format": "binary"}
BASE64 = {"type": "string", "contentEncoding": "base64"}
FIELDS = an_object({"a": STRING, "b": STRING}, "a")


STYLES: list[tuple[str, Json, str, bool, Json]] = [
    ("query", {}, "form", True, {}),
    ("query", {"explode": False}, "form", False, {}),
    ("query", {"style": "spaceDelimited"}, "spaceDelimited", False, {}),
    ("query", {"style": "pipeDelimited", "explode": False}, "pipeDelimited", False, {}),
    ("query", {"style": "deepObject", "explode": True}, "deepObject", True, {}),
    ("query", {"allowReserved": True}, "form", True, {"reserved": True}),
    ("header", {}, "simple", False, {}),
    ("cookie", {}, "form", True, {}),
    ("path", {}, "simple", False, {}),
    ("path", {"style": "label"}, "label", False, {}),
    ("path", {"style": "matrix", "explode": True}, "matrix", True, {}),
    ("path", {"x-ms-url-encoding": "double"}, "simple", False, {"double_encoded": True}),
    ("query", {"content": {JSON: {"schema": STRING}}}, "form", True, {"media_type": JSON}),
]


SWAGGER_STYLES = [
    ("query", {}, "form", False),
    ("query", {"collectionFormat": "multi"}, "form", True),
    ("query", {"collectionFormat": "ssv"}, "spaceDelimited", False),
    ("query", {"collectionFormat": "tsv"}, "tabDelimited", False),
    ("query", {"collectionFormat": "pipes"}, "pipeDelimited", False),
    ("header", {}, "simple", False),
]


@pytest.mark.parametrize(
    ("make", "place", "written", "style", "explode", "more"),
    [
        *((openapi, *row) for row in STYLES),
        *((swagger, place, {**LIST, **said}, *row, {}) for place, said, *row in SWAGGER_STYLES),
    ],
)
def test_styles_and_collection_formats(
    make: Any, place: Any, written: Json, style: Any, explode: bool, more: Json
) -> None:
    schema = STRING if make is openapi else LIST
    parameter = {"name": "p", "in": place, **({"schema": STRING} | written)}
    tool = only_tool(getting(parameter, path="/a/{p}" if place == "path" else "/a", make=make))

    assert http_of(tool).parameters == (Parameter("p", place, "p", style, explode, **more),)
    nonempty = {"minLength": 1} if place == "path" else {}
    assert schema_of(tool)["properties"] == {"p": schema | nonempty}


def test_operation_parameters_override_those_of_the_path() -> None:
    shared = [{"name": name, "in": "query", "schema": STRING} for name in "ab"]
    own = [{"name": "a", "in": "query", "required": True, "schema": {"type": "integer"}}]
    tool = only_tool(openapi({"/a": {"parameters": shared, "get": operation(parameters=own)}}))

    assert schema_of(tool) == closed({"a": {"type": "integer"}, "b": STRING}, "a")


def closed(properties: Json, *required: str) -> Json:
    """The input schema with these properties."""
    return an_object(properties, *required, additionalProperties=False)


def test_encoded_pointers_and_references_to_references_are_followed() -> None:
    parameters = {
        "a/b": {"$ref": "#/components/parameters/c%20d"},
        "c d": {"name": "e~f", "in": "query", "schema": STRING},
    }
    listed = {"$ref": "#/components/parameters/a~1b"}
    tool = only_tool(getting(listed, components={"parameters": parameters}))

    assert [each.name for each in http_of(tool).parameters] == ["e~f"]


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
        ([("header", n) for n in ("Accept", "authorization", "Content-Type", "X")], ["X"]),
    ],
)
def test_argument_names_are_spelled_for_clients_and_told_apart(
    parameters: list[tuple[str, str]], arguments: list[str]
) -> None:
    written = [{"name": name, "in": place, "schema": STRING} for place, name in parameters]

    assert list(schema_of(only_tool(getting(*written)))["properties"]) == arguments


def test_a_name_that_loses_its_letters_is_the_title() -> None:
    search = only_tool(getting({"name": "検索", "in": "query", "schema": STRING}))
    add = only_tool(posting(an_object({"größe": STRING | {"title": "Wie groß"}, "色": STRING})))

    titles = [
        (name, each["title"])
        for tool in (search, add)
        for name, each in schema_of(tool)["properties"].items()
    ]
    assert titles == [("query", "検索"), ("gr_e", "Wie groß"), ("body", "色")]


@given(st.lists(st.tuples(st.sampled_from(["path", "query", "body"]), st.text(max_size=80))))
def test_arguments_are_always_distinct_and_within_bounds(wanted: list[tuple[str, str]]) -> None:
    names = ArgumentNames()
    taken = [names.take(name, place) for place, name in wanted]

    assert len({name.lower() for name in taken}) == len(taken)
    assert all(re.fullmatch("[A-Za-z0-9_.-]{1,64}", name) for name in taken)


def test_a_body_property_gives_way_to_a_parameter_of_its_name() -> None:
    body = {"properties": {"id": STRING, "name": STRING}, "required": ["id"]}
    definition = posting({"type": "object", **body}, required=True)
    post = definition["paths"].pop("/a")["post"]
    post["parameters"] = [{"name": "id", "in": "path", "schema": STRING}]
    tool = only_tool({**definition, "paths": {"/a/{id}": {"post": post}}})

    assert schema_of(tool)["required"] == ["id", "body_id"]
    fields = (Field("body_id", "id"), Field("name", "name"))
    every = frozenset({"id", "body_id", "name"})
    assert body_of(tool) == Body(JSON, fields, required=True, all_but=every)


def test_variables_nobody_declared_are_required_texts() -> None:
    tool = only_tool(getting(path="/a/{b}"))

    assert schema_of(tool)["required"] == ["b"]
    assert http_of(tool).parameters == (Parameter("b", "path", "b"),)


def test_internal_parameters_are_sent_by_default_or_left_out() -> None:
    internal = {"in": "query", "type": "string", "x-ms-visibility": "internal"}
    given: Json = {"api-version": {"default": "v1"}, "unused": {}, "needed": {"required": True}}
    parameters = ({"name": name, **internal, **more} for name, more in given.items())
    tool = only_tool(getting(*parameters, make=swagger))

    assert list(schema_of(tool)["properties"]) == ["needed"]
    assert http_of(tool).parameters == (
        Parameter("api-version", "query", None, "form", constant="v1"),
        Parameter("unused", "query", None, "form"),
        Parameter("needed", "query", "needed", "form"),
    )


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
    parameters = ({"name": name, "in": place, "schema": STRING} for place, name in written)
    definition = getting(*parameters, components={"securitySchemes": schemes})

    assert sorted(schema_of(only_tool(definition, **auth))["properties"]) == sorted(asked)


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
    microsoft: Json = {"x-ms-capabilities": {}}
    tool = only_tool(getting(*parameters, path=definition_path, make=swagger, **microsoft))

    assert (tool.path, http_of(tool).path) == (definition_path, called)
    assert list(schema_of(tool)["properties"]) == asked


@pytest.mark.parametrize(
    ("types", "chosen"),
    [
        (["application/xml", JSON], JSON),
        (["text/plain", "application/vnd.shop+json"], "application/vnd.shop+json"),
        ([MULTIPART, FORM], FORM),
        (["application/octet-stream", MULTIPART], MULTIPART),
        (["application/octet-stream", "text/plain"], "text/plain"),
        (["image/png", "application/octet-stream"], "application/octet-stream"),
        (["image/png"], "image/png"),
        (["*/*"], JSON),
    ],
)
def test_the_media_type_that_says_most_is_chosen(types: list[str], chosen: str) -> None:
    content = {kind: {"schema": FIELDS} for kind in types}
    tool = only_tool(openapi({"/a": {"post": operation(requestBody={"content": content})}}))

    assert body_of(tool).media_type == chosen


EITHER = [FIELDS, STRING]
BOTH = frozenset({"a", "b"})
DEEP: Json = {"style": "deepObject", "explode": True}


@pytest.mark.parametrize(
    ("kind", "media", "body", "properties"),
    [
        (JSON, {"schema": LIST}, {}, {"body": LIST}),
        (JSON, {"schema": {"type": "object"}}, {}, {"body": {"type": "object"}}),
        (JSON, {"schema": TEXTS}, {}, {"body": TEXTS}),
        (JSON, {"schema": {"oneOf": EITHER}}, {}, {"body": {"anyOf": EITHER}}),
        ("application/xml", {"schema": FIELDS}, {"xml": {"name": "root"}}, {"body": FIELDS}),
        ("application/yaml", {"schema": FIELDS}, {}, {"body": FIELDS}),
        ("text/plain", {"schema": {**STRING, "maxLength": 3, "description": "Few."}}, {}, None),
        ("text/csv", {}, {}, {"body": STRING}),
        ("application/x-ndjson", {"schema": STRING}, {}, {"body": STRING}),
        (FORM, {"schema": LIST}, {}, {"body": {**LIST, "type": "object"}}),
        (FORM, {"schema": {"oneOf": EITHER}}, {}, {"body": {"type": "object", "anyOf": EITHER}}),
        ("application/octet-stream", {}, {"binary": True}, {"body": BASE64}),
        (FORM, {"schema": {"type": "object", "properties": {}}}, None, {}),
        (
            FORM,
            {"schema": FIELDS, "encoding": {"b": DEEP}},
            {"fields": (Field("a", "a"), Field("b", "b", **DEEP)), "all_but": BOTH},
            FIELDS["properties"],
        ),
        (
            FORM,
            {"schema": FIELDS, "encoding": {"a": AS_JSON, "b": {**AS_JSON, "style": "form"}}},
            {"fields": (Field("a", "a", media_type=JSON), Field("b", "b")), "all_but": BOTH},
            FIELDS["properties"],
        ),
    ],
)
def test_bodies_are_taken_apart_or_taken_whole(
    kind: str, media: Json, body: Json | None, properties: Json | None
) -> None:
    post = operation(requestBody={"content": {kind: media}})
    tool = only_tool(openapi({"/a": {"post": post}}))

    whole: Json = {} if body and "fields" in body else {"whole": "body"}
    assert http_of(tool).body == (None if body is None else Body(kind, **whole, **body))
    listed = schema_of(tool)["properties"]
    if kind not in (JSON, FORM, "text/plain"):
        in_base64 = " in base64" if body and "binary" in body else ""
        assert listed["body"].pop("description") == f"The body, as {kind}{in_base64}."
    assert listed == (properties if properties is not None else {"body": media["schema"]})


def test_files_are_base64_with_a_name_of_their_own() -> None:
    properties = {
        "photo": {**BINARY, "description": "A photo."},
        "pages": {"type": "array", "items": BINARY},
        "meta": {"type": "object"},
    }
    encoding = {
        "meta": AS_JSON,
        "pages": {"contentType": "image/*, application/pdf, to be ignored"},
    }
    schema = {"type": "object", "properties": properties}
    tool = only_tool(posting(schema, MULTIPART, encoding=encoding))

    media_type = {"type": "string", "pattern": MEDIA_TYPE_PATTERN}
    listed = schema_of(tool)["properties"]
    assert listed == {
        "photo": {**BASE64, "description": "A photo."},
        "photo_filename": {**STRING, "description": "File name of photo."},
        "photo_content_type": {
            **media_type,
            "description": "Media type of photo, if not as the file name says.",
        },
        "pages": {"type": "array", "items": BASE64},
        "pages_filename": {**LIST, "description": "File name of pages."},
        "pages_content_type": {
            "type": "array",
            "items": media_type,
            "description": "Media type of pages: image/*, application/pdf.",
        },
        "meta": {"type": "object"},
    }
    pages = ("pages", "pages", True, "pages_filename", "pages_content_type")
    assert body_of(tool) == Body(
        MULTIPART,
        (
            Field("photo", "photo", True, "photo_filename", "photo_content_type"),
            Field(*pages, media_type="image/*, application/pdf"),
            Field("meta", "meta", media_type=JSON),
        ),
        all_but=frozenset(listed),
    )


@pytest.mark.parametrize(
    ("written", "part_type", "file", "media_type"),
    [
        ({"contentMediaType": "image/png"}, None, True, "image/png"),
        ({}, "image/png, image/jpeg", True, "image/png, image/jpeg"),
        ({"type": "string"}, "application/octet-stream", True, "application/octet-stream"),
        ({"type": "array", "items": {}}, "image/*", True, "image/*"),
        ({"type": "string", "format": "binary"}, "text/csv", True, "text/csv"),
        ({"anyOf": [BINARY, {"type": "null"}]}, None, True, None),
        ({"oneOf": [{"type": "array", "items": BINARY}, {"type": "null"}]}, None, True, None),
        ({"type": ["array", "null"], "items": BINARY}, None, True, None),
        ({"allOf": [BINARY]}, None, True, None),
        ({"type": ["string", "null"]}, "image/png", True, "image/png"),
        ({"anyOf": [BINARY, {"type": "integer"}]}, None, False, None),
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
    [field] = body_of(only_tool(posting(schema, MULTIPART, encoding=encoding))).fields
    assert (field.file, field.media_type) == (file, media_type)


def test_a_property_of_the_api_keeps_its_name_beside_a_file() -> None:
    schema = {"type": "object", "properties": {"f": BINARY, "f_content_type": STRING}}
    assert body_of(only_tool(posting(schema, MULTIPART))).fields == (
        Field("f", "f", file=True, file_name_argument="f_filename"),
        Field("f_content_type", "f_content_type"),
    )


def test_form_fields_of_swagger_are_a_form_and_with_a_file_multipart() -> None:
    text = {"name": "t", "in": "formData", "type": "string", "required": True}
    file = {"name": "f", "in": "formData", "type": "file"}
    form = only_tool(swagger({"/a": {"post": operation(parameters=[text])}}))
    multipart = only_tool(swagger({"/a": {"post": operation(parameters=[text, file])}}))

    t = Field("t", "t", explode=False)
    f = Field("f", "f", True, "f_filename", "f_content_type", explode=False)
    every = frozenset({"t", "f", "f_filename", "f_content_type"})
    assert body_of(form) == Body(FORM, (t,), required=True, all_but=frozenset({"t"}))
    assert body_of(multipart) == Body(MULTIPART, (t, f), required=True, all_but=every)


def test_all_of_an_object_body_is_flattened() -> None:
    base = an_object({"id": STRING, "name": STRING}, "name")
    body = {"allOf": [{"$ref": "#/components/schemas/Base"}, {"properties": {"age": STRING}}]}
    tool = only_tool(posting(body, required=True, schemas={"Base": base}))

    assert schema_of(tool) == closed({"age": STRING, "id": STRING, "name": STRING}, "name")


def test_a_hidden_body_is_made_of_its_defaults() -> None:
    schema = {"properties": {"fields": {"type": "string", "default": "true"}}}
    tool = only_tool(posting(schema, make=swagger, **{"x-ms-visibility": "internal"}))

    assert schema_of(tool)["properties"] == {}
    assert body_of(tool) == Body(JSON, required=True, constants={"fields": "true"})


def test_the_designers_placeholder_is_not_a_property() -> None:
    schema: Json = {"type": "object", "properties": {"dynamicProperties": {}}}
    schema["x-ms-dynamic-schema"] = {"operationId": "x"}

    assert body_of(only_tool(posting(schema, make=swagger))) == Body(JSON, whole="body")


def test_important_inputs_come_first_and_advanced_ones_last() -> None:
    parameters = (
        {"name": name, "in": "query", "type": "string", "x-ms-visibility": visibility}
        for name, visibility in [("a", "advanced"), ("b", "none"), ("c", "important")]
    )
    tool = only_tool(getting(*parameters, make=swagger))

    assert list(schema_of(tool)["properties"]) == ["c", "b", "a"]


DETOURS: list[Json] = [
    {"name": "X-HTTP-Method-Override", "in": "header", "required": True, **STRING},
    {"name": "x_original_url", "in": "header", **STRING},
    {"name": "_method", "in": "query", **STRING},
    {"name": "x-http-method", "in": "header", "default": "DELETE", **STRING}
    | {"x-ms-visibility": "internal"},
    {"name": "q", "in": "query", **STRING},
]


@pytest.mark.parametrize("kind", ["openapi", "arm"])
def test_what_could_make_the_request_another_one_is_left_out_with_a_reason(kind: str) -> None:
    build = built(getting(*DETOURS, make=swagger), kind=kind)
    (tool,) = build.tools
    assert schema_of(tool) == closed({"q": STRING})
    assert [given.name for given in http_of(tool).parameters] == ["q"]
    told = [problem for problem in build.problems if "is left out" in problem.message]
    assert [(p.severity, p.where, p.message.partition(":")[0]) for p in told] == [
        ("warning", "GET /a", "_method (query) is left out"),
        ("warning", "GET /a", "X-HTTP-Method-Override (header) is left out"),
        ("warning", "GET /a", "x_original_url (header) is left out"),
        ("warning", "GET /a", "x-http-method (header) is left out"),
    ]


@pytest.mark.parametrize("media_type", [JSON, MULTIPART, FORM])
def test_a_body_does_not_say_the_method_either(media_type: str) -> None:
    properties = {
        "_method": STRING,
        "__METHOD": {**STRING, "default": "DELETE", "x-ms-visibility": "internal"},
        "book": STRING,
    }
    schema = {"type": "object", "properties": properties, "required": ["_method"]}
    tool = only_tool(posting(schema, media_type, required=True))

    assert list(schema_of(tool)["properties"]) == ["book"]
    body = body_of(tool)
    assert ([field.name for field in body.fields], body.constants) == (["book"], {})


def test_what_an_operator_injects_is_sent() -> None:
    definition = getting(DETOURS[0], make=swagger)
    tool = only_tool(definition, inject=("X-HTTP-Method-Override",))
    assert schema_of(tool)["properties"] == {}
    assert [given.name for given in http_of(tool).parameters] == ["X-HTTP-Method-Override"]
