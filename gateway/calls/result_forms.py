"""A result in the form that its client is sent: text, structure or both, and not too long.

A call knows nothing of its client's profile, so that the same call has the same answer for every
client that makes it, or makes it again with its token. The form of the answer is decided here, on
its way out. An answer too long for a client is kept and previewed, as any over the limit is.
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
    """The result in the form that the profile asks for; a result that is kept is its owner's."""
    if "content" not in result:  # a question
        return result
    limit = serving.max_output_chars
    if bounded and limit is not None and _size(result) > limit and _error_code(result) is None:
        result = await _keep_and_preview(result, limit, db, owner)
    if serving.results == "text":
        return _as_text(result)
    return _as_structure(result) if serving.results == "structured" else result


def _size(result: Result) -> int:
    """The characters of a result that a model would read: data that is there twice counts once."""
    structured = result.get("structuredContent")
    return max(
        sum(len(text) for part in result["content"] for text in _long_texts(part)),
        len(json_bytes(structured)) if structured is not None else 0,
    )


def _long_texts(part: Any) -> Iterator[str]:
    """The text of a part of a result, its file, and those of its resource."""
    for holder in (part, part.get("resource") or {}):
        texts = (holder.get(key) for key in ("text", "data", "blob"))
        yield from (text for text in texts if isinstance(text, str))


def _error_code(result: Result) -> str | None:
    """The code of an error of the gateway's own, whose words are bounded."""
    structured = result.get("structuredContent")
    error = structured.get("error") if isinstance(structured, dict) else None
    code = error.get("code") if isinstance(error, dict) and result.get("isError") else None
    return code if isinstance(code, str) and code in CODES else None


def _preview_id(result: Result) -> str | None:
    """The id that the whole result is kept under, where this one is a preview already."""
    structured = result.get("structuredContent")
    if not isinstance(structured, dict) or structured.get("truncated") is not True:
        return None
    return structured["result_id"] if isinstance(structured.get("result_id"), str) else None


async def _keep_and_preview(result: Result, limit: int, db: Database, owner: str) -> Result:
    """The beginning of a result that is kept whole, and what the result says of its call."""
    body, media_type = _data(result)
    id = _preview_id(result)
    if id is not None:
        body = str(result["structuredContent"].get("preview", "")).encode("utf-8", "replace")
    else:
        id, until = new_id(time.time()), time.time() + RESULT_SECONDS
        try:
            row = LargeResult(id, owner, len(body), media_type, body, until)
            await save_result(db, row)
        except GatewayError:
            return result  # the store is away: too long an answer is better than none
    preview = preview_result(id, body, media_type, chars=max(0, limit - 2 * SUMMARY_CHARS))
    lines = [part for part in _texts(result)[1:] if len(part["text"]) <= SUMMARY_CHARS]
    other_fields = {key: value for key, value in result.items() if key in ("_meta", "isError")}
    return {**preview, **other_fields, "content": [*preview["content"], *lines]}


def _data(result: Result) -> tuple[bytes, str]:
    """The data of a result, as it is kept: pointers count from the answer's own JSON."""
    structured, texts = result.get("structuredContent"), _texts(result)
    if structured is not None:
        text = next((part["text"] for part in texts if _repeats(part["text"], structured)), None)
        return json_bytes(structured) if text is None else text.encode(), "application/json"
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
    if structured is None or _preview_id(result) is not None:
        return fitted
    if any(_repeats(part["text"], structured) for part in _texts(result)):
        return fitted
    code = _error_code(result)
    extra_text = json_bytes(structured).decode() if code is None else f"Error code: {code}"
    return {**fitted, "content": [*result["content"], {"type": "text", "text": extra_text}]}


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
    """Whether a text is the same data; a value that is no object stands under `result`."""
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
    return own_result(error.sentence, {"error": error.as_dict()}, is_error=True)
