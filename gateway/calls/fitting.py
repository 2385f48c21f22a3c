"""A result as one client is sent it: data as text, as structure or as both, and not too much.

A call knows nothing of its client's profile, so that the same call has the same answer for whoever
makes it, or makes it again with its token. What becomes of the answer is decided here, on its way
out. What is too much for a client is kept and previewed, as any answer over the limit is.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import orjson

from gateway.calls.answer import own_result, preview_result
from gateway.config.profiles import Serving
from gateway.errors import CODES, GatewayError
from gateway.limits import RESULT_SECONDS, SUMMARY_CHARS
from gateway.model import Result, json_bytes, new_id
from gateway.naming import cut
from gateway.store.database import Database
from gateway.store.ledger import save_result
from gateway.store.tables import LargeResult


async def fit_result(
    result: Result, serving: Serving, db: Database, owner: str, *, bounded: bool = True
) -> Result:
    """The result in the form that the profile asks for; what is kept of it is its owner's."""
    if "content" not in result:  # a question
        return result
    most = serving.max_output_chars
    if bounded and most is not None and _size(result) > most and _error_code(result) is None:
        result = await _previewed(result, most, db, owner)
    if serving.results == "text":
        return _as_text(result)
    return _as_structure(result) if serving.results == "structured" else result


def _size(result: Result) -> int:
    """How much a model would read of it: of data that is there twice, once."""
    structured = result.get("structuredContent")
    return max(
        sum(len(text) for part in result["content"] for text in _long_texts(part)),
        len(json_bytes(structured)) if structured is not None else 0,
    )


def _long_texts(part: Any) -> Iterator[str]:
    """The text of a part of a result, its file, and those of its resource."""
    for holder in (part, part.get("resource") or {}):
        found = (holder.get(key) for key in ("text", "data", "blob"))
        yield from (text for text in found if isinstance(text, str))


def _error_code(result: Result) -> str | None:
    """The code of an error of ours; its words are bounded."""
    structured = result.get("structuredContent")
    error = structured.get("error") if isinstance(structured, dict) else None
    code = error.get("code") if isinstance(error, dict) and result.get("isError") else None
    return code if isinstance(code, str) and code in CODES else None


def _known_id(result: Result) -> str | None:
    """Where the rest of a result is that is a preview already."""
    shown = result.get("structuredContent")
    if not isinstance(shown, dict) or shown.get("truncated") is not True:
        return None
    return shown["result_id"] if isinstance(shown.get("result_id"), str) else None


async def _previewed(result: Result, most: int, db: Database, owner: str) -> Result:
    """The beginning of a result that is kept whole, and what it says of its call."""
    body, media_type = _data(result)
    id = _known_id(result)
    if id is not None:
        body = str(result["structuredContent"].get("preview", "")).encode("utf-8", "replace")
    else:
        id, until = new_id(time.time()), time.time() + RESULT_SECONDS
        try:
            kept = LargeResult(id, owner, len(body), media_type, body, until)
            await save_result(db, kept)
        except GatewayError:
            return result  # the store is away: rather too much than nothing of a call that was made
    preview = preview_result(id, body, media_type, chars=max(0, most - 2 * SUMMARY_CHARS))
    lines = [part for part in _texts(result)[1:] if len(part["text"]) <= SUMMARY_CHARS]
    said = {key: value for key, value in result.items() if key in ("_meta", "isError")}
    return {**preview, **said, "content": [*preview["content"], *lines]}


def _data(result: Result) -> tuple[bytes, str]:
    """What a result holds, as it is kept: pointers count from the answer's own JSON."""
    structured, texts = result.get("structuredContent"), _texts(result)
    if structured is not None:
        own = next((each["text"] for each in texts if _repeats(each["text"], structured)), None)
        return json_bytes(structured) if own is None else own.encode(), "application/json"
    if len(texts) == len(result["content"]):
        joined = "\n".join(part["text"] for part in texts)
        return joined.encode("utf-8", "replace"), "text/plain; charset=utf-8"
    return json_bytes(result), "application/json"


def _texts(result: Result) -> list[dict[str, Any]]:
    return [part for part in result["content"] if part.get("type") == "text"]


def _as_text(result: Result) -> Result:
    """The result with its data in the text alone."""
    structured = result.get("structuredContent")
    fitted = {key: value for key, value in result.items() if key != "structuredContent"}
    if structured is None or _known_id(result) is not None:
        return fitted
    if any(_repeats(part["text"], structured) for part in _texts(result)):
        return fitted
    code = _error_code(result)
    missing = json_bytes(structured).decode() if code is None else f"Error code: {code}"
    return {**fitted, "content": [*result["content"], {"type": "text", "text": missing}]}


def _as_structure(result: Result) -> Result:
    """The result with its data as structure, and at most a few words of text."""
    structured = result.get("structuredContent")
    if structured is None:
        return result
    room, content = SUMMARY_CHARS, []
    for part in result["content"]:
        if part.get("type") != "text":
            content.append(part)
        elif room > 0 and not _repeats(part["text"], structured):
            content.append({**part, "text": cut(part["text"], room)})
            room -= len(part["text"])
    return {**result, "content": content}


def _repeats(text: str, structured: Any) -> bool:
    """Whether a text is the same data; what is no object stands under `result`."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return bool(value == structured or structured == {"result": value})


def value_result(value: dict[str, Any]) -> Result:
    """A result with this object as text and as structured content."""
    return own_result(json_bytes(value).decode(), value)


def error_result(error: GatewayError) -> Result:
    """A failed result: the sentence as text, code and hint as structured content."""
    return own_result(error.sentence, {"error": error.as_dict()}, failed=True)
