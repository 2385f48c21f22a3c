"""Azure's `dynamicInvoke`: a request inside a request, an answer inside an answer.

A call of a managed connection is not sent to its API but posted, whole, to the connection's
resource in Azure, which makes the call with credentials of its own. Azure answers 200 around
whatever came of it: the API's status is inside, as .NET's name for it or as a number. `enveloped`
wraps a request that is ready to be sent, `opened` takes the answer out; what lies between does not
know of the envelope. An answer is parsed whole, in a worker process where it is large.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import msgspec
import orjson
from msgspec.structs import replace

from gateway.azure.arm import API_VERSION
from gateway.limits import WORKER_BYTES
from gateway.outbound.client import Answer, Request
from gateway.outbound.content import NOT_JSON, Work, as_json, essence

JSON = "application/json"


def enveloped(request: Request, base_url: str, resource_id: str) -> Request:
    """The request that has Azure make this one; `base_url` is the resource's own address."""
    path, _, query = request.url.removeprefix(base_url).partition("?")
    headers = {name.lower(): value for name, value in request.headers}
    inner: dict[str, Any] = {
        "method": request.method,
        "path": path or "/",
        "queries": _queries(query),
        "headers": _inner_headers(request.headers),
    }
    if request.body is not None:
        inner["body"] = _inner_body(request.body, headers.get("content-type", ""))
    endpoint = base_url.removesuffix(resource_id)
    return Request(
        "POST",
        f"{endpoint}{resource_id}/dynamicInvoke?api-version={API_VERSION}",
        (("Accept", JSON), ("Content-Type", JSON)),
        orjson.dumps({"request": inner}),
    )


def _queries(query: str) -> dict[str, str]:
    """The query by name, decoded; the envelope has one text a name, so repeated ones are joined."""
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        found[name] = f"{found[name]},{value}" if name in found else value
    return found


def _inner_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What the caller or the definition gives; what speaks of bodies is Azure's to say."""
    return {
        name: value
        for name, value in headers
        if not name.lower().startswith("content-") and name.lower() != "accept"
    }


def _inner_body(body: bytes, content_type: str) -> Any:
    kind = essence(content_type)
    if kind == JSON or kind.endswith("+json"):
        return orjson.loads(body)
    if kind.startswith("text/"):
        return body.decode("utf-8", "replace")
    return {"$content-type": content_type, "$content": base64.b64encode(body).decode()}


# --- the answer -----------------------------------------------------------------------------------


class Inside(NamedTuple):
    """The API's own answer."""

    status: int
    headers: dict[str, str]
    body: bytes


async def opened(answer: Answer, work: Work) -> Answer:
    """What the API answered; Azure's own answer where that is all there is, or all we can read."""
    if not 200 <= answer.status < 300 or answer.truncated:
        return answer
    media_type = answer.header("content-type") or JSON
    if len(answer.body) <= WORKER_BYTES:
        found = _inside(answer.body, media_type)
    else:
        data = await work(read_envelope, answer.body, media_type)
        found = None if data is None else msgspec.msgpack.decode(data, type=Inside | None)
    if found is None:
        return answer
    headers = found.headers
    for name in ("x-ms-client-request-id", "x-ms-request-id"):
        if "x-ms-client-request-id" not in headers and (given := answer.header(name)):
            headers["x-ms-client-request-id"] = given
    return replace(answer, status=found.status, headers=tuple(headers.items()), body=found.body)


def read_envelope(body: bytes, media_type: str) -> bytes:
    """An envelope's `Inside` (None if it is none) as MessagePack, which workers answer in."""
    return msgspec.msgpack.encode(_inside(body, media_type))


def _inside(body: bytes, media_type: str) -> Inside | None:
    value = as_json(body, media_type)
    response = value.get("response") if isinstance(value, Mapping) else None
    if not isinstance(response, Mapping):
        return None
    headers = dict(_pairs(response.get("headers")))
    content, content_type = _opened_body(response.get("body"), headers.get("content-type", ""))
    if content_type:
        headers["content-type"] = content_type
    return Inside(status_number(response.get("statusCode", HTTPStatus.OK)), headers, content)


_STATUS_NAMES = {
    **{name.replace("_", "").lower(): int(code) for name, code in HTTPStatus.__members__.items()},
    # Where .NET's name is not the one that a status has in HTTP.
    "ambiguous": 300,
    "moved": 301,
    "redirect": 302,
    "redirectmethod": 303,
    "redirectkeepverb": 307,
    "unprocessablecontent": 422,
}


def status_number(status: Any) -> int:
    """200 of `OK`, `"200"` and 200; 502 of what is no status."""
    if isinstance(status, str):
        text = status.strip()
        if text.isascii() and text.isdigit():
            status = int(text[:4])
        else:
            status = _STATUS_NAMES.get(text.replace(" ", "").lower(), HTTPStatus.BAD_GATEWAY)
    if isinstance(status, bool) or not isinstance(status, int) or not 100 <= status <= 599:
        return HTTPStatus.BAD_GATEWAY
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
