"""Definitions that multiply themselves: references, operations, texts by the thousand.

As many as the reader's bounds let through, or a few more.
"""

from __future__ import annotations

import random
from typing import Any

import orjson

from tests.definitions import openapi, operation, swagger

MAX_CONTAINERS = 300_000  # GitHub's 13 MB have about 100,000
HEAD = b'{"openapi":"3.1.0","info":{"title":"T","version":"1"},"servers":[{"url":"http://127.0.0.1:9"}]'
ONE_PATH = b',"paths":{"/a":{"get":{"operationId":"a","responses":{}}}}'


def plus(rest: bytes) -> bytes:
    """A definition with one plain operation and whatever else is written here."""
    return b"".join((HEAD, ONE_PATH, b",", rest, b"}"))


def _ref(name: Any, kind: str = "schemas") -> dict[str, str]:
    return {"$ref": f"#/components/{kind}/{name}"}


def _body(schema: Any) -> dict[str, Any]:
    return {"requestBody": {"content": {"application/json": {"schema": schema}}}}


def _answer(schema: Any) -> dict[str, Any]:
    return {
        "responses": {
            "200": {"description": "", "content": {"application/json": {"schema": schema}}}
        }
    }


def crossed(schemas: int, operations: int, words: int = 0) -> bytes:
    """As many schemas as may be that all refer to each other, reached from every operation."""
    pick = random.Random(1)
    refs = (MAX_CONTAINERS - 14 * operations - 4 * schemas) // schemas

    def schema() -> dict[str, Any]:
        targets = [_ref(f"S{pick.randrange(schemas)}") for _ in range(refs)]
        more = {"description": "w" * words} if words else {}
        properties = {f"p{i}": target for i, target in enumerate(targets)}
        return {"type": "object", "properties": properties, **more}

    paths = {
        f"/p{n}": {
            "post": {
                "operationId": f"o{n}",
                **_body(_ref(f"S{n % schemas}")),
                **_answer(_ref(f"S{(n * 7) % schemas}")),
            }
        }
        for n in range(operations)
    }
    return orjson.dumps(
        openapi(paths, components={"schemas": {f"S{n}": schema() for n in range(schemas)}})
    )


def exponential() -> bytes:
    """Each level ten times the next, sixty deep."""
    levels: dict[str, Any] = {f"S{n}": {"allOf": [_ref(f"S{n + 1}")] * 10} for n in range(60)}
    levels["S60"] = {"type": "string"}
    return orjson.dumps(
        openapi(
            {f"/{n}": {"post": operation(**_body(_ref(f"S{n}")))} for n in range(60)},
            components={"schemas": levels},
        )
    )


def chain(length: int, kind: str = "schemas") -> bytes:
    """References that only lead to references."""
    links: dict[str, Any] = {f"S{n}": _ref(f"S{n + 1}", kind) for n in range(length)}
    paths: dict[str, Any] = {"/a": {"post": operation(**_body(_ref("S0")))}}
    if kind == "pathItems":
        paths = {f"/p{n}": _ref(f"S{n}", kind) for n in range(min(length, 9_000))}
    return orjson.dumps(openapi(paths, components={kind: links}))


def discriminator() -> bytes:
    """One base of thousands of kinds, each of which is the base and more."""
    names = [f"S{n}" for n in range(3_000)]
    mapping = {name: f"#/components/schemas/{name}" for name in names}
    base = {
        "oneOf": [_ref(name) for name in names],
        "discriminator": {"propertyName": "k", "mapping": mapping},
    }
    shared: dict[str, Any] = {
        name: {"allOf": [_ref("B")], "properties": {"k": {}}} for name in names
    }
    paths = {
        f"/{name}": {"post": operation(operationId=name, **_body(_ref("B")), **_answer(_ref(name)))}
        for name in names
    }
    return orjson.dumps(openapi(paths, components={"schemas": {**shared, "B": base}}))


def operations(count: int) -> bytes:
    """So many plain operations."""
    paths = b",".join(b'"/p%d":{"get":{"responses":{}}}' % n for n in range(count))
    return b'%b,"paths":{%b}}' % (HEAD, paths)


def busy_operations(count: int, parameters: int) -> bytes:
    """One path item that many paths share."""
    listed = [
        {"name": f"p{n}", "in": "query", "schema": {"type": "string"}} for n in range(parameters)
    ]
    shared = {"P": {"get": operation(operationId="x", parameters=listed)}}
    return orjson.dumps(
        openapi(
            {f"/{n}": _ref("P", "pathItems") for n in range(count)},
            components={"pathItems": shared},
        )
    )


