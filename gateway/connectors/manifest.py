"""Curated providers: from the TOML of a manifest to the same tools any other definition makes.

Reading is strict: every problem is told at once, each with file, key path, what is wrong and what
is allowed. Building is pure. What a manifest calls dangerous is in it so that a reader can see that
it was thought of; it is never exposed, whatever the configuration says.

What an operation of a manifest takes, and how its arguments become a request.

One flat object goes in: parameters first, then the properties of the body beside them, `body_NAME`
where names collide. An open body, whose properties differ from account to account, is one argument.

Names that outlive a provider: what `greenhouse_list_candidates` does, as `ats_list_candidates`.

A manifest says which of its operations is which capability. An agent that was written against the
portable names goes on working when another provider takes over, since they are made anew from that
one's tools. What is behind a name, and with it access, limits and the rules of bundles, stays the
provider's own: only the name is another.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from gateway.blocklist import blocked_by, left_out, may_reroute
from gateway.connectors import manifest_format as form
from gateway.connectors.manifest_format import (
    Manifest,
    Operation,
    Param,
    RequestBody,
    Value,
    params_of,
)
from gateway.errors import ConfigInvalid, DefinitionUnreadable
from gateway.model import (
    RISK_OF_ACCESS,
    Access,
    Body,
    Build,
    Field,
    HttpOperation,
    Parameter,
    Problem,
    RateLimit,
    Skipped,
    Source,
    Tool,
)
from gateway.openapi.naming import (
    Nameable,
    did_you_mean,
    matching,
    override_for,
    tool_names,
    unmatched,
)
from gateway.openapi.wording import description_of, http_tool, renamed
from gateway.text import visible

WHOLE_BODY = "body"
Schema = dict[str, Any]
Sent = TypeVar("Sent", Parameter, Field)


@dataclass(frozen=True, slots=True)
class RequestShape:
    """The arguments of one operation and where each of them goes."""

    input_schema: Schema
    parameters: tuple[Parameter, ...]
    body: Body | None


@dataclass(frozen=True, slots=True)
class _Argument:
    """One key of the flat input."""

    name: str
    schema: Schema
    required: bool


def request_shape(manifest: Manifest, operation: Operation, source: Source) -> RequestShape:
    """How this operation is called through this connection."""
    out = detours(manifest, operation, source)
    params = [p for p in params_of(manifest, operation) if (p.name, p.place) not in out]
    taken = {_argument_of(param) for param in params}
    body, fields = _body(operation, taken, {name for name, place in out if place == "body"})
    arguments = [
        *(_Argument(_argument_of(p), _schema(p), p.required or p.place == "path") for p in params),
        *fields,
    ]
    parameters = [_parameter(param) for param in params]
    named: list[Parameter | Field] = [*parameters, *(body.fields if body else ())]
    hidden = {*source.inject, *(each.argument for each in named if each.name in source.inject)}
    shown = [argument for argument in arguments if argument.name not in hidden]
    if body is not None:
        body = replace(body, fields=tuple(_bound(each, source) for each in body.fields))
    return RequestShape(
        _object({a.name: a.schema for a in shown}, [a.name for a in shown if a.required]),
        (*(_bound(p, source) for p in parameters), *_constants(manifest, operation, source)),
        body,
    )


def _bound(sent: Sent, source: Source) -> Sent:
    """What is sent, from the value that the connection gives under its wire name, if it does."""
    return replace(sent, argument=sent.name) if sent.name in source.inject else sent


def detours(manifest: Manifest, operation: Operation, source: Source) -> frozenset[tuple[str, str]]:
    """Name and place of what would make the request another one: nobody's to fill in."""
    params = [(p.name, p.place, _argument_of(p)) for p in params_of(manifest, operation)]
    properties = operation.body.properties if operation.body else ()
    return frozenset(
        (name, place)
        for name, place, argument in (*params, *((name, "body", name) for name in properties))
        if may_reroute(name, place) and not {name, argument}.intersection(source.inject)
    )


def _argument_of(param: Param) -> str:
    return param.argument or param.name


def _parameter(param: Param) -> Parameter:
    return Parameter(
        name=param.name,
        place=param.place,
        argument=_argument_of(param),
        style="form" if param.place == "query" else "simple",
        explode=param.explode,
    )


