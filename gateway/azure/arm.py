"""Azure Resource Manager as a client sees it, and the managed connections it lists.

The client asks only its own endpoint: a page's `nextLink` to anywhere else is refused. Being
throttled is normal there; all requests wait out a pause that Azure asked for, briefly, then give up
with the time that is left. `send` adds the credentials.

A managed connection is a resource in Azure that holds someone's sign-in to an API. Little of what
Azure answers is documented: everything is read as optional, ids regardless of case.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import orjson

from gateway import limits
from gateway.azure.connector import API_VERSION
from gateway.config.settings import Azure
from gateway.errors import GatewayError, Overloaded, Refused, UpstreamFailed
from gateway.model import BuiltStatus, digest
from gateway.naming import cut, visible
from gateway.openapi.document import mapping, sequence, text_of
from gateway.outbound.client import Answer, Request, locate

SendToAzure = Callable[[Azure, Request, int], Awaitable[Answer]]


class ArmClient:
    """Requests to Azure Resource Manager."""

    def __init__(self, send: SendToAzure) -> None:
        self._send = send
        self._paused_until = 0.0

    async def get(self, azure: Azure, path: str, max_bytes: int) -> bytes:
        """The body of the resource at this path; the path may have a query."""
        return (await self._exchange(azure, "GET", _url(azure, path), None, max_bytes)).body

    async def ask(self, azure: Azure, method: str, path: str, body: Any = None) -> Any:
        """The JSON that answers a request; None where the answer is empty."""
        answer = await self._exchange(azure, method, _url(azure, path), body, limits.AZURE_BYTES)
        return await _parse_json(answer.body) if answer.body.strip() else None

    async def find(self, azure: Azure, path: str, method: str = "GET") -> dict[str, Any] | None:
        """The object that answers a request; None where there is no such resource."""
        try:
            found = await self.ask(azure, method, path)
        except GatewayError as error:
            if is_missing(error):
                return None
            raise
        return found if isinstance(found, dict) else {}

    async def pages(self, azure: Azure, path: str) -> AsyncIterator[Any]:
        """The entries of a list, page by page. A list that can't be read to its end is an error."""
        url = _url(azure, path)
        for _ in range(limits.MAX_LIST_PAGES):
            answer = await self._exchange(azure, "GET", url, None, limits.AZURE_BYTES)
            page = mapping(await _parse_json(answer.body))
            if not isinstance(page.get("value"), list):
                raise UpstreamFailed("upstream_error", "Azure's answer is not a list.")
            for entry in page["value"]:
                yield entry
            if not (next_link := text_of(page.get("nextLink"))):
                return
            url = _on_same_host(azure, next_link)
        words = f"Azure's list has more than {limits.MAX_LIST_PAGES} pages."
        raise UpstreamFailed("upstream_error", words)

    async def _exchange(
        self, azure: Azure, method: str, url: str, body: Any, max_bytes: int
    ) -> Answer:
        headers = [("Accept", "application/json")]
        if body is not None:
            headers.append(("Content-Type", "application/json"))
        data = orjson.dumps(body) if body is not None else None
        request = Request(method, url, tuple(headers), data)
        for _ in range(limits.AZURE_TRIES):
            await self._wait()
            answer = await self._send(azure, request, max_bytes)
            if answer.status != 429:
                return _check_answer(answer, max_bytes)
            self._paused_until = time.monotonic() + _pause_seconds(answer)
        raise self._throttled_error()

    async def _wait(self) -> None:
        """Waits out a pause that Azure asked for, unless it is too long for a caller to wait."""
        seconds = self._paused_until - time.monotonic()
        if seconds > limits.AZURE_PAUSE_SECONDS:
            raise self._throttled_error()
        if seconds > 0:
            await asyncio.sleep(seconds)

    def _throttled_error(self) -> Overloaded:
        seconds = max(1, round(self._paused_until - time.monotonic() + 0.5))
        return Overloaded(
            "rate_limited",
            "Azure asked to be left alone for a while.",
            f"Try again in {seconds} s.",
            retry_after=seconds,
        )


def is_missing(error: GatewayError) -> bool:
    """Whether Azure said that there is no such resource."""
    return error.details.get("status") == 404


def _url(azure: Azure, path: str) -> str:
    joint = "&" if "?" in path else "?"
    return f"{azure.endpoint.rstrip('/')}{path}{joint}api-version={API_VERSION}"


def _on_same_host(azure: Azure, link: str) -> str:
    if locate(azure.endpoint).origin() != locate(link).origin():
        raise Refused(
            "access_denied",
            "Azure's list goes on at another host, which is not followed.",
            "Check azure.endpoint.",
        )
    return link


def _pause_seconds(answer: Answer) -> float:
    text = (answer.header("retry-after") or "").strip()
    return float(text[:6]) if text.isascii() and text.isdigit() else 2.0


