"""Holds requests against the definition they were made from, taken apart from their raw bytes.

What a definition leaves open is not judged: a text may be read as any value that its schema takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import quote, unquote, unquote_plus

from tests.slow.reading import Definition, Json, Unjudged, mapping

OURS = frozenset("host connection accept accept-encoding user-agent content-length".split())
OURS_IN_3 = frozenset(("accept", "content-type", "authorization"))
DELIMITERS = {"spaceDelimited": " ", "pipeDelimited": "|", "ssv": " ", "tsv": "\t", "pipes": "|"}
_VARIABLE = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True)
class Sent:
    """A request as it came in, its path counted from the API's base URL."""

    method: str
    path: str  # raw, with its query
    headers: Sequence[tuple[str, str]]
    body: bytes


@dataclass(frozen=True)
class Fault:
    """Something in a request that the definition does not allow."""

    kind: str
    words: str


def faults(definition: Definition, method: str, path: str, sent: Sent) -> list[Fault]:
    """All that is wrong with a request for this operation."""
    return list(_Judgement(definition, method, path, sent).faults())


@dataclass(frozen=True)
class _Declared:
    """A parameter, as the definition has it."""

    name: str
    place: str
    required: bool
    schema: Any
    style: str
    explode: bool
    double: bool = False


class _Judgement:
    def __init__(self, definition: Definition, method: str, path: str, sent: Sent) -> None:
        self._definition = definition
        self._sent = sent
        self._path = path
        self._item = definition.resolved(definition.root["paths"][path])
        written = next(each for key, each in self._item.items() if key.upper() == method)
        self._operation = definition.resolved(written)
        self._method = method
        self._parameters = self._declared()

    def faults(self) -> Iterator[Fault]:
        """Everything that is not as the definition wants it."""
        if self._sent.method != self._method:
            yield Fault("method", f"{self._sent.method} for {self._method}")
        path, _, query = self._sent.path.partition("?")
        yield from self._path_faults(path)
        yield from self._query_faults([p.partition("=") for p in query.split("&") if p])
        yield from self._header_faults()
        yield from self._body_faults()

    def _declared(self) -> list[_Declared]:
        merged: dict[tuple[str, str], Json] = {}
        for listed in (self._item.get("parameters"), self._operation.get("parameters")):
            for entry in listed or ():
                raw = self._definition.resolved(entry)
                merged[str(raw.get("name")), str(raw.get("in"))] = raw
        return [self._one(raw) for raw in merged.values()]

    def _one(self, raw: Json) -> _Declared:
        place = str(raw["in"])
        if self._definition.two:
            style = str(raw.get("collectionFormat", "csv"))
            explode = style == "multi"
            own = {k: v for k, v in raw.items() if k not in ("name", "in", "required", "schema")}
            schema = raw.get("schema", {}) if place == "body" else own
        else:
            style = str(raw.get("style") or ("form" if place in ("query", "cookie") else "simple"))
            explode = raw.get("explode", style == "form")
            schema = next(iter(mapping(raw.get("content")).values()), raw).get("schema", {})
        required, double = raw.get("required") is True, raw.get("x-ms-url-encoding") == "double"
        return _Declared(raw["name"], place, required, schema, style, explode, double)

    def names_at(self, place: str) -> set[str]:
        """The names that parameters have in this place."""
        return {each.name for each in self._at(place)}

    def _at(self, place: str) -> list[_Declared]:
        return [each for each in self._parameters if each.place == place]

    # --- path ---

    def _path_faults(self, path: str) -> Iterator[Fault]:
        template = self._path.partition("#")[0].partition("?")[0]
        wanted = [template if template.startswith("/") else f"/{template}"]
        if self._definition.microsoft and template.lstrip("/").startswith("{connectionId}"):
            short = template.replace("{connectionId}", "", 1).replace("//", "/", 1)
            wanted.append(short if short.startswith("/") else f"/{short}")
        matches = [(t, found) for t in wanted if (found := _template(t).fullmatch(path))]
        if not matches:
            yield Fault("path", f"{path} is not {template}")
            return
        template, found = matches[-1]
        if "}{" in template:
            return  # there is no telling where one value ends
        values = dict(zip(_VARIABLE.findall(template), found.groups(), strict=True))
        for each in self._at("path"):
            if each.name in values:
                yield from self._value_faults(each, _path_readings(self, each, values[each.name]))

    # --- query ---

    def _query_faults(self, pairs: list[tuple[str, str, str]]) -> Iterator[Fault]:
        given = [(unquote_plus(name), value) for name, _, value in pairs]
        known: set[str] = set()
        for each in self._at("query"):
            occurring, readings = _query_readings(self, each, given)
            known |= occurring
            if occurring:
                yield from self._value_faults(each, readings)
            elif each.required and not self._is_in_template(each.name):
                yield Fault("query", f"{each.name} is required and missing")
        template = self._path.partition("#")[0].partition("?")[2]
        known |= {unquote_plus(p.partition("=")[0]).strip("{}") for p in template.split("&")}
        for name in dict.fromkeys(name for name, _ in given if name not in known):
            yield Fault("undeclared", f"the query has {name}")

    def _is_in_template(self, name: str) -> bool:
        return f"{{{name}}}" in self._path.partition("?")[2]

    # --- headers ---

    def _header_faults(self) -> Iterator[Fault]:
        given = {name.lower(): value for name, value in self._sent.headers}
        known = OURS | {"content-type", "cookie"}
        for each in self._at("header"):
            name = each.name.strip().lower()
            if (not self._definition.two and name in OURS_IN_3) or " " in name:
                continue
            known |= {name}
            if name in given and name not in ("accept-encoding", "content-length"):
                yield from self._value_faults(each, _plain_readings(self, each, given[name], str))
            elif each.required and name not in given:
                yield Fault("header", f"{each.name} is required and missing")
        yield from (Fault("undeclared", f"the header {name}") for name in given.keys() - known)
        cookies = [
            c.strip().partition("=") for c in given.get("cookie", "").split(";") if c.strip()
        ]
        jar = [(unquote(name), value) for name, _, value in cookies]
        for each in self._at("cookie"):
            occurring, readings = _query_readings(self, each, jar)
            if occurring:
                yield from self._value_faults(each, readings)
            elif each.required:
                yield Fault("cookie", f"{each.name} is required and missing")

    def _value_faults(self, each: _Declared, readings: Iterator[Any]) -> Iterator[Fault]:
        tried = list(islice(readings, 50))
        if not any(self._definition.accepts(each.schema, value) for value in tried):
            told = [*self._definition.problems(each.schema, tried[0] if tried else None)][:1]
            yield Fault(each.place, f"{each.name} = {tried[:2]}: {told}")

    # --- body ---

    def _body_faults(self) -> Iterator[Fault]:
        kinds = [value for name, value in self._sent.headers if name.lower() == "content-type"]
        if len(kinds) > 1:
            yield Fault("media type", "there are several")
        contents, required = self._contents()
        if not self._sent.body:
            form = any("urlencoded" in kind for kind, _ in contents)
            if (
                required
                and contents
                and not (form and self._definition.accepts(contents[0][1].get("schema", {}), {}))
            ):
                yield Fault("body", "is required and missing")
            return
        if not contents:
            yield Fault("body", "there should be none")
            return
        kind = (kinds or [""])[0]
        essence = kind.partition(";")[0].strip().lower()
        media = [each for wanted, each in contents if _is_of(essence, wanted)]
        if not media:
            yield Fault("media type", f"{kind} is none of {[wanted for wanted, _ in contents]}")
            return
        yield from self._content_faults(essence, kind, media[0])

    def _contents(self) -> tuple[list[tuple[str, Json]], bool]:
        """Each media type with its schema and encoding, and whether there must be a body."""
        if not self._definition.two:
            if "requestBody" not in self._operation:
                return [], False
            raw = self._definition.resolved(self._operation["requestBody"])
            contents = mapping(raw.get("content")).items()
            return [(kind, mapping(media)) for kind, media in contents], raw.get("required") is True
        fields, bodies = self._at("formData"), self._at("body")
        if fields:
            schema = {
                "type": "object",
                "properties": {each.name: each.schema for each in fields},
                "required": [each.name for each in fields if each.required],
            }
            file = any(mapping(each.schema).get("type") == "file" for each in fields)
            kinds = ["multipart/form-data"] + ["application/x-www-form-urlencoded"] * (not file)
            return [(kind, {"schema": schema}) for kind in kinds], bool(schema["required"])
        if not bodies:
            return [], False
        consumed = self._operation.get("consumes")
        if not isinstance(consumed, list):
            consumed = self._definition.root.get("consumes")
        headers = [each for each in self._at("header") if each.name.lower() == "content-type"]
        named = [str(each.schema.get("default", "*/*")).strip() for each in headers]
        asked = [each for each in headers if each.schema.get("x-ms-visibility") != "internal"]
        kinds = [*(consumed or ()), *named] or ["*/*"]
        if asked:
            kinds.append("*/*")  # the caller says which
        return [(str(kind), {"schema": bodies[0].schema}) for kind in kinds], bodies[0].required

    def _content_faults(self, essence: str, kind: str, media: Json) -> Iterator[Fault]:
        schema = media.get("schema", {})
        body = self._sent.body
        if essence.endswith(("/json", "+json")):
            try:
                value = json.loads(body)
            except ValueError:
                yield Fault("body", "is no JSON")
                return
            yield from self._schema_faults(schema, value)
        elif essence == "application/x-www-form-urlencoded":
            pairs = [p.partition("=") for p in body.decode().split("&") if p]
            given = [(unquote_plus(name), value) for name, _, value in pairs]
            yield from self._form_faults(schema, media, given)
        elif essence.startswith("multipart/"):
            yield from self._form_faults(schema, media, list(_parts(kind, body)))

    def _schema_faults(self, schema: Any, value: Any) -> Iterator[Fault]:
        told = list(islice(self._definition.problems(schema, value), 3))
        if told:
            yield Fault("body", f"{json.dumps(value)[:300]}: {told}")

    def _form_faults(
        self, schema: Any, media: Json, given: list[tuple[str, str]]
    ) -> Iterator[Fault]:
        encoding = mapping(media.get("encoding"))
        value: dict[str, Any] = {}
        left = {name for name, _ in given}
        for name, each in properties_of(self._definition, schema).items():
            said = mapping(encoding.get(name))
            style = str(said.get("style") or mapping(each).get("collectionFormat") or "form")
            explode = said.get("explode", style in ("form", "multi", "deepObject"))
            declared = _Declared(name, "form", False, each, style, explode)
            occurring, readings = _query_readings(self, declared, given)
            left -= occurring
            tried = list(islice(readings, 50)) if occurring else []
            fitting = [v for v in tried if self._definition.accepts(each, v)]
            if tried:
                value[name] = (fitting or tried)[0]
        value |= {name: unquote_plus(text) for name, text in given if name in left}
        yield from self._schema_faults(schema, value)

    def fitted(self, text: str, schema: Any) -> Any:
        """The value that a text stands for under a schema."""
        return next((v for v in _guesses(text) if self._definition.accepts(schema, v)), text)

    def kind(self, schema: Any, keyword: str) -> Any:
        """What a schema says of its items or properties, wherever in it that stands."""
        return next((found[keyword] for found in self._within(schema, 0) if keyword in found), {})

    def _within(self, schema: Any, level: int) -> Iterator[Json]:
        if not isinstance(schema, dict) or level > 8:
            return
        found = self._definition.resolved(schema)
        yield found
        for key in ("allOf", "anyOf", "oneOf"):
            for each in found.get(key) or ():
                yield from self._within(each, level + 1)


