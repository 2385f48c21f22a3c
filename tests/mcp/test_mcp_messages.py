"""Reading JSON-RPC strictly: what is one message, what is not, and what must never be lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.mcp.messages import RpcError, parse, read_message
from gateway.model import json_bytes
from tests.raising import raises

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
).filter(lambda value: "\ud800" not in repr(value))


@given(JSON, st.booleans(), st.sampled_from([None, 1]))
def test_what_is_read_is_what_was_written(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    try:
        body = text.encode()
    except UnicodeEncodeError:
        return  # half a surrogate pair is not text
    try:
        assert parse(body) == json.loads(body)
    except RpcError:
        assert "\\ud" in text  # half a surrogate pair, escaped


@given(st.text(max_size=5), JSON, JSON, st.booleans(), st.booleans())
def test_key_given_twice_is_refused_however_it_is_spelled(
    key: str, first: Any, second: Any, nested: bool, escaped: bool
) -> None:
    name = json.dumps(key)
    other = '"' + "".join(f"\\u{ord(c):04x}" for c in key) + '"' if escaped else name
    if any(ord(c) > 0xFFFF or 0xD800 <= ord(c) < 0xE000 for c in key):
        return
    text = f"{{{name}: {json.dumps(first)}, {other}: {json.dumps(second)}}}"
    text = f'{{"params": [{text}]}}' if nested else text
    with raises(RpcError, code=-32700):
        parse(text.encode())


def test_escaped_colon_does_not_hide_a_key_given_twice() -> None:
    with raises(RpcError, code=-32700, message="Parse error: the key 'b' is given twice"):
        parse(rb'{"a":"\u003a","b":1,"b":2}')


def test_integers_beyond_64_bits_stay_exact() -> None:
    value = {"n": 123456789012345678901234567890}
    assert parse(json.dumps(value).encode()) == value
    assert json.loads(json_bytes(value)) == value


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"{}{}", b"nan", b'{"a": NaN}', b"\xff", b'"\\ud800"', b"[" * 5000, b"'a'"],
)
def test_text_that_is_not_json_is_a_parse_error(body: bytes) -> None:
    with raises(RpcError, code=-32700):
        parse(body)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({"jsonrpc": "2.0", "id": 1, "method": "ping"}, "request"),
        ({"jsonrpc": "2.0", "id": "a", "method": "ping", "params": None}, "request"),
        ({"jsonrpc": "2.0", "id": 0, "method": "ping", "params": {}}, "request"),
        ({"jsonrpc": "2.0", "method": "notifications/x"}, "notification"),
        ({"jsonrpc": "2.0", "id": 1, "result": {}}, "response"),
        ({"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": ""}}, "response"),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, None),
        ({"jsonrpc": "2.0", "id": 1.0, "method": "ping"}, None),
        ({"jsonrpc": "2.0", "id": [], "method": "ping"}, None),
        ({"jsonrpc": "2.0", "id": 1, "method": None}, None),
        ({"id": 1, "method": "ping"}, None),
        ({"jsonrpc": "2.0", "id": None, "result": {}}, None),
        ({"jsonrpc": "2.0", "id": 1, "result": {}, "error": {}}, None),
        ("ping", None),
    ],
)
def test_message_is_one_of_three_kinds_or_refused(value: Any, kind: str | None) -> None:
    if kind is not None:
        assert read_message(value).kind == kind
        return
    with raises(RpcError, code=-32600):
        read_message(value)
