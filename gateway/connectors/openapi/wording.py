"""Words for people and models: titles of tools, descriptions of tools and of their inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.connectors.openapi.document import sequence
from gateway.connectors.text import cut, visible
from gateway.connectors.tools import description_of
from gateway.model import Source

MAX_TITLE = 128
MAX_PROPERTY_DESCRIPTION = 256
_MAX_ENUM_WORDS = 160


def phrase(value: Any, length: int) -> str:
    """Text on one line, visible and cut."""
    if not isinstance(value, str) or not value:
        return ""
    text = value
    if len(text) <= length and text.isascii() and text.isprintable() and "  " not in text:
        return text.strip()
    if len(text) > 2 * length:
        text = text[: 2 * length]  # nothing below needs more, and some descriptions are books
    return cut(" ".join(visible(text).split()), length)


def property_description(raw: Mapping[str, Any]) -> str:
    """What an input means: its description and the names of its values."""
    text = phrase(_for_model(raw), MAX_PROPERTY_DESCRIPTION)
    if "x-ms-enum-values" not in raw:
        return text
    return f"{text} {_enum_words(raw)}".strip()


def _for_model(raw: Mapping[str, Any]) -> Any:
    """A few definitions have words meant for models; they are the better ones."""
    return raw.get("x-ms-description-for-model") or raw.get("description")


def _enum_words(raw: Mapping[str, Any]) -> str:
    pairs = [
        f"{entry.get('value')} = {entry['displayName']}"
        for entry in sequence(raw.get("x-ms-enum-values"))[:_MAX_ENUM_WORDS]
        if isinstance(entry, dict) and isinstance(entry.get("displayName"), str)
    ]
    return phrase(f"Values: {', '.join(pairs)}.", _MAX_ENUM_WORDS) if pairs else ""


def tool_title(raw: Mapping[str, Any], fallback: str) -> str:
    """The operation's title: its summary, else its name in words."""
    keys = ("x-ms-summary", "summary", "x-ms-name-for-model")
    said = next((text for key in keys if (text := phrase(raw.get(key), MAX_TITLE))), "")
    words = fallback.replace("_", " ").strip()
    return said or words[:1].upper() + words[1:]


def tool_description(
    source: Source, raw: Mapping[str, Any], override: str | None, fallback: str
) -> str:
    """`[Display name] summary — description`, with a warning where the connection has no access."""
    length = source.max_description_chars
    summary = phrase(raw.get("summary"), length)
    text = phrase(_for_model(raw), length)
    if override:
        words = override
    elif summary and text and not text.startswith(summary):
        words = f"{summary} — {text}"
    else:
        words = text or summary or fallback
    return description_of(source, source.display_name, words)
