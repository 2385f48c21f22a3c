"""Turns an API's answer into the result that a model reads.

JSON is both text and structure, images and audio stay as they are, other files are embedded, and an
answer over the bound is a preview and the promise of the rest. Headers that say how to go on are
shown too. A status of 300 or more is an error with the API's own words for it. An answer
that strays from its own content type is shown as what it turns out to be; nothing here fails.
Answers are put into UTF-8, whatever their charset: only then can they be searched for secrets.

The rest of a large answer is read in parts. A JSON pointer leads to a part of it: of an array,
offset and limit count items, elsewhere characters of the text. Each part is bounded too, and a
large JSON text is parsed in a worker process.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from http import HTTPStatus
from http.client import responses
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson
from msgspec.structs import replace

from gateway.calls.arguments import problem, step_into
from gateway.calls.redact import Redactor
from gateway.errors import Fixable
from gateway.limits import (
    LARGE_BYTES,
    MAX_QUOTE_CHARS,
    MAX_REMEMBERED,
    MAX_TOLD_ITEMS,
    PAGE_ENTRIES,
    PREVIEW_CHARS,
    STEP_BYTES,
)
from gateway.model import Result
from gateway.outbound.content import (
    CUT_JSON,
    NOT_JSON,
    RunInWorker,
    as_json,
    as_text,
    charset_of,
    essence,
    may_be_json,
    text_or_base64,
)

if TYPE_CHECKING:  # a worker process, which reads parts, sends nothing
    from gateway.outbound.client import Answer, Pairs

HEADERS_META = "gateway/headers"  # in a result's `_meta`: headers of the answer
WholeAnswer = tuple[str, bytes]  # the media type and the body of an answer


def shape(
    answer: Answer,
    redactor: Redactor,
    max_output_bytes: int,
    result_id: str = "",
    headers_out: tuple[str, ...] = (),
) -> tuple[Result, WholeAnswer | None]:
    """The answer as a tool's result; and the whole answer to keep, where it was too large for that.

    The whole answer will be kept under `result_id`. `headers_out` names headers that are shown
    beside those that every caller is shown.
    """
    answer = _make_readable(answer, redactor)
    media_type = answer.header("content-type") or ""
    is_large = answer.truncated or len(answer.body) > max_output_bytes
    whole_answer = None
    if answer.status >= 300:
        result = _error_result(answer, media_type)
    elif not answer.body:
        message = f"{answer.status} {responses.get(answer.status, '')}: done, without content."
        result = {"content": [_text(message)], "isError": False}
    elif is_large:
        result = preview_result(result_id, answer.body, media_type, cut=answer.truncated)
        cut_off = answer.truncated and may_be_json(answer.body, media_type)
        whole_answer = (CUT_JSON if cut_off else media_type, answer.body)
    else:
        result = _whole_result(answer.body, media_type)
    if headers := _select_headers(answer.headers, headers_out):
        result["_meta"] = {HEADERS_META: headers}
        if not result["isError"]:
            result["content"] += [_text(line) for line in _next_steps(answer.status, headers)]
    return result, whole_answer


def _make_readable(answer: Answer, redactor: Redactor) -> Answer:
    """The answer with its text in UTF-8, without secrets; the same object if nothing changes."""
    headers, body, media_type = answer.headers, answer.body, answer.header("content-type") or ""
    if (charset := charset_of(body, media_type)) is not None:
        kind = media_type.partition(";")[0].strip() or "text/plain"
        other_headers = tuple(pair for pair in headers if pair[0] != "content-type")
        headers = (*other_headers, ("content-type", f"{kind}; charset=utf-8"))
        body = body.decode(charset, "replace").encode("utf-8", "replace")
    headers, body = redactor.clear_pairs(headers), redactor.clear_bytes(body)
    if headers is answer.headers and body is answer.body:
        return answer
    return replace(answer, body=body, headers=headers)


def _whole_result(body: bytes, media_type: str) -> Result:
    kind, text = essence(media_type), as_text(body, media_type)
    if kind.startswith(("image/", "audio/")) and not kind.endswith("+xml"):
        data = base64.b64encode(body).decode()
        content = [{"type": kind.partition("/")[0], "data": data, "mimeType": kind}]
        return {"content": content, "isError": False}
    if text is None:
        blob = base64.b64encode(body).decode()
        mime_type = kind or "application/octet-stream"
        resource = {"uri": "gateway://answer", "mimeType": mime_type, "blob": blob}
        summary = _text(f"A file of {len(body)} bytes, {mime_type}.")
        return {"content": [summary, {"type": "resource", "resource": resource}], "isError": False}
    result: Result = {"content": [_text(text)], "isError": False}
    if (value := as_json(body, media_type)) is not NOT_JSON:
        result["structuredContent"] = value if isinstance(value, dict) else {"result": value}
    return result


def preview_result(
    result_id: str, body: bytes, media_type: str, *, cut: bool = False, chars: int = PREVIEW_CHARS
) -> Result:
    """The result in place of an answer that is too large to show."""
    preview, kind = _preview(body, media_type)[:chars], essence(media_type) or "unknown type"
    note = " There was more, which the gateway did not read." if cut else ""
    message = (
        f"The answer is too large to show: {len(body)} bytes, {kind}.{note} Read it in parts with "
        f"read_result and result_id {result_id!r}."
    )
    structured = {"truncated": True, "bytes": len(body), "result_id": result_id, "preview": preview}
    text = f"{message} It begins:\n\n{preview}" if preview else message
    return own_result(text, {**structured, "incomplete": True} if cut else structured)


def _preview(body: bytes, media_type: str) -> str:
    head = body[: 4 * PREVIEW_CHARS]
    for cut in range(4):  # the last character may have been cut apart
        text = as_text(head[: len(head) - cut], media_type)
        if text is not None:
            return text[:PREVIEW_CHARS]
    return ""


# --- headers --------------------------------------------------------------------------------------

# Headers with the address of a thing that is made or being made.
_PLACES = ("location", "operation-location", "azure-asyncoperation")
_TELLING = re.compile(
    rf"link|etag|retry-after|content-range|{'|'.join(_PLACES)}|.*(rate-?limit|call-limit).*"
    r"|(.*[-_])?(next|prev|page|pagin|cursor|continuation|total|has-?more).*"
)
_LINKS = re.compile(r",\s*(?=<)")
_LINK = re.compile(r"\s*<([^>]*)>.*?;\s*rel\s*=\s*(?:\"([^\"]*)\"|([^\s;,]+))", re.IGNORECASE)
_NEXT_NAME = re.compile(r"(.*[-_])?(next|continuation).*")


@lru_cache(maxsize=MAX_REMEMBERED)
def _is_telling(name: str) -> bool:
    """Whether a header says how to go on: pages, versions, places, and when to call again."""
    return _TELLING.fullmatch(name) is not None


def _select_headers(pairs: Pairs, extra_names: tuple[str, ...]) -> dict[str, str]:
    """The headers that a caller may need; the values of a repeated header are joined."""
    headers: dict[str, str] = {}
    for name, value in pairs:
        if value and (_is_telling(name) or name in extra_names):
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def _next_steps(status: int, headers: Mapping[str, str]) -> Iterator[str]:
    """Lines of text about the headers: where the new thing is, and where the next page is."""
    if status in (HTTPStatus.CREATED, HTTPStatus.ACCEPTED):
        yield from (f"{name.title()}: {headers[name]}" for name in _PLACES if name in headers)
    links = map(_LINK.match, _LINKS.split(headers["link"]) if "link" in headers else ())
    nexts = [link[1] for link in links if link and "next" in (link[2] or link[3]).lower().split()]
    nexts += [f"{name} {headers[name]}" for name in headers if _NEXT_NAME.fullmatch(name)]
    yield from (f"Next page: {each}" for each in nexts[:1])


# --- errors ---------------------------------------------------------------------------------------

_HINTS = {  # by status, or by its first digit
    304: "What you have is what the API has: nothing has changed.",
    400: "Check the arguments against what the API says.",
    401: "The API does not accept the connection's credentials; an operator must renew them.",
    403: "The connection's credentials do not permit this; use another tool or ask an operator.",
    404: "Check the identifiers; list or search to find the right ones.",
    409: "Read the current state first, then decide.",
    422: "Check the arguments against what the API says.",
    429: "Wait before calling again.",
    3: "Call the tool for the place it points to, if there is one.",
    5: "The fault is on the API's side; try again later.",
    4: "Check the arguments, or try another tool.",
}


def _error_result(answer: Answer, media_type: str) -> Result:
    status, body = answer.status, answer.body
    if len(body) > STEP_BYTES or answer.truncated:  # the error's words are near the beginning
        text, value = _preview(body, media_type), NOT_JSON
    else:
        text = as_text(body, media_type) or ""
        value = as_json(body, media_type) if text else NOT_JSON
    words, points_elsewhere = _failure_words(value, text), status < 400 and status != 304
    message = f"The API answered {status} {responses.get(status, '')}".rstrip()
    if points_elsewhere:
        message += " and points elsewhere, which is not followed"
    error: dict[str, Any] = {
        "code": "upstream_error",
        "message": f"{message}: {words}" if words else f"{message}.",
        "hint": _HINTS.get(status) or _HINTS[min(status // 100, 5)],
        "status": status,
    }
    if text:
        error["body"] = text[:PREVIEW_CHARS]
    for name, key in _ERROR_HEADERS:
        header = answer.header(name)
        if header and (name != "location" or points_elsewhere):
            seconds = name == "retry-after" and header.isascii() and header.isdigit()
            error[key] = int(header[:9]) if seconds else header[:PREVIEW_CHARS]
    full_text = f"{error['message']}\n{error['hint']}"
    if text and words not in (text, text[:MAX_QUOTE_CHARS]):
        full_text += f"\n\n{error['body']}"
    for name, key in _ERROR_HEADERS:
        full_text += f"\n{name.title()}: {error[key]}" if key in error else ""
    return own_result(full_text, {"error": error}, is_error=True)


_ERROR_HEADERS = (
    ("retry-after", "retry_after"),
    ("location", "location"),
    ("x-ms-client-request-id", "client_request_id"),  # what Azure's support asks for
)


# The fields in which APIs explain an error, the most telling first.
_WORD_FIELDS = """message error errors error_description detail details title description reason
    fault faultstring error_message errormessage msg""".split()


def _failure_words(value: Any, text: str) -> str:
    """The API's own words for what went wrong, kept short."""
    words = _find_words(value) if value is not NOT_JSON else None
    if words is None and value is NOT_JSON and not text.lstrip().startswith("<"):
        words = text
    return " ".join((words or "").split())[:MAX_QUOTE_CHARS]


