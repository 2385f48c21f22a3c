"""What a tool is described by, taken apart into fields of unequal worth for the search.

Definitions differ in where they say things: some have good summaries and no descriptions, others
only paths. So nothing is relied upon, and the last fixed part of a path, the first sentence of a
description and the display name each count as what they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gateway.catalog.words import STOP, split_words
from gateway.model import Tool

FIELDS: Mapping[str, tuple[float, float]] = {
    # field: weight, how much its length counts against it
    "name": (3.0, 0.3),
    "title": (3.0, 0.3),
    "object": (2.0, 0.0),  # the last fixed part of the path
    "lead": (1.5, 0.3),  # the description's first sentence
    "path": (0.8, 0.3),
    "text": (0.5, 0.6),  # the rest of the description
    "keywords": (0.4, 0.7),  # parameters and tags
    "connection": (0.5, 0.0),
}

_MARKUP = re.compile(r"<[^<>]*>|\]\([^()]*\)|https?://\S+")
_SENTENCE_END = re.compile(r"(?<=[a-z0-9)`])[.:!?](?=\s|$)|</p>|\n\n")
_VARIABLE = re.compile(r"\{[^{}]*\}")
_SEPARATOR = " —"  # between summary and description


def fields_of(tool: Tool) -> dict[str, tuple[str, ...]]:
    """The words of each field, stop words left out."""
    display, text = _parted(tool.description)
    lead, rest = _first_sentence(text.removeprefix(tool.title).lstrip(_SEPARATOR))
    said = {
        "name": tool.local_name,
        "title": tool.title,
        "object": _object(tool.path),
        "lead": _MARKUP.sub(" ", lead),
        "path": tool.path,
        "text": _MARKUP.sub(" ", rest),
        "keywords": tool.keywords,
        "connection": f"{tool.connection} {display}",
    }
    return {
        field: tuple(word for word in split_words(text) if word not in STOP)
        for field, text in said.items()
    }


def _parted(description: str) -> tuple[str, str]:
    """`[Display name] text` → display name, text."""
    if description.startswith("["):
        display, closed, text = description[1:].partition("] ")
        if closed:
            return display, text
    return "", description


def _first_sentence(text: str) -> tuple[str, str]:
    first, *rest = _SENTENCE_END.split(text, maxsplit=1)
    return first, "".join(rest)


def _object(path: str) -> str:
    """`/charges/{charge}/refunds/{id}` → `refunds`: in most APIs that is what a call acts on."""
    fixed = [part for part in _VARIABLE.sub("", path).split("/") if part]
    return fixed[-1] if fixed else ""
