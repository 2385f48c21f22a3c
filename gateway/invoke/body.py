"""A request body, put together from arguments in the media type that the operation wants.

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
import re
from collections.abc import Iterator, Mapping, Set
from fnmatch import fnmatch
from mimetypes import MimeTypes
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from gateway.blocklist import may_reroute
from gateway.errors import Fixable
from gateway.invoke.arguments import problem
from gateway.invoke.styles import is_json, pairs, parameter_name, percent, scalar, to_json
from gateway.model import Body, Field

_ABSENT = object()


def encode_body(body: Body, arguments: Mapping[str, Any]) -> tuple[str, bytes] | None:
    """The `Content-Type` and the bytes, or None if nothing is to be sent."""
    value = _content(body, arguments)
    if value is _ABSENT:
        return None
    _check_names(body, value)
    media_type = body.media_type.partition(";")[0].strip().lower()
    if media_type == "application/x-www-form-urlencoded":
        written = isinstance(value, str)  # by the caller
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


def _content(body: Body, arguments: Mapping[str, Any]) -> Any:
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


def _parts(body: Body, value: Any) -> Iterator[tuple[Field, Any]]:
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
    for field, item in _parts(body, value):
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
        for field, whole in _parts(body, value)
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
    if said and not _MEDIA_TYPE.fullmatch(said):
        raise problem(field.content_type_argument or "", "must be a media type such as image/png")
    return said


_MEDIA_TYPE = re.compile(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+( *;[\x20-\x7e]*)?", re.ASCII)


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
