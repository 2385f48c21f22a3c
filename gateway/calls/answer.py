"""What an API answered becomes what a model reads.

JSON is both text and structure, images and audio are themselves, other files are embedded, and an
answer over the bound is a preview and the promise of the rest. Headers that say how to go on are
told too. A status of 300 or more is an error
with the words the API itself found for it. An answer that strays from its own content type is
shown as what it turns out to be; nothing here fails.

Pure. `shape` parses and decodes what is within the bound: hand answers over `HEAVY_BYTES` to a
thread.

What the bytes of an answer are: text, JSON, or neither.

Large ones are decoded in steps: one call over sixteen megabytes would keep every other thread, and
with them the event loop, from running. `as_json` can't do that: what parses large JSON belongs into
a process of its own (see `elsewhere`), for which reason this module imports next to nothing.

Answers in UTF-8, whatever they came in: only then can they be searched for secrets.

A charset is taken from a byte order mark or from the Content-Type, if it is one that people write
text in. Python knows many more codecs; some are slow, and some would spell a secret so that nobody
finds it.

Where large JSON is parsed: not here.

Parsing holds up every thread of a process, and takes up to forty times the memory of the text. A
function of ours that does so is run in another process, on bytes and a few words; `app` says how.
Its module has to import little: that process may have to be started first.
"""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Protocol

import msgspec
import orjson
from msgspec.structs import replace

from gateway.outbound.client import Answer
from gateway.outbound.headers import Pairs

HEAVY_BYTES = 65_536
MAX_DEPTH = 200  # deeper, and what we parsed could not be written again once it is in a result
STEP_BYTES = 48 * 1024  # as base64, 64 KiB

NOT_JSON = object()
_TEXT_TYPES = (
    "json",
    "xml",
    "javascript",
    "yaml",
    "x-www-form-urlencoded",
    "graphql",
    "csv",
    "sql",
)
_FILES = ("image/", "audio/", "video/", "font/")
_VAGUE = frozenset(("", "text/plain", "application/octet-stream", "text/html", "text/json"))
_JSON_BEGINS = re.compile(rb"\s*[\[{]")
_SPARE_DEPTH = 254 - MAX_DEPTH  # 254 is how deep orjson writes


def essence(media_type: str) -> str:
    """`application/json` of `Application/JSON; charset=utf-8`."""
    return media_type.partition(";")[0].strip().lower()


def is_text(body: bytes, media_type: str) -> bool:
    """Whether the body, which is in UTF-8 if it is text at all, is text."""
    kind = essence(media_type)
    if kind.startswith("text/") or kind.endswith(_TEXT_TYPES):
        return True
    return not kind.startswith(_FILES) and b"\0" not in body[:HEAVY_BYTES] and _is_utf8(body)


def as_text(body: bytes, media_type: str) -> str | None:
    """The body as text; None if it is none."""
    if not is_text(body, media_type):
        return None
    # By hand, without the mark: the codec that knows of it is written in Python.
    return body.removeprefix(codecs.BOM_UTF8).decode("utf-8", "replace")


def shown(body: bytes, media_type: str) -> Iterator[str]:
    """The body as text, or else in base64, in pieces."""
    if is_text(body, media_type):
        yield from decoded(body, "utf-8-sig")
    else:
        for at in range(0, len(body), STEP_BYTES):
            yield base64.b64encode(body[at : at + STEP_BYTES]).decode()


def decoded(body: bytes, charset: str, errors: str = "replace") -> Iterator[str]:
    """The text of these bytes, in pieces."""
    decoder = codecs.getincrementaldecoder(charset)(errors)
    for at in range(0, len(body), STEP_BYTES):
        yield decoder.decode(body[at : at + STEP_BYTES])
    yield decoder.decode(b"", final=True)


def may_be_json(body: bytes, media_type: str) -> bool:
    """Whether it is worth a try: a type that says little is tried for what it is."""
    kind = essence(media_type)
    return kind.endswith("json") or (kind in _VAGUE and bool(_JSON_BEGINS.match(body)))


def as_json(
    body: bytes, media_type: str, loads: Callable[[bytes | str], Any] = orjson.loads
) -> Any:
    """The body as a JSON value, or NOT_JSON."""
    if not may_be_json(body, media_type):
        return NOT_JSON
    try:
        value = loads(body)
    except orjson.JSONDecodeError:
        text = body.decode("utf-8-sig", "replace")
        try:
            value = loads(text)
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            return NOT_JSON
    brackets = body.count(b"[") + body.count(b"{")
    return NOT_JSON if brackets > MAX_DEPTH and _is_too_deep(value) else value


