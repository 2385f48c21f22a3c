"""Which operations become tools, and the reason in words for each that does not.

First everything is filtered by its own marks and by configuration; only then the newest revision
of each family is chosen among what is left, so that a newer revision nobody may use does not take
an older one with it. Microsoft's marks are structural: nothing is guessed from names.

The path an operation is called at, out of the path its definition is filed under.

The template's own text stays as it is: slashes are not tidied, some APIs tell operations apart by
them. Three things are not part of a path: a fragment (it only tells operations apart, the address
has none), a query (its variables are parameters, the rest is always sent), and `{connectionId}` in
front, where Microsoft's connectors have it and their gateway fills it in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote_plus

from gateway.blocklist import blocked_by, may_reroute
from gateway.model import ACCESS_OF_METHOD, Access, Override, Parameter, Place, Source
from gateway.openapi.document import (
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
from gateway.openapi.inputs import MAX_INPUTS, Input, parameters, request_body
from gateway.openapi.naming import Nameable, local_name, matching, override_for
from gateway.openapi.reading import Parts, objects_in

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
        return Refusal("dangerous: never exposed")
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


_VARIABLE = re.compile(r"\{([^{}]*)\}")
_CONNECTION = "{connectionId}"
# The same for all, so that what is remembered of them is as well.
_TEXT = {"type": "string"}
_SAYS_NOTHING: Mapping[str, Any] = {}


def called_path(
    operation: Operation, declared: Sequence[Input], *, microsoft: bool, arm: bool
) -> tuple[str, list[Input], list[Parameter]]:
    """The template to fill in, the inputs whose place exists, and what is always in the query."""
    path, _, query = operation.path.partition("#")[0].partition("?")
    if _is_microsofts(path, declared, microsoft, arm):
        path = path.replace(_CONNECTION, "", 1).replace("//", "/", 1)
    inputs, fixed = list(declared), list[Parameter]()
    for pair in query.split("&", MAX_INPUTS) if query else ():
        name, equals, value = pair.partition("=")
        wire = unquote_plus(name) if equals else name.strip("{}")
        if "{" in wire:
            raise Unusable("its path has a query (?) in which a name varies")
        if _VARIABLE.fullmatch(value if equals else name):
            _move(inputs, path, (value or name)[1:-1], "query", wire)
        elif may_reroute(wire, "query"):
            raise Unusable(f"its path has {wire} in it, which makes it another request")
        elif "{" in pair:  # filled in where it stands, in the midst of other text
            for variable in _VARIABLE.findall(pair):
                _move(inputs, path, variable, "path", variable)
            path += f"{'&' if '?' in path else '?'}{pair}"
        elif pair:
            constant = unquote_plus(value)
            fixed.append(Parameter(wire, "query", style="form", explode=True, constant=constant))
    _check_braces(path)
    names = {each.name for each in fixed}
    inputs = [each for each in inputs if each.place != "query" or each.name not in names]
    return path if path.startswith("/") else f"/{path}", list(_with_place(path, inputs)), fixed


def _move(inputs: list[Input], path: str, variable: str, place: Place, name: str) -> None:
    """Put a variable of the query where it belongs, wherever the definition thinks it is."""
    known = ((variable, "path"), (variable, "query"), (name, "query"))
    found = [index for index, each in enumerate(inputs) if (each.name, each.place) in known]
    if not found:
        inputs.append(_undeclared(name, place))
        return
    each = inputs[found[0]]
    moved = replace(each, name=name, place=place, required=each.required or place == "path")
    if each.place == "path" and place == "query" and f"{{{variable}}}" in path:
        inputs.append(moved)  # it is in both
    else:
        inputs[found[0]] = moved


def _with_place(path: str, inputs: Sequence[Input]) -> Iterator[Input]:
    """The inputs that can be sent; variables nobody declared are required texts."""
    variables = dict.fromkeys(_VARIABLE.findall(path))
    declared = {each.name for each in inputs if each.place == "path"}
    yield from (_undeclared(name, "path") for name in variables if name not in declared)
    yield from (each for each in inputs if each.place != "path" or each.name in variables)


def _undeclared(name: str, place: Place) -> Input:
    return Input(name, place, True, _TEXT, _SAYS_NOTHING, "simple", False)


def _is_microsofts(path: str, inputs: Sequence[Input], microsoft: bool, arm: bool) -> bool:
    """A `connectionId` elsewhere than in front, or shown to people, is the API's own."""
    if not path.lstrip("/").startswith(_CONNECTION) or not (microsoft or arm):
        return False
    declared = [each for each in inputs if each.place == "path" and each.name == "connectionId"]
    return arm or not declared or is_internal(declared[0].raw)


def _check_braces(path: str) -> None:
    rest = _VARIABLE.sub("", path)
    if "{" in rest or "}" in rest or "{}" in path:
        raise Unusable("its path has braces that don't match")
