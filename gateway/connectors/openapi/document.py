"""A definition whose version is known, its operations and its references.

References are looked up in this document only: nothing is ever fetched. A reference costs a few
bytes and may stand for a lot, thousands of times over; so work is counted over the whole document,
and a definition that multiplies itself is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import unquote

from gateway.connectors.openapi.parts import Parts, objects_in, whole
from gateway.connectors.openapi.reading import MAX_OPERATIONS, METHODS
from gateway.errors import DefinitionUnreadable

MAX_HOPS = 50  # references that lead to references
MAX_WORK = 120_000  # parameters, properties and the like; one like Stripe's comes to half
MAX_LEVELS = 8  # of a path item, down to the fields of a form
MAX_ID = 300  # an operation id longer than this is taken for none

_EMPTY: Mapping[str, Any] = {}


class Unusable(Exception):
    """This operation, or this reference, can't be understood; the message says why."""


@dataclass(frozen=True, slots=True)
class Document:
    """A definition whose version is known.

    Much is remembered by the id of an object. Objects come and go, and their ids are given out
    again: so what is remembered holds its object, and goes with it.
    """

    root: Mapping[str, Any]
    format: str
    swagger: bool
    found: dict[str, Any] = field(default_factory=dict)  # references resolved so far
    anchors: dict[str, Any] = field(default_factory=dict)
    kinds: dict[int, tuple[Any, Mapping[str, Any]]] = field(default_factory=dict)  # extending it
    credentials: dict[int, tuple[Any, str]] = field(default_factory=dict)  # a list of them, spelled
    by_others: list[dict[int, Any]] = field(default_factory=list)  # what they remember by id
    work: list[int] = field(default_factory=lambda: [0])  # done so far

    @property
    def memos(self) -> list[dict[int, Any]]:
        return [self.kinds, self.credentials, *self.by_others]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, as written."""

    id: str | None
    method: str
    path: str
    raw: Mapping[str, Any]
    item: Mapping[str, Any]


class Made(dict[str, Any]):
    """An object of our own making: nobody comes across it again, so nothing is remembered of it."""


def open_document(definition: Mapping[str, Any]) -> Document:
    """The definition with its version made out."""
    swagger, openapi = (_version(definition.get(key)) for key in ("swagger", "openapi"))
    if swagger == "2.0":
        return Document(definition, "swagger-2.0", swagger=True)
    if openapi.startswith("3.0"):
        return Document(definition, "openapi-3.0", swagger=False)
    if openapi.startswith("3."):
        return Document(definition, "openapi-3.1", swagger=False)
    found = f"version {swagger or openapi} " if swagger or openapi else "no version "
    raise DefinitionUnreadable(
        f'Not an OpenAPI definition we know: {found}at "swagger" or "openapi".',
        'Swagger 2.0 ("swagger": "2.0") and OpenAPI 3.0 and 3.1 ("openapi": "3.…") are read.',
    )


def _version(value: Any) -> str:
    text = str(value).strip() if isinstance(value, (str, int, float)) else ""
    return "2.0" if text == "2" else text


def count_operations(document: Document) -> int:
    """How many there are for `operations` to give; refuses more than are read."""
    broken = total = 0
    for _, written in _path_items(document):
        try:
            total += sum(method.lower() in METHODS for method in _path_item(document, written))
        except Unusable:
            broken += 1
        if total > MAX_OPERATIONS:
            raise DefinitionUnreadable(
                f"The definition has more operations than {MAX_OPERATIONS:,}.",
                "Split the definition, or serve only the part that is needed.",
            )
    return broken + total


def operations(document: Document) -> Iterator[Operation | tuple[str, str, str]]:
    """Every operation in document order; (method, path, reason) for what is not one."""
    for path, written in _path_items(document):
        try:
            item = _path_item(document, written)
        except Unusable as error:
            yield "", path, str(error)
            continue
        for method in item:
            if method.lower() in METHODS:
                yield _operation(method.upper(), path, item[method], item)


def _path_items(document: Document) -> Iterator[tuple[str, Any]]:
    """What is written at each path; read in passing, it is forgotten before the next."""
    paths = mapping(document.root.get("paths"))
    for path in paths:
        if path.startswith("x-"):
            continue
        if not isinstance(paths, Parts) or paths.keeps(path):
            yield path, paths[path]
            continue
        written, known = paths.passing(path), [len(memo) for memo in document.memos]
        yield path, written
        if not paths.keeps(path) and [len(memo) for memo in document.memos] != known:
            _forget(document, written, known)


def _forget(document: Document, written: Any, known: Sequence[int]) -> None:
    """Let go of what was remembered of a path item since so much was known.

    The rest of what is new was reached by references, and stays, as does what lies deeper than
    inputs do: going through large examples would cost more than to hold on to it.
    """
    counts = zip(document.memos, known, strict=True)
    new = {key for memo, old in counts for key in islice(reversed(memo), len(memo) - old)}
    level = written.read_so_far() if isinstance(written, Parts) else []
    for _ in range(MAX_LEVELS):
        parts = [part for part in level if isinstance(part, (dict, list))]
        for key in new.intersection(map(id, parts)):
            for memo in document.memos:
                memo.pop(key, None)
        level = [
            inner for part in parts for inner in (part.values() if isinstance(part, dict) else part)
        ]


def _operation(
    method: str, path: str, raw: Any, item: Mapping[str, Any]
) -> Operation | tuple[str, str, str]:
    if not isinstance(raw, dict):
        return method, path, "the operation is not an object"
    identity = raw.get("operationId")
    known = text_of(identity).strip() and len(text_of(identity)) <= MAX_ID
    return Operation(text_of(identity) if known else None, method, path, raw, item)


def _path_item(document: Document, written: Any) -> Mapping[str, Any]:
    if not isinstance(written, Mapping):
        raise Unusable("the path item is not an object")
    if "$ref" not in written:
        return written
    target = resolved(document, written)
    return {**target, **{key: value for key, value in written.items() if key != "$ref"}}


def spend_on(document: Document, inputs: int) -> None:
    """Count the work on so many inputs of one operation; crowds cost more than their number."""
    spend(document, inputs * (1 + inputs // 100))


def spend(document: Document, amount: int) -> None:
    """Count work; refuse the definition when it comes to more than any real one needs."""
    document.work[0] += amount
    if document.work[0] > MAX_WORK:
        raise DefinitionUnreadable(
            f"The definition's operations come to more than {MAX_WORK:,} inputs and texts in all.",
            "Split the definition, or serve only the part that is needed.",
        )


# --- references -----------------------------------------------------------------------------------


def resolved(document: Document, value: Any) -> Mapping[str, Any]:
    """The object that a value is or, through references, stands for."""
    for _ in range(MAX_HOPS):
        if not isinstance(value, dict):
            raise Unusable("a reference leads to something that is not an object")
        reference = value.get("$ref")
        if not isinstance(reference, str):
            return value
        value = target_of(document, reference)
    raise Unusable("references lead to each other in a circle")


def target_of(document: Document, reference: str) -> Any:
    """What a local reference points at."""
    if reference not in document.found:
        if not reference.startswith("#"):
            raise Unusable(f"reference to another document is not followed: {reference[:200]}")
        pointer = reference.startswith("#/")
        value = _pointed(document, reference) if pointer else _anchored(document, reference)
        document.found[reference] = whole(value)
    return document.found[reference]


def _pointed(document: Document, reference: str) -> Any:
    value: Any = document.root
    for segment in reference[2:].split("/"):
        value = _step(value, segment, reference)
    return value


def _anchored(document: Document, reference: str) -> Any:
    """The schema that an `$anchor` of 3.1 names; `#` alone is the document."""
    if not document.anchors:
        document.anchors.update(_anchors(document.root))
        document.anchors["#"] = document.root
    if reference not in document.anchors:
        raise Unusable(f"reference leads nowhere: {reference[:200]}")
    return document.anchors[reference]


def _anchors(root: Any) -> Iterator[tuple[str, Any]]:
    for part in objects_in(root):
        if isinstance(name := part.get("$anchor"), str):
            yield f"#{name}", part


def _step(value: Any, segment: str, reference: str) -> Any:
    for name in (unquote(segment), segment):
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            return value[key]
        if isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
            return value[int(key)]
    raise Unusable(f"reference leads nowhere: {reference[:200]}")


# --- what may be anything -------------------------------------------------------------------------


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else _EMPTY


def sequence(value: Any) -> Sequence[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else ()


def text_of(value: Any) -> str:
    """The value if it is text, else none."""
    return value if isinstance(value, str) else ""


def is_internal(raw: Mapping[str, Any]) -> bool:
    """Microsoft's word for "not for people"; both spellings occur."""
    return text_of(raw.get("x-ms-visibility")).lower() == "internal"
