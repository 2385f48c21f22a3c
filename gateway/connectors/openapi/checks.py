"""Whether a schema can be used to check arguments, by the very engine that will check them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import jsonschema_rs
import orjson

MAX_PATTERN = 1_000  # characters
_PATTERN_BYTES = 256 * 1024  # compiled
PATTERN_OPTIONS = jsonschema_rs.RegexOptions(size_limit=_PATTERN_BYTES)
_LITERAL = re.compile(r"/(\^.+\$)/([a-z]*)")  # as JavaScript writes it, perhaps with flags
_CHARACTER = r"\\.|\[(?:\\.|[^\]\\])*\]"
_LOOSENED = re.compile(
    rf"(?P<kept>{_CHARACTER})|\(\?<?[=!](?:{_CHARACTER}|[^()\\\[])*\)|\{{(?P<least>\d+),\d\d+\}}"
)


def compiles(text: bytes) -> bool:
    """Whether the schema can be used to check arguments."""
    return _compiles(orjson.loads(text))


def usable_pattern(pattern: str) -> str | None:
    """The pattern as an engine that never goes back can check it, or one that accepts more.

    What is left out of such a one are looks ahead or behind, and the highest of high numbers.
    """
    if literal := _LITERAL.fullmatch(pattern):
        pattern = literal[1] if not literal[2] else ".*"
    return next((each for each in (pattern, _looser(pattern)) if _is_linear(each)), None)


def _looser(pattern: str) -> str:
    def less(found: re.Match[str]) -> str:
        return found["kept"] or (f"{{{found['least']},}}" if found["least"] else "")

    return _LOOSENED.sub(less, pattern)


@lru_cache(maxsize=8192)
def _is_linear(pattern: str) -> bool:
    return len(pattern) <= MAX_PATTERN and _compiles({"pattern": pattern})


def _compiles(schema: Any) -> bool:
    try:
        jsonschema_rs.Draft202012Validator(schema, pattern_options=PATTERN_OPTIONS, offline=True)
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
