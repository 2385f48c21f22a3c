"""Definitions that multiply themselves: references, operations, texts by the thousand.

As many as the reader's bounds let through, or a few more.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import orjson

from tests.definitions import Json, an_object, openapi, operation, swagger

MAX_CONTAINERS = 300_000  # GitHub's 13 MB have about 100,000
HEAD = b'{"openapi":"3.1.0","info":{"title":"T","version":"1"},"servers":[{"url":"http://127.0.0.1:9"}]'
ONE_PATH = b',"paths":{"/a":{"get":{"operationId":"a","responses":{}}}}'


def plus(rest: bytes) -> bytes:
    """A definition with one plain operation and whatever else is written here."""
    return b"".join((HEAD, ONE_PATH, b",", rest, b"}"))


def _ref(name: Any, kind: str = "components/schemas") -> dict[str, str]:
    return {"$ref": f"#/{kind}/{name}"}


def _content(schema: Any) -> Json:
    return {"content": {"application/json": {"schema": schema}}}


def _posting(bodies: Mapping[str, Any], schemas: Any = None, answers: Any = None) -> bytes:
    """One operation for each name, with this body and, where it is given, this answer."""
    paths = {
        f"/{name}": {
            "post": operation(
                operationId=name,
                requestBody=_content(body),
                responses={"200": _content(answers[name])} if answers else {},
            )
        }
        for name, body in bodies.items()
    }
    return orjson.dumps(openapi(paths, components={"schemas": schemas or {}}))


def _getting(operations: Mapping[str, Json], **more: Any) -> bytes:
    """One operation for each name."""
    named = {name: {"operationId": name, **own} for name, own in operations.items()}
    paths = {f"/{name}": {"get": operation(**own)} for name, own in named.items()}
    return orjson.dumps(openapi(paths) | more)


def crossed(schemas: int, operations: int, words: int = 0) -> bytes:
    """As many schemas as may be that all refer to each other, reached from every operation."""
    pick = random.Random(1)
    refs = (MAX_CONTAINERS - 14 * operations - 4 * schemas) // schemas

    def schema() -> Json:
        properties = {f"p{n}": _ref(f"S{pick.randrange(schemas)}") for n in range(refs)}
        return an_object(properties, **({"description": "w" * words} if words else {}))

    return _posting(
        {f"o{n}": _ref(f"S{n % schemas}") for n in range(operations)},
        {f"S{n}": schema() for n in range(schemas)},
        {f"o{n}": _ref(f"S{(n * 7) % schemas}") for n in range(operations)},
    )


def exponential() -> bytes:
    """Each level ten times the next, sixty deep."""
    levels: Json = {f"S{n}": {"allOf": [_ref(f"S{n + 1}")] * 10} for n in range(60)}
    bodies = {f"o{n}": _ref(f"S{n}") for n in range(60)}
    return _posting(bodies, {**levels, "S60": {"type": "string"}})


def chain(length: int) -> bytes:
    """References that only lead to references."""
    return _posting({"a": _ref("S0")}, {f"S{n}": _ref(f"S{n + 1}") for n in range(length)})


def chain_of_paths(length: int) -> bytes:
    """Path items that only lead to path items."""
    links = {f"S{n}": _ref(f"S{n + 1}", "components/pathItems") for n in range(length)}
    paths = {f"/p{n}": _ref(f"S{n}", "components/pathItems") for n in range(min(length, 9_000))}
    return orjson.dumps(openapi(paths, components={"pathItems": links}))


def discriminator() -> bytes:
    """One base of thousands of kinds, each of which is the base and more."""
    names = [f"S{n}" for n in range(3_000)]
    mapping = {name: f"#/components/schemas/{name}" for name in names}
    told = {"propertyName": "k", "mapping": mapping}
    base = {"oneOf": [_ref(name) for name in names], "discriminator": told}
    shared: Json = {name: {"allOf": [_ref("B")], "properties": {"k": {}}} for name in names}
    bodies, answers = dict.fromkeys(names, _ref("B")), {name: _ref(name) for name in names}
    return _posting(bodies, {**shared, "B": base}, answers)


def operations(count: int) -> bytes:
    """So many plain operations."""
    paths = b",".join(b'"/p%d":{"get":{"responses":{}}}' % n for n in range(count))
    return b'%b,"paths":{%b}}' % (HEAD, paths)


def busy_operations(count: int, parameters: int) -> bytes:
    """One path item that many paths share."""
    text = {"in": "query", "schema": {"type": "string"}}
    listed = [{"name": f"p{n}", **text} for n in range(parameters)]
    shared = {"pathItems": {"P": {"get": operation(operationId="x", parameters=listed)}}}
    paths = {f"/{n}": _ref("P", "components/pathItems") for n in range(count)}
    return orjson.dumps(openapi(paths, components=shared))


def parameters(count: int) -> bytes:
    """One operation with so many parameters."""
    listed = b",".join(b'{"name":"p%d","in":"query"}' % n for n in range(count))
    return b'%b,"paths":{"/a":{"get":{"parameters":[%b]}}}}' % (HEAD, listed)


def long(key: str) -> bytes:
    """Texts of a megabyte, thirty times."""
    text, numbers = "x y" * 340_000, [str(n) for n in range(30)]
    if key == "path":
        return _getting({f"{text.replace(' ', '/')}{n}": {"operationId": n} for n in numbers})
    if key == "property":
        return _posting(dict.fromkeys(numbers, {"properties": {text: {"type": "string"}}}))
    return _getting(dict.fromkeys(numbers, {"description": text}))


def enum(count: int) -> bytes:
    """One parameter with so many values."""
    values = b",".join(b'"v%d"' % n for n in range(count))
    return plus(b'"components":{"schemas":{"E":{"enum":[%b]}}},"x":0' % values).replace(
        b'"responses":{}',
        b'"parameters":[{"name":"e","in":"query","schema":{"$ref":"#/components/schemas/E"}}]',
    )


def patterns(count: int, pattern: str) -> bytes:
    """So many different patterns."""
    texts = [(f"p{n}", {"type": "string", "pattern": pattern % n}) for n in range(count)]
    parts = {f"o{n}": dict(texts[n : n + 50]) for n in range(0, count, 50)}
    return _posting({name: {"properties": part} for name, part in parts.items()})


def servers() -> bytes:
    """Servers by the thousand, with variables that stand for each other."""
    variables = {
        f"v{n}": {"default": f"{{v{n + 1}}}{{v{n + 1}}}", "enum": ["x"] * 100} for n in range(1_000)
    }
    many = [{"url": f"http://h{n}"} for n in range(100_000)]
    own = {"url": "http://{v0}" * 3, "variables": {"v0": {"default": "y" * 2_000}}}
    return _getting(
        {f"o{n}": {"servers": [own] * 2} for n in range(2_000)},
        servers=[{"url": "http://{v0}", "variables": variables}, *many],
    )


def security() -> bytes:
    """Credentials by the thousand."""
    schemes = {f"k{n}": {"type": "apiKey", "in": "header", "name": f"K{n}"} for n in range(30_000)}
    return _getting(
        {f"o{n}": {"security": [{f"k{n}": []}] * 10} for n in range(3_000)},
        components={"securitySchemes": schemes},
        security=[{f"k{n}": [], f"k{n + 1}": []} for n in range(18_000)],
    )


def microsoft() -> bytes:
    """Callback addresses looked for in bodies that share everything, and look-ups of look-ups."""
    shared = {
        f"S{n}": an_object(
            {f"p{i}": _ref(f"S{(n * 31 + i) % 2_000}", "definitions") for i in range(40)}
        )
        for n in range(2_000)
    }
    shared["S0"]["properties"]["u"] = {"type": "string", "x-ms-notification-url": True}
    asked = {f"q{i}": {"parameter": "z"} for i in range(40)}
    rule = {"operationId": "o1", "value-path": "a", "parameters": asked}
    dynamic = {"name": "z", "in": "query", "type": "string", "x-ms-dynamic-values": rule}
    paths = {
        f"/p{n}": {
            "post": operation(
                operationId=f"o{n}",
                parameters=[
                    {"name": "b", "in": "body", "schema": _ref(f"S{n}", "definitions")},
                    dynamic,
                ],
            )
        }
        for n in range(1_500)
    }
    return orjson.dumps(swagger(paths, definitions=shared))


def loop() -> bytes:
    """Two schemas that are each other."""
    return _posting({"a": _ref("A")}, {"A": _ref("B"), "B": _ref("A")})
