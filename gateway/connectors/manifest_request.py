"""What an operation of a manifest takes, and how its arguments become a request.

One flat object goes in: parameters first, then the properties of the body beside them, `body_NAME`
where names collide. An open body, whose properties differ from account to account, is one argument.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from gateway.blocklist import may_reroute
from gateway.connectors.manifest_format import (
    Manifest,
    Operation,
    Param,
    RequestBody,
    Value,
    params_of,
)
from gateway.model import Body, Field, Parameter, Source

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
