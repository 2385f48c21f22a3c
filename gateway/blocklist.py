"""Paths that are never exposed nor reached, and parameters that no caller may fill in.

A server may decode, fold and resolve a path in ways we cannot know, so a path is read in every way
a server might read it: as it stands and after each round of percent-decoding, with and without the
prefix of the base URL. One reading that falls under a pattern is enough to forbid it.

A pattern blocks what it matches and everything below: `/users` also blocks `/users/1/photo`. `*`
stands for any text within one segment, `**` for any number of segments, `{name}` for one segment.
At build a template such as `/users/{id}` is checked with its variables as they stand; at call the
complete path is checked again, with the values of its variables.

Path and method say what a request is, so a caller may not name another path or method in a place
where some servers look as well: `X-HTTP-Method-Override`, `_method`, `X-Original-URL`, `Host` and
the like, in any spelling that some server takes for one of these.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from urllib.parse import unquote_to_bytes, urlsplit

from gateway.limits import DECODINGS

Segments = tuple[str, ...]


def blocked_by(patterns: Sequence[str], base_url: str, path: str) -> str | None:
    """The first pattern that forbids this path under this base URL, or None."""
    if not patterns:
        return None
    readings = {"/" + "/".join(segments) for segments in _readings(base_url, path)}
    for pattern in patterns:
        matches = _matcher(pattern).match
        if any(map(matches, readings)):
            return pattern
    return None


def may_mean(template: str, base_url: str, path: str) -> bool:
    """Whether some server might take this path for one that the template stands for."""
    address = _END.split(template, maxsplit=1)[0]
    pattern = _normalise(_VARIABLE.sub("*", address))
    return any(
        len(pattern) == len(reading) and all(map(_fits, pattern, reading))
        for reading in _cached_readings(base_url, path)
    )


def decodings(text: str) -> Iterator[str]:
    """The text, then what each round of percent-decoding makes of it, until nothing changes."""
    for _ in range(DECODINGS):
        yield text
        decoded = _decode_once(text)
        if decoded == text:
            return
        text = decoded
    yield text


def has_dot_segments(path: str) -> bool:
    """Whether some server might find `.` or `..` among the path's segments."""
    texts = (text.replace("\\", "/") for text in decodings(path))
    segments = (segment for text in texts for segment in text.split("/"))
    return any(segment.partition(";")[0].strip() in (".", "..") for segment in segments)


_FOLDED = re.compile(r"[^a-z0-9]+")
_OTHER_METHOD = re.compile(
    r"(?:-|x-)(?:(?:http|rest|request(?:ed)?|original|forwarded|rewrite|override|tunnel(?:l?ed)?)-?)*"
    r"(?:method|verb)|[-x]*(?:(?:http|rest|request)-?)*(?:method|verb)-?override"
    r"|override-?(?:http-?)?(?:method|verb)|x-http-override"
)
_OTHER_ADDRESS = re.compile(  # headers: some proxy on the way acts on them
    r"(?:x-)?(?:http-)?host(?:-override)?|(?:x-)?forwarded(?:-.+)?|x-envoy-.+|proxy-.+"
    r"|x-(?:original|rewrite|override|proxy|backend|upstream|request|http)-(?:ur[il]|path|host)"
    r"(?:-override)?|(?:request|http|base)-ur[il]|connection|keep-alive|te|trailer|transfer-encoding|upgrade"
    r"|content-length|expect"
)


@lru_cache(maxsize=4096)
def may_reroute(name: str, place: str) -> bool:
    """Whether a parameter of this name may turn the request into another one."""
    if place == "path":
        return False
    for text in decodings(name):
        # Some servers read `_method[]` and ` .method` as `_method`, and `_` in a header as `-`.
        folded = _FOLDED.sub("-", text.partition("[")[0].strip().lower()).rstrip("-")
        if _OTHER_METHOD.fullmatch(folded):
            return True
        if place == "header" and _OTHER_ADDRESS.fullmatch(folded):
            return True
    return False


_VARIABLE = re.compile(r"\{[^{}/]*\}")
_OVERLONG = re.compile(rb"[\xc0\xc1][\x80-\xbf]")
_WIDE = re.compile(r"%u([0-9a-fA-F]{4})")


def _decode_once(text: str) -> str:
    """The text after one round of decoding, loose forms that some servers accept included."""
    if "%" not in text:
        return text
    text = _WIDE.sub(lambda match: chr(int(match[1], 16)), text)
    # Two bytes for what fits in one: `%c0%af` is a slash to a careless decoder.
    data = _OVERLONG.sub(
        lambda match: bytes([(match[0][0] & 3) << 6 | match[0][1] & 63]),
        unquote_to_bytes(text.encode("utf-8", "replace")),
    )
    return data.decode("utf-8", "replace")


@lru_cache(maxsize=64)  # one path is compared with every operation of a connection
def _cached_readings(base_url: str, path: str) -> frozenset[Segments]:
    return frozenset(_readings(base_url, path))


def _readings(base_url: str, path: str) -> Iterator[Segments]:
    """Every normalised path that some server may read from base URL and path."""
    prefix, home = _prefix(base_url)
    for text in decodings(path):
        # A decoded `?`, `#` or NUL may or may not end the path.
        for part in {text, _END.split(text, maxsplit=1)[0]}:
            yield _normalise(part)
            if home:
                whole = _normalise(f"{prefix}/{part}")
                yield whole
                if whole[: len(home)] == home:
                    yield whole[len(home) :]


_END = re.compile(r"[?#\0]")


@lru_cache(maxsize=1024)
def _prefix(base_url: str) -> tuple[str, Segments]:
    path = urlsplit(base_url).path
    return path, _normalise(path)


_INVISIBLE = {"Cc", "Cf"}


def _normalise(path: str) -> Segments:
    """The path's segments, folded, with dot segments resolved and empty ones dropped."""
    if not path.isascii() or not path.isprintable():
        path = unicodedata.normalize("NFKC", path)
        path = "".join(c for c in path if unicodedata.category(c) not in _INVISIBLE)
    segments: list[str] = []
    for raw in path.casefold().replace("\\", "/").split("/"):
        segment = raw.partition(";")[0].strip()
        if segment == "..":
            del segments[-1:]
        elif segment := segment.rstrip(". "):
            segments.append(segment)
    return tuple(segments)


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> re.Pattern[str]:
    """An expression that matches `/a/b` when the pattern blocks it."""
    if not pattern.strip():
        return re.compile(r"(?!)")  # an empty line in a list blocks nothing; "/" blocks everything
    segments = _normalise(_VARIABLE.sub("*", pattern))
    parts = [_SEGMENTS if s == "**" else "/" + _segment_pattern(s) for s in segments]
    collapsed = [p for i, p in enumerate(parts) if p != _SEGMENTS or parts[i - 1 : i] != [p]]
    return re.compile("".join(collapsed) + r"(?:/|\Z)" if collapsed else "", re.DOTALL)


def _fits(pattern: str, segment: str) -> bool:
    """Whether a segment of a template may stand for this segment of a path."""
    if pattern in ("*", segment):
        return True
    return "*" in pattern and bool(re.fullmatch(_segment_pattern(pattern), segment, re.DOTALL))


_SEGMENTS = "(?:/[^/]*)*"


def _segment_pattern(text: str) -> str:
    return "[^/]*".join(re.escape(literal) for literal in re.split(r"\*+", text))