def _find_words(value: Any, depth: int = 0) -> str | None:
    """The first text under a usual name; `error` and `errors` may hold objects with more."""
    if depth > 4:
        return None
    if isinstance(value, str):
        return value or None
    if isinstance(value, list):
        found = [w for item in value[:5] if (w := _find_words(item, depth + 1))]
        return "; ".join(found) or None
    if isinstance(value, Mapping):
        folded = {str(key).lower(): item for key, item in value.items()}
        # `{"error": "invalid_grant", "error_description": "…"}`: the sentence says more.
        if isinstance(folded.get("error"), str) and folded.get("error_description"):
            return f"{folded['error']}: {_find_words(folded['error_description'], depth + 1)}"
        if isinstance(folded.get("msg"), str) and isinstance(folded.get("loc"), list):
            return ".".join(map(str, folded["loc"])) + f": {folded['msg']}"
        ordered = [folded[name] for name in _WORD_FIELDS if name in folded]
        return next((w for item in ordered if (w := _find_words(item, depth + 1))), None)
    return None


def own_result(text: str, structured: Mapping[str, Any], *, is_error: bool = False) -> Result:
    """A result of our own: words for the model, structure for programs."""
    return {"content": [_text(text)], "structuredContent": structured, "isError": is_error}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


# --- reading a large answer in parts --------------------------------------------------------------


