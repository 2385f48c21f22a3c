"""Definitions for tests: small ones from a few words, large ones shaped like the real giants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import orjson
import yaml

from gateway.model import Body, Build, HttpOperation, Source, Tool, whole_schema
from gateway.openapi.build import build_openapi
from gateway.plain import forms_of

Json = dict[str, Any]

FIXTURES = Path(__file__).parents[1] / "fixtures"
CORPUS = Path(__file__).parents[2] / "shared" / "corpus"
SOURCE = Source(
    connection="shop",
    kind="openapi",
    display_name="Shop",
    prefix="shop_",
    location="https://shop.example/openapi.json",
)
_WORDS = "the repository issue pull request user organisation team label branch commit".split()


def swagger(paths: Json, **more: Any) -> Json:
    """A Swagger 2.0 definition."""
    return {
        "swagger": "2.0",
        "info": {"title": "Shop", "version": "1"},
        "host": "api.shop.example",
        "basePath": "/v1",
        "paths": paths,
        **more,
    }


def openapi(paths: Json, version: str = "3.0.3", **more: Any) -> Json:
    """An OpenAPI 3 definition."""
    return {
        "openapi": version,
        "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "https://api.shop.example/v1"}],
        "paths": paths,
        **more,
    }


def built(definition: Json, source: Source = SOURCE, **changes: Any) -> Build:
    """The build of a definition, for a source with some changes."""
    return build_openapi(orjson.dumps(definition), replace(source, **changes))


def only_tool(definition: Json, **changes: Any) -> Tool:
    """The one tool that a definition has."""
    build = built(definition, **changes)
    assert [skipped.reason for skipped in build.skipped] == []
    (tool,) = build.tools
    return tool


def schema_of(tool: Tool) -> Json:
    """A tool's input schema as values."""
    schema: Json = orjson.loads(tool.input_schema)
    return schema


def http_of(tool: Tool) -> HttpOperation:
    """The request that a tool makes."""
    assert tool.http is not None
    return tool.http


def body_of(tool: Tool) -> Body:
    """The body of the request that a tool makes."""
    body = http_of(tool).body
    assert body is not None
    return body


def operation(**more: Any) -> Json:
    """An operation with an id and nothing else but what is given."""
    return {"operationId": "act", "responses": {"200": {"description": "ok"}}, **more}


def an_object(properties: Json, *required: str, **more: Any) -> Json:
    """The schema of an object."""
    needed = {"required": [*required]} if required else {}
    return {"type": "object", "properties": properties, **needed, **more}


def getting(*parameters: Json, path: str = "/a", make: Any = openapi, **more: Any) -> Json:
    """A definition whose one operation takes these parameters."""
    made: Json = make({path: {"get": operation(parameters=list(parameters))}}, **more)
    return made


def posting(schema: Any, kind: str = "application/json", make: object = None, **more: Any) -> Json:
    """A definition whose one operation takes a body of this schema; Swagger's, if that is made."""
    if make is swagger:
        body = {"in": "body", "name": "b", "schema": schema, **more}
        return swagger({"/a": {"post": operation(parameters=[body])}})
    shared, encoding = more.pop("schemas", {}), more.pop("encoding", None)
    media: Json = {"schema": schema} | ({"encoding": encoding} if encoding else {})
    post = operation(requestBody={"content": {kind: media}, **more})
    return openapi({"/a": {"post": post}}, components={"schemas": shared})


def shown(value: Any) -> Any:
    """A build as JSON shows it: bytes of JSON as values, and nothing that is as usual."""
    if isinstance(value, bytes):
        return orjson.loads(value)
    if isinstance(value, (tuple, list)):
        return [shown(each) for each in value]
    if isinstance(value, frozenset):
        return sorted(value)
    if not is_dataclass(value):
        return value
    given = {each.name: getattr(value, each.name) for each in fields(value)}
    if isinstance(value, Tool):
        given["entry"] = orjson.loads(value.entry)
        assert given["entry"].pop("inputSchema") == schema_of(value)
        assert given.pop("forms") == forms_of(value.entry)
        given["whole_schema"] = whole_schema(value) if value.whole_schema else b""
    usual = {each.name: each.default for each in fields(value)}
    return {name: shown(each) for name, each in given.items() if each != usual[name]}


def golden(name: str) -> Any:
    """What becomes of a definition, written down whole."""
    return yaml.load((FIXTURES / "built" / f"{name}.yaml").read_bytes(), yaml.CSafeLoader)


@cache
def _rules() -> Json:
    found: Json = yaml.load((FIXTURES / "openapi" / "rules.yaml").read_bytes(), yaml.CSafeLoader)
    return found


