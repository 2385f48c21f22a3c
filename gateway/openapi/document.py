"""A definition whose version is known, its operations and its references.

References are looked up in this document only: nothing is ever fetched. A reference costs a few
bytes and may stand for a lot, thousands of times over; so work is counted over the whole document,
and a definition that multiplies itself is refused.

Where an operation is to be found: one base URL out of servers, hosts, and where we got it.

Configuration wins over everything, an operation's own server over its path's, that one over the
document's. Relative ones count from where the definition was fetched. Where calls carry secrets,
all of them go to one host: a definition can't name another one for some operation to draw them out.

What a definition says about credentials, next to what the connection itself provides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from gateway.errors import DefinitionUnreadable
from gateway.model import DEFAULT_KEY_HEADER, Source
from gateway.openapi.reading import MAX_OPERATIONS, METHODS, Parts, objects_in, whole
from gateway.text import cut

MAX_HOPS = 50  # references that lead to references
MAX_WORK = 120_000  # parameters, properties and the like; one like Stripe's comes to half
MAX_LEVELS = 8  # of a path item, down to the fields of a form
MAX_ID = 300  # an operation id longer than this is taken for none

_EMPTY: Mapping[str, Any] = {}


class Unusable(Exception):
    """This operation, or this reference, can't be understood; the message says why."""