async def read_part(
    work: RunInWorker,
    body: bytes,
    media_type: str,
    *,
    pointer: str,
    offset: int,
    limit: int,
    most: int = STEP_BYTES,
) -> dict[str, Any]:
    """`{bytes, total, offset, value, next_offset?}` of the part that the pointer leads to.

    A limit of 0: a good amount to read at once. A part never has more than `most` bytes.
    """
    request, reply = json.dumps([pointer, offset, limit, most]), None
    if len(body) > LARGE_BYTES and may_be_json(body, media_type):
        reply = await work(part_in_worker, body, media_type, request)
        media_type = CUT_JSON  # JSON that takes too much work is read as text
    if reply is None:
        reply = await asyncio.to_thread(part_in_worker, body, media_type, request)
    outcome = orjson.loads(reply)
    if "refusal" in outcome:
        raise Fixable(**outcome["refusal"])
    return {"bytes": len(body), **outcome["part"]}


def part_in_worker(body: bytes, media_type: str, request: str) -> bytes:
    """Runs `part_of` in another process or thread: the part, or the refusal, as JSON."""
    try:
        return orjson.dumps({"part": part_of(body, media_type, *json.loads(request))})
    except Fixable as refusal:
        return orjson.dumps({"refusal": refusal.as_dict()})


