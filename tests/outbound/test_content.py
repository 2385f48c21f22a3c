"""What the bytes of an answer are."""

from __future__ import annotations

import orjson
import pytest

from gateway.limits import MAX_JSON_DEPTH
from gateway.outbound.content import NOT_JSON, as_json, charset_of, text_or_base64


@pytest.mark.parametrize(
    ("body", "media_type", "shown"),
    [
        (b"", "application/pdf", ""),
        ("é".encode(), "application/pdf", "é"),
        (b"\xef\xbb\xbfx", "text/plain", "x"),
        (b"\xff", "text/plain", "\ufffd"),
        (b"\xff", "application/pdf", "/w=="),
        (b"a\0", "", "YQA="),
        (b"text", "image/png", "dGV4dA=="),
    ],
)
def test_bodies_are_shown_as_text_or_in_base64(body: bytes, media_type: str, shown: str) -> None:
    assert text_or_base64(body, media_type) == shown


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_json_is_taken_as_deep_as_it_can_be_written_in_a_result(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    deepest = opening * MAX_JSON_DEPTH + b"1" + closing * MAX_JSON_DEPTH
    assert as_json(deepest, "application/json") == orjson.loads(deepest)
    assert as_json(b"[" + deepest + b"]", "application/json") is NOT_JSON


@pytest.mark.parametrize(
    "charset",
    ["iso-8859-1", "windows-1252", "koi8-r", "utf-16", "utf-32", "Shift_JIS", '"gb18030"', "big5"],
)
def test_text_is_decoded_with_the_charset_it_names(charset: str) -> None:
    body = bytes(range(256)) + b"\xe9"
    known = charset_of(body, f"text/plain; charset={charset}")
    assert known is not None
    expected = body.decode(charset.strip('"'), "replace").encode("utf-8", "replace")
    assert body.decode(known, "replace").encode("utf-8", "replace") == expected


@pytest.mark.parametrize("charset", ["utf-8", "UTF8", "punycode", "hex", "rot13", "nothing", "\0"])
def test_other_codecs_are_no_charsets(charset: str) -> None:
    assert charset_of(b"x", f"text/plain; charset={charset}") is None


def test_byte_order_mark_comes_before_the_declared_charset() -> None:
    body = "é".encode("utf-16")
    assert charset_of(body, "text/plain; charset=latin-1") == "utf-16"
    assert charset_of(body, "image/png") is None
