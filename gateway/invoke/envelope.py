"""Azure's `dynamicInvoke`: a request inside a request, an answer inside an answer.

A call of a managed connection is not sent to its API but posted, whole, to the connection's
resource in Azure, which makes the call with credentials of its own. Azure answers 200 around
whatever came of it: the API's status is inside, as .NET's name for it or as a number. `enveloped`
wraps a request that is ready to be sent, `opened` takes the answer out; what lies between does not
know of the envelope.

`opened` parses the whole body, in another process where it is large (see `envelope_inside`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

import orjson
from msgspec.structs import replace

from gateway.invoke.elsewhere import ELSEWHERE_BYTES, Elsewhere
from gateway.invoke.envelope_inside import JSON, Inside, inside, packed, unpacked
from gateway.invoke.media import essence
from gateway.invoke.styles import to_json
from gateway.outbound.client import Answer, Request

API_VERSION = "2016-06-01"


def enveloped(request: Request, base_url: str, resource_id: str) -> Request:
    """The request that has Azure make this one; `base_url` is the resource's own address."""
    path, _, query = request.url.removeprefix(base_url).partition("?")
    inner: dict[str, Any] = {
        "method": request.method,
        "path": path or "/",
        "queries": _queries(query),
        "headers": _inner_headers(request.headers),
    }
    content_type = _header(request.headers, "content-type")
    if request.body is not None:
        inner["body"] = _inner_body(request.body, content_type)
    endpoint = base_url.removesuffix(resource_id)
    return Request(
        "POST",
        f"{endpoint}{resource_id}/dynamicInvoke?api-version={API_VERSION}",
        (("Accept", JSON), ("Content-Type", JSON)),
        to_json({"request": inner}),
    )


async def opened(answer: Answer, elsewhere: Elsewhere) -> Answer:
    """What the API answered; Azure's own answer where that is all there is, or all we can read."""
    if not 200 <= answer.status < 300 or answer.truncated:
        return answer
    media_type = answer.header("content-type") or JSON
    if len(answer.body) <= ELSEWHERE_BYTES:
        found = inside(answer.body, media_type)
    else:
        data = await elsewhere(packed, answer.body, media_type)
        found = unpacked(data) if data is not None else None
    return answer if found is None else _with(found, answer)


def _with(found: Inside, answer: Answer) -> Answer:
    headers = found.headers
    for name in ("x-ms-client-request-id", "x-ms-request-id"):
        if "x-ms-client-request-id" not in headers and (given := answer.header(name)):
            headers["x-ms-client-request-id"] = given
    return replace(answer, status=found.status, headers=tuple(headers.items()), body=found.body)


# --- the request inside ---------------------------------------------------------------------------


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


def _header(headers: Iterable[tuple[str, str]], wanted: str) -> str:
    return next((value for name, value in headers if name.lower() == wanted), "")