def part_of(
    body: bytes, media_type: str, pointer: str, offset: int, limit: int, most: int = STEP_BYTES
) -> dict[str, Any]:
    """`{total, offset, value, next_offset?}` of the part that the pointer leads to."""
    value = as_json(body, media_type)
    if value is NOT_JSON and pointer:
        words = "can't be followed: this result is not JSON, was cut, or is too intricate"
        raise problem("pointer", words)
    if value is NOT_JSON or (not pointer and not isinstance(value, (list, str))):
        return _characters(text_or_base64(body, media_type), offset, limit, most)
    target = _follow(value, pointer)
    if isinstance(target, list):
        return _items(target, pointer, offset, limit, most)
    text = target if isinstance(target, str) else orjson.dumps(target).decode()
    return _characters(text, offset, limit, most)


def _characters(text: str, offset: int, limit: int, most: int) -> dict[str, Any]:
    count = limit or 10 * PREVIEW_CHARS
    value = text[offset : offset + min(count, most)].encode("utf-8", "replace")
    return _part(len(text), offset, value[:most].decode("utf-8", "ignore"))


def _items(items: list[Any], pointer: str, offset: int, limit: int, most: int) -> dict[str, Any]:
    value: list[Any] = []
    size = 0
    for item in items[offset : offset + (limit or PAGE_ENTRIES)]:
        size += len(orjson.dumps(item)) + 1
        if size > most:
            break
        value.append(item)
    if not value and offset < len(items):
        raise Fixable(
            "invalid_arguments",
            f"Item {offset} alone is larger than {most} bytes.",
            f"Read it with the pointer {pointer}/{offset}.",
        )
    return _part(len(items), offset, value)


def _part(total: int, offset: int, value: str | list[Any]) -> dict[str, Any]:
    part = {"total": total, "offset": min(offset, 2**63), "value": value}
    if value and offset + len(value) < total:
        part["next_offset"] = offset + len(value)
    return part


def _follow(value: Any, pointer: str) -> Any:
    """The value that a JSON pointer (RFC 6901) leads to; `items/0` is read as `/items/0`."""
    if pointer in ("", "#"):
        return value
    for step in pointer.removeprefix("#").removeprefix("/").split("/"):
        try:
            value = step_into(value, step)
        except LookupError:
            words = f"{pointer[:100]!r} leads nowhere: at {step[:50]!r} {_describe(value)}"
            raise problem("pointer", words) from None
    return value


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        keys = ", ".join(repr(key[:50]) for key in islice(value, MAX_TOLD_ITEMS))
        return f"there are the keys {keys}" if keys else "there is an empty object"
    if isinstance(value, list):
        return f"there is an array of {len(value)}"
    return "there is nothing further inside"
