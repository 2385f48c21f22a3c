"""Arguments that were checked become the one request that will be sent.

Pure, and written so that a value can't reach out of its place: not out of its path segment, not
into another parameter, header or cookie, and never to another host, because the base URL is put in
front of a path that is known to begin with a slash. The template's own text is sent as the
definition spells it. What comes out is the very text that goes on the wire.

How a value is written outside a body: the tables of OpenAPI 3.1, style by style.

Everything here is text in, text out. The encoder is handed in, since a path, a query, a cookie and
a form each have their own idea of which characters may stand as they are; the delimiters of a style
are put between values that are already encoded, so a value can never pass for a delimiter.
Null is RFC 6570's "undefined": it is left out, in lists and objects too.

A request body, put together from arguments in the media type that the operation wants.

An object's properties are arguments of their own (`fields`) or the body is one argument (`whole`);
where the object may have others, arguments with no place of their own are properties as they are.
Hidden constants are merged in last, so a caller can't override them. Files come as base64 and leave
as bytes. A multipart boundary is made from a hash of the parts: the same arguments give the same
bytes, and no part can hold the boundary.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from fnmatch import fnmatch
from functools import lru_cache
from mimetypes import MimeTypes
from typing import Any
from urllib.parse import quote
from xml.sax.saxutils import escape, quoteattr

import orjson

from gateway.blocklist import blocked_by, decodings, may_reroute
from gateway.calls.arguments import problem
from gateway.errors import Fixable, Refused
from gateway.model import MEDIA_TYPE_PATTERN, Body, Field, HttpOperation, Parameter, Style
from gateway.outbound.client import Request

Encode = Callable[[str], str]

DELIMITERS: Mapping[str, str] = {
    "spaceDelimited": " ",
    "pipeDelimited": "|",
    "tabDelimited": "\t",
}
WHOLE_FLOAT_LIMIT = 1e15  # beyond, a float no longer stands for one whole number


def scalar(value: Any) -> str:
    """One value as text: `true`, `1`, `blue`; what is not scalar as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < WHOLE_FLOAT_LIMIT:
        return str(int(value))  # 1.0 is an integer to JSON Schema, but seldom to a server
    return to_json(value).decode()


def to_json(value: Any) -> bytes:
    """A value as JSON."""
    return orjson.dumps(value)


def is_json(media_type: str) -> bool:
    """Whether what has this media type is written as JSON."""
    plain = media_type.partition(";")[0].strip().lower()
    return plain.endswith(("/json", "+json"))


def joined(style: Style, explode: bool, name: str, value: Any, encode: Encode) -> str:
    """A value in the styles that make one text: simple, label, matrix, the delimited ones."""
    if style == "simple" and isinstance(value, (str, int, float)):
        return encode(scalar(value))
    if style == "matrix":
        return _matrix(explode, name, value, encode)
    lead, between = (".", "." if explode else ",") if style == "label" else ("", ",")
    return lead + _between(style, encode, between).join(_parts(explode, value, encode))


def _between(style: Style, encode: Encode, otherwise: str = ",") -> str:
    return encode(DELIMITERS[style]) if style in DELIMITERS else otherwise


def _parts(explode: bool, value: Any, encode: Encode) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in _present(value):
            yield from [f"{encode(key)}={encode(item)}"] if explode else [encode(key), encode(item)]
    elif isinstance(value, (list, tuple)):
        yield from (encode(scalar(item)) for item in value if item is not None)
    else:
        yield encode(scalar(value))


def _matrix(explode: bool, name: str, value: Any, encode: Encode) -> str:
    if explode and isinstance(value, Mapping):
        return "".join(f";{encode(key)}={encode(item)}" for key, item in _present(value))
    if explode and isinstance(value, (list, tuple)):
        return "".join(f";{encode(name)}={part}" for part in _parts(explode, value, encode))
    text = ",".join(_parts(explode, value, encode))
    return f";{encode(name)}={text}" if text else f";{encode(name)}"


def pairs(
    style: Style, explode: bool, name: str, value: Any, encode: Encode
) -> Iterator[tuple[str, str]]:
    """A value in the styles that make `name=value`: form, the delimited ones, deepObject."""
    if isinstance(value, (str, int, float)):
        yield name, encode(scalar(value))
    elif style == "deepObject" and isinstance(value, (Mapping, list, tuple)):
        yield from _deep(name, value, encode)
    elif isinstance(value, (Mapping, list, tuple)) and not value:
        return
    elif isinstance(value, Mapping) and explode and style == "form":
        yield from ((key, encode(item)) for key, item in _present(value))
    elif isinstance(value, (list, tuple)) and explode:
        yield from ((name, part) for part in _parts(False, value, encode))
    else:
        yield name, _between(style, encode).join(_parts(False, value, encode))


