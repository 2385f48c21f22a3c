"""What bytes are, and that it is the same in steps as at once."""

from __future__ import annotations

import base64

import orjson
import pytest

from gateway.calls.answer import MAX_DEPTH, NOT_JSON, STEP_BYTES, as_json, as_text, shown

BODIES = [
    b"",
    "é".encode() * STEP_BYTES,
    b"x" + "é😀".encode() * STEP_BYTES,
    b"\xef\xbb\xbfx" * STEP_BYTES,
    bytes(range(1, 256)) * 1_000,
    bytes(range(256)) * 1_000,
    b"a" * (STEP_BYTES - 1) + "é".encode()[:1],
]


@pytest.mark.parametrize("media_type", ["text/plain", "application/pdf", "image/png", ""])
@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_large_bodies_are_shown_as_text_or_in_base64(body: bytes, media_type: str) -> None:
    text = as_text(body, media_type)
    assert "".join(shown(body, media_type)) == (
        base64.b64encode(body).decode() if text is None else text
    )


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_json_is_taken_as_deep_as_it_can_be_written_in_a_result(opening: bytes) -> None:
    closing = b"]" if opening == b"[" else b"}"
    deepest = opening * MAX_DEPTH + (b"1") + closing * MAX_DEPTH
    assert as_json(deepest, "application/json") == orjson.loads(deepest)
    assert as_json(b"[" + deepest + b"]", "application/json") is NOT_JSON
