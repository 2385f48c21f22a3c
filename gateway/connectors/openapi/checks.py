"""Whether a schema can be used to check arguments, by the very engine that will check them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jsonschema_rs
import orjson

MAX_PATTERN = 1_000  # characters
_PATTERN_BYTES = 256 * 1024  # compiled
PATTERN_OPTIONS = jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES)


def compiles(text: bytes) -> bool:
    """Whether the schema can be used to check arguments."""
    try:
        jsonschema_rs.Draft202012Validator(
            orjson.loads(text), pattern_options=PATTERN_OPTIONS, offline=True
        )
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True


def joined(text: bytes, definitions: Mapping[str, bytes]) -> bytes:
    """Definitions are serialised once a document, so putting them together is joining bytes."""
    if not definitions:
        return text
    listed = b",".join(b'"%b":%b' % (name.encode(), part) for name, part in definitions.items())
    comma = b"" if text == b"{}" else b","
    return b'%b%b"$defs":{%b}}' % (text[:-1], comma, listed)


def written(value: Any) -> bytes:
    """The JSON text of a value, to be kept: orjson's own takes four kilobytes at the least."""
    return bytes(memoryview(orjson.dumps(value)))


@lru_cache(maxsize=8192)
def is_linear_pattern(pattern: str) -> bool:
    """Whether an engine that never backtracks understands the pattern."""
    if len(pattern) > MAX_PATTERN:
        return False
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=PATTERN_OPTIONS)
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True
