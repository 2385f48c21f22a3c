"""Writes arguments into requests: values in OpenAPI's styles, bodies in their media types. Pure.

A path, a query, a cookie and a form each have their own idea of which characters may stand as they
are, so that the encoder is handed in; the delimiters of a style are put between values that are
already encoded, so a value can never pass for a delimiter. Null is RFC 6570's "undefined": it is
left out, in lists and objects too.

A body's properties are arguments of their own (`fields`) or the body is one argument (`whole`);
where the object may have other properties, arguments with no place of their own become those.
Hidden constants are merged in last, so a caller can't override them. Files come as base64.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatch
from functools import lru_cache
from mimetypes import MimeTypes
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element, tostring

import orjson

from gateway.blocklist import may_reroute
from gateway.calls.arguments import problem
from gateway.limits import MAX_REMEMBERED
from gateway.model import MEDIA_TYPE_PATTERN, Body, Field, Style, digest

Encode = Callable[[str], str]

DELIMITERS: Mapping[str, str] = {"spaceDelimited": " ", "pipeDelimited": "|", "tabDelimited": "\t"}


def scalar_text(value: Any) -> str:
    """One value as text: `true`, `1`, `blue`; arrays and objects as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        # 1.0 is an integer to JSON Schema, but seldom to a server; beyond, a float is not exact.
        return str(int(value))
    return orjson.dumps(value).decode()


def is_json(media_type: str) -> bool:
    """Whether content of this media type is written as JSON."""
    plain = media_type.partition(";")[0].strip().lower()
    return plain.endswith(("/json", "+json"))


def join_value(style: Style, explode: bool, name: str, value: Any, encode: Encode) -> str:
    """A value in the styles that make one text: simple, label, matrix, the delimited ones."""
    if style == "simple" and isinstance(value, (str, int, float)):
        return encode(scalar_text(value))
    if style == "matrix":
        texts = name_value_pairs("form", explode, name, value, encode)
        return "".join(f";{encode(key)}{text and '=' + text}" for key, text in texts)
    lead, delimiter = (".", "." if explode else ",") if style == "label" else ("", ",")
    if style in DELIMITERS:
        delimiter = encode(DELIMITERS[style])
    return lead + delimiter.join(_parts(explode, value, encode))


def _parts(explode: bool, value: Any, encode: Encode) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, item in _present_items(value):
            yield from [f"{encode(key)}={encode(item)}"] if explode else [encode(key), encode(item)]
    elif isinstance(value, (list, tuple)):
        yield from (encode(scalar_text(item)) for item in value if item is not None)
    else:
        yield encode(scalar_text(value))


def name_value_pairs(
    style: Style, explode: bool, name: str, value: Any, encode: Encode
) -> Iterator[tuple[str, str]]:
    """A value in the styles that make `name=value`: form, the delimited ones, deepObject."""
    if isinstance(value, (str, int, float)):
        yield name, encode(scalar_text(value))
    elif style == "deepObject":
        yield from _deep_pairs(name, value, encode)
    elif not value:
        return
    elif isinstance(value, Mapping) and explode and style == "form":
        for key, item in value.items():
            # No style says how a list in an object is written: as servers with such inputs read it.
            is_plain = isinstance(item, list) and not any(isinstance(i, (dict, list)) for i in item)
            for each in item if is_plain else (item,):
                if each is not None:
                    yield str(key), encode(scalar_text(each))
    elif isinstance(value, (list, tuple)) and explode:
        yield from ((name, part) for part in _parts(False, value, encode))
    else:
        yield name, join_value(style, False, name, value, encode)


