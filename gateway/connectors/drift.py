"""A manifest held against the provider's own OpenAPI definition: what has drifted apart.

Operations are matched by method and path, whatever the variables are called and whether the base
URL or the path holds the common beginning. The definition goes through the same reader that makes
tools of it, so both sides are compared as what would be sent. A manifest leaves out most of an API
on purpose: what only the definition has is information, not a fault, unless it is required.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

import orjson

from gateway.connectors.manifest_format import Manifest, Operation, base_url, params_of
from gateway.model import Source, Tool
from gateway.openapi.build import build_openapi

Key = tuple[str, str]
Sort = Literal["unknown", "lacking", "required", "place"]


@dataclass(frozen=True, slots=True)
class Missing:
    """An operation of the manifest that can't be called as the definition stands."""

    operation: str
    method: str
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Difference:
    """One parameter on which manifest and definition don't agree."""

    operation: str
    parameter: str
    sort: Sort
    message: str


@dataclass(frozen=True, slots=True)
class Unlisted:
    """An operation of the definition that the manifest does not have."""

    operation: str | None
    method: str
    path: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """What `compare` found; `agrees` when the manifest can be used as it is."""

    missing: tuple[Missing, ...] = ()
    differing: tuple[Difference, ...] = ()
    unlisted: tuple[Unlisted, ...] = ()

    @property
    def agrees(self) -> bool:
        return not (self.missing or self.differing)


@dataclass(frozen=True, slots=True)
class _Input:
    """One thing an operation takes."""

    name: str
    place: str
    required: bool | None  # None: always sent, so it fits either way


@dataclass(frozen=True, slots=True)
class _Definition:
    """The OpenAPI side, by method and normalised path."""

    tools: Mapping[Key, Tool]
    skipped: Mapping[Key, str] = field(default_factory=dict)


def compare(manifest: Manifest, raw_openapi: bytes) -> Comparison:
    """Where the manifest and the definition differ; raises DefinitionUnreadable."""
    address = base_url(manifest, None)
    definition = _definition(raw_openapi, address)
    missing: list[Missing] = []
    differing: list[Difference] = []
    seen: set[Key] = set()
    for operation in manifest.operations:
        keys = _keys(operation.method, operation.path, address)
        seen.update(keys)
        tool = next((definition.tools[key] for key in keys if key in definition.tools), None)
        if tool is None:
            missing.append(_missing(operation, keys, definition))
        else:
            differing.extend(_differences(manifest, operation, tool))
    unlisted = (
        Unlisted(tool.operation, tool.method, tool.path)
        for key, tool in definition.tools.items()
        if key not in seen
    )
    return Comparison(tuple(missing), tuple(differing), tuple(unlisted))


def _definition(raw: bytes, address: str) -> _Definition:
    # The address is given, so that a definition without servers can be compared too.
    source = Source("against", "openapi", "", "", base_url=address)
    build = build_openapi(raw, source)
    return _Definition(
        {(tool.method, _normal(tool.path)): tool for tool in build.tools},
        {(skip.method.upper(), _normal(skip.path)): skip.reason for skip in build.skipped},
    )


def _keys(method: str, path: str, address: str) -> tuple[Key, Key]:
    """The path alone, and with what the base URL begins it with: definitions do either."""
    whole = urlsplit(address).path + path
    return (method, _normal(path)), (method, _normal(whole))


def _normal(path: str) -> str:
    return re.sub(r"\{[^{}]*\}", "{}", path).rstrip("/") or "/"


def _missing(operation: Operation, keys: tuple[Key, Key], definition: _Definition) -> Missing:
    skipped = (definition.skipped[key] for key in keys if key in definition.skipped)
    reason = next((f"in the definition, but {reason}" for reason in skipped), "")
    return Missing(
        operation.id, operation.method, operation.path, reason or "not in the definition"
    )


def _differences(manifest: Manifest, operation: Operation, tool: Tool) -> Iterator[Difference]:
    ours = _ours(manifest, operation, tool)
    theirs = _theirs(tool)
    if operation.body is None or operation.body.open or operation.wrap_in_data:
        theirs = [given for given in theirs if given.place != "body"]
    elif tool.http is not None and tool.http.body is not None and tool.http.body.whole:
        # A body the definition leaves open takes whatever the manifest names.
        ours = [given for given in ours if given.place != "body"]
        theirs = [given for given in theirs if given.place != "body"]
    for own in ours:
        yield from _difference(operation.id, own, theirs)
    for other in theirs:
        if other.required and other.name.lower() not in {own.name.lower() for own in ours}:
            message = f"the definition requires it in {other.place}; the manifest lacks it"
            yield Difference(operation.id, other.name, "lacking", message)


def _difference(operation: str, own: _Input, theirs: list[_Input]) -> Iterator[Difference]:
    namesakes = [other for other in theirs if other.name.lower() == own.name.lower()]
    same_place = [other for other in namesakes if other.place == own.place]
    if not namesakes:
        message = f"the definition has no such parameter in {own.place}"
        yield Difference(operation, own.name, "unknown", message)
    elif not same_place:
        message = f"in {own.place} here, in {namesakes[0].place} in the definition"
        yield Difference(operation, own.name, "place", message)
    elif own.required is not None and same_place[0].required != own.required:
        here, there = ("required", "optional") if own.required else ("optional", "required")
        message = f"{here} here, {there} in the definition"
        yield Difference(operation, own.name, "required", message)


def _ours(manifest: Manifest, operation: Operation, tool: Tool) -> list[_Input]:
    found = [_Input(p.name, p.place, p.required) for p in params_of(manifest, operation)]
    # A variable in a path is known by where it stands: its name never goes over the wire.
    names = dict(zip(_variables(operation.path), _variables(tool.path), strict=False))
    found = [
        _Input(names.get(given.name, given.name), "path", True) if given.place == "path" else given
        for given in found
    ]
    behalf = manifest.on_behalf_of
    if operation.requires_on_behalf_of and behalf is not None:
        found.append(_Input(behalf.name, behalf.place, None))
    if operation.body is not None and not operation.body.open and not operation.wrap_in_data:
        properties = operation.body.properties.items()
        found += [_Input(name, "body", value.required) for name, value in properties]
    return found


def _variables(path: str) -> list[str]:
    return re.findall(r"\{([^{}]*)\}", path)


def _theirs(tool: Tool) -> list[_Input]:
    http = tool.http
    if http is None:
        return []
    required = set(orjson.loads(tool.input_schema).get("required", ()))
    found = [
        _Input(given.name, given.place, given.argument in required)
        for given in http.parameters
        if given.argument is not None
    ]
    fields = http.body.fields if http.body is not None else ()
    return found + [_Input(given.name, "body", given.argument in required) for given in fields]
