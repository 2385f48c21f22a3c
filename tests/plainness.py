"""What a plain schema may not have anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

KNOWN = frozenset(
    """type title description enum default format pattern multipleOf uniqueItems deprecated
    contentEncoding x-mcp-header minimum exclusiveMinimum minLength minItems minProperties maximum
    exclusiveMaximum maxLength maxItems maxProperties properties required items
    additionalProperties""".split()
)


def not_plain(schema: Any, where: str = "#") -> Iterator[str]:
    """Each place at which a schema is not plain."""
    if not isinstance(schema, dict):
        yield f"{where} is no object"
        return
    yield from (f"{where}/{key}" for key in schema.keys() - KNOWN)
    if not isinstance(schema.get("type", ""), str):
        yield f"{where}/type is a list"
    if schema.get("additionalProperties", True) not in (True, False):
        yield f"{where}/additionalProperties is a schema"
    if schema.get("type") == "array" and "items" not in schema:
        yield f"{where} has no items"
    if not set(schema.get("required", ())) <= schema.get("properties", {}).keys():
        yield f"{where} requires what it does not have"
    for name, inner in schema.get("properties", {}).items():
        yield from not_plain(inner, f"{where}/properties/{name}")
    if "items" in schema:
        yield from not_plain(schema["items"], f"{where}/items")
