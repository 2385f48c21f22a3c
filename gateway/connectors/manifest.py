"""Curated providers: the TOML of a manifest becomes an OpenAPI document, and that becomes tools.

Reading is strict: every problem is told at once, each with file, key path, what is wrong and what
is allowed. What a manifest calls dangerous is in it so that a reader can see that it was thought
of; it is never exposed, whatever the configuration says.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from typing import Any

import orjson
from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from gateway.config.reading import describe, keys_of
from gateway.connectors import manifest_format as form
from gateway.connectors.manifest_format import Entry, EntryBody, Manifest, Param, Value, params_of
from gateway.errors import ConfigInvalid, DefinitionUnreadable
from gateway.model import Build, Override, Problem, RateLimit, Skipped, Source, Tool
from gateway.naming import did_you_mean, override_for, unmatched

BUILTIN = ("greenhouse", "lever", "zoho-recruit")
Schema = dict[str, Any]


def load_builtin(name: str) -> bytes:
    """The text of a manifest that comes with the gateway; raises DefinitionUnreadable."""
    if name not in BUILTIN:
        raise DefinitionUnreadable(
            f"manifest: {name!r} does not come with the gateway{did_you_mean(name, BUILTIN)}",
            f"Use one of {', '.join(BUILTIN)}, or the path of a file.",
        )
    return (files("gateway.connectors") / "manifests" / f"{name}.toml").read_bytes()


def parse_manifest(raw: bytes, name: str) -> Manifest:
    """The manifest in this text; raises ConfigInvalid with every problem, `name` before each."""
    try:
        document = tomllib.loads(raw.decode("utf-8-sig"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigInvalid([f"{name}: not valid TOML: {error}"]) from error
    try:
        manifest = Manifest.model_validate(document)
    except ValidationError as error:
        raise ConfigInvalid([f"{name}: {line}" for line in describe(error, _keys)]) from error
    if problems := [f"{name}: {where}: {what}" for where, what in form.inconsistencies(manifest)]:
        raise ConfigInvalid(problems)
    return manifest


def _keys() -> set[str]:
    return keys_of(Manifest.model_json_schema())


def region_problem(manifest: Manifest, region: str | None) -> str | None:
    """What is wrong with choosing this region, if anything."""
    if region is None or (manifest.regions and region in manifest.regions.values):
        return None
    if manifest.regions is None:
        return f"region: {manifest.display_name} has no regions; remove the key"
    known = tuple(manifest.regions.values)
    meant = did_you_mean(region, known)
    return f"region: {region!r} is not allowed{meant}; allowed: {', '.join(known)}"


def translate_manifest(
    raw: bytes, source: Source
) -> tuple[bytes, Source, Callable[[Build], Build]]:
    """The OpenAPI document of a provider for one connection; raises DefinitionUnreadable."""
    try:
        manifest = parse_manifest(raw, source.location or source.connection)
    except ConfigInvalid as error:
        raise DefinitionUnreadable(
            "; ".join(error.problems[:5]), "Correct the manifest.", problems=error.problems[:20]
        ) from error
    if problem := region_problem(manifest, source.region):
        raise DefinitionUnreadable(problem, "Correct the connection's region.")
    known = [entry for entry in manifest.operations if _is_for_somebody(entry, source)]
    told = replace(
        source,
        display_name=source.display_name or manifest.display_name,
        base_url=source.base_url or form.base_url(manifest, source.region),
        blocklist=(*manifest.blocklist, *source.blocklist),
        operations={entry.id: _override(source, entry) for entry in known},
    )
    document = orjson.dumps(_document(manifest, source, known))
    return document, told, partial(_completed, manifest, source)


def _completed(manifest: Manifest, source: Source, built: Build) -> Build:
    operations = {entry.id: entry for entry in manifest.operations}
    tools = (_curated(manifest, operations[str(tool.operation)], tool) for tool in built.tools)
    unowned = (
        _unowned(manifest, entry, built)
        for entry in manifest.operations
        if not _is_for_somebody(entry, source)
    )
    limit = manifest.rate_limit
    return replace(
        built,
        format="manifest",
        title=manifest.display_name,
        tools=tuple(tools),
        skipped=(*built.skipped, *unowned),
        problems=tuple(dict.fromkeys((*_problems(manifest, source), *built.problems))),
        blocklist=manifest.blocklist,
        rate_limit=RateLimit(limit.requests, limit.window_seconds) if limit else None,
        auth_scheme=manifest.auth.scheme,
    )


def _is_for_somebody(entry: Entry, source: Source) -> bool:
    return bool(source.on_behalf_of) or not entry.requires_on_behalf_of


def _unowned(manifest: Manifest, entry: Entry, built: Build) -> Skipped:
    reason = f"{manifest.display_name} needs to know for which user: set on_behalf_of"
    spelled = (entry.id, entry.method, entry.path)
    return Skipped(*spelled, reason, entry.effective_access, base_url=built.base_url)


def _override(source: Source, entry: Entry) -> Override:
    """What the connection says of an operation, and else the manifest."""
    said = override_for(source.operations, entry.id)
    if entry.effective_access == "dangerous":
        return replace(said, access="dangerous")
    if said.access is not None:
        return said
    return replace(said, access=entry.effective_access, risk=said.risk or entry.risk)


def _curated(manifest: Manifest, entry: Entry, tool: Tool) -> Tool:
    """The tool with what only a manifest says of it."""
    http = tool.http
    if entry.wrap_in_data and http is not None and http.body is not None:
        http = replace(http, body=replace(http.body, wrap="data"))
    security = " ".join((*manifest.auth.types, manifest.auth.scheme or "")).strip()
    return replace(tool, http=http, capability=entry.capability, security=security)


def _problems(manifest: Manifest, source: Source) -> Iterator[Problem]:
    if source.auth_type not in manifest.auth.types:
        allowed = ", ".join(manifest.auth.types)
        hint = f" ({manifest.auth.hint})" if manifest.auth.hint else ""
        words = f"{manifest.display_name} takes {allowed}{hint}, not {source.auth_type}"
        yield Problem("warning", "auth.type", words, configured=True)
    yield from unmatched(source, [entry.id for entry in manifest.operations])


# --- the OpenAPI document -------------------------------------------------------------------------


def _document(manifest: Manifest, source: Source, entries: Sequence[Entry]) -> Schema:
    paths: dict[str, Schema] = {}
    for entry in entries:
        paths.setdefault(entry.path, {})[entry.method.lower()] = _operation(manifest, source, entry)
    info = {"title": manifest.display_name, "version": manifest.api_version}
    return {"openapi": "3.0.3", "info": info, "paths": paths}


def _operation(manifest: Manifest, source: Source, entry: Entry) -> Schema:
    operation: Schema = {
        "operationId": entry.id,
        "summary": entry.title,
        "description": _text(manifest, entry),
        "tags": [manifest.provider, manifest.category],
        "parameters": [
            *(_parameter(param) for param in params_of(manifest, entry)),
            *_constants(manifest, entry, source),
        ],
        "responses": {},
    }
    if (body := entry.body) is not None:
        operation["requestBody"] = {
            "required": body.required,
            "content": {body.media_type: {"schema": _object(body)}},
            "x-gateway-whole": body.open,
        }
    return operation


def _text(manifest: Manifest, entry: Entry) -> str:
    """What to choose by, then what comes back, then how to get more of it."""
    returns = f"Returns {entry.returns.rstrip('.')}." if entry.returns else ""
    paging = manifest.paging.hint if entry.paged else ""
    return " ".join(part for part in (entry.description, returns, paging) if part)


def _parameter(param: Param) -> Schema:
    return {
        "name": param.name,
        "in": param.place,
        "required": param.required or param.place == "path",
        "explode": param.explode,
        "schema": _schema(param),
        "x-gateway-argument": param.argument or param.name,
    }


def _constants(manifest: Manifest, entry: Entry, source: Source) -> Iterator[Schema]:
    """What the agent neither sees nor chooses: fixed headers, and the user a write is made for."""
    fixed = [(name, "header", value) for name, value in manifest.headers.items()]
    if entry.requires_on_behalf_of and (behalf := manifest.on_behalf_of) is not None:
        fixed.append((behalf.name, behalf.place, source.on_behalf_of or ""))
    for name, place, value in fixed:
        schema = {"type": "string", "default": value}
        yield {"name": name, "in": place, "schema": schema, "x-ms-visibility": "internal"}


_SAID = "description enum default format minimum maximum min_length max_length min_items max_items"
_KEYWORDS = {key: to_camel(key) for key in _SAID.split()}


def _schema(value: Value) -> Schema:
    given = ((keyword, getattr(value, key)) for key, keyword in _KEYWORDS.items())
    schema = {keyword: _plain(said) for keyword, said in given if said not in (None, "")}
    if value.items is not None:
        schema["items"] = _schema(value.items)
    return {"type": value.type, **schema, **(_object(value) if value.type == "object" else {})}


def _plain(said: Any) -> Any:
    return int(said) if isinstance(said, float) and said.is_integer() else said


def _object(value: Value | EntryBody) -> Schema:
    properties = value.properties
    return {
        "type": "object",
        "properties": {name: _schema(inner) for name, inner in properties.items()},
        "required": [name for name, inner in properties.items() if inner.required],
        "additionalProperties": value.open or not properties,
    }
