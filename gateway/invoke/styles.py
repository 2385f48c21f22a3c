"""How a value is written outside a body: the tables of OpenAPI 3.1, style by style.

Everything here is text in, text out. The encoder is handed in, since a path, a query, a cookie and
a form each have their own idea of which characters may stand as they are; the delimiters of a style
are put between values that are already encoded, so a value can never pass for a delimiter.
Null is RFC 6570's "undefined": it is left out, in lists and objects too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import orjson

from gateway.model import Style

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


# `&` would begin another parameter and `#` would end the query: these two are never let through.
_RESERVED = ":/?[]@!$'()*+,;="


def percent_but_reserved(text: str) -> str:
    """As `allowReserved` wants it: reserved characters and existing escapes stay."""
    pieces = re.split(r"(%[0-9A-Fa-f]{2})", text)
    return "".join(p if i % 2 else quote(p, safe=_RESERVED) for i, p in enumerate(pieces))


def parameter_name(name: str) -> str:
    """A name for a query or form: `$filter` and `a:b` stay readable, nothing can inject."""
    return name if _UNRESERVED.fullmatch(name) else quote(name, safe="$@:!*(),'/")