@dataclass(frozen=True, slots=True)
class Document:
    """A definition whose version is known.

    Much is remembered by the id of an object. Objects come and go, and their ids are given out
    again: so what is remembered holds its object, and goes with it.
    """

    root: Mapping[str, Any]
    format: str
    swagger: bool
    found: dict[str, Any] = field(default_factory=dict)  # references resolved so far
    anchors: dict[str, Any] = field(default_factory=dict)
    kinds: dict[int, tuple[Any, Mapping[str, Any]]] = field(default_factory=dict)  # extending it
    credentials: dict[int, tuple[Any, str]] = field(default_factory=dict)  # a list of them, spelled
    by_others: list[dict[int, Any]] = field(default_factory=list)  # what they remember by id
    work: list[int] = field(default_factory=lambda: [0])  # done so far

    @property
    def memos(self) -> list[dict[int, Any]]:
        return [self.kinds, self.credentials, *self.by_others]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path, as written."""

    id: str | None
    method: str
    path: str
    raw: Mapping[str, Any]
    item: Mapping[str, Any]


class Made(dict[str, Any]):
    """An object of our own making: nobody comes across it again, so nothing is remembered of it."""


def open_document(definition: Mapping[str, Any]) -> Document:
    """The definition with its version made out."""
    swagger, openapi = (_version(definition.get(key)) for key in ("swagger", "openapi"))
    if swagger == "2.0":
        return Document(definition, "swagger-2.0", swagger=True)
    if openapi.startswith("3.0"):
        return Document(definition, "openapi-3.0", swagger=False)
    if openapi.startswith("3."):
        return Document(definition, "openapi-3.1", swagger=False)
    found = f"version {swagger or openapi} " if swagger or openapi else "no version "
    raise DefinitionUnreadable(
        f'Not an OpenAPI definition we know: {found}at "swagger" or "openapi".',
        'Swagger 2.0 ("swagger": "2.0") and OpenAPI 3.0 and 3.1 ("openapi": "3.…") are read.',
    )


def _version(value: Any) -> str:
    text = str(value).strip() if isinstance(value, (str, int, float)) else ""
    return "2.0" if text == "2" else text


def count_operations(document: Document) -> int:
    """How many there are for `operations` to give; refuses more than are read."""
    broken = total = 0
    for _, written in _path_items(document):
        try:
            total += sum(method.lower() in METHODS for method in _path_item(document, written))
        except Unusable:
            broken += 1
        if total > MAX_OPERATIONS:
            raise DefinitionUnreadable(
                f"The definition has more operations than {MAX_OPERATIONS:,}.",
                "Split the definition, or serve only the part that is needed.",
            )
    return broken + total


def operations(document: Document) -> Iterator[Operation | tuple[str, str, str]]:
    """Every operation in document order; (method, path, reason) for what is not one."""
    for path, written in _path_items(document):
        try:
            item = _path_item(document, written)
        except Unusable as error:
            yield "", path, str(error)
            continue
        for method in item:
            if method.lower() in METHODS:
                yield _operation(method.upper(), path, item[method], item)


def _path_items(document: Document) -> Iterator[tuple[str, Any]]:
    """What is written at each path; read in passing, it is forgotten before the next."""
    paths = mapping(document.root.get("paths"))
    for path in paths:
        if path.startswith("x-"):
            continue
        if not isinstance(paths, Parts) or paths.keeps(path):
            yield path, paths[path]
            continue
        written, known = paths.passing(path), [len(memo) for memo in document.memos]
        yield path, written
        if not paths.keeps(path) and [len(memo) for memo in document.memos] != known:
            _forget(document, written, known)


def _forget(document: Document, written: Any, known: Sequence[int]) -> None:
    """Let go of what was remembered of a path item since so much was known.

    The rest of what is new was reached by references, and stays, as does what lies deeper than
    inputs do: going through large examples would cost more than to hold on to it.
    """
    counts = zip(document.memos, known, strict=True)
    new = {key for memo, old in counts for key in islice(reversed(memo), len(memo) - old)}
    level = written.read_so_far() if isinstance(written, Parts) else []
    for _ in range(MAX_LEVELS):
        parts = [part for part in level if isinstance(part, (dict, list))]
        for key in new.intersection(map(id, parts)):
            for memo in document.memos:
                memo.pop(key, None)
        level = [
            inner for part in parts for inner in (part.values() if isinstance(part, dict) else part)
        ]


def _operation(
    method: str, path: str, raw: Any, item: Mapping[str, Any]
) -> Operation | tuple[str, str, str]:
    if not isinstance(raw, dict):
        return method, path, "the operation is not an object"
    identity = raw.get("operationId")
    known = text_of(identity).strip() and len(text_of(identity)) <= MAX_ID
    return Operation(text_of(identity) if known else None, method, path, raw, item)


def _path_item(document: Document, written: Any) -> Mapping[str, Any]:
    if not isinstance(written, Mapping):
        raise Unusable("the path item is not an object")
    if "$ref" not in written:
        return written
    target = resolved(document, written)
    return {**target, **{key: value for key, value in written.items() if key != "$ref"}}


def spend_on(document: Document, inputs: int) -> None:
    """Count the work on so many inputs of one operation; crowds cost more than their number."""
    spend(document, inputs * (1 + inputs // 100))


def spend(document: Document, amount: int) -> None:
    """Count work; refuse the definition when it comes to more than any real one needs."""
    document.work[0] += amount
    if document.work[0] > MAX_WORK:
        raise DefinitionUnreadable(
            f"The definition's operations come to more than {MAX_WORK:,} inputs and texts in all.",
            "Split the definition, or serve only the part that is needed.",
        )


# --- references -----------------------------------------------------------------------------------


def resolved(document: Document, value: Any) -> Mapping[str, Any]:
    """The object that a value is or, through references, stands for."""
    for _ in range(MAX_HOPS):
        if not isinstance(value, dict):
            raise Unusable("a reference leads to something that is not an object")
        reference = value.get("$ref")
        if not isinstance(reference, str):
            return value
        value = target_of(document, reference)
    raise Unusable("references lead to each other in a circle")


def target_of(document: Document, reference: str) -> Any:
    """What a local reference points at."""
    if reference not in document.found:
        if not reference.startswith("#"):
            raise Unusable(f"reference to another document is not followed: {reference[:200]}")
        pointer = reference.startswith("#/")
        value = _pointed(document, reference) if pointer else _anchored(document, reference)
        document.found[reference] = whole(value)
    return document.found[reference]


def _pointed(document: Document, reference: str) -> Any:
    value: Any = document.root
    for segment in reference[2:].split("/"):
        value = _step(value, segment, reference)
    return value


def _anchored(document: Document, reference: str) -> Any:
    """The schema that an `$anchor` of 3.1 names; `#` alone is the document."""
    if not document.anchors:
        document.anchors.update(_anchors(document.root))
        document.anchors["#"] = document.root
    if reference not in document.anchors:
        raise Unusable(f"reference leads nowhere: {reference[:200]}")
    return document.anchors[reference]


def _anchors(root: Any) -> Iterator[tuple[str, Any]]:
    for part in objects_in(root):
        if isinstance(name := part.get("$anchor"), str):
            yield f"#{name}", part


def _step(value: Any, segment: str, reference: str) -> Any:
    for name in (unquote(segment), segment):
        key = name.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and key in value:
            return value[key]
        if isinstance(value, list) and key.isascii() and key.isdigit() and int(key) < len(value):
            return value[int(key)]
    raise Unusable(f"reference leads nowhere: {reference[:200]}")


# --- what may be anything -------------------------------------------------------------------------


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else _EMPTY


def sequence(value: Any) -> Sequence[Any]:
    """The value if it is a list, else an empty one."""
    return value if isinstance(value, list) else ()


def text_of(value: Any) -> str:
    """The value if it is text, else none."""
    return value if isinstance(value, str) else ""


def is_internal(raw: Mapping[str, Any]) -> bool:
    """Microsoft's word for "not for people"; both spellings occur."""
    return text_of(raw.get("x-ms-visibility")).lower() == "internal"


