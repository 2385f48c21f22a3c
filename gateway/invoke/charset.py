"""Answers in UTF-8, whatever they came in: only then can they be searched for secrets.

A charset is taken from a byte order mark or from the Content-Type, if it is one that people write
text in. Python knows many more codecs; some are slow, and some would spell a secret so that nobody
finds it.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from functools import lru_cache

from msgspec.structs import replace

from gateway.invoke.media import STEP_BYTES, decoded
from gateway.outbound.client import Answer

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
