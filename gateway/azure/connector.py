"""The tools of an Azure managed connection: its API's, called by way of Azure.

The definition of such a connection is one line of facts about its resource in Azure, as JSON, then
the definition of its API as Azure exported it. So a connection that is signed in later has another
definition, and is built anew like any that changed. `AzureDirectory.definition` writes it, and
`translate_export` reads it.

A call is not sent to the API but posted, whole, to the connection's resource (`dynamicInvoke`),
which makes the call with credentials of its own: a request inside a request, an answer inside an
answer. Azure answers 200 whatever the API answered: the API's status is inside, as .NET's name for
it or as a number. `wrap_request` puts a request into the envelope, `unwrap_answer` takes the API's
answer out; the code in between does not know of the envelope. Definitions and large answers are
read in worker processes, which load this file and none of the code that sends requests.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import parse_qsl

import orjson
from msgspec import msgpack, structs

from gateway.errors import DefinitionUnreadable
from gateway.limits import LARGE_BYTES
from gateway.model import Build, BuiltStatus, Problem, Severity, Source
from gateway.openapi.document import JSON, mapping
from gateway.outbound.content import NOT_JSON, RunInWorker, as_json, essence

if TYPE_CHECKING:
    from gateway.outbound.client import Answer, Request

API_VERSION = "2016-06-01"
_SET_BY_AZURE = ("Accept", "Content-Type")  # with dynamicInvoke, Azure sets these headers


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a connection's resource that shape its tools and their calls."""

    endpoint: str
    id: str
    status: BuiltStatus = "connected"
    problem: str = ""
    runtime_url: str = ""
    invoke: Literal["dynamic", "runtime"] = "dynamic"


def translate_export(raw: bytes, source: Source) -> tuple[bytes, Source, Callable[[Build], Build]]:
    """The definition of a managed connection, called by way of Azure or at its runtime address."""
    facts, export = _split_definition(raw)
    direct = facts.invoke == "runtime" and facts.runtime_url
    api_source = replace(
        source,
        base_url=facts.runtime_url if direct else facts.endpoint.rstrip("/") + facts.id,
        authenticated=facts.status != "unauthenticated",
        location="",
        auth_type="azure" if source.auth_type == "none" else source.auth_type,
        headers=source.headers if direct else (*source.headers, *_SET_BY_AZURE),
    )
    return (
        export,
        api_source,
        lambda build: replace(
            build,
            status=facts.status,
            problems=(*_problems(facts), *build.problems),
            envelope=None if direct else facts.id,
        ),
    )


def _problems(facts: Facts) -> tuple[Problem, ...]:
    problems: list[Problem] = []
    if facts.problem:
        severity: Severity = "warning" if facts.status == "connected" else "error"
        problems.append(Problem(severity, "connection", facts.problem))
    if facts.invoke == "runtime" and not facts.runtime_url:
        words = "Azure gives no runtime address for this connection; calls go by dynamicInvoke"
        problems.append(Problem("info", "connection", words))
    return tuple(problems)


def _split_definition(raw: bytes) -> tuple[Facts, bytes]:
    """The facts, and the definition that follows them."""
    line, _, export = raw.partition(b"\n")
    try:
        return Facts(**orjson.loads(line)), export
    except (orjson.JSONDecodeError, TypeError) as error:
        raise DefinitionUnreadable(
            "The stored definition of this connection is not whole.", "Refresh the connection."
        ) from error


# --- a call ---------------------------------------------------------------------------------------


def wrap_request(request: Request, base_url: str, resource_id: str) -> Request:
    """The request that has Azure make `request`; `base_url` is the resource's own address."""
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
    return structs.replace(
        request,
        method="POST",
        url=f"{endpoint}{resource_id}/dynamicInvoke?api-version={API_VERSION}",
        headers=(("Accept", JSON), ("Content-Type", JSON)),
        body=orjson.dumps({"request": inner}),
    )