def _deep_pairs(name: str, value: Any, encode: Encode) -> Iterator[tuple[str, str]]:
    """`a[b][c]=1`; `a[]=1` for plain items, `a[0][b]=1` where items have parts of their own."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _deep_pairs(f"{name}[{key}]", item, encode)
    elif isinstance(value, (list, tuple)):
        nested = any(isinstance(item, (Mapping, list, tuple)) for item in value)
        for index, item in enumerate(value):
            yield from _deep_pairs(f"{name}[{index if nested else ''}]", item, encode)
    elif value is not None:
        yield name, encode(scalar_text(value))


def _present_items(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    return ((str(key), scalar_text(item)) for key, item in value.items() if item is not None)


_PERCENT = {code: quote(chr(code), safe="") for code in range(128)}


def percent_encode(text: str) -> str:
    """Everything but letters, digits and `-._~` percent-encoded."""
    if text.isascii():
        return text if text.isalnum() else text.translate(_PERCENT)
    return quote(text, safe="")


# `&` would begin another parameter, to some servers `;` would too, and `#` would end the query.
_RESERVED = ":/?[]@!$'()*+,="


def percent_but_reserved(text: str) -> str:
    """As `allowReserved` wants it: reserved characters and existing escapes stay."""
    pieces = re.split(r"(%[0-9A-Fa-f]{2})", text)
    return "".join(p if i % 2 else quote(p, safe=_RESERVED) for i, p in enumerate(pieces))


@lru_cache(maxsize=MAX_REMEMBERED)
def parameter_name(name: str) -> str:
    """A name for a query or form: `$filter` and `a:b` stay readable, nothing can inject."""
    return quote(name, safe="$@:!*(),'/")


# --- bodies ---------------------------------------------------------------------------------------

_ABSENT = object()


def encode_body(body: Body, arguments: Mapping[str, Any]) -> tuple[str, bytes] | None:
    """The `Content-Type` and the bytes, or None if nothing is to be sent."""
    value = _body_content(body, arguments)
    if value is _ABSENT:
        return None
    media_type = body.media_type.partition(";")[0].strip().lower()
    _check_names(body, value)
    if media_type == "application/x-www-form-urlencoded":
        return body.media_type, _form(body, value)
    if media_type.startswith("multipart/"):
        return _multipart(body, value, arguments)
    if body.wrap:
        value = {body.wrap: value if isinstance(value, list) else [value]}
    if body.binary:
        return body.media_type, _decode_file(body.whole or "body", value)
    if is_json(media_type):
        return body.media_type, orjson.dumps(value)
    return _text_body(body, media_type, value)


def _body_content(body: Body, arguments: Mapping[str, Any]) -> Any:
    """The body as a JSON value with its constants, or _ABSENT."""
    if body.whole is not None:
        value = arguments.get(body.whole, _ABSENT)
        if value is None and not body.required:
            value = _ABSENT
    else:
        value = {f.name: arguments[f.argument] for f in body.fields if f.argument in arguments}
        if body.all_but is not None:
            extra_names = arguments.keys() - body.all_but - value.keys()
            value |= {name: item for name, item in arguments.items() if name in extra_names}
        if not value and not body.required:
            value = _ABSENT
    if body.constants and (value is _ABSENT or isinstance(value, Mapping)):
        return _merge_constants({} if value is _ABSENT else value, body.constants)
    if value is _ABSENT and body.required:
        raise problem(body.whole or "body", "is required")
    return value


def _check_names(body: Body, value: Any) -> None:
    """Refuses a property of the caller's own naming that some servers take for the method."""
    for name in value if isinstance(value, Mapping) else ():
        if may_reroute(str(name), "body") and all(name != field.name for field in body.fields):
            words = f"can't hold the key {name!r}: it could mean another method"
            raise problem(body.whole or "body", words)


