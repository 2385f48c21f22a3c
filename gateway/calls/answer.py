"""What an API answered becomes what a model reads.

JSON is both text and structure, images and audio are themselves, other files are embedded, and an
answer over the bound is a preview and the promise of the rest. Headers that say how to go on are
told too. A status of 300 or more is an error with the words the API itself found for it. An answer
that strays from its own content type is shown as what it turns out to be; nothing here fails.

Answers come out in UTF-8, whatever they came in: only then can they be searched for secrets.
Pure. `shape` parses and decodes: hand answers over `HEAVY_BYTES` to a thread.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec.structs import replace

from gateway.calls.limits import HEAVY_BYTES
from gateway.outbound.client import Answer, Pairs
from gateway.outbound.content import (
    CUT_JSON,
    NOT_JSON,
    as_json,
    as_text,
    charset_of,
    essence,
    in_utf8,
    may_be_json,
)

PREVIEW_CHARS = 2_000
MAX_ERROR_CHARS = 500
MAX_HEADER_CHARS = 4_096
MAX_TOLD_HEADERS = 32
MAX_HEADER_NAMES = 1_024  # that are remembered


class Shaped(msgspec.Struct, frozen=True):
    """The content of a tool result, and the whole body where it was too large to be in it."""

    content: list[dict[str, Any]]
    structured: dict[str, Any] | None
    is_error: bool
    status: int
    media_type: str = ""  # as the answer's Content-Type says, parameters included
    oversized: bytes | None = None  # to be kept under the result id
    headers: dict[str, str] | None = None  # those that a caller may need, by lower-case name


def shape(
    answer: Answer,
    *,
    max_output_bytes: int,
    result_id: str = "",
    headers_out: tuple[str, ...] = (),
) -> Shaped:
    """The answer as MCP content; `result_id` is where the caller keeps it if it is too large.

    `headers_out` names headers that are told beside those every caller is told.
    """
    shaped = _shaped(with_text_in_utf8(answer), max_output_bytes, result_id)
    told = _told_headers(answer.headers, headers_out)
    if not told:
        return shaped
    said = [] if shaped.is_error else [_text(line) for line in _onward(answer.status, told)]
    return replace(shaped, headers=told, content=[*shaped.content, *said])


def with_text_in_utf8(answer: Answer) -> Answer:
    """The same answer with its text in UTF-8; the very object where it is so already."""
    media_type = answer.header("content-type") or ""
    charset = charset_of(answer.body, media_type)
    if charset is None:
        return answer
    kind = media_type.partition(";")[0].strip() or "text/plain"
    others = tuple(pair for pair in answer.headers if pair[0] != "content-type")
    headers = (*others, ("content-type", f"{kind}; charset=utf-8"))
    return replace(answer, body=in_utf8(answer.body, charset), headers=headers)


def _shaped(answer: Answer, max_output_bytes: int, result_id: str) -> Shaped:
    media_type = answer.header("content-type") or ""
    if answer.status >= 300:
        return _error(answer, media_type)
    if not answer.body:
        said = f"{answer.status} {_phrase(answer.status)}: done, without content."
        return Shaped([_text(said)], None, False, answer.status, media_type)
    if answer.truncated or len(answer.body) > max_output_bytes:
        return _oversized(answer, media_type, result_id)
    content, structured = _content(answer.body, media_type)
    return Shaped(content, structured, False, answer.status, media_type)


def _content(body: bytes, media_type: str) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    kind = essence(media_type)
    if kind.startswith(("image/", "audio/")) and not kind.endswith("+xml"):
        data = base64.b64encode(body).decode()
        return [{"type": kind.partition("/")[0], "data": data, "mimeType": kind}], None
    text = as_text(body, media_type)
    if text is None:
        blob = base64.b64encode(body).decode()
        mime_type = kind or "application/octet-stream"
        resource = {"uri": "gateway://answer", "mimeType": mime_type, "blob": blob}
        said = f"A file of {len(body)} bytes, {mime_type}."
        return [_text(said), {"type": "resource", "resource": resource}], None
    value = as_json(body, media_type)
    if value is NOT_JSON:
        return [_text(text)], None
    return [_text(text)], value if isinstance(value, dict) else {"result": value}


def _oversized(answer: Answer, media_type: str, result_id: str) -> Shaped:
    preview = _preview(answer.body, media_type)
    size, kind = len(answer.body), essence(media_type) or "unknown type"
    structured: dict[str, Any] = {
        "truncated": True,
        "bytes": size,
        "result_id": result_id,
        "preview": preview,
    }
    if answer.truncated:
        structured["incomplete"] = True
    cut = " There was more, which the gateway did not read." if answer.truncated else ""
    said = (
        f"The answer is too large to show: {size} bytes, {kind}.{cut} Read it in parts with "
        f"read_result and result_id {result_id!r}."
    )
    shown = f"{said} It begins:\n\n{preview}" if preview else said
    if answer.truncated and may_be_json(answer.body, media_type):
        media_type = CUT_JSON
    return Shaped([_text(shown)], structured, False, answer.status, media_type, answer.body)


def _preview(body: bytes, media_type: str) -> str:
    head = body[: 4 * PREVIEW_CHARS]
    for cut in range(4):  # the last character may have been cut apart
        text = as_text(head[: len(head) - cut], media_type)
        if text is not None:
            return text[:PREVIEW_CHARS]
    return ""


# --- headers --------------------------------------------------------------------------------------

_PLACES = (
    "location",
    "operation-location",
    "azure-asyncoperation",
)  # of what is made or being made
_TELLING = re.compile(
    rf"link|etag|retry-after|content-range|{'|'.join(_PLACES)}|.*(rate-?limit|call-limit).*"
    r"|(.*[-_])?(next|prev|page|pagin|cursor|continuation|total|has-?more).*"
)
_LINKS = re.compile(r",\s*(?=<)")
_LINK = re.compile(r"\s*<([^>]*)>.*?;\s*rel\s*=\s*(?:\"([^\"]*)\"|([^\s;,]+))", re.IGNORECASE)
_NEXT_NAME = re.compile(r"(.*[-_])?(next|continuation).*")


@lru_cache(maxsize=MAX_HEADER_NAMES)
def _is_telling(name: str) -> bool:
    """Whether a header says how to go on: pages, versions, places, and when to ask again."""
    return _TELLING.fullmatch(name) is not None


def _told_headers(pairs: Pairs, more: tuple[str, ...]) -> dict[str, str]:
    """The headers that a caller may need; one that comes several times is joined."""
    told: dict[str, str] = {}
    for name, value in pairs:
        if value and (_is_telling(name) or name in more) and len(told) < MAX_TOLD_HEADERS:
            whole = f"{told[name]}, {value}" if name in told else value
            told[name] = whole[:MAX_HEADER_CHARS]
    return told


def _onward(status: int, told: Mapping[str, str]) -> Iterator[str]:
    """What the text says of the headers: where the new thing is, and where the next page."""
    if status in (HTTPStatus.CREATED, HTTPStatus.ACCEPTED):
        yield from (f"{name.title()}: {told[name]}" for name in _PLACES if name in told)
    links = (_LINK.match(link) for link in _LINKS.split(told.get("link", "")))
    nexts = [link[1] for link in links if link and "next" in (link[2] or link[3]).lower().split()]
    nexts += [f"{name} {told[name]}" for name in told if _NEXT_NAME.fullmatch(name)]
    yield from (f"Next page: {each}" for each in nexts[:1])


# --- errors ---------------------------------------------------------------------------------------

_HINTS = {
    400: "Check the arguments against what the API says.",
    401: "The API does not accept the connection's credentials; an operator must renew them.",
    403: "The connection's credentials do not permit this; use another tool or ask an operator.",
    404: "Check the identifiers; list or search to find the right ones.",
    409: "Read the current state first, then decide.",
    422: "Check the arguments against what the API says.",
    429: "Wait before calling again.",
}


def _error(answer: Answer, media_type: str) -> Shaped:
    body, value = answer.body, NOT_JSON
    if len(body) > HEAVY_BYTES or answer.truncated:  # its words are near the beginning
        text = _preview(body, media_type)
    else:
        text, value = as_text(body, media_type) or "", as_json(body, media_type)
    said = _said(value, text)
    redirected = answer.status < 400
    message = f"The API answered {answer.status} {_phrase(answer.status)}".rstrip()
    if redirected:
        message += " and points elsewhere, which is not followed"
    error: dict[str, Any] = {
        "code": "upstream_error",
        "message": f"{message}: {said}" if said else f"{message}.",
        "hint": _hint(answer.status),
        "status": answer.status,
    }
    if text:
        error["body"] = text[:PREVIEW_CHARS]
    for name, key in _TELLING_HEADERS:
        value = answer.header(name)
        if value and (name != "location" or redirected):
            seconds = name == "retry-after" and value.isascii() and value.isdigit()
            error[key] = int(value[:9]) if seconds else value[:PREVIEW_CHARS]
    shown = f"{error['message']}\n{error['hint']}"
    if text and said not in (text, text[:MAX_ERROR_CHARS]):
        shown += f"\n\n{error['body']}"
    return Shaped([_text(shown)], {"error": error}, True, answer.status, media_type)


_TELLING_HEADERS = (
    ("retry-after", "retry_after"),
    ("location", "location"),
    ("x-ms-client-request-id", "client_request_id"),  # what Azure's support asks for
)


def _hint(status: int) -> str:
    if status < 400:
        return "Call the tool for the place it points to, if there is one."
    if status >= 500:
        return "The fault is on the API's side; try again later."
    return _HINTS.get(status, "Check the arguments, or try another tool.")


# Where APIs put their words, the most telling first.
_WORD_FIELDS = (
    "message",
    "error",
    "errors",
    "error_description",
    "detail",
    "details",
    "title",
    "description",
    "reason",
    "fault",
    "faultstring",
    "error_message",
    "errormessage",
    "msg",
)


def _said(value: Any, text: str) -> str:
    """The API's own words for what went wrong, as short as they come."""
    words = _words(value) if value is not NOT_JSON else None
    if words is None and value is NOT_JSON and not text.lstrip().startswith("<"):
        words = text
    return " ".join((words or "").split())[:MAX_ERROR_CHARS]


def _words(value: Any, depth: int = 0) -> str | None:
    """The first text under a usual name; `error` and `errors` may hold objects with more."""
    if depth > 4:
        return None
    if isinstance(value, str):
        return value or None
    if isinstance(value, list):
        found = [w for item in value[:5] if (w := _words(item, depth + 1))]
        return "; ".join(found) or None
    if isinstance(value, Mapping):
        folded = {str(key).lower(): item for key, item in value.items()}
        # `{"error": "invalid_grant", "error_description": "…"}`: the sentence says more.
        if isinstance(folded.get("error"), str) and folded.get("error_description"):
            return f"{folded['error']}: {_words(folded['error_description'], depth + 1)}"
        if isinstance(folded.get("msg"), str) and isinstance(folded.get("loc"), list):
            return ".".join(map(str, folded["loc"])) + f": {folded['msg']}"
        ordered = [folded[name] for name in _WORD_FIELDS if name in folded]
        return next((w for item in ordered if (w := _words(item, depth + 1))), None)
    return None


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""
