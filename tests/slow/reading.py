"""A definition as the judge of requests reads it: its operations, references and schemas.

Its text is read as the gateway reads it; what it means is made out here anew. Schemas become plain
JSON Schema, `oneOf` counts as `anyOf`, nobody has to send what is read only, and where no value can
fit (closed parts of an allOf, an enum against its type) the definition is taken for what it must
have meant.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

import jsonschema_rs
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable

from gateway.openapi.document import read_definition

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
DOCUMENT = "urn:definition"
Json = Mapping[str, Any]


class Unjudged(Exception):
    """The definition does not say enough, or nothing that can be understood."""


class Definition:
    """A definition, made out without the gateway."""

    def __init__(self, raw: bytes) -> None:
        self.root = read_definition(raw)
        self.two = str(self.root.get("swagger", "")).startswith("2")
        modern = str(self.root.get("openapi", "")).startswith("3.1")
        draft = jsonschema_rs.Draft202012 if modern else jsonschema_rs.Draft4
        self.microsoft = b"x-ms-" in raw
        self._translated = _Translation(self).document()
        self._registry = jsonschema_rs.Registry([(DOCUMENT, self._translated)], draft=draft)
        self._validator = (
            jsonschema_rs.Draft202012Validator if modern else jsonschema_rs.Draft4Validator
        )
        self._validators: dict[str, Any] = {}

    def operations(self) -> Iterator[tuple[str, str]]:
        """Every operation there is, as method and path."""
        for path, written in mapping(self.root.get("paths")).items():
            item = self.resolved(written) if not path.startswith("x-") else {}
            yield from ((method.upper(), path) for method in item if method.lower() in METHODS)

    def resolved(self, value: Any) -> Json:
        """What a value is, or refers to."""
        for _ in range(50):
            if not isinstance(value, dict):
                raise Unjudged("not an object")
            reference = value.get("$ref")
            if not isinstance(reference, str):
                return value
            value = _followed(self.root, reference)
        raise Unjudged("a circle of references")

    def accepts(self, schema: Any, value: Any) -> bool:
        """Whether a schema of this document accepts a value."""
        return next(self.problems(schema, value), None) is None

    def problems(self, schema: Any, value: Any) -> Iterator[str]:
        """What a schema of this document has against a value."""
        translated = _Translation(self).schema(schema)
        key = json.dumps(translated, sort_keys=True, default=str)
        if key not in self._validators:
            try:
                self._validators[key] = self._validator(
                    translated, registry=self._registry, offline=True
                )
            except (ValueError, jsonschema_rs.ReferencingError) as error:
                words = str(error).partition("\n")[0][:200]
                raise Unjudged(f"a schema can't be used: {words}") from error
        for found in self._validators[key].iter_errors(value):
            where = "/".join(map(str, found.instance_path))
            yield f"{where}: {found.message[:200]}"


def mapping(value: Any) -> Json:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def _followed(root: Any, reference: str) -> Any:
    registry = Registry().with_resource("", Resource.opaque(root))
    try:
        return registry.resolver("").lookup(reference).contents
    except Unresolvable as error:
        raise Unjudged(f"a reference that leads nowhere: {reference[:100]}") from error


# --- schemas --------------------------------------------------------------------------------------

_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_COUNTS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
_OF_TYPE: Mapping[str, Any] = {
    "string": str,
    "boolean": bool,
    "array": list,
    "object": dict,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


class _Translation:
    """Schemas of OpenAPI as plain JSON Schema."""

    def __init__(self, definition: Definition) -> None:
        self._definition = definition

    def document(self) -> Any:
        """The places that references lead to."""
        translated = self.schema(self._definition.root)
        for part in _parts_of_all(self._definition.root):
            # Closed parts of a whole refuse each other's properties: no value fits them all.
            with suppress(Unjudged):
                _followed(translated, part).pop("additionalProperties", None)
        return translated

    def schema(self, value: Any) -> Any:
        """The same with every schema in it translated; what is no schema is not harmed."""
        if isinstance(value, list):
            return [self.schema(each) for each in value]
        if not isinstance(value, dict):
            return value
        reference = value.get("$ref")
        if isinstance(reference, str):
            pointer = f"{DOCUMENT}{quote(unquote(reference), safe='#/~')}"
            return {**self.schema({k: v for k, v in value.items() if k != "$ref"}), "$ref": pointer}
        plain = {str(key): self.schema(each) for key, each in value.items() if key != "example"}
        return self._mended(plain, value)

    def _mended(self, schema: dict[str, Any], written: Json) -> dict[str, Any]:
        for key in (*_NUMBERS, *_COUNTS):
            if isinstance(schema.get(key), (str, list)):
                del schema[key]
        if isinstance(schema.get("allOf"), list):
            for part in (schema, *schema["allOf"]):
                if isinstance(part, dict) and part.get("additionalProperties") is False:
                    del part["additionalProperties"]
        if isinstance(schema.get("oneOf"), list):
            schema["allOf"] = [*schema.get("allOf", ()), {"anyOf": schema.pop("oneOf")}]
        if isinstance(schema.get("pattern"), str) and not _is_pattern(schema["pattern"]):
            del schema["pattern"]
        for key in ("$schema", "$id", "id", "discriminator"):
            if isinstance(schema.get(key), str):
                del schema[key]
        self._mend_required(schema, written)
        self._mend_type(schema, written)
        if written.get("nullable") is True and "type" not in schema:
            return {"anyOf": [{"type": "null"}, schema]}
        return schema

    def _mend_required(self, schema: dict[str, Any], written: Json) -> None:
        """Nobody sends what is read only, so nobody has to."""
        if "required" in schema and not isinstance(schema["required"], dict):
            names = schema.pop("required")
            properties = mapping(written.get("properties"))
            read_only = {n for n, each in properties.items() if self._is_read_only(each)}
            kept = [n for n in names if n not in read_only] if isinstance(names, list) else []
            if kept:
                schema["required"] = list(dict.fromkeys(map(str, kept)))

    def _is_read_only(self, written: Any) -> bool:
        if isinstance(written, dict) and written.get("readOnly") is True:
            return True
        try:
            return self._definition.resolved(written).get("readOnly") is True
        except Unjudged:
            return False

    def _mend_type(self, schema: dict[str, Any], written: Json) -> None:
        kind = schema.get("type")
        if isinstance(kind, dict):
            return
        kinds = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
        kinds = ["string" if each == "file" else each for each in kinds]
        kinds = [each for each in kinds if each in _TYPES]
        nullable = written.get("nullable") is True or written.get("x-nullable") is True
        if nullable and kinds:
            kinds.append("null")
        schema.pop("type", None)
        if kinds:
            schema["type"] = kinds
        enum = schema.get("enum")
        if "enum" in schema and not isinstance(enum, dict):
            of_type = tuple(_OF_TYPE[each] for each in kinds) or (object,)
            fitting = [e for e in enum or () if isinstance(e, of_type)]
            if not fitting:
                del schema["enum"]  # no value fits both: the definition's own mistake
            elif nullable and None not in fitting:
                schema["enum"] = [*fitting, None]


def _parts_of_all(value: Any) -> Iterator[str]:
    """Every reference out of an allOf."""
    if isinstance(value, dict) and isinstance(value.get("allOf"), list):
        parts = (mapping(part).get("$ref") for part in value["allOf"])
        yield from (part for part in parts if isinstance(part, str))
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, (dict, list)):
            yield from _parts_of_all(inner)


@lru_cache(maxsize=100_000)
def _is_pattern(pattern: str) -> bool:
    try:
        jsonschema_rs.Draft202012Validator({"pattern": pattern}).is_valid("x")
    except ValueError:
        return False
    return True
