"""Which operations become tools, and the reason in words for each that does not.

First everything is filtered by its own marks and by configuration; only then the newest revision
of each family is chosen among what is left, so that a newer revision nobody may use does not take
an older one with it. Microsoft's marks are structural: nothing is guessed from names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.blocklist import blocked_by
from gateway.connectors.naming import Nameable, local_name, matching, override_for
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
from gateway.connectors.openapi.parts import Parts, objects_in
from gateway.model import ACCESS_OF_METHOD, Access, Override, Source

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


@dataclass(frozen=True, slots=True)
class Revision:
    """An operation as one of the revisions of its family."""

    operation: str
    family: str
    number: int
    annotated: bool  # it says so itself


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
    for part in objects_in(root):
        if isinstance(part, Parts):
            yield from ((key, part.passing(key)) for key in part)
        else:
            yield from part.items()


def _operation_ids(value: Any) -> Iterator[str]:
    return (found for key, found in _keys(value) if key == "operationId" and isinstance(found, str))


def refusal(
    document: Document, operation: Operation, marks: Marks, source: Source, base_url: str
) -> Refusal | None:
    """Why the operation is no tool by its own marks or by configuration; None if it is one."""
    return _configured(operation, source, base_url) or _marked(document, operation, marks)


def name_for_globs(operation: Nameable) -> str:
    """What configuration calls it by: its id, else the name made of method and path."""
    return operation.operation or local_name(operation)


def override_of(operation: Nameable, source: Source) -> Override:
    """What configuration says of this operation."""
    return override_for(source.operations, name_for_globs(operation))


def access_of(operation: Nameable, source: Source) -> Access:
    """What this operation does: as configured, else as its method says."""
    by_method = ACCESS_OF_METHOD.get(operation.method.upper(), "write")
    return override_of(operation, source).access or by_method


def _configured(operation: Operation, source: Source, base_url: str) -> Refusal | None:
    nameable = Nameable(operation.id, operation.method, operation.path)
    name = name_for_globs(nameable)
    if pattern := matching(name, source.exclude):
        return Refusal(f"excluded by {pattern!r}")
    for path in {operation.path, operation.path.replace("/{connectionId}", "", 1)}:
        if pattern := blocked_by(source.blocklist, base_url, path):
            return Refusal(f"its path is on the blocklist ({pattern})")
    if override_of(nameable, source).access == "dangerous":
        return Refusal("marked dangerous in the configuration")
    if not matching(name, source.include):
        return Refusal("not among the included operations", callable=True)
    return None


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


def revision_of(operation: Operation) -> Revision:
    """What an operation says of its revision: no family means its id, no number means 1."""
    annotation = mapping(operation.raw.get("x-ms-api-annotation"))
    family = text_of(annotation.get("family")) or operation.id or ""
    number = annotation.get("revision", 1)
    if isinstance(number, str) and number.strip().isascii() and number.strip().isdigit():
        number = int(number.strip()[:9])
    if not isinstance(number, int) or isinstance(number, bool):
        number = 1
    return Revision(operation.id or "", family, number, "x-ms-api-annotation" in operation.raw)


def superseded(revisions: Sequence[Revision]) -> dict[int, str]:
    """By place in the list: those of which a newer one is there, and its operation's id."""
    annotated = {each.family for each in revisions if each.annotated}
    newest: dict[str, Revision] = {}
    for each in revisions:
        if each.family not in newest or each.number > newest[each.family].number:
            newest[each.family] = each
    return {
        index: newest[each.family].operation
        for index, each in enumerate(revisions)
        if each.family in annotated and each.family and newest[each.family] is not each
    }