def parameters(count: int) -> bytes:
    """One operation with so many parameters."""
    listed = b",".join(b'{"name":"p%d","in":"query"}' % n for n in range(count))
    return b'%b,"paths":{"/a":{"get":{"parameters":[%b]}}}}' % (HEAD, listed)


def long(key: str) -> bytes:
    """Texts of a megabyte, thirty times."""
    text = "x y" * 340_000
    made: dict[str, Any] = {
        "path": {f"/{text.replace(' ', '/')}{n}": {"get": {"responses": {}}} for n in range(30)},
        "property": {
            f"/{n}": {"post": _body({"properties": {text: {"type": "string"}}})} for n in range(30)
        },
        "description": {f"/{n}": {"get": {"description": text}} for n in range(30)},
    }
    return orjson.dumps(openapi(made[key]))


def enum(count: int) -> bytes:
    """One parameter with so many values."""
    values = b",".join(b'"v%d"' % n for n in range(count))
    return plus(b'"components":{"schemas":{"E":{"enum":[%b]}}},"x":0' % values).replace(
        b'"responses":{}',
        b'"parameters":[{"name":"e","in":"query","schema":{"$ref":"#/components/schemas/E"}}]',
    )


def patterns(count: int, pattern: str) -> bytes:
    """So many different patterns."""
    shared = {f"p{n}": {"type": "string", "pattern": pattern % n} for n in range(count)}
    paths = {
        f"/{n}": {
            "post": operation(
                operationId=f"o{n}",
                **_body({"properties": dict(list(shared.items())[n * 50 : n * 50 + 50])}),
            )
        }
        for n in range(count // 50)
    }
    return orjson.dumps(openapi(paths))


def servers() -> bytes:
    """Servers by the thousand, with variables that stand for each other."""
    variables = {
        f"v{n}": {"default": f"{{v{n + 1}}}{{v{n + 1}}}", "enum": ["x"] * 100} for n in range(1_000)
    }
    servers = [{"url": "http://{v0}", "variables": variables}] + [
        {"url": f"http://h{n}"} for n in range(100_000)
    ]
    return orjson.dumps(
        {
            **openapi(
                {
                    f"/{n}": {
                        "get": operation(
                            operationId=f"o{n}",
                            servers=[
                                {
                                    "url": "http://{v0}" * 3,
                                    "variables": {"v0": {"default": "y" * 2_000}},
                                }
                            ]
                            * 2,
                        )
                    }
                    for n in range(2_000)
                }
            ),
            "servers": servers,
        }
    )


def security() -> bytes:
    """Credentials by the thousand."""
    schemes = {f"k{n}": {"type": "apiKey", "in": "header", "name": f"K{n}"} for n in range(30_000)}
    needs: list[Any] = [{f"k{n}": [], f"k{n + 1}": []} for n in range(18_000)]
    paths = {
        f"/{n}": {"get": operation(operationId=f"o{n}", security=[{f"k{n}": []}] * 10)}
        for n in range(3_000)
    }
    return orjson.dumps(openapi(paths, components={"securitySchemes": schemes}, security=needs))


def microsoft() -> bytes:
    """Callback addresses looked for in bodies that share everything, and look-ups of look-ups."""
    shared = {
        f"S{n}": {
            "type": "object",
            "properties": {
                f"p{i}": {"$ref": f"#/definitions/S{(n * 31 + i) % 2_000}"} for i in range(40)
            },
        }
        for n in range(2_000)
    }
    shared["S0"]["properties"]["u"] = {"type": "string", "x-ms-notification-url": True}  # type: ignore[index]
    dynamic = {
        "x-ms-dynamic-values": {
            "operationId": "o1",
            "value-path": "a",
            "parameters": {f"q{i}": {"parameter": "z"} for i in range(40)},
        }
    }
    paths = {
        f"/p{n}": {
            "post": operation(
                operationId=f"o{n}",
                parameters=[
                    {"name": "b", "in": "body", "schema": {"$ref": f"#/definitions/S{n}"}},
                    {"name": "z", "in": "query", "type": "string", **dynamic},
                ],
            )
        }
        for n in range(1_500)
    }
    return orjson.dumps(swagger(paths, definitions=shared))


def loop() -> bytes:
    """Two schemas that are each other."""
    shared = {"A": _ref("B"), "B": _ref("A")}
    paths = {"/a": {"post": operation(**_body(_ref("A")))}}
    return orjson.dumps(openapi(paths, components={"schemas": shared}))