MAX_URL = 2_000
MAX_SERVERS = 5
_ODD = re.compile(r"[\s{}]")
_VARIABLE = re.compile(r"\{([^{}]*)\}")


def base_url_of(document: Document, source: Source) -> str:
    """The definition's own base URL, or the configured one; "" if there is none."""
    if source.base_url:
        return source.base_url.rstrip("/")
    if document.swagger:
        return _swagger_url(document.root, source.location)
    listed = document.root.get("servers")
    return _first_usable(listed if listed else [{"url": "/"}], source.location)


def operation_base_url(
    document: Document, operation: Operation, source: Source, default: str
) -> str:
    """The operation's base URL: its own server or its path's, unless one is configured."""
    if source.base_url or document.swagger:
        return default
    for listed in (operation.raw.get("servers"), operation.item.get("servers")):
        if listed and (url := _first_usable(listed, default + "/" if default else source.location)):
            return url
    return default


def home_of(document: Document, source: Source, default: str) -> str:
    """The base URL that credentials are meant for; "" where the first operation decides it."""
    return default if source.base_url or document.swagger or document.root.get("servers") else ""


def elsewhere(source: Source, home: str, base_url: str) -> str | None:
    """Why an operation at this base URL is no tool of a connection whose secrets are for `home`."""
    if not source.carries_secrets or _origin(home) == _origin(base_url):
        return None
    there = urlsplit(base_url).netloc or "nowhere"
    return f"its server ({there}) is not the one that the connection's credentials are for"


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, port


def _first_usable(servers: Any, location: str) -> str:
    for server in sequence(servers)[:MAX_SERVERS]:
        if url := _server_url(mapping(server), location):
            return url
    return ""


def _server_url(server: Mapping[str, Any], location: str) -> str:
    variables = mapping(server.get("variables"))
    url = _VARIABLE.sub(
        lambda found: _default_of(mapping(variables.get(found[1])), found[0]),
        text_of(server.get("url"))[:MAX_URL].strip(),
    )
    return _absolute(url, location)


def _default_of(variable: Mapping[str, Any], unknown: str) -> str:
    value = variable.get("default", next(iter(sequence(variable.get("enum"))), unknown))
    return str(value) if isinstance(value, (str, int)) else unknown


def _swagger_url(root: Mapping[str, Any], location: str) -> str:
    host = text_of(root.get("host")).strip()
    path = text_of(root.get("basePath")).strip()
    schemes = [scheme for scheme in sequence(root.get("schemes")) if scheme in ("https", "http")]
    origin = urlsplit(location)
    if not host:
        return _absolute(path or "/", location)
    default = origin.scheme if origin.scheme == "http" and origin.netloc == host else "https"
    scheme = "https" if "https" in schemes else next(iter(schemes), default)
    if root.get("schemes") and not schemes:
        return ""
    return _absolute(f"{scheme}://{host}/{path.lstrip('/')}", "")