def rules(section: str) -> list[Any]:
    """A table of rules; a line can be added to it without touching code."""
    found: list[Any] = _rules()[section]
    return found


def skip_reasons(build: Build) -> Mapping[str, str]:
    """Why each skipped operation is not a tool, by operation id."""
    return {skipped.operation or skipped.path: skipped.reason for skipped in build.skipped}


def like_github(operations: int = 1_200, schemas: int = 900, size: int = 13_000_000) -> bytes:
    """Many operations, shared schemas, long examples: about as large as GitHub's definition."""
    random = Random(7)
    pool = " ".join(random.choices(_WORDS, k=4_000))

    def text(words: int) -> str:
        start = random.randrange(len(pool) - words * 7)
        return pool[start : start + words * 7]

    shared = {f"schema-{n}": _github_schema(n, schemas, text) for n in range(schemas)}
    paths: Json = {}
    for n in range(operations):
        method = ("get", "post", "patch", "delete")[n % 4]
        path = f"/things{n // 4}/{{owner}}/{{id}}"
        paths.setdefault(path, {})[method] = _github_operation(n, method, schemas, text)
    document = openapi(paths, components={"schemas": shared})
    missing = max(size - len(orjson.dumps(document)), 0) // operations
    for item in paths.values():
        for each in item.values():
            media = each["responses"]["200"]["content"]["application/json"]
            media["examples"] = {"default": {"value": [{"text": text(12)}] * (missing // 110)}}
    return orjson.dumps(document)


def _github_schema(number: int, schemas: int, text: Any, fields: int = 30) -> Json:
    properties: Json = {}
    for n in range(fields):
        if n % 3:
            properties[f"field_{n}"] = {"type": "string", "description": text(8), "example": "x"}
        elif n % 2:
            target = (number * 7 + n) % schemas
            properties[f"field_{n}"] = {"$ref": f"#/components/schemas/schema-{target}"}
        else:
            properties[f"field_{n}"] = {"type": "integer", "nullable": True}
    return {"type": "object", "properties": properties, "required": ["field_1"]}


def _github_operation(number: int, method: str, schemas: int, text: Any) -> Json:
    reference = {"$ref": f"#/components/schemas/schema-{number % schemas}"}
    query = [
        {"name": f"q{n}", "in": "query", "schema": {"type": "string"}, "description": text(10)}
        for n in range(6)
    ]
    found = operation(
        operationId=f"things/op-{number}",
        summary=text(6),
        description=text(60),
        parameters=query,
        responses={
            "200": {"description": "ok", "content": {"application/json": {"schema": reference}}}
        },
    )
    if method in ("post", "patch"):
        inline = _github_schema(number, schemas, text, fields=10)
        found["requestBody"] = {"content": {"application/json": {"schema": inline}}}
    return found


def like_stripe(operations: int = 450) -> Json:
    """Form bodies with nested inline objects, answers that all refer to each other."""
    shared = {f"object_{n}": _stripe_schema(n) for n in range(200)}
    paths: Json = {}
    for n in range(operations):
        form = {"type": "object", "properties": {} if n % 2 else _stripe_fields(3)}
        media = {"schema": form, "encoding": {"nested": {"style": "deepObject", "explode": True}}}
        content = {
            "application/json": {"schema": {"$ref": f"#/components/schemas/object_{n % 200}"}}
        }
        paths.setdefault(f"/v1/things{n // 2}", {})["get" if n % 2 else "post"] = operation(
            operationId=("Get" if n % 2 else "Post") + f"Things{n // 2}",
            description="Text of some length. " * 20,
            requestBody={"content": {"application/x-www-form-urlencoded": media}},
            responses={"200": {"description": "ok", "content": content}},
        )
    return openapi(paths, components={"schemas": shared})


def _stripe_schema(number: int) -> Json:
    links = {
        f"link_{n}": {
            "anyOf": [
                {"type": "string", "maxLength": 5000},
                {"$ref": f"#/components/schemas/object_{(number * 3 + n) % 200}"},
            ],
            "nullable": True,
        }
        for n in range(12)
    }
    plain = {f"plain_{n}": {"type": "string", "description": "Words. " * 30} for n in range(12)}
    return {"type": "object", "properties": {**links, **plain}}


def _stripe_fields(levels: int) -> Json:
    fields: Json = {
        f"field_{levels}_{n}": {"type": "string", "description": "What this is. " * 12}
        for n in range(8)
    }
    if levels:
        for n in range(2):
            inner = {"type": "object", "properties": _stripe_fields(levels - 1)}
            fields[f"nested_{n}" if n else "nested"] = inner
    return fields