def _queries(query: str) -> dict[str, str]:
    """The query by name, decoded; the envelope has one text a name, so repeated ones are joined."""
    values: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        values[name] = f"{values[name]},{value}" if name in values else value
    return values


def _inner_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The headers of the caller and the definition; Azure sets those that describe bodies."""
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


# --- its answer -----------------------------------------------------------------------------------


class EnvelopedAnswer(NamedTuple):
    """The API's own answer."""

    status: int
    headers: dict[str, str]
    body: bytes


async def unwrap_answer(answer: Answer, work: RunInWorker) -> Answer:
    """The API's answer; Azure's own where it holds no other, or none that we can read."""
    if not 200 <= answer.status < 300 or answer.truncated:
        return answer
    media_type = answer.header("content-type") or JSON
    if len(answer.body) <= LARGE_BYTES:
        enveloped = _open_envelope(answer.body, media_type)
    else:
        packed = await work(read_envelope, answer.body, media_type)
        enveloped = None if packed is None else msgpack.decode(packed, type=EnvelopedAnswer | None)
    if enveloped is None:
        return answer
    headers = enveloped.headers
    for name in ("x-ms-client-request-id", "x-ms-request-id"):
        if request_id := answer.header(name):
            headers.setdefault("x-ms-client-request-id", request_id)
    pairs = tuple(headers.items())
    return structs.replace(answer, status=enveloped.status, headers=pairs, body=enveloped.body)


def read_envelope(body: bytes, media_type: str) -> bytes:
    """The answer in an envelope (None: it holds none) as MessagePack, which workers answer in."""
    return msgpack.encode(_open_envelope(body, media_type))


def _open_envelope(body: bytes, media_type: str) -> EnvelopedAnswer | None:
    response = mapping(as_json(body, media_type)).get("response")
    if not isinstance(response, dict):
        return None
    headers = dict(_header_pairs(response.get("headers")))
    content, content_type = _unwrap_body(response.get("body"), headers.get("content-type", ""))
    if content_type:
        headers["content-type"] = content_type
    return EnvelopedAnswer(
        status_number(response.get("statusCode", HTTPStatus.OK)), headers, content
    )


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
    """200 for `OK`, `"200"` and 200; 502 for a value that is no status."""
    text = str(status).replace(" ", "").lower()
    plain = text.isascii() and text.isdigit()
    number = int(text[:4]) if plain else _STATUS_NAMES.get(text, 0)
    return number if 100 <= number <= 599 else int(HTTPStatus.BAD_GATEWAY)


# Headers that describe bytes which the gateway never sees.
_OF_TRANSFER = frozenset(("content-length", "content-encoding", "transfer-encoding", "connection"))


def _header_pairs(headers: Any) -> Iterable[tuple[str, str]]:
    for name, value in mapping(headers).items():
        if isinstance(value, list):
            value = ", ".join(map(str, value))
        if value is not None and name.lower() not in _OF_TRANSFER:
            yield name.lower(), str(value)


def _unwrap_body(body: Any, content_type: str) -> tuple[bytes, str]:
    if body is None:
        return b"", content_type
    if isinstance(body, Mapping) and (content := _file_content(body)) is not None:
        return content
    if isinstance(body, str):
        return _text_content(body, content_type)
    return orjson.dumps(body), content_type if "json" in content_type.lower() else JSON


def _file_content(body: Mapping[str, Any]) -> tuple[bytes, str] | None:
    """The bytes of a file, which the envelope carries as base64."""
    content, kind = body.get("$content"), body.get("$content-type")
    if not isinstance(content, str) or not isinstance(kind, str):
        return None
    try:
        return base64.b64decode(content, validate=True), kind
    except (binascii.Error, ValueError):
        return None


def _text_content(body: str, content_type: str) -> tuple[bytes, str]:
    """Text as it is; under the name of JSON it is JSON's text, or else a JSON string."""
    data = body.encode("utf-8", "replace")
    if essence(content_type).endswith("json") and as_json(data, JSON) is NOT_JSON:
        return orjson.dumps(body), content_type
    return data, content_type or "text/plain; charset=utf-8"
