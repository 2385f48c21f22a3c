"""A body that was taken apart is put together again as its definition wants it."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import orjson
import pytest

from gateway.calls.arguments import fitting_arguments
from gateway.calls.request import build_request
from gateway.errors import Fixable
from gateway.model import Tool
from tests.definitions import (
    Json,
    an_object,
    body_of,
    built,
    http_of,
    only_tool,
    openapi,
    operation,
    posting,
    schema_of,
    swagger,
)

STRING = {"type": "string"}
NUMBER = {"type": "integer"}
PATCH = "application/json-patch+json"
QUERY = {"name": "q", "in": "query", "schema": STRING}


def _tool(schema: Json, *, required: bool | None = True, parameters: Any = (), **more: Any) -> Tool:
    body: Json = {"content": {"application/json": {"schema": schema}}}
    body |= {} if required is None else {"required": required}
    post = operation(requestBody=body, parameters=list(parameters))
    return only_tool(openapi({"/a": {"post": post}}, components={"schemas": SHARED}), **more)


SHARED: Json = {
    "Base": an_object({"id": {"readOnly": True}, "name": STRING}),
    "Tree": an_object(
        {
            "kind": {"type": "string", "default": "leaf", "x-ms-visibility": "internal"},
            "name": STRING,
            "below": {"type": "array", "items": {"$ref": "#/components/schemas/Tree"}},
        },
        *("kind", "name"),
    ),
}


def _sent(tool: Tool, **arguments: Any) -> Any:
    """The JSON that goes out; None if no body does. What is given must be what is listed."""
    request = build_request(http_of(tool), fitting_arguments(tool, arguments)[0])
    return orjson.loads(request.body) if request.body is not None else None


def _refused(tool: Tool, **arguments: Any) -> list[str]:
    with pytest.raises(Fixable) as refusal:
        _sent(tool, **arguments)
    return [each["path"] for each in refusal.value.details["problems"]]


def _is_listed(tool: Tool, **arguments: Any) -> bool:
    return jsonschema_rs.Draft202012Validator(schema_of(tool)).is_valid(arguments)


OBJECT = an_object({"a": STRING, "b": STRING, "c": STRING})


@pytest.mark.parametrize(
    ("required", "listed", "rules"),
    [
        (None, ["a", "b"], None),
        (True, ["a", "b"], None),
        (False, None, {"a": ["b"], "b": ["a"], "c": ["a", "b"]}),
    ],
)
def test_a_body_that_may_be_left_out_says_what_goes_together(
    required: bool | None, listed: list[str] | None, rules: Json | None
) -> None:
    tool = _tool({**OBJECT, "required": ["a", "b"]}, required=required)

    assert schema_of(tool).get("required") == listed
    assert schema_of(tool).get("dependentRequired") == rules


def test_a_body_that_may_be_left_out_is_given_whole_or_not_at_all() -> None:
    tool = _tool({**OBJECT, "required": ["a"]}, required=False, parameters=[QUERY])

    assert _sent(tool, q="x") is None
    assert _sent(tool, a="x", b="y") == {"a": "x", "b": "y"}
    assert _refused(tool, b="y") == ["/a"]


@pytest.mark.parametrize(
    ("more", "inject"),
    [
        ({"kind": {"type": "string", "default": "html", "x-ms-visibility": "internal"}}, ()),
        ({"tenant": STRING}, ("tenant",)),
    ],
)
def test_where_something_is_sent_anyway_the_rest_is_required(more: Json, inject: Any) -> None:
    tool = _tool(an_object({"a": STRING, **more}, "a"), required=False, inject=inject)

    assert schema_of(tool)["required"] == ["a"]


@pytest.mark.parametrize(
    ("says", "listed"),
    [
        ({}, False),
        ({"additionalProperties": False}, False),
        ({"additionalProperties": True}, True),
        ({"additionalProperties": NUMBER}, NUMBER),
        ({"additionalProperties": {"$ref": "#/components/schemas/Base"}}, {"$ref": "#/$defs/Base"}),
        (
            {"additionalProperties": {}, "allOf": [{"additionalProperties": NUMBER}]},
            {"allOf": [NUMBER, {}]},
        ),
        ({"additionalProperties": True, "allOf": [{"additionalProperties": False}]}, False),
        ({"unevaluatedProperties": False}, False),
    ],
)
def test_what_a_body_says_of_other_properties_is_listed(says: Json, listed: Any) -> None:
    schema = schema_of(_tool({**OBJECT, **says}))

    assert schema["additionalProperties"] == listed


def test_other_properties_go_into_the_body_as_they_are() -> None:
    tool = _tool({**OBJECT, "additionalProperties": NUMBER}, parameters=[QUERY], inject=("tenant",))

    assert _sent(tool, a="x", q="y", size=1) == {"a": "x", "size": 1}
    assert _refused(tool, size="large") == ["/size"]
    assert build_request(http_of(tool), {"a": "x", "tenant": "acme"}).body == b'{"a":"x"}'


def test_an_object_that_does_not_forbid_more_takes_more_with_a_word_to_the_caller() -> None:
    tool = _tool({**OBJECT, "properties": {"title": STRING}}, parameters=[QUERY])

    given, warnings = fitting_arguments(tool, {"title": "x", "weight": 1})

    assert build_request(http_of(tool), given).body == b'{"title":"x","weight":1}'
    assert warnings == [
        {"path": "/weight", "message": "is not known; it was sent in the body as it is"}
    ]


@pytest.mark.parametrize(
    ("says", "argument"), [({}, "titel"), ({"additionalProperties": False}, "weight")]
)
def test_a_misspelt_property_and_one_that_is_forbidden_are_refused(
    says: Json, argument: str
) -> None:
    tool = _tool({"type": "object", "properties": {"title": STRING}, **says})

    assert _refused(tool, **{"title": "x", argument: 1}) == [f"/{argument}"]


ONE_OF_TWO = [{"required": ["a"]}, {"required": ["b", "c"]}]


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_which_properties_go_together_is_listed(keyword: str) -> None:
    tool = _tool({**OBJECT, keyword: ONE_OF_TWO}, parameters=[{**QUERY, "name": "b"}])

    assert schema_of(tool)["anyOf"] == [{"required": ["a"]}, {"required": ["body_b", "c"]}]
    assert _sent(tool, body_b="x", c="y") == {"b": "x", "c": "y"}
    assert not _is_listed(tool, body_b="x")


def test_several_such_rules_all_hold() -> None:
    tool = _tool({**OBJECT, "anyOf": ONE_OF_TWO, "allOf": [{"oneOf": ONE_OF_TWO[::-1]}]})

    assert schema_of(tool)["allOf"] == [{"anyOf": ONE_OF_TWO[::-1]}, {"anyOf": ONE_OF_TWO}]


def test_what_nobody_can_give_or_everybody_gives_is_no_alternative() -> None:
    properties = {"a": STRING, "id": {"readOnly": True}, "tenant": STRING}
    hidden = [{"required": ["id"]}, {"required": ["a"]}]
    filled = [{"required": ["tenant"]}, {"required": ["a"]}]

    assert schema_of(_tool({"properties": properties, "anyOf": hidden}))["anyOf"] == [
        {"required": ["a"]}
    ]
    filled_in = _tool({"properties": properties, "anyOf": filled}, inject=("tenant",))
    assert "anyOf" not in schema_of(filled_in)


@pytest.mark.parametrize("required", [True, None, False])
def test_a_body_with_at_least_one_property_is_never_empty(required: bool | None) -> None:
    tool = _tool({**OBJECT, "minProperties": 1}, required=required, parameters=[QUERY])

    assert not _is_listed(tool, q="x")
    assert _is_listed(tool, c="x")


def test_where_a_body_is_open_any_property_counts() -> None:
    tool = _tool({**OBJECT, "additionalProperties": NUMBER, "minProperties": 1})

    assert not _is_listed(tool)
    assert _is_listed(tool, a="x") and _is_listed(tool, size=1)


@pytest.mark.parametrize(
    "says",
    [
        {"minProperties": 2},
        {"minProperties": 1, "additionalProperties": True},
        {"maxProperties": 1},
        {"not": {"required": ["a", "b"]}},
        {"dependentRequired": {"a": ["b"]}},
        {"patternProperties": {"^x-": NUMBER}, "additionalProperties": False},
        {"allOf": [{"maxProperties": 1}]},
    ],
)
def test_a_body_that_says_what_cannot_be_said_of_arguments_is_given_whole(says: Json) -> None:
    tool = _tool({**OBJECT, **says}, parameters=[QUERY])

    assert schema_of(tool)["properties"].keys() == {"q", "body"}
    assert _is_listed(tool, body={"b": "x", "c": "y"}) is ("maxProperties" not in str(says))
    tenant = {**OBJECT["properties"], "tenant": STRING}
    filled = _tool({**OBJECT, **says, "properties": tenant}, inject=("tenant",))
    assert "body" not in schema_of(filled)["properties"]


@pytest.mark.parametrize(
    ("says", "listed"),
    [({}, True), ({"additionalProperties": NUMBER}, NUMBER)],
)
def test_a_property_that_is_required_and_declared_nowhere_can_be_given(
    says: Json, listed: Any
) -> None:
    tool = _tool(an_object({"a": STRING}, "a", "b", **says))

    assert schema_of(tool)["properties"] == {"a": STRING, "b": listed}
    assert sorted(schema_of(tool)["required"]) == ["a", "b"]
    assert _sent(tool, a="x", b=1) == {"a": "x", "b": 1}


def test_so_can_one_of_an_object_inside() -> None:
    inner = an_object({"a": STRING}, "b")
    closed = {**inner, "additionalProperties": False}
    tool = _tool(an_object({"open": inner, "closed": closed}))

    assert _sent(tool, open={"b": 1}, closed={"b": 1}) == {"open": {"b": 1}, "closed": {"b": 1}}
    assert schema_of(tool)["properties"]["closed"]["properties"] == {"a": STRING, "b": {}}


def test_what_a_part_of_an_object_hides_is_not_required_of_it() -> None:
    inner = {"allOf": [{"$ref": "#/components/schemas/Base"}], "required": ["id", "name"]}
    tool = _tool(an_object({"inner": inner}))

    assert schema_of(tool)["properties"]["inner"]["required"] == ["name"]


def test_what_one_part_of_a_body_says_of_a_property_holds_beside_what_another_says() -> None:
    base = {
        "properties": {"size": {"type": "string", "enum": ["s", "m"]}, "id": {"readOnly": True}}
    }
    more = {"properties": {"size": {"description": "How large."}, "id": {"description": "Its id."}}}
    tool = _tool({"allOf": [base, more]})

    assert schema_of(tool)["properties"] == {
        "size": {"type": "string", "enum": ["s", "m"], "description": "How large."}
    }


@pytest.mark.parametrize(
    ("schema", "chosen"),
    [({"type": "object"}, "application/merge-patch+json"), ({"type": "array"}, PATCH)],
)
def test_a_json_patch_is_a_list_and_other_patches_are_objects(schema: Json, chosen: str) -> None:
    content = {kind: {"schema": schema} for kind in (PATCH, "application/merge-patch+json")}
    patch = operation(requestBody={"required": True, "content": content})

    assert body_of(only_tool(openapi({"/a": {"patch": patch}}))).media_type == chosen


def test_a_form_without_fields_is_sent_where_it_is_required() -> None:
    open_ = {"additionalProperties": True}
    for schema, asked in (({"type": "object"}, []), (open_, ["body"]), ({}, ["body"])):
        tool = _form(FORM, schema)
        assert list(schema_of(tool)["properties"]) == asked
        assert build_request(http_of(tool), {"body": {}}).body == b""


FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
BINARY = {"type": "string", "format": "binary"}
LIST = {"type": "array", "items": STRING}


def _form(media_type: str, schema: Json, **more: Any) -> Tool:
    return only_tool(posting(schema, media_type, required=True, **more))


@pytest.mark.parametrize(
    ("media_type", "field", "listed"),
    [
        (FORM, LIST, {"minItems": 1}),
        (MULTIPART, {"type": "array", "items": BINARY}, {"minItems": 1}),
        (FORM, {"type": "object"}, {"minProperties": 1}),
        ("application/json", LIST, {}),
    ],
)
def test_what_a_form_requires_is_listed_as_not_empty(
    media_type: str, field: Json, listed: Json
) -> None:
    schema = {"properties": {"a": field, "b": field}, "required": ["a"]}
    deep = {"a": {"style": "deepObject", "explode": True}} if field["type"] == "object" else {}
    found = schema_of(_form(media_type, schema, encoding=deep))["properties"]

    assert {key: found["a"][key] for key in found["a"].keys() - found["b"].keys()} == listed


def test_a_multipart_body_that_is_bytes_is_a_file() -> None:
    tool = _form(MULTIPART, BINARY)

    assert [*schema_of(tool)["properties"]] == ["file", "file_filename", "file_content_type"]
    sent = build_request(http_of(tool), {"file": "AAE=", "file_filename": "x"}).body or b""
    assert b'name="file"; filename="x"' in sent and b"\x00\x01" in sent


@pytest.mark.parametrize(
    ("media_type", "right"),
    [("image/png", True), ("text/csv; charset=utf-8", True), ("", True), ("png", False)],
)
def test_what_is_listed_of_a_files_media_type_is_what_is_sent(media_type: str, right: bool) -> None:
    tool = _form(MULTIPART, BINARY)
    given = {"file": "AAE=", "file_content_type": media_type}

    assert _is_listed(tool, **given) is right
    if right:
        sent = build_request(http_of(tool), given).body or b""
        assert f"Content-Type: {media_type}".encode() in sent
        return
    with pytest.raises(Fixable):
        build_request(http_of(tool), given)


def test_bytes_are_sent_as_bytes_rather_than_as_a_form_without_fields() -> None:
    schema = {"type": "object", "format": "binary"}
    content = {kind: {"schema": schema} for kind in (MULTIPART, "application/octet-stream")}
    body = {"required": True, "content": content}
    tool = only_tool(openapi({"/a": {"post": operation(requestBody=body)}}))

    assert body_of(tool).media_type == "application/octet-stream"


@pytest.mark.parametrize(
    ("values", "sent", "problems"),
    [
        (["low", "high"], 3, ["no value of an enum has its type: ['low', 'high']"]),
        (["1", "2"], 1, ["values of an enum do not have its type: ['1', '2']"]),
        ([1, "high"], 1, ["values of an enum do not have its type: ['high']"]),
        ([1, 2, None], 1, []),
    ],
)
def test_an_enum_that_contradicts_its_type_is_a_problem_and_the_tool_can_be_called(
    values: list[Any], sent: int, problems: list[str]
) -> None:
    build = built(posting({"properties": {"level": {"type": "integer", "enum": values}}}))

    (tool,) = build.tools
    assert _sent(tool, level=sent) == {"level": sent}
    assert [(each.severity, each.where, each.message) for each in build.problems] == [
        ("warning", "POST /a", words) for words in problems
    ]


# --- what is filled in ----------------------------------------------------------------------------

HIDDEN = {"type": "string", "default": "html", "x-ms-visibility": "internal"}
MESSAGE = an_object({"contentType": HIDDEN, "content": STRING}, "contentType", "content")
ASKED, SENT = {"content": "x"}, {"content": "x", "contentType": "html"}


def _connector(schema: Json) -> Tool:
    definition = posting(schema, make=swagger, required=True)
    return only_tool({**definition, "definitions": {"Message": MESSAGE}})


@pytest.mark.parametrize(
    ("shape", "given", "sent"),
    [
        ({"$ref": "#/definitions/Message"}, ASKED, SENT),
        (MESSAGE, ASKED, SENT),
        ({"type": "array", "items": MESSAGE}, [ASKED, ASKED], [SENT, SENT]),
        (
            {"type": "object", "additionalProperties": {"properties": {"deep": MESSAGE}}},
            {"any": {"deep": ASKED}},
            {"any": {"deep": SENT}},
        ),
        (
            {"allOf": [MESSAGE, {"properties": {"more": STRING}}]},
            {**ASKED, "more": "y"},
            {**SENT, "more": "y"},
        ),
        (an_object(MESSAGE["properties"]), {"contentType": "text"}, {"contentType": "html"}),
    ],
)
def test_internal_properties_with_a_default_are_filled_in_wherever_they_are(
    shape: Json, given: Any, sent: Any
) -> None:
    tool = _connector(an_object({"it": shape, "other": STRING}))

    assert "contentType" not in tool.input_schema.decode() + tool.entry.decode()
    assert _sent(tool, it=given) == {"it": sent}
    assert _sent(tool, other="x") == {"other": "x"}


def test_an_object_whose_properties_are_all_internal_need_not_be_given() -> None:
    properties = {"it": an_object({"kind": HIDDEN}, "kind"), "text": STRING}
    tool = _tool(an_object({**properties, "inner": an_object(properties, "it")}, "it"))

    assert schema_of(tool)["properties"] == {"text": STRING, "inner": an_object({"text": STRING})}
    filled = {"it": {"kind": "html"}, "text": "x"}
    assert _sent(tool, text="x", inner={"text": "x"}) == {**filled, "inner": filled}


def test_one_that_may_hold_more_is_asked_for() -> None:
    kind = an_object({"kind": HIDDEN}, additionalProperties=STRING)
    tool = _tool(an_object({"it": kind}, "it"))

    assert schema_of(tool)["required"] == ["it"]
    assert _sent(tool, it={"more": "x"}) == {"it": {"kind": "html", "more": "x"}}


def test_they_are_filled_in_at_every_level_of_a_tree() -> None:
    tool = _tool(an_object({"tree": {"$ref": "#/components/schemas/Tree"}}))
    tree = {"name": "a", "below": [{"name": "b", "below": [{"name": "c"}]}]}

    inner = {"name": "b", "below": [{"name": "c", "kind": "leaf"}], "kind": "leaf"}
    assert _sent(tool, tree=tree) == {"tree": {"name": "a", "below": [inner], "kind": "leaf"}}


def test_a_required_property_with_a_default_is_filled_in_wherever_it_is() -> None:
    unit = {"type": "string", "default": "kg"}
    weight = an_object({"n": NUMBER, "unit": unit}, "n", "unit")
    properties = {
        "unit": unit,
        "weights": {"type": "array", "items": weight},
        "either": {"oneOf": [STRING, weight]},
        "optional": {"type": "string", "default": "never sent"},
    }
    size = {"name": "size", "in": "query", "required": True, "schema": {**NUMBER, "default": 10}}
    tool = _tool(an_object(properties, "unit"), parameters=[size])

    given, warnings = fitting_arguments(tool, {"weights": [{"n": 1}], "either": {"n": 2}})
    request = build_request(http_of(tool), given)
    assert (request.url.partition("?")[2], warnings) == ("size=10", [])
    assert orjson.loads(request.body or b"") == {
        "unit": "kg",
        "weights": [{"n": 1, "unit": "kg"}],
        "either": {"n": 2, "unit": "kg"},
    }


def test_of_a_body_that_may_be_left_out_defaults_are_filled_in_only_with_the_rest() -> None:
    properties = {"a": {"type": "string", "default": "x"}, "b": STRING}
    tool = _tool(an_object(properties, "a"), required=False)

    assert _sent(tool) is None
    assert _sent(tool, b="y") == {"b": "y", "a": "x"}


# --- XML ------------------------------------------------------------------------------------------


def test_an_object_in_xml_is_written_as_its_definition_says() -> None:
    tag = {"type": "string", "xml": {"name": "Tag"}}
    properties = {
        "id": {"type": "integer", "xml": {"attribute": True}},
        "note": {**STRING, "xml": {"name": "Note", "prefix": "n", "namespace": "urn:n"}},
        "item": LIST,
        "tags": {"type": "array", "xml": {"wrapped": True, "name": "Tags"}, "items": tag},
    }
    order = an_object(properties, xml={"name": "Order", "namespace": "urn:shop"})
    tool = _form("application/xml", order)
    given = {"id": 7, "note": "a < b", "item": ["x", "y"], "tags": ["t"], "more": None}

    assert schema_of(tool)["properties"]["body"]["properties"]["item"] == LIST
    request = build_request(http_of(tool), fitting_arguments(tool, {"body": given})[0])
    assert dict(request.headers)["Content-Type"] == "application/xml"
    assert (request.body or b"").decode() == (
        '<?xml version="1.0" encoding="UTF-8"?><Order id="7" xmlns="urn:shop">'
        '<n:Note xmlns:n="urn:n">a &lt; b</n:Note><item>x</item><item>y</item>'
        "<Tags><Tag>t</Tag></Tags></Order>"
    )
    with pytest.raises(Fixable, match="can't be the name of an XML element"):
        build_request(http_of(tool), {"body": {"a><b": 1}})