def _absolute(url: str, location: str) -> str:
    """The URL against where the definition came from, "" unless it is plain http or https."""
    try:
        joined = urljoin(location, url) if location.startswith(("http://", "https://")) else url
        parts = urlsplit(joined)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return ""
    if (
        not usable
        or len(joined) > MAX_URL
        or "@" in parts.netloc
        or "{" in joined
        or any(c.isspace() for c in joined)
    ):
        return ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")


MAX_ALTERNATIVES = 20
MAX_SECURITY = 1_000  # characters of the canonical spelling


def sent_with_every_call(document: Document, source: Source) -> frozenset[tuple[str, str]]:
    """Place and name of what the connection itself sends: nobody's to fill in."""
    sent = {("header", name) for name in source.headers}
    keys = declared_keys(document, source)
    if source.auth_type == "api-key":
        name, place = keys[0] if len(keys) == 1 else (DEFAULT_KEY_HEADER, "header")
        sent.add((source.auth_in or place, source.auth_name or name))
    elif source.auth_type != "none":
        sent.add(("header", "Authorization"))
    if source.kind == "arm":  # Azure holds what a connector asks for
        sent.update((place, name) for name, place in keys)
    return frozenset((place, folded(place, name)) for place, name in sent)


def declared_keys(document: Document, source: Source) -> list[tuple[str, str]]:
    """Name and place of each API key of the definition that the connection's may be."""
    schemes = (_scheme(document, name) for name in _schemes(document))
    found = (
        (text_of(scheme.get("name")), text_of(scheme.get("in")))
        for scheme in schemes
        if scheme.get("type") == "apiKey" and scheme.get("in") in ("header", "query")
    )
    return [
        (name, place)
        for name, place in dict.fromkeys(found)
        if source.auth_name in (None, name) and source.auth_in in (None, place)
    ]


def folded(place: str, name: str) -> str:
    """The name as it is compared: headers know no case."""
    return name.lower() if place == "header" else name


def required_credentials(document: Document, operation: Operation) -> str:
    """The credentials an operation asks for, always spelled the same: a change is a risk."""
    own = operation.raw.get("security")
    listed = own if isinstance(own, list) else document.root.get("security")
    if id(listed) not in document.credentials:
        alternatives = sequence(listed)[:MAX_ALTERNATIVES]
        spelled = sorted({_spelled(document, mapping(each)) for each in alternatives})
        document.credentials[id(listed)] = (listed, cut(" or ".join(spelled), MAX_SECURITY))
    return document.credentials[id(listed)][1]


def _spelled(document: Document, requirement: Mapping[str, Any]) -> str:
    names = sorted(requirement)[:MAX_ALTERNATIVES]
    return " and ".join(_words(_scheme(document, name)) for name in names) or "none"


def _words(scheme: Mapping[str, Any]) -> str:
    parts = [text_of(scheme.get(key)) for key in ("type", "scheme", "in", "name")]
    return " ".join([part for part in parts if part] + sorted(_addresses(scheme)))


def _addresses(scheme: Mapping[str, Any]) -> Iterator[str]:
    """Where tokens come from: an address that changed would get the client's secret."""
    for each in (scheme, *mapping(scheme.get("flows")).values()):
        for key in ("tokenUrl", "authorizationUrl", "openIdConnectUrl"):
            if address := text_of(mapping(each).get(key)):
                yield cut(address, 200)


def _schemes(document: Document) -> Mapping[str, Any]:
    root = document.root
    components = mapping(root.get("components"))
    return mapping(root.get("securityDefinitions")) or mapping(components.get("securitySchemes"))


def _scheme(document: Document, name: str) -> Mapping[str, Any]:
    try:
        return resolved(document, _schemes(document).get(name))
    except Unusable:
        return {}
