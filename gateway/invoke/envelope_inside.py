"""What Azure's `dynamicInvoke` answers holds: the status, headers and body that an API answered.

Pure, and parses the whole body: for another process where it is large (`elsewhere`), which is why
little is imported here.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

import msgspec
import orjson

from gateway.invoke.media import NOT_JSON, as_json, essence

UNKNOWN_STATUS = 502  # of an answer whose status says nothing to us
JSON = "application/json"


class Inside(NamedTuple):
    """The API's own answer."""

    status: int
    headers: dict[str, str]
    body: bytes


def inside(body: bytes, media_type: str) -> Inside | None:
    """What an envelope holds; None if it is none."""
    value = as_json(body, media_type)
    response = value.get("response") if isinstance(value, Mapping) else None
    if value is NOT_JSON or not isinstance(response, Mapping):
        return None
    headers = dict(_pairs(response.get("headers")))
    content, content_type = _opened_body(response.get("body"), headers.get("content-type", ""))
    if content_type:
        headers["content-type"] = content_type
    return Inside(status_number(response.get("statusCode", HTTPStatus.OK)), headers, content)


def packed(body: bytes, media_type: str) -> bytes:
    """As `inside`, from and to another process."""
    return msgspec.msgpack.encode(inside(body, media_type))


def unpacked(data: bytes | bytearray) -> Inside | None:
    """What was packed."""
    return msgspec.msgpack.decode(data, type=Inside | None)


# Where .NET's name for a status is not the one it has in HTTP.
_DOTNET_NAMES = {
    "ambiguous": 300,
    "moved": 301,
    "redirect": 302,
    "redirectmethod": 303,
    "redirectkeepverb": 307,
    "requestentitytoolarge": 413,
    "requesturitoolong": 414,
    "requestedrangenotsatisfiable": 416,
    "unprocessablecontent": 422,
    "unprocessableentity": 422,
    "httpversionnotsupported": 505,
}
_STATUS_NAMES = {
    **{status.name.replace("_", "").lower(): status.value for status in HTTPStatus},
    **_DOTNET_NAMES,
}


def status_number(status: Any) -> int:
    """200 of `OK`, `"200"` and 200; 502 of what is no status."""
    if isinstance(status, str):
        text = status.strip()
        if text.isascii() and text.isdigit():
            status = int(text[:4])
        else:
            status = _STATUS_NAMES.get(text.replace(" ", "").lower(), UNKNOWN_STATUS)
    if isinstance(status, bool) or not isinstance(status, int) or not 100 <= status <= 599:
        return UNKNOWN_STATUS
    return int(status)


# They describe bytes we never see.
_OF_TRANSFER = frozenset(("content-length", "content-encoding", "transfer-encoding", "connection"))


def _pairs(headers: Any) -> Iterable[tuple[str, str]]:
    for name, value in headers.items() if isinstance(headers, Mapping) else ():
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        if value is not None and name.lower() not in _OF_TRANSFER:
            yield name.lower(), str(value)


def _opened_body(body: Any, content_type: str) -> tuple[bytes, str]:
    if body is None:
        return b"", content_type
    if isinstance(body, Mapping) and (content := _file(body)) is not None:
        return content
    if isinstance(body, str):
        return _text(body, content_type)
    return orjson.dumps(body), content_type if "json" in content_type.lower() else JSON


def _file(body: Mapping[str, Any]) -> tuple[bytes, str] | None:
    """The bytes of a file, which the envelope carries as base64."""
    content, kind = body.get("$content"), body.get("$content-type")
    if not isinstance(content, str) or not isinstance(kind, str):
        return None
    try:
        return base64.b64decode(content, validate=True), kind
    except (binascii.Error, ValueError):
        return None


def _text(body: str, content_type: str) -> tuple[bytes, str]:
    """Text as it is; under the name of JSON it is JSON's text, or else a JSON string."""
    data = body.encode("utf-8", "replace")
    if essence(content_type).endswith("json") and as_json(data, JSON) is NOT_JSON:
        return orjson.dumps(body), content_type
    return data, content_type or "text/plain; charset=utf-8"
