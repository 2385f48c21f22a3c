"""Curated providers: from the TOML of a manifest to the same tools any other definition makes.

Reading is strict: every problem is told at once, each with file, key path, what is wrong and what
is allowed. Building is pure. What a manifest calls dangerous is in it so that a reader can see that
it was thought of; it is never exposed, whatever the configuration says.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.blocklist import blocked_by, left_out
from gateway.connectors import manifest_format as form
from gateway.connectors.manifest_format import Manifest, Operation
from gateway.connectors.manifest_request import RequestShape, detours, request_shape
from gateway.connectors.naming import (
    Nameable,
    did_you_mean,
    matching,
    override_for,
    tool_names,
    unmatched,
)
from gateway.connectors.text import visible
from gateway.connectors.tools import description_of, http_tool
from gateway.errors import ConfigInvalid, DefinitionUnreadable
from gateway.model import (
    RISK_OF_ACCESS,
    Access,
    Build,
    HttpOperation,
    Problem,
    RateLimit,
    Skipped,
    Source,
    Tool,
)

BUILTIN = ("greenhouse", "lever", "zoho-recruit")
MAX_MANIFEST_BYTES = 1024 * 1024


def load_builtin(name: str) -> bytes:
    """The text of a manifest that comes with the gateway; raises DefinitionUnreadable."""
    if name not in BUILTIN:
        raise DefinitionUnreadable(
            f"manifest: {name!r} does not come with the gateway{did_you_mean(name, BUILTIN)}",
            f"Use one of {', '.join(BUILTIN)}, or the path of a file.",
        )
    return (files("gateway") / "manifests" / f"{name}.toml").read_bytes()


def parse_manifest(raw: bytes, name: str) -> Manifest:
    """The manifest in this text; raises ConfigInvalid with every problem, `name` before each."""
    document = _document(raw, name)
    try:
        manifest = Manifest.model_validate(document)
    except ValidationError as error:
        lines = [_line(detail, document) for detail in error.errors(include_url=False)]
        raise ConfigInvalid([f"{name}: {line}" for line in lines]) from error
    if problems := [f"{name}: {where}: {what}" for where, what in form.inconsistencies(manifest)]:
        raise ConfigInvalid(problems)
    return manifest


def region_problem(manifest: Manifest, region: str | None) -> str | None:
    """What is wrong with choosing this region, if anything."""
    if region is None or (manifest.regions and region in manifest.regions.values):
        return None
    if manifest.regions is None:
        return f"region: {manifest.display_name} has no regions; remove the key"
    known = tuple(manifest.regions.values)
    meant = did_you_mean(region, known)
    return f"region: {region!r} is not allowed{meant}; allowed: {', '.join(known)}"


def build_manifest(raw: bytes, source: Source) -> Build:
    """The tools of a provider for one connection; raises DefinitionUnreadable."""
    try:
        manifest = parse_manifest(raw, source.location or source.connection)
    except ConfigInvalid as error:
        raise DefinitionUnreadable(
            "; ".join(error.problems[:5]), "Correct the manifest.", problems=error.problems[:20]
        ) from error
    if problem := region_problem(manifest, source.region):
        raise DefinitionUnreadable(problem, "Correct the connection's region.")
    return _build(_Context(manifest, source))


@dataclass(frozen=True, slots=True)
class _Context:
    """What every step of one build looks at."""

    manifest: Manifest
    source: Source

    @property
    def base_url(self) -> str:
        return self.source.base_url or form.base_url(self.manifest, self.source.region)

    @property
    def display_name(self) -> str:
        return self.source.display_name or self.manifest.display_name

    @property
    def blocklist(self) -> tuple[str, ...]:
        return (*self.manifest.blocklist, *self.source.blocklist)


def _build(context: _Context) -> Build:
    manifest = context.manifest
    wanted = [Nameable(o.id, o.method, o.path) for o in manifest.operations]
    names = tool_names(context.source.prefix, wanted)
    tools: list[Tool] = []
    skipped: list[Skipped] = []
    for name, operation in zip(names, manifest.operations, strict=True):
        if reason := _reason_to_skip(context, operation):
            skipped.append(_skipped(context, name, operation, reason))
        else:
            tools.append(_tool(context, name, operation))
    limit = manifest.rate_limit
    return Build(
        format="manifest",
        title=manifest.display_name,
        base_url=context.base_url,
        tools=tuple(tools),
        skipped=tuple(skipped),
        problems=tuple(_problems(context)),
        blocklist=manifest.blocklist,
        rate_limit=RateLimit(limit.requests, limit.window_seconds) if limit else None,
        auth_scheme=manifest.auth.scheme,
    )


def _skipped(context: _Context, name: str, operation: Operation, reason: str) -> Skipped:
    access = _access(context, operation)
    spelled = (operation.id, operation.method, operation.path)
    return Skipped(*spelled, reason, access, name, context.base_url)


def _reason_to_skip(context: _Context, operation: Operation) -> str | None:
    source = context.source
    if _access(context, operation) == "dangerous":
        return "dangerous: never exposed"
    if not matching(operation.id, source.include):
        return "not included by the connection"
    if matching(operation.id, source.exclude):
        return "excluded by the connection"
    if pattern := blocked_by(context.blocklist, context.base_url, operation.path):
        return f"blocklisted by {pattern}"
    if operation.requires_on_behalf_of and not source.on_behalf_of:
        return f"{context.manifest.display_name} needs to know for which user: set on_behalf_of"
    return None


def _access(context: _Context, operation: Operation) -> Access:
    override = override_for(context.source.operations, operation.id)
    if operation.effective_access == "dangerous":
        return "dangerous"
    return override.access or operation.effective_access


def _tool(context: _Context, name: str, operation: Operation) -> Tool:
    override = override_for(context.source.operations, operation.id)
    shape = request_shape(context.manifest, operation, context.source)
    access = _access(context, operation)
    stated = operation.risk if override.access is None else None
    title = visible(operation.title)
    text = override.description or f"{title} — {_text(context.manifest, operation)}"
    return http_tool(
        context.source,
        HttpOperation(
            method=operation.method,
            base_url=context.base_url,
            path=operation.path,
            parameters=shape.parameters,
            body=shape.body,
            headers_out=override.headers_out or (),
        ),
        name=name,
        operation=operation.id,
        access=access,
        risk=override.risk or stated or RISK_OF_ACCESS[access],
        title=title,
        description=description_of(context.source, context.display_name, text),
        input_schema=shape.input_schema,
        capability=operation.capability,
        keywords=_keywords(context.manifest, shape),
        security=" ".join(
            (*context.manifest.auth.types, context.manifest.auth.scheme or "")
        ).strip(),
    )


def _text(manifest: Manifest, operation: Operation) -> str:
    """What to choose by, then what comes back, then how to get more of it."""
    returns = f"Returns {operation.returns.rstrip('.')}." if operation.returns else ""
    paging = manifest.paging.hint if operation.paged else ""
    return " ".join(part for part in (operation.description, returns, paging) if part)


def _keywords(manifest: Manifest, shape: RequestShape) -> str:
    return " ".join((manifest.provider, manifest.category, *shape.input_schema["properties"]))


def _problems(context: _Context) -> Iterator[Problem]:
    manifest, source = context.manifest, context.source
    if source.auth_type not in manifest.auth.types:
        allowed = ", ".join(manifest.auth.types)
        hint = f" ({manifest.auth.hint})" if manifest.auth.hint else ""
        yield Problem(
            "warning",
            "auth.type",
            f"{manifest.display_name} takes {allowed}{hint}, not {source.auth_type}",
            configured=True,
        )
    for operation in manifest.operations:
        for name, place in sorted(detours(manifest, operation, source)):
            yield Problem("warning", operation.id, left_out(name, place))
    yield from unmatched(source, [operation.id for operation in manifest.operations])


def _document(raw: bytes, name: str) -> dict[str, Any]:
    if len(raw) > MAX_MANIFEST_BYTES:
        raise ConfigInvalid([f"{name}: larger than {MAX_MANIFEST_BYTES} bytes"])
    try:
        return tomllib.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigInvalid([f"{name}: not valid TOML: line {line} is not UTF-8"]) from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigInvalid([f"{name}: not valid TOML: {error}"]) from error
    except RecursionError as error:
        raise ConfigInvalid([f"{name}: not valid TOML: nested too deeply"]) from error


def _line(detail: ErrorDetails, document: dict[str, Any]) -> str:
    return f"{_where(detail['loc'], document)}: {_what(detail)}"


def _where(location: tuple[int | str, ...], document: dict[str, Any]) -> str:
    """The key path; an operation is shown with its id, since nobody counts tables."""
    path: list[str] = []
    for index, part in enumerate(location):
        shown = str(part)
        if index == 1 and location[0] == "operations" and isinstance(part, int):
            operation = document["operations"][part]
            found = operation.get("id") if isinstance(operation, dict) else None
            shown += f" ({found})" if isinstance(found, str) else ""
        path.append(shown)
    return ".".join(path)


def _what(detail: ErrorDetails) -> str:
    context, given = detail.get("ctx", {}), detail.get("input")
    match detail["type"]:
        case "extra_forbidden":
            allowed = _keys_at(detail["loc"][:-1])
            guess = did_you_mean(str(detail["loc"][-1]), allowed)
            return f"unknown key{guess}; allowed: {', '.join(allowed)}"
        case "missing":
            return "is required"
        case "literal_error":
            return f"{given!r:.80} is not allowed; allowed: {context['expected']}"
        case "string_pattern_mismatch":
            return f"{given!r:.80} is not allowed; allowed: {form.RULES[context['pattern']]}"
        case "value_error":
            return str(context["error"])
        case _:
            message = f"{detail['msg'][:1].lower()}{detail['msg'][1:]}"
            wrong_type = detail["type"].endswith("_type")
            return f"{message}, not {_kind_of(given) if wrong_type else f'{given!r:.80}'}"


def _keys_at(location: tuple[int | str, ...]) -> tuple[str, ...]:
    """The keys of the table at this place."""
    model: type[BaseModel] = Manifest
    for part in location:
        field = next((f for n, f in model.model_fields.items() if part in (n, f.alias)), None)
        # A part that is no key is an index, or the name of a property: the table stays the same.
        model = _inner_model(field.annotation) or model if field else model
    return tuple(field.alias or name for name, field in model.model_fields.items())


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_inner_model(part) for part in getattr(annotation, "__args__", ()))
    return next((model for model in inner if model), None)


def _kind_of(value: object) -> str:
    names: dict[type, str] = {str: "a string", int: "a whole number", float: "a number"}
    names |= {bool: "true/false", dict: "a table", list: "a list"}
    return names.get(type(value), "a date or time")