def _deep(name: str, value: Any, encode: Encode) -> Iterator[tuple[str, str]]:
    """`a[b][c]=1`; `a[]=1` for plain items, `a[0][b]=1` where items have parts of their own."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _deep(f"{name}[{key}]", item, encode)
    elif isinstance(value, (list, tuple)):
        nested = any(isinstance(item, (Mapping, list, tuple)) for item in value)
        for index, item in enumerate(value):
            yield from _deep(f"{name}[{index if nested else ''}]", item, encode)
    elif value is not None:
        yield name, encode(scalar(value))


def _present(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    return ((str(key), scalar(item)) for key, item in value.items() if item is not None)


def percent(text: str) -> str:
    """Everything but letters, digits and `-._~` percent-encoded."""
    return text if _UNRESERVED.fullmatch(text) else _OTHERS.sub(_escaped, text)


_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]*")
_OTHERS = re.compile(r"[^A-Za-z0-9._~-]+")


def _escaped(others: re.Match[str]) -> str:
    return "".join([f"%{byte:02X}" for byte in others[0].encode()])


# `&` would begin another parameter, to some servers `;` would too, and `#` would end the query.
_RESERVED = ":/?[]@!$'()*+,="


def percent_but_reserved(text: str) -> str:
    """As `allowReserved` wants it: reserved characters and existing escapes stay."""
    pieces = re.split(r"(%[0-9A-Fa-f]{2})", text)
    return "".join(p if i % 2 else quote(p, safe=_RESERVED) for i, p in enumerate(pieces))


def parameter_name(name: str) -> str:
    """A name for a query or form: `$filter` and `a:b` stay readable, nothing can inject."""
    return name if _UNRESERVED.fullmatch(name) else quote(name, safe="$@:!*(),'/")


_ABSENT = object()


def encode_body(body: Body, arguments: Mapping[str, Any]) -> tuple[str, bytes] | None:
    """The `Content-Type` and the bytes, or None if nothing is to be sent."""
    value = _body_content(body, arguments)
    if value is _ABSENT:
        return None
    media_type = body.media_type.partition(";")[0].strip().lower()
    is_form = media_type == "application/x-www-form-urlencoded"
    written = is_form and isinstance(value, str)  # by the caller
    _check_names(body, _form_names(value) if written else value)
    if is_form:
        return body.media_type, value.encode() if written else _form(body, value)
    if media_type.startswith("multipart/"):
        return _multipart(body, value, arguments)
    if body.wrap:
        value = {body.wrap: value if isinstance(value, list) else [value]}
    if body.binary:
        return body.media_type, _decoded(body.whole or "body", value)
    if is_json(media_type):
        return body.media_type, to_json(value)
    return _text(body, media_type, value)


def _body_content(body: Body, arguments: Mapping[str, Any]) -> Any:
    """The body as a JSON value with its constants, or _ABSENT."""
    if body.whole is not None:
        value = arguments.get(body.whole, _ABSENT)
        if value is None and not body.required:
            value = _ABSENT
    else:
        value = {f.name: arguments[f.argument] for f in body.fields if f.argument in arguments}
        if body.all_but is not None and (others := arguments.keys() - body.all_but):
            value |= _others(body, arguments, others)
        if not value and not body.required:
            value = _ABSENT
    if body.constants and (value is _ABSENT or isinstance(value, Mapping)):
        return _merged({} if value is _ABSENT else value, body.constants)
    if value is _ABSENT and body.required:
        raise problem(body.whole or "body", "is required")
    return value


def _check_names(body: Body, value: Any) -> None:
    """Refuse a property of the caller's own naming that some servers take for the method."""
    for name in value if isinstance(value, Mapping) else ():
        if may_reroute(str(name), "body") and all(name != field.name for field in body.fields):
            words = f"can't hold the key {name!r}: it could mean another method"
            raise problem(body.whole or "body", words)


def _form_names(text: str) -> dict[str, None]:
    """The names in a form that the caller wrote out; some servers part fields at `;` as well."""
    return dict.fromkeys(pair.partition("=")[0] for pair in re.split("[&;]", text))


