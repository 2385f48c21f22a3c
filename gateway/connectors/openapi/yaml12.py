"""YAML 1.2 as plain JSON values, straight from libyaml's events.

PyYAML's own constructors speak YAML 1.1 (dates, `no` as false, `24:00:00` as a number, `=` as an
error) and take five times as long. Here an event stream becomes dicts, lists and core-schema
scalars in one loop that counts as it goes: aliases are shared objects, and what they would come to
when written out is bounded, so a small document can't stand for a huge one.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from gateway.errors import DefinitionUnreadable

MAX_DEPTH = 200
MAX_NODES = 400_000  # Stripe's have 165,000
MAX_EXPANDED = 1_500_000  # nodes, counting each alias as the whole it stands for

_INT = re.compile(r"[-+]?[0-9]+\Z|0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMBER_STARTS = frozenset("0123456789+-.")
_LARGEST = 2**63
_STRING_TAGS = frozenset({"!", "tag:yaml.org,2002:str", "tag:yaml.org,2002:binary"})


def read_yaml(text: str | bytes) -> Any:
    """The first document. Raises DefinitionUnreadable with line and column."""
    try:
        return _Reader().read(yaml.parse(text, Loader=yaml.CSafeLoader))
    except yaml.MarkedYAMLError as error:
        raise _unreadable(error) from error
    except yaml.YAMLError as error:
        raise DefinitionUnreadable(f"Not valid JSON or YAML: {error}") from error


def plain_scalar(text: str) -> Any:
    """An unquoted scalar by the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMBER_STARTS:
        return text
    if _INT.match(text):
        return _integer(text)
    return float(text) if _FLOAT.match(text) else text


def _integer(text: str) -> int | float | str:
    if len(text) > 40:
        return text
    value = int(text, 0) if text[:2] in ("0x", "0o") else int(text)
    return value if -_LARGEST <= value < _LARGEST else float(value)


class _Reader:
    """The state of one pass over the events: open containers, anchors, and what was counted."""

    def __init__(self) -> None:
        self.nodes = 0
        self.expanded = 0
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.scalars: dict[str, Any] = {}
        # Each open container: the container, the key that waits for a value, its anchor, and
        # how many nodes had been counted when it began.
        self.stack: list[tuple[Any, str | None, str | None, int]] = []

    def read(self, events: Any) -> Any:
        container: Any = None
        key: str | None = None
        anchor: str | None = None
        began = 0
        for event in events:
            kind = type(event)
            if kind is yaml.ScalarEvent:
                value = self.scalar(event, is_key=type(container) is dict and key is None)
                self.count(event)
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self.count(event)
                self.stack.append((container, key, anchor, began))
                if len(self.stack) > MAX_DEPTH:
                    raise _out_of_bounds(event, f"nested more than {MAX_DEPTH} levels deep")
                container = {} if kind is yaml.MappingStartEvent else []
                key, anchor, began = None, event.anchor, self.expanded
                continue
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                value = container
                if anchor is not None:
                    self.anchors[anchor] = (value, self.expanded - began)
                container, key, anchor, began = self.stack.pop()
            elif kind is yaml.AliasEvent:
                value = self.alias(event)
            elif kind is yaml.DocumentEndEvent:
                return value
            else:
                continue
            if type(container) is dict:
                if key is None:
                    key = value if type(value) is str else _key_text(value, event)
                    continue
                if key == "<<" and isinstance(value, (dict, list)):
                    _merge(container, value)
                else:
                    container[key] = value
                key = None
            elif container is not None:
                container.append(value)
        raise DefinitionUnreadable("The document is empty.")

    def scalar(self, event: Any, *, is_key: bool) -> Any:
        text: str = event.value
        if event.style or is_key or event.tag in _STRING_TAGS:
            value: Any = text
        elif text in self.scalars:
            value = self.scalars[text]
        else:
            value = self.scalars[text] = plain_scalar(text)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1)
        return value

    def alias(self, event: Any) -> Any:
        if event.anchor not in self.anchors:
            raise _out_of_bounds(event, f"alias *{event.anchor} stands for nothing before it")
        value, size = self.anchors[event.anchor]
        self.expanded += size
        if self.expanded > MAX_EXPANDED:
            raise _out_of_bounds(event, f"aliases stand for more than {MAX_EXPANDED:,} nodes")
        return value

    def count(self, event: Any) -> None:
        self.nodes += 1
        self.expanded += 1
        if self.nodes > MAX_NODES or self.expanded > MAX_EXPANDED:
            raise _out_of_bounds(event, f"more than {MAX_NODES:,} nodes")


def _merge(container: dict[str, Any], value: Any) -> None:
    """YAML 1.2 dropped merge keys, writers of definitions did not. Keys already there win."""
    for source in value if isinstance(value, list) else [value]:
        if isinstance(source, dict):
            for key, item in source.items():
                container.setdefault(key, item)


def _key_text(value: Any, event: Any) -> str:
    if isinstance(value, (dict, list)):
        raise _out_of_bounds(event, "a key that is not a scalar")
    return "null" if value is None else str(value)


def _unreadable(error: yaml.MarkedYAMLError) -> DefinitionUnreadable:
    mark = error.problem_mark or error.context_mark
    what = error.problem or error.context or "could not be read"
    where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    return DefinitionUnreadable(
        f"Not valid JSON or YAML: {what}{where}.", "Correct the definition at that place."
    )


def _out_of_bounds(event: Any, what: str) -> DefinitionUnreadable:
    mark = event.start_mark
    return DefinitionUnreadable(
        f"The definition can't be read: {what} (line {mark.line + 1}, column {mark.column + 1}).",
        "Use a smaller or simpler definition.",
    )
