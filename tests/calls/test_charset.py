"""Texts come out in UTF-8 as they would from Python's own decoder, however large."""

from __future__ import annotations

import pytest

from gateway.calls.answer import CHARSETS, MAX_UTF8_BYTES, in_utf8
from gateway.outbound.client import Answer

EVERY_BYTE = bytes(range(256)) * 500 + b"\xe9"


def answered(body: bytes, charset: str) -> Answer:
    return Answer(200, (("content-type", f"text/plain; charset={charset}"),), body)


@pytest.mark.parametrize("charset", sorted(CHARSETS))
def test_text_is_decoded_in_steps_as_at_once(charset: str) -> None:
    expected = EVERY_BYTE.decode(charset, "replace").encode("utf-8", "replace")
    assert in_utf8(answered(EVERY_BYTE, charset)) == answered(expected, "utf-8")


def test_text_that_grows_too_large_is_cut_between_characters() -> None:
    out = in_utf8(answered(b"\x81" * (MAX_UTF8_BYTES // 2), "windows-1252"))
    assert out.truncated
    assert MAX_UTF8_BYTES - 200_000 < len(out.body) <= MAX_UTF8_BYTES
    assert out.body == "\ufffd".encode() * (len(out.body) // 3)