def _others(body: Body, arguments: Mapping[str, Any], names: Set[str]) -> dict[str, Any]:
    """The properties that the definition does not name, in the caller's order."""
    for field in body.fields:
        if field.name in names:
            raise problem(field.name, f"is not known; did you mean {field.argument!r}?")
    return {name: value for name, value in arguments.items() if name in names}


def _merged(value: Any, constants: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(value)
    for key, constant in constants.items():
        inner = merged.get(key)
        both = isinstance(constant, Mapping) and isinstance(inner, Mapping)
        merged[key] = _merged(inner, constant) if both else constant
    return merged


def _text(body: Body, media_type: str, value: Any) -> tuple[str, bytes]:
    content_type = body.media_type
    if "charset" not in content_type.lower() and media_type.startswith("text/"):
        content_type += "; charset=utf-8"
    if body.xml is not None and isinstance(value, (Mapping, list)):
        text = XML_DECLARATION + _element("root", value, body.xml)
    elif isinstance(value, list) and media_type.endswith(("ndjson", "jsonl")):
        text = "".join(f"{to_json(item).decode()}\n" for item in value)
    else:
        text = scalar(value)  # objects as JSON, which YAML is as well
    return content_type, text.encode()


def _decoded(argument: str, value: Any) -> bytes:
    """The bytes of a file given in base64, read strictly."""
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            pass
    raise problem(argument, "must be the file's content in base64 (RFC 4648, with padding)")


def _multipart_parts(body: Body, value: Any) -> Iterator[tuple[Field, Any]]:
    """The properties of a form, each with what is known of it; null ones are left out."""
    if not isinstance(value, Mapping):
        raise problem(body.whole or "body", "must be an object: it is sent as a form")
    known = {f.name: f for f in body.fields}
    for name, item in value.items():
        if item is not None:
            yield known.get(name) or Field(name, str(name)), item


# --- XML ------------------------------------------------------------------------------------------

XML_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>'
_XML_NAME = re.compile(r"[A-Za-z_][\w.-]*(:[A-Za-z_][\w.-]*)?")


def _element(name: str, value: Any, layout: Mapping[str, Any]) -> str:
    """A value as an element, its properties as the definition's `xml` says."""
    name = opening = _xml_name(name, layout)
    if isinstance(value, Mapping):
        inside = ""
        for key, inner in value.items():
            own = layout.get("properties", {}).get(key, {})
            if inner is None:
                continue
            if own.get("attribute"):
                opening += f" {_xml_name(key, own)}={quoteattr(scalar(inner))}"
            else:
                inside += _elements(key, inner, own)
    elif isinstance(value, list):
        inside = "".join(_element(name, item, layout.get("items", {})) for item in value)
    else:
        inside = escape(scalar(value))
    if "namespace" in layout:
        prefix = f":{layout['prefix']}" if "prefix" in layout else ""
        opening += f" xmlns{prefix}={quoteattr(layout['namespace'])}"
    return f"<{opening}>{inside}</{name}>"


def _elements(name: str, value: Any, layout: Mapping[str, Any]) -> str:
    """A property's elements: of a list as many, unless it is to be wrapped in one."""
    if not isinstance(value, list) or layout.get("wrapped"):
        return _element(name, value, layout)
    return "".join(_element(name, item, layout.get("items", {})) for item in value)


def _xml_name(key: str, layout: Mapping[str, Any]) -> str:
    name = layout.get("name", key)
    name = f"{layout['prefix']}:{name}" if "prefix" in layout else name
    if not _XML_NAME.fullmatch(name):
        raise problem(key, "can't be the name of an XML element")
    return str(name)


# --- application/x-www-form-urlencoded ------------------------------------------------------------


def _form(body: Body, value: Any) -> bytes:
    texts = []
    for field, item in _multipart_parts(body, value):
        if _as_json(field, item):
            texts.append((field.name, percent(to_json(item).decode())))
        else:
            texts += pairs(field.style, field.explode, field.name, item, percent)
    return "&".join(f"{parameter_name(name)}={text}" for name, text in texts).encode()


def _as_json(field: Field, item: Any) -> bool:
    """Objects are JSON unless a style is asked for: their keys must not become fields."""
    if field.media_type and is_json(field.media_type):
        return True
    return isinstance(item, Mapping) and field.style == "form"


# --- multipart ------------------------------------------------------------------------------------


def _multipart(body: Body, value: Any, arguments: Mapping[str, Any]) -> tuple[str, bytes]:
    parts = [
        _part(field, item, arguments, number)
        for field, whole in _multipart_parts(body, value)
        for number, item in enumerate(_items(field, whole))
    ]
    boundary = _boundary(parts)
    line = b"--" + boundary.encode()
    content = b"".join(line + b"\r\n" + part + b"\r\n" for part in parts) + line + b"--\r\n"
    return f"{body.media_type}; boundary={boundary}", content


def _items(field: Field, whole: Any) -> list[Any]:
    """The values that become parts: a list is one part each, unless it is to be one text."""
    if not isinstance(whole, list) or _as_json(field, whole):
        return [whole]
    if field.explode or field.file:
        return whole
    return [text for _, text in pairs(field.style, False, field.name, whole, str)]


def _part(field: Field, item: Any, arguments: Mapping[str, Any], number: int) -> bytes:
    disposition = f'Content-Disposition: form-data; name="{_quoted(field.name)}"'
    media_type = field.media_type
    if field.file:
        content = _decoded(field.argument, item)
        name = _said(arguments, field.file_name_argument, number) or field.name
        disposition += f'; filename="{_quoted(name)}"'
        media_type = _said_type(arguments, field, number) or file_type(name, media_type or "")
    elif isinstance(item, (Mapping, list)) or _as_json(field, item):
        content = to_json(item)
        media_type = media_type or "application/json"
    else:
        content = scalar(item).encode()
    kind = f"\r\nContent-Type: {_one_line(media_type)}" if media_type else ""
    return f"{disposition}{kind}\r\n\r\n".encode() + content


def _said(arguments: Mapping[str, Any], argument: str | None, number: int) -> str:
    """What the caller says of a file, or of the one in this place of several."""
    said = arguments.get(argument or "")
    if isinstance(said, list):
        said = said[number] if number < len(said) else ""
    return str(said or "")


def _said_type(arguments: Mapping[str, Any], field: Field, number: int) -> str:
    said = _said(arguments, field.content_type_argument, number)
    if not _MEDIA_TYPE.fullmatch(said):
        raise problem(field.content_type_argument or "", "must be a media type such as image/png")
    return said


_MEDIA_TYPE = re.compile(MEDIA_TYPE_PATTERN)


def file_type(name: str, accepted: str) -> str:
    """The media type of a file: what its name says, among those that are accepted if any are."""
    kind, packing = _KNOWN_TYPES.guess_type(name.rpartition("/")[2])
    guessed = _PACKED_TYPES.get(packing, OCTETS) if packing else kind
    kinds = [each.strip() for each in accepted.split(",") if each.strip()]
    if not kinds or (guessed and any(fnmatch(guessed, each.lower()) for each in kinds)):
        return guessed or OCTETS
    return next((each for each in kinds if "*" not in each), OCTETS)


OCTETS = "application/octet-stream"
# The same on every machine: Python's own table with what it lacks, not the system's files.
_KNOWN_TYPES = MimeTypes()
_OFFICE = "application/vnd.openxmlformats-officedocument."
_KNOWN_TYPES.types_map[True].update(
    {
        ".docx": _OFFICE + "wordprocessingml.document",
        ".xlsx": _OFFICE + "spreadsheetml.sheet",
        ".pptx": _OFFICE + "presentationml.presentation",
        ".odt": "application/vnd.oasis.opendocument.text",
        ".ods": "application/vnd.oasis.opendocument.spreadsheet",
        ".epub": "application/epub+zip",
        ".7z": "application/x-7z-compressed",
        ".jsonl": "application/jsonl",
        ".md": "text/markdown",
        ".yaml": "application/yaml",
        ".yml": "application/yaml",
        ".webp": "image/webp",
        ".avif": "image/avif",
        ".heic": "image/heic",
        ".ogg": "audio/ogg",
        ".flac": "audio/flac",
        ".m4a": "audio/mp4",
    }
)
_PACKED_TYPES = {"gzip": "application/gzip", "bzip2": "application/x-bzip2"}


def _quoted(name: str) -> str:
    """A name inside quotation marks, escaped as browsers do."""
    return "".join(_ESCAPES.get(c, c) for c in name if c >= " " or c in "\r\n")


_ESCAPES = {'"': "%22", "\r": "%0D", "\n": "%0A"}


def _one_line(media_type: str) -> str:
    if not media_type.isprintable():
        raise Fixable("connection_invalid", "A media type of this operation can't be sent.")
    return media_type


def _boundary(parts: list[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    boundary = digest.hexdigest()[:32]
    while any(boundary.encode() in part for part in parts):
        boundary = hashlib.sha256(boundary.encode()).hexdigest()[:32]
    return boundary


def build_request(
    operation: HttpOperation, arguments: Mapping[str, Any], blocklist: Sequence[str] = ()
) -> Request:
    """The request that this operation makes of these arguments."""
    if not operation.base_url:
        raise Fixable(
            "connection_invalid",
            "The connection's definition does not say where the API is",
            "An operator must give base_url.",
        )
    path = _path(operation, arguments)
    check_not_blocked(blocklist, operation.base_url, path)
    query = _query(operation.parameters, arguments)
    body = encode_body(operation.body, arguments) if operation.body else None
    headers = {"Accept": operation.accept, **dict(_headers(operation.parameters, arguments))}
    if body:
        headers.setdefault("Content-Type", body[0])
    return Request(
        operation.method.upper(),
        with_query(join(operation.base_url, path), query),
        tuple(headers.items()),
        body[1] if body else None,
    )


def check_not_blocked(blocklist: Sequence[str], base_url: str, path: str) -> None:
    """Refuse a path that the connection's blocklist forbids."""
    if blocked_by(blocklist, base_url, path):
        raise Refused(
            "blocked_path",
            "Access to this endpoint is not allowed",
            "The operator of the gateway has blocked this path; use another tool.",
        )


def join(base_url: str, path: str) -> str:
    """Base URL and path, with no slash invented or lost but the one that must stand between."""
    base = base_url[:-1] if base_url.endswith("/") else base_url
    return base + (path if path.startswith("/") else f"/{path}")


def with_query(url: str, query: Sequence[str]) -> str:
    """The URL with these `name=value` texts, which are already encoded."""
    if not query:
        return url
    return f"{url}{'&' if '?' in url else '?'}{'&'.join(query)}"


def with_headers(request: Request, headers: Sequence[tuple[str, str]]) -> Request:
    """The request with these headers in place of any it had by the same names."""
    if not headers:
        return request
    names = {name.lower() for name, _ in headers}
    kept = [pair for pair in request.headers if pair[0].lower() not in names]
    return Request(request.method, request.url, (*kept, *headers), request.body)


def _value(parameter: Parameter, arguments: Mapping[str, Any]) -> Any:
    given = arguments.get(parameter.argument) if parameter.argument is not None else None
    return parameter.constant if given is None else given


def _content(parameter: Parameter, value: Any) -> Any:
    """The value; as text where the definition gives it a media type of its own."""
    if not parameter.media_type:
        return value
    return to_json(value).decode() if is_json(parameter.media_type) else scalar(value)


def _argument(parameter: Parameter) -> str:
    return parameter.argument or parameter.name


# --- path -----------------------------------------------------------------------------------------

_VARIABLE = re.compile(r"\{([^{}/]*)\}")
MAX_LITERALS = 4096
_TEMPLATE_SAFE = "/%!$&'()*+,;=:@?[]~"


def _path(operation: HttpOperation, arguments: Mapping[str, Any]) -> str:
    if "{" not in operation.path:
        return _literal(operation.path)
    known = {p.name: p for p in operation.parameters if p.place == "path"}
    segments = [
        _segment(template, known, arguments) if "{" in template else _literal(template)
        for template in operation.path.split("/")
    ]
    return "/".join(segments)


def _segment(template: str, known: Mapping[str, Parameter], arguments: Mapping[str, Any]) -> str:
    """One segment of the path that has a variable, or several."""
    texts = _VARIABLE.split(template)
    variables = [known.get(name) or Parameter(name, "path", name) for name in texts[1::2]]
    if not texts[0] and texts[2:] == [""] and (text := _plain_text(variables[0], arguments)):
        return text
    plain, sent = texts.copy(), [_literal(text) for text in texts]
    for index, variable in enumerate(variables):
        value = _path_value(variable, arguments)
        encode = _percent_twice if variable.double_encoded else percent
        plain[1 + 2 * index] = joined(variable.style, variable.explode, variable.name, value, str)
        sent[1 + 2 * index] = joined(variable.style, variable.explode, variable.name, value, encode)
    _check_segment(", ".join(map(_argument, variables)), "".join(plain))
    return "".join(sent)


@lru_cache(maxsize=MAX_LITERALS)
def _literal(text: str) -> str:
    return quote(text, safe=_TEMPLATE_SAFE)


_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


def _plain_text(parameter: Parameter, arguments: Mapping[str, Any]) -> str | None:
    """A value that is all of a segment and is written as it stands, as nearly all are."""
    if parameter.style != "simple" or parameter.media_type:
        return None
    value = _value(parameter, arguments)
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) else None


def _path_value(parameter: Parameter, arguments: Mapping[str, Any]) -> Any:
    value, name = _value(parameter, arguments), _argument(parameter)
    if value is None:
        raise problem(name, "is required: it is part of the path")
    value = _content(parameter, value)
    if not joined("simple", False, "", value, str).strip(" ,"):
        raise problem(name, "can't be empty: it is part of the path")
    return value


def _percent_twice(text: str) -> str:
    return percent(percent(text))


def _check_segment(name: str, text: str) -> None:
    """Refuse a value that some server on the way could take for more than part of a segment."""
    for decoded in decodings(text):
        plain = unicodedata.normalize("NFKC", decoded).replace("\\", "/")
        if any(unicodedata.category(c) == "Cc" for c in plain):
            raise problem(name, "can't hold control characters: it is part of the path")
        segments = [part.partition(";")[0].strip() for part in plain.split("/")]
        if "." in segments or ".." in segments:
            raise problem(name, "can't be or hold '.' or '..' as a path segment")
        if decoded is not text and len(segments) > 1 + text.count("/") + text.count("\\"):
            raise problem(name, "can't hold an encoded slash; give the plain text")


# --- query ----------------------------------------------------------------------------------------


def _query(parameters: Sequence[Parameter], arguments: Mapping[str, Any]) -> list[str]:
    names: set[str] = set()
    texts: list[str] = []
    for parameter in parameters:
        if parameter.place != "query" or (value := _value(parameter, arguments)) is None:
            continue
        plain = isinstance(value, (str, int, float)) and not parameter.media_type
        if plain and not parameter.reserved:  # as nearly all are
            texts.append(f"{parameter_name(parameter.name)}={percent(scalar(value))}")
            continue
        names = names or {p.name for p in parameters if p.place == "query"}
        texts += [
            f"{parameter_name(name)}={text}" for name, text in _query_pairs(parameter, value, names)
        ]
    return texts


def _query_pairs(parameter: Parameter, value: Any, names: set[str]) -> Iterator[tuple[str, str]]:
    encode = percent_but_reserved if parameter.reserved else percent
    value = _content(parameter, value)
    style = "form" if parameter.style == "simple" else parameter.style
    for name, text in pairs(style, parameter.explode, parameter.name, value, encode):
        # The keys of an exploded object are the caller's: they may not pass for another parameter.
        if name != parameter.name and (name in names or may_reroute(name, "query")):
            raise problem(_argument(parameter), f"can't hold the key {name!r} here")
        yield name, text


# --- headers and cookies --------------------------------------------------------------------------


def _headers(
    parameters: Sequence[Parameter], arguments: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    cookies: list[str] = []
    for parameter in parameters:
        value = _value(parameter, arguments)
        if value is None:
            continue
        if parameter.place == "header":
            yield parameter.name, _header_text(parameter, value)
        elif parameter.place == "cookie":
            cookies += _cookie_texts(parameter, value)
    if cookies:
        yield "Cookie", "; ".join(cookies)


_HEADER_TEXT = re.compile(r"[\t\x20-\x7e]*")


def _header_text(parameter: Parameter, value: Any) -> str:
    if parameter.media_type and is_json(parameter.media_type):
        value = json.dumps(value, separators=(",", ":"))  # \u00e9: a header has only ASCII
    else:
        value = _content(parameter, value)
    style = parameter.style if parameter.style in DELIMITERS else "simple"
    text = joined(style, parameter.explode, parameter.name, value, str).strip(" \t")
    if not _HEADER_TEXT.fullmatch(text):
        raise problem(
            _argument(parameter), "must be plain ASCII on one line: it is sent as a header"
        )
    return text


def _cookie_texts(parameter: Parameter, value: Any) -> Iterator[str]:
    value = _content(parameter, value)
    for name, text in pairs("form", parameter.explode, parameter.name, value, _cookie_value):
        if name != parameter.name and may_reroute(name, "cookie"):
            raise problem(_argument(parameter), f"can't hold the key {name!r} here")
        yield f"{percent(name)}={text}"


def _cookie_value(text: str) -> str:
    """Percent-encoded where a cookie has no other way; `%` stays, values often are encoded."""
    return quote(scalar(text), safe="!#$%&'()*+-./:<=>?@[]^_`{|}~")