def _constants(manifest: Manifest, operation: Operation, source: Source) -> Iterator[Parameter]:
    """What the agent neither sees nor chooses: fixed headers, and the user a write is made for."""
    for name, value in manifest.headers.items():
        yield Parameter(name=name, place="header", constant=value)
    behalf = manifest.on_behalf_of
    if operation.requires_on_behalf_of and behalf is not None:
        style: Any = "form" if behalf.place == "query" else "simple"
        yield Parameter(
            name=behalf.name, place=behalf.place, style=style, constant=source.on_behalf_of
        )


def _body(
    operation: Operation, taken: set[str], out: Collection[str]
) -> tuple[Body | None, list[_Argument]]:
    body = operation.body
    if body is None:
        return None, []
    wrap = "data" if operation.wrap_in_data else None
    if body.open:
        name = _free(WHOLE_BODY, taken)
        schema = _properties_schema(body.properties, is_open=True)
        whole = Body(body.media_type, whole=name, required=body.required, wrap=wrap)
        return whole, [_Argument(name, schema, body.required)]
    fields, arguments = _fields(body, taken, out)
    required = any(argument.required for argument in arguments)
    return Body(body.media_type, fields=fields, required=required, wrap=wrap), arguments


def _fields(
    body: RequestBody, taken: set[str], out: Collection[str]
) -> tuple[tuple[Field, ...], list[_Argument]]:
    fields, arguments = [], []
    for name, value in body.properties.items():
        if name in out:
            continue
        argument = _free(name, taken)
        arguments.append(_Argument(argument, _schema(value), value.required))
        if not _is_file(body, value):
            fields.append(Field(argument, name))
            continue
        file_name = _free(f"{name}_filename", taken)
        content_type = _free(f"{name}_content_type", taken)
        fields.append(Field(argument, name, True, file_name, content_type))
        told = (file_name, content_type)
        arguments += [_Argument(each, {"type": "string"}, required=False) for each in told]
    return tuple(fields), arguments


def _free(name: str, taken: set[str]) -> str:
    """The name, or `body_NAME` where a parameter has it; it is taken from then on."""
    while name in taken:
        name = f"body_{name}"
    taken.add(name)
    return name


def _is_file(body: RequestBody, value: Value) -> bool:
    return body.media_type == "multipart/form-data" and value.format == "binary"


def _schema(value: Value) -> Schema:
    """JSON Schema 2020-12 for one value."""
    if value.type == "object":
        schema = _properties_schema(value.properties, value.open or not value.properties)
    else:
        schema = {"type": value.type, **_limits(value)}
    if value.format == "binary":
        schema["contentEncoding"] = "base64"
    elif value.format:
        schema["format"] = value.format
    if value.items is not None:
        schema["items"] = _schema(value.items)
    if value.description:
        schema["description"] = value.description
    return schema


_LIMITS: Mapping[str, str] = {
    "enum": "enum",
    "default": "default",
    "minimum": "minimum",
    "maximum": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_items": "minItems",
    "max_items": "maxItems",
}


def _limits(value: Value) -> Schema:
    found = ((keyword, getattr(value, key)) for key, keyword in _LIMITS.items())
    return {keyword: _plain(limit) for keyword, limit in found if limit is not None}


def _plain(limit: Any) -> Any:
    if isinstance(limit, float) and limit.is_integer():
        return int(limit)
    return list(limit) if isinstance(limit, tuple) else limit


def _properties_schema(properties: Mapping[str, Value], is_open: bool) -> Schema:
    required = [name for name, value in properties.items() if value.required]
    schema = _object({name: _schema(value) for name, value in properties.items()}, required)
    return schema if not is_open else {**schema, "additionalProperties": True}


def _object(properties: Mapping[str, Schema], required: list[str]) -> Schema:
    schema: Schema = {"type": "object", "properties": dict(properties)}
    if required:
        schema["required"] = required
    return {**schema, "additionalProperties": False}


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


def portable_tools(capability_prefix: str, tools: Sequence[Tool]) -> list[Tool]:
    """The tools that have a capability, once more under `PREFIX_capability`."""
    return [
        renamed(tool, f"{capability_prefix}_{tool.capability}")
        for tool in tools
        if tool.capability is not None
    ]