def _check_answer(answer: Answer, max_bytes: int) -> Answer:
    if answer.truncated:
        raise UpstreamFailed("upstream_error", f"Azure's answer is over {max_bytes} bytes.")
    if answer.status < 300:
        return answer
    reason = _error_text(answer.body)
    raise UpstreamFailed(
        "upstream_error",
        f"Azure answered {answer.status}{': ' + reason if reason else '.'}",
        _HINTS.get(answer.status, "Check the [azure] table, or try again later."),
        status=answer.status,
    )


_HINTS = {
    401: "Azure does not accept the credentials: check azure.auth.",
    403: "The credentials lack a permission: give them a role on the resource group.",
    404: "Check azure.subscription_id, azure.resource_group and azure.location.",
}


def _error_text(body: bytes) -> str:
    try:
        error = orjson.loads(body)["error"]
        return " ".join(f"{error.get('code', '')} {error.get('message', '')}".split())[:300]
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return ""


async def _parse_json(body: bytes) -> Any:
    try:
        if len(body) > limits.LARGE_BYTES:
            return await asyncio.to_thread(orjson.loads, body)
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise UpstreamFailed("upstream_error", "Azure's answer is not JSON.") from error


# Ids become part of URLs as they stand.
_ID = re.compile(r"(/[A-Za-z0-9][A-Za-z0-9._()~-]*)+")


@dataclass(frozen=True, slots=True)
class Resource:
    """A connection as Azure describes it."""

    id: str
    name: str
    display_name: str
    api_id: str
    api_name: str
    status: BuiltStatus = "connected"
    problem: str = ""  # the status in words for a person
    runtime_url: str = ""


def read_resource(value: Any) -> Resource | None:
    """The connection in an answer of Azure; None where there is nothing to call."""
    entry = mapping(value)
    properties, id_ = mapping(entry.get("properties")), _text(entry.get("id"))
    api = mapping(properties.get("api"))
    api_id, name = _text(api.get("id")), _text(entry.get("name")) or _last_segment(id_)
    if not is_id(id_) or not is_id(api_id):
        return None
    status, problem = _status(properties)
    display_name = _text(properties.get("displayName")) or _text(api.get("displayName")) or name
    return Resource(
        id_,
        name,
        cut(visible(display_name), 128),
        api_id,
        _text(api.get("name")) or _last_segment(api_id),
        status,
        problem,
        _runtime_url(properties.get("connectionRuntimeUrl")),
    )


def is_id(text: str) -> bool:
    """Whether this can be a resource's id: segments of a path, none of them a way out of it."""
    return _ID.fullmatch(text) is not None


def _status(properties: Mapping[str, Any]) -> tuple[BuiltStatus, str]:
    first = mapping(next(iter(sequence(properties.get("statuses"))), None))
    state = _text(properties.get("overallStatus")) or _text(first.get("status"))
    error = mapping(first.get("error"))
    words = cut(visible(_text(error.get("message")) or _text(error.get("code"))), 200)
    if _text(properties.get("connectionState")).lower() == "disabled":
        return "failing", "the connection is disabled in Azure"
    match state.lower():
        case "connected" | "ready":
            return "connected", ""
        case "unauthenticated":
            return "unauthenticated", words or "the connection is not signed in"
        case "":
            return "connected", "Azure does not say whether the connection is signed in"
        case "error" if "unauth" in _text(error.get("code")).lower():
            return "unauthenticated", words or "the connection is not signed in"
        case _:
            return "failing", words or f"Azure says of the connection: {state[:50]}"


def _runtime_url(value: Any) -> str:
    text = _text(value).rstrip("/")
    parts = urlsplit(text)
    return text if parts.scheme in ("https", "http") and parts.netloc and not parts.query else ""


def name_resources(resources: Iterable[Resource], in_use: Collection[str]) -> dict[str, Resource]:
    """Each connection under a name of its own, the same on every start and replica.

    Names that would give tools the same prefix get a hash of the resource's id at the end.
    """
    pairs = [(connection_name(resource.name), resource) for resource in resources]
    counts = Counter(_prefix(name) for name, _ in pairs)
    counts.update(_prefix(name) for name in in_use)
    hashes = {resource.id: digest(resource.id.lower().encode())[:6] for _, resource in pairs}
    return {
        name if counts[_prefix(name)] == 1 else f"{name[:25]}-{hashes[resource.id]}": resource
        for name, resource in pairs
    }


def connection_name(text: str) -> str:
    """A connection's name made of Azure's: lower case, no dots, at most 32 characters."""
    name = re.sub(r"[^a-z0-9_-]+", "-", text.lower()).strip("-_")
    if not name[:1].isalpha():
        name = f"azure-{name}"
    return name[:32].rstrip("-_")


def _prefix(name: str) -> str:
    return name.replace("-", "_")


def _text(value: Any) -> str:
    return text_of(value).strip()


def _last_segment(id_: str) -> str:
    return id_.rpartition("/")[2]