def properties_of(definition: Definition, schema: Any, level: int = 0) -> dict[str, Any]:
    """The properties of an object, with those of what it is made of."""
    found = definition.resolved(schema)
    properties: dict[str, Any] = {}
    for key in ("allOf", "anyOf", "oneOf"):
        for each in (found.get(key) or ()) if level < 8 else ():
            properties |= properties_of(definition, each, level + 1)
    return properties | dict(mapping(found.get("properties")))


def _is_of(essence: str, wanted: str) -> bool:
    plain = wanted.partition(";")[0].strip().lower()
    if plain.endswith("/*"):
        return plain == "*/*" or essence.startswith(plain[:-1])
    return essence == plain


@lru_cache(maxsize=1000)
def _template(template: str) -> re.Pattern[str]:
    pieces = _VARIABLE.split(template)
    texts = ["".join(_letter(c) for c in piece) for piece in pieces[::2]]
    return re.compile("([^/?#]*)".join(texts))


def _letter(letter: str) -> str:
    escaped = "".join(f"%{byte:02x}" for byte in letter.encode())
    return f"(?:{re.escape(letter)}|(?i:{escaped}))"


# --- texts as values ------------------------------------------------------------------------------


def _guesses(text: str) -> Iterator[Any]:
    yield text
    if re.fullmatch(r"-?[0-9]+", text):
        yield int(text)
    if re.fullmatch(r"-?[0-9.]+([eE][-+]?[0-9]+)?", text):
        try:
            yield float(text)
        except ValueError:
            return
    if text in ("true", "false"):
        yield text == "true"
    if text[:1] in ("{", "[", '"') or text == "null":
        try:
            yield json.loads(text)
        except ValueError:
            return


