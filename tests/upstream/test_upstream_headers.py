"""The headers that repeat a request are those the protocol's own SDK would send."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.inbound import (
    decode_header_value,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)

from gateway.upstream.protocol import header_marks, invalid_header_mark, routing_headers

MARKED = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "filter": {
            "type": "object",
            "properties": {"deep": {"type": "boolean", "x-mcp-header": "Deep"}},
        },
        "count": {"type": "integer", "x-mcp-header": "Count"},
    },
}


def test_marked_arguments_are_repeated_as_headers() -> None:
    arguments = {"region": "zürich", "filter": {"deep": True}, "count": 3}
    params = {"name": "find", "arguments": arguments}
    assert routing_headers("tools/call", params, header_marks(MARKED)) == {
        "Mcp-Method": "tools/call",
        "Mcp-Name": "find",
        "Mcp-Param-Region": "=?base64?esO8cmljaA==?=",
        "Mcp-Param-Deep": "true",
        "Mcp-Param-Count": "3",
    }


def test_absent_arguments_and_other_methods_are_not_repeated() -> None:
    assert routing_headers("tools/call", {"name": "find"}, header_marks(MARKED)) == {
        "Mcp-Method": "tools/call",
        "Mcp-Name": "find",
    }
    assert routing_headers("tools/list", {}, {}) == {"Mcp-Method": "tools/list"}
    assert routing_headers("resources/read", {"uri": "file:///a"}, {})["Mcp-Name"] == "file:///a"


@pytest.mark.parametrize(
    "schema",
    [
        MARKED,
        {},
        None,
        {"x-mcp-header": "A"},
        {"properties": {"a": {"type": "string", "x-mcp-header": "not a token"}}},
        {"properties": {"a": {"type": "string", "x-mcp-header": 7}}},
        {"properties": {"a": {"type": "number", "x-mcp-header": "A"}}},
        {"properties": {"a": {"type": ["string"], "x-mcp-header": "A"}}},
        {"properties": {"a": {"items": {"type": "string", "x-mcp-header": "A"}}}},
        {"$defs": {"a": {"type": "string", "x-mcp-header": "A"}}},
        {"anyOf": [{"properties": {"a": {"type": "string", "x-mcp-header": "A"}}}]},
        {"properties": {"a": {"default": {"x-mcp-header": "A"}}}},
        {
            "properties": {
                "a": {"type": "string", "x-mcp-header": "A"},
                "b": {"type": "string", "x-mcp-header": "a"},
            }
        },
    ],
)
def test_marks_are_judged_as_the_sdk_judges_them(schema: Any) -> None:
    assert (invalid_header_mark(schema) is None) == (find_invalid_x_mcp_header(schema) is None)
    if find_invalid_x_mcp_header(schema) is None:
        assert header_marks(schema) == x_mcp_header_map(schema)


@given(st.text() | st.sampled_from(["=?base64?YQ==?=", " a", "a ", "", "a b", "\t"]))
def test_any_name_reaches_the_server_as_it_is(name: str) -> None:
    value = routing_headers("tools/call", {"name": name}, {})["Mcp-Name"]
    assert value == encode_header_value(name)
    assert decode_header_value(value) == name


@given(
    st.dictionaries(
        st.sampled_from(["region", "filter", "count"]),
        st.none() | st.booleans() | st.integers() | st.text() | st.just({"deep": False}),
    )
)
def test_any_arguments_are_repeated_as_the_sdk_does(arguments: dict[str, Any]) -> None:
    sent = routing_headers("tools/call", {"arguments": arguments}, header_marks(MARKED))
    assert sent == {
        "Mcp-Method": "tools/call",
        **mcp_param_headers(x_mcp_header_map(MARKED), arguments),
    }
