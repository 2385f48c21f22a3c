"""Which operations become tools, and the reason in words for each that does not.

First everything is filtered by its own marks and by configuration; only then the newest revision
of each family is chosen among what is left, so that a newer revision nobody may use does not take
an older one with it. Microsoft's marks are structural: nothing is guessed from names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gateway.blocklist import blocked_by
from gateway.connectors.naming import Nameable, local_name
from gateway.connectors.openapi.document import (
    Document,
    Operation,
    Unusable,
    is_internal,
    mapping,
    resolved,
    sequence,
    spend,
    text_of,
)
from gateway.connectors.openapi.inputs import parameters, request_body
from gateway.model import Override, Source

MAX_LEVELS = 6  # how deep a body is searched for a callback address

_DYNAMIC = (
    "x-ms-dynamic-values",
    "x-ms-dynamic-list",
    "x-ms-dynamic-schema",
    "x-ms-dynamic-properties",
    "x-ms-dynamic-tree",
    "x-ms-capabilities",
)
_TUNNEL_TAGS = frozenset({"agentic", "McpStreamable"})


@dataclass(frozen=True, slots=True)
class Marks:
    """What the whole document says that bears on single operations."""

    microsoft: bool  # it uses Microsoft's extensions at all
    callbacks: bool  # somewhere a property is marked as a callback address
    subscribing: frozenset[str]  # operations that subscribe a trigger
    looked_up: frozenset[str]  # operations that fill in values of others


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an operation is not a tool, and whether look-ups may call it all the same."""

    reason: str
    callable: bool = False


NO_MARKS = Marks(False, False, frozenset(), frozenset())


def has_marks(raw: bytes) -> bool:
    """Whether there is any of Microsoft's extensions: for most documents this one search is all."""
    return b"x-ms-" in raw.replace(b"\0", b"")


def marks_of(document: Document) -> Marks:
    """What Microsoft's extensions say of the whole document."""
    subscribing: set[str] = set()
    looked_up: set[str] = set()
    callbacks = False
    for key, value in _keys(document.root):
        if key == "x-ms-notification" and isinstance(value, Mapping):
            subscribing.update(_operation_ids(value))
        elif key in _DYNAMIC:
            looked_up.update(_operation_ids(value))
        elif key == "x-ms-notification-url":
            callbacks = True
    return Marks(True, callbacks, frozenset(subscribing), frozenset(looked_up))


def _keys(root: Any) -> Iterator[tuple[str, Any]]:
    waiting, seen = [root], set[int]()
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            if id(value) in seen:
                continue  # YAML aliases share objects
            seen.add(id(value))
            yield from value.items()
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _operation_ids(value: Any) -> Iterator[str]:
    return (found for key, found in _keys(value) if key == "operationId" and isinstance(found, str))


def refusal(
    document: Document, operation: Operation, marks: Marks, source: Source, base_url: str
) -> Refusal | None:
    """Why the operation is no tool by its own marks or by configuration; None if it is one."""
    return _configured(operation, source, base_url) or _marked(document, operation, marks)


def name_for_globs(operation: Operation) -> str:
    """What include and exclude are matched with: the id, else the name made of method and path."""
    return operation.id or local_name(Nameable(None, operation.method, operation.path))


def override_of(operation: Operation, source: Source) -> Override:
    """What configuration says of this operation."""
    return source.operations.get(name_for_globs(operation), Override())


def _configured(operation: Operation, source: Source, base_url: str) -> Refusal | None:
    name = name_for_globs(operation)
    if pattern := _matching(name, source.exclude):
        return Refusal(f"excluded by {pattern!r}")
    for path in {operation.path, operation.path.replace("/{connectionId}", "", 1)}:
        if pattern := blocked_by(source.blocklist, base_url, path.partition("?")[0]):
            return Refusal(f"its path is on the blocklist ({pattern})")
    if override_of(operation, source).access == "dangerous":
        return Refusal("marked dangerous in the configuration")
    if not _matching(name, source.include):
        return Refusal("not among the included operations", callable=True)
    return None


def _matching(name: str, patterns: Sequence[str]) -> str | None:
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def _marked(document: Document, operation: Operation, marks: Marks) -> Refusal | None:
    raw = operation.raw
    if operation.method in ("OPTIONS", "TRACE"):
        return Refusal(f"{operation.method} operations are not tools", callable=True)
    if marks.microsoft and (reason := _microsoft_reason(document, operation, marks)):
        return Refusal(reason)
    if marks.microsoft and is_internal(raw):
        return Refusal("internal: meant for look-ups only", callable=True)
    if raw.get("deprecated") is True:
        return Refusal("deprecated", callable=True)
    return None


def _microsoft_reason(document: Document, operation: Operation, marks: Marks) -> str | None:
    raw, item = operation.raw, operation.item
    if raw.get("x-ms-trigger"):
        return "a trigger: it starts workflows and can't be called"
    if operation.id in marks.subscribing:
        return "it subscribes a trigger"
    if "x-ms-notification-content" in item or "x-ms-notification-content" in raw:
        return "it waits for a callback (webhook)"
    if "$subscriptions" in operation.path.split("/"):
        return "it subscribes a webhook"
    if marks.callbacks and _wants_callback(document, operation):
        return "it needs a callback address (webhook)"
    if _TUNNEL_TAGS.intersection(_texts(raw.get("tags"))) or "x-ms-agentic-protocol" in raw:
        return "an MCP server tunnelled through the connector"
    return None


def _texts(value: Any) -> Iterator[str]:
    return (text for text in sequence(value) if isinstance(text, str))


def _wants_callback(document: Document, operation: Operation) -> bool:
    try:
        listed = parameters(document, operation)
        body = request_body(document, operation, listed)
    except Unusable:
        return False
    if any(raw.get("x-ms-notification-url") is True for raw in listed):
        return True
    return body is not None and _has_callback(document, body.contents[0].schema)


def _has_callback(document: Document, schema: Any) -> bool:
    """Breadth first over the properties, each object once."""
    level, seen = [schema], set[int]()
    for _ in range(MAX_LEVELS):
        below: list[Any] = []
        spend(document, len(level) // 10)
        for part in level:
            try:
                found = resolved(document, part)
            except Unusable:
                continue
            if id(found) in seen:
                continue
            seen.add(id(found))
            if found.get("x-ms-notification-url") is True:
                return True
            below.extend(mapping(found.get("properties")).values())
            below.extend(sequence(found.get("allOf")))
        level = below
    return False


def superseded(operations: Sequence[Operation]) -> dict[int, str]:
    """By place in the list: the operations of which a newer revision is there, and its id."""
    annotated = {_family(each)[0] for each in operations if "x-ms-api-annotation" in each.raw}
    newest: dict[str, tuple[int, int]] = {}
    members = [(index, *_family(each)) for index, each in enumerate(operations)]
    for index, family, revision in members:
        if family not in newest or revision > newest[family][0]:
            newest[family] = (revision, index)
    return {
        index: operations[newest[family][1]].id or ""
        for index, family, _ in members
        if family in annotated and family and newest[family][1] != index
    }


def _family(operation: Operation) -> tuple[str, int]:
    """No family means the operation id, no revision means 1."""
    annotation = mapping(operation.raw.get("x-ms-api-annotation"))
    family = text_of(annotation.get("family")) or operation.id or ""
    revision = annotation.get("revision", 1)
    if isinstance(revision, str) and revision.strip().isascii() and revision.strip().isdigit():
        return family, int(revision.strip()[:9])
    return family, revision if isinstance(revision, int) and not isinstance(revision, bool) else 1