def _plain_readings(judged: _Judgement, each: _Declared, text: str, decode: Any) -> Iterator[Any]:
    """What one text may stand for, without names in it."""
    whole = decode(text)
    yield judged.fitted(whole, each.schema)
    between = DELIMITERS.get(each.style, ",")
    items, properties = judged.kind(each.schema, "items"), judged.kind(each.schema, "properties")
    for parts in ([decode(p) for p in text.split(between)], whole.split(between)):
        yield [judged.fitted(part, items) for part in parts if parts != [""]]
        paired = [p.partition("=")[::2] for p in parts] if each.explode else None
        paired = paired or list(zip(parts[::2], parts[1::2], strict=False))
        yield {k: judged.fitted(v, mapping(properties).get(k, {})) for k, v in paired}


def _path_readings(judged: _Judgement, each: _Declared, text: str) -> Iterator[Any]:
    def decode(raw: str) -> str:
        return unquote(unquote(raw)) if each.double else unquote(raw)

    yield from _plain_readings(judged, each, text, decode)


def _query_readings(
    judged: _Judgement, each: _Declared, given: list[tuple[str, str]]
) -> tuple[set[str], Iterator[Any]]:
    """The names that a parameter has in a query or form, and the values these may stand for."""
    others = judged.names_at(each.place) - {each.name}
    given = [(name, value) for name, value in given if name not in others]
    values = [value for name, value in given if name == each.name]
    if values:
        return {each.name}, _named_readings(judged, each, values)
    deep = [(name, value) for name, value in given if name.startswith(f"{each.name}[")]
    if deep:
        nested = _nested(judged, each, deep)
        return {name for name, _ in deep}, iter([nested])
    properties = mapping(judged.kind(each.schema, "properties"))
    closed = judged.kind(each.schema, "additionalProperties") is False
    open_ = judged.kind(each.schema, "type") == "object" and not (properties or closed)
    if each.explode and each.style == "form" and (properties or open_):
        found = [(n, v) for n, v in given if n in properties or open_]
        value = {n: judged.fitted(unquote_plus(v), properties.get(n, {})) for n, v in found}
        return {n for n, _ in found}, iter([value])
    return set(), iter(())