def _is_utf8(body: bytes) -> bool:
    try:
        for _ in decoded(body, "utf-8-sig", "strict"):
            pass
    except UnicodeDecodeError:
        return False
    return True


def _is_too_deep(value: Any) -> bool:
    """Asks who knows: walking through millions of values here would take seconds."""
    for _ in range(_SPARE_DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except TypeError:
        return True
    return False


ONE_BYTE_CHARSETS = frozenset(
    """ascii us-ascii iso-8859-1 iso-8859-2 iso-8859-5 iso-8859-7 iso-8859-9 iso-8859-15 latin-1
    latin1 windows-1250 windows-1251 windows-1252 windows-1253 windows-1254 windows-1257 cp1250
    cp1251 cp1252 koi8-r koi8-u""".split()
)
CHARSETS = ONE_BYTE_CHARSETS | frozenset(
    """utf-16 utf-16le utf-16be utf-32 shift_jis shift-jis euc-jp iso-2022-jp gb2312 gbk gb18030
    big5 euc-kr""".split()
)
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
MAX_UTF8_BYTES = 16 * 1024 * 1024  # some bytes become three
MAX_KNOWN_CHARS = 100  # of media types that are remembered
NOT_TEXT = ("image/", "audio/", "video/", "font/")


def in_utf8(answer: Answer) -> Answer:
    """The same answer with its text in UTF-8; the very object where it is so already."""
    media_type = answer.header("content-type") or ""
    charset = charset_of(answer.body, media_type)
    if charset is None:
        return answer
    body, cut = _encoded(answer.body, charset)
    kind = media_type.partition(";")[0].strip() or "text/plain"
    others = tuple(pair for pair in answer.headers if pair[0] != "content-type")
    headers = (*others, ("content-type", f"{kind}; charset=utf-8"))
    return replace(answer, body=body, headers=headers, truncated=answer.truncated or cut)


def _encoded(body: bytes, charset: str) -> tuple[bytes, bool]:
    """The text in UTF-8, and whether there was more of it than is held."""
    steps: list[bytes] = []
    left = max(MAX_UTF8_BYTES, len(body))
    for piece in (_characters if charset in ONE_BYTE_CHARSETS else decoded)(body, charset):
        steps.append(piece.encode("utf-8", "replace"))
        left -= len(steps[-1])
        if left < 0:
            return b"".join(steps[:-1]), True
    return b"".join(steps), False


def _characters(body: bytes, charset: str) -> Iterator[str]:
    """As `decoded`, by a table: bytes without a character would take a hundred times as long."""
    table = bytes(range(256)).decode(charset, "replace")
    for at in range(0, len(body), STEP_BYTES):
        yield codecs.charmap_decode(body[at : at + STEP_BYTES], "strict", table)[0]


def charset_of(body: bytes, media_type: str) -> str | None:
    """What a text has to be decoded with; None: it is UTF-8, or no text."""
    declared = (_known if len(media_type) <= MAX_KNOWN_CHARS else _declared)(media_type)
    if declared is not None and body.startswith(_ANY_MARK):
        return next(charset for mark, charset in MARKS if body.startswith(mark))
    return declared or None


_UNMARKED = {"utf-16": "utf-16-le", "utf-32": "utf-32-le"}  # as most write it
_ANY_MARK = tuple(mark for mark, _ in MARKS)


@lru_cache(maxsize=256)
def _known(media_type: str) -> str | None:
    return _declared(media_type)


def _declared(media_type: str) -> str | None:
    """The charset it names, "" if that is none to decode; None: it is no text."""
    if media_type.lower().lstrip().startswith(NOT_TEXT):
        return None
    named = _named(media_type)
    return _UNMARKED.get(named, named) if named in CHARSETS else ""


def _named(media_type: str) -> str:
    for part in media_type.split(";")[1:]:
        name, _, value = part.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip("\"'").lower()
    return ""


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
    cut: bool = False  # there was more of it, which was not read
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
    shaped = _shaped(in_utf8(answer), max_output_bytes, result_id)
    told = _told_headers(answer.headers, headers_out)
    if not told:
        return shaped
    said = [] if shaped.is_error else [_text(line) for line in _onward(answer.status, told)]
    return replace(shaped, headers=told, content=[*shaped.content, *said])


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
    content = [_text(shown)]
    status, body = answer.status, answer.body
    return Shaped(content, structured, False, status, media_type, body, answer.truncated)


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


ELSEWHERE_BYTES = 256 * 1024  # below, it takes no longer than to ask another process


class Elsewhere(Protocol):
    """Another process."""

    async def __call__(
        self, job: Callable[..., bytes], data: bytes, /, *arguments: str
    ) -> bytes | bytearray | None:
        """What the function makes of the data; None where that takes too much, or fails."""