def _merge_constants(value: Any, constants: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(value)
    for key, constant in constants.items():
        inner = merged.get(key)
        nested = isinstance(constant, Mapping) and isinstance(inner, Mapping)
        merged[key] = _merge_constants(inner, constant) if nested else constant
    return merged


def _text_body(body: Body, media_type: str, value: Any) -> tuple[str, bytes]:
    content_type = body.media_type
    if "charset" not in content_type.lower() and media_type.startswith("text/"):
        content_type += "; charset=utf-8"
    if body.xml is not None and isinstance(value, (Mapping, list)):
        text = XML_DECLARATION + tostring(_element("root", value, body.xml), "unicode")
    elif isinstance(value, list) and media_type.endswith(("ndjson", "jsonl")):
        text = "".join(f"{orjson.dumps(item).decode()}\n" for item in value)
    else:
        text = scalar_text(value)  # objects as JSON, which YAML is as well
    return content_type, text.encode()


def _decode_file(argument: str, value: Any) -> bytes:
    """The bytes of a file given in base64, read strictly."""
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            pass
    raise problem(argument, "must be the file's content in base64 (RFC 4648, with padding)")


def _form_fields(body: Body, value: Any) -> Iterator[tuple[Field, Any]]:
    """The properties of a form, each with its definition; null properties are left out."""
    if not isinstance(value, Mapping):
        raise problem(body.whole or "body", "must be an object: it is sent as a form")
    fields = {f.name: f for f in body.fields}
    for name, item in value.items():
        if item is not None:
            yield fields.get(name) or Field(name, str(name)), item


# --- XML ------------------------------------------------------------------------------------------

XML_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>'
_XML_NAME = re.compile(r"[A-Za-z_][\w.-]*(:[A-Za-z_][\w.-]*)?")


def _element(name: str, value: Any, layout: Mapping[str, Any]) -> Element:
    """A value as an element, its properties as the definition's `xml` says.

    A list is an element per item, unless the definition wraps the items in one element.
    """
    element = Element(_xml_name(name, layout))
    if isinstance(value, Mapping):
        for key, inner in value.items():
            inner_layout = layout.get("properties", {}).get(key, {})
            if isinstance(inner, list) and not inner_layout.get("wrapped"):
                element.extend(_element(key, item, inner_layout.get("items", {})) for item in inner)
            elif inner_layout.get("attribute") and inner is not None:
                element.set(_xml_name(key, inner_layout), scalar_text(inner))
            elif inner is not None:
                element.append(_element(key, inner, inner_layout))
    elif isinstance(value, list):
        element.extend(_element(element.tag, each, layout.get("items", {})) for each in value)
    else:
        element.text = scalar_text(value)
    if "namespace" in layout:
        prefix = f":{layout['prefix']}" if "prefix" in layout else ""
        element.set(f"xmlns{prefix}", layout["namespace"])
    return element


def _xml_name(key: str, layout: Mapping[str, Any]) -> str:
    name = layout.get("name", key)
    name = f"{layout['prefix']}:{name}" if "prefix" in layout else name
    if not _XML_NAME.fullmatch(name):
        raise problem(key, "can't be the name of an XML element")
    return str(name)


# --- application/x-www-form-urlencoded ------------------------------------------------------------


def _form(body: Body, value: Any) -> bytes:
    texts = []
    for field, item in _form_fields(body, value):
        if _is_sent_as_json(field, item):
            texts.append((field.name, percent_encode(orjson.dumps(item).decode())))
        else:
            texts += name_value_pairs(field.style, field.explode, field.name, item, percent_encode)
    return "&".join(f"{parameter_name(name)}={text}" for name, text in texts).encode()


def _is_sent_as_json(field: Field, item: Any) -> bool:
    """Objects are JSON unless the definition asks for a style: keys must not become fields."""
    if field.media_type and is_json(field.media_type):
        return True
    return isinstance(item, Mapping) and field.style == "form"


# --- multipart ------------------------------------------------------------------------------------


def _multipart(body: Body, value: Any, arguments: Mapping[str, Any]) -> tuple[str, bytes]:
    parts = [
        _part(field, item, arguments, number)
        for field, field_value in _form_fields(body, value)
        for number, item in enumerate(_items(field, field_value))
    ]
    boundary = digest(b"".join(parts))  # no part can hold its own hash
    line = b"--" + boundary.encode()
    content = b"".join(line + b"\r\n" + part + b"\r\n" for part in parts) + line + b"--\r\n"
    return f"{body.media_type}; boundary={boundary}", content


def _items(field: Field, field_value: Any) -> list[Any]:
    """The values that become parts: one per item of a list, unless the list is to be one text."""
    if not isinstance(field_value, list) or _is_sent_as_json(field, field_value):
        return [field_value]
    if field.explode or field.file:
        return field_value
    return [text for _, text in name_value_pairs(field.style, False, field.name, field_value, str)]


def _part(field: Field, item: Any, arguments: Mapping[str, Any], number: int) -> bytes:
    disposition = f'Content-Disposition: form-data; name="{_escape_name(field.name)}"'
    media_type = field.media_type
    if field.file:
        content = _decode_file(field.argument, item)
        name = _file_detail(arguments, field.file_name_argument, number) or field.name
        disposition += f'; filename="{_escape_name(name)}"'
        media_type = _content_type_of(arguments, field, number) or file_type(name, media_type or "")
    elif isinstance(item, (Mapping, list)) or _is_sent_as_json(field, item):
        content = orjson.dumps(item)
        media_type = media_type or "application/json"
    else:
        content = scalar_text(item).encode()
    kind = f"\r\nContent-Type: {media_type}" if media_type else ""
    return f"{disposition}{kind}\r\n\r\n".encode() + content


def _file_detail(arguments: Mapping[str, Any], argument: str | None, number: int) -> str:
    """What an argument says of a file: one text, or of a list the text for this file's number."""
    detail = arguments.get(argument or "")
    if isinstance(detail, list):
        detail = detail[number] if number < len(detail) else ""
    return str(detail or "")


def _content_type_of(arguments: Mapping[str, Any], field: Field, number: int) -> str:
    media_type = _file_detail(arguments, field.content_type_argument, number)
    if not _MEDIA_TYPE.fullmatch(media_type):
        raise problem(field.content_type_argument or "", "must be a media type such as image/png")
    return media_type


_MEDIA_TYPE = re.compile(MEDIA_TYPE_PATTERN)


def file_type(name: str, accepted_types: str) -> str:
    """The media type of a file by its name, among the accepted types if there are any."""
    guess, _ = _KNOWN_TYPES.guess_type(name.rpartition("/")[2])
    kinds = [each.strip() for each in accepted_types.split(",") if each.strip()]
    if not kinds or (guess and any(fnmatch(guess, each.lower()) for each in kinds)):
        return guess or OCTETS
    return next((each for each in kinds if "*" not in each), OCTETS)


OCTETS = "application/octet-stream"
# The same on every machine: Python's own table and the types it lacks, not the system's files.
_KNOWN_TYPES = MimeTypes()
_OFFICE = "application/vnd.openxmlformats-officedocument."
_KNOWN_TYPES.types_map[True].update(
    {
        ".docx": _OFFICE + "wordprocessingml.document",
        ".xlsx": _OFFICE + "spreadsheetml.sheet",
        ".pptx": _OFFICE + "presentationml.presentation",
        ".md": "text/markdown",
        ".webp": "image/webp",
        ".yaml": "application/yaml",
        ".gz": "application/gzip",
    }
)
_KNOWN_TYPES.encodings_map = {}  # `a.csv.gz` is a gzip file, not a CSV file


def _escape_name(name: str) -> str:
    """A name inside quotation marks, escaped as browsers do."""
    return "".join(_ESCAPES.get(c, c) for c in name if c >= " " or c in "\r\n")


_ESCAPES = {'"': "%22", "\r": "%0D", "\n": "%0A"}