def _named_readings(judged: _Judgement, each: _Declared, values: list[str]) -> Iterator[Any]:
    if len(values) == 1:
        yield from _plain_readings(judged, each, values[0], unquote_plus)
    items = judged.kind(each.schema, "items")
    yield [judged.fitted(unquote_plus(value), items) for value in values]


def _nested(judged: _Judgement, each: _Declared, deep: list[tuple[str, str]]) -> Any:
    """`a[b][c]=1` and `a[]=1` as objects and lists."""
    root: dict[str, Any] = {}
    for name, value in deep:
        steps, inner = re.findall(r"\[([^\]]*)\]", name[len(each.name) :]), root
        for step in steps[:-1]:
            inner = inner.setdefault(step or str(len(inner)), {})
        inner[steps[-1] or str(len(inner))] = unquote_plus(value)
    return _typed(judged, each.schema, root)


def _typed(judged: _Judgement, schema: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        return judged.fitted(value, schema)
    items, properties = judged.kind(schema, "items"), mapping(judged.kind(schema, "properties"))
    if items and all(key.isdigit() for key in value):
        return [_typed(judged, items, each) for each in value.values()]
    extra = judged.kind(schema, "additionalProperties")
    extra = extra if isinstance(extra, dict) else {}
    return {key: _typed(judged, properties.get(key, extra), each) for key, each in value.items()}


def _parts(kind: str, body: bytes) -> Iterator[tuple[str, str]]:
    """The parts of a multipart body: name and content, encoded as in a form."""
    boundary = re.search(r'boundary="?([^";]+)', kind)
    if boundary is None:
        raise Unjudged("a multipart body without a boundary")
    for part in body.split(f"--{boundary[1]}".encode())[1:-1]:
        head, _, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        name = re.search(r'name="([^"]*)"', head.decode())
        if name is not None:
            text = content.removesuffix(b"\r\n").decode("utf-8", "replace")
            yield unquote(name[1]), quote(text)
