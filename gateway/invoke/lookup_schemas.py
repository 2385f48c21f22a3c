"""The shape of an input that was looked up, put into the tool's own schema. Pure."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 20


def fill_in(schema: dict[str, Any], argument: str, found: dict[str, Any]) -> None:
    """Puts a schema that was looked up in its place; of a body taken apart, in its properties'."""
    inner = _as_schema(found)
    properties = schema.setdefault("properties", {})
    if argument:
        words = {
            key: value
            for key, value in properties.get(argument, {}).items()
            if key in ("title", "description")
        }
        properties[argument] = {**inner, **words}
        return
    for name, value in inner.get("properties", {}).items():
        if isinstance(properties.get(name), dict) and isinstance(value, dict):
            properties[name] = {**properties[name], **value}


def _as_schema(found: dict[str, Any]) -> dict[str, Any]:
    """A schema, also where the answer is only the map of its properties."""
    is_schema = isinstance(found.get("type"), (str, list)) or any(
        isinstance(found.get(key), (dict, list)) for key in ("properties", "items", "allOf")
    )
    plain = _clean(found if is_schema else {"type": "object", "properties": found}, 0)
    assert isinstance(plain, dict)
    return plain


def _clean(value: Any, depth: int) -> Any:
    """Without references, which lead nowhere here, and without a designer's marks."""
    if depth > MAX_DEPTH:
        return {}
    if isinstance(value, list):
        return [_clean(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {
        key: _clean(item, depth + 1)
        for key, item in value.items()
        if not key.startswith("x-ms-") and key != "$ref" and item is not None
    }
    summary = value.get("x-ms-summary")
    if isinstance(summary, str) and summary:
        kept.setdefault("title", summary)
    if not isinstance(kept.get("required", []), list):
        del kept["required"]
    return kept
