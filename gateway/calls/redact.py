"""Secrets stay with us: whatever an upstream echoes is cleared of them before anyone sees it.

A secret is looked for as it stands and in the forms in which servers echo it: percent-encoded, in
JSON and HTML escapes, and inside base64 at each of its three alignments. All forms are worked out
once; a body that holds none of them costs a search and is handed back as it is. Large bodies are
cleared in steps, for a single one would keep other threads from running. Secrets shorter
than `SHORTEST_SECRET` are not looked for: they would tear holes into innocent text, and a password
that short is caught as part of `user:password`.

`redact_arguments` is for what callers send: it goes by the names of fields, not by known values.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any
from urllib.parse import quote, quote_plus

SHORTEST_SECRET = 6
STEP_BYTES = 65_536
SEARCH_BYTES = 1024 * 1024
# Names of headers, variables and options whose values are nobody's business.
SECRET_NAME = re.compile(r"auth|token|secret|key|cookie|passw|credential|session", re.IGNORECASE)
MASK = "[redacted]"
MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_KNOWN_CHARS = 64  # of names that are remembered


class Redactor:
    """Clears bytes, text and parsed JSON of a set of secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        self._forms = tuple(sorted((f.encode() for f in forms), key=len, reverse=True))
        self._longest = len(self._forms[0]) if self._forms else 0
        self._texts = tuple(form.decode() for form in self._forms)
        self._found = re.compile(b"|".join(map(re.escape, self._forms)) or b"(?!)")
        self._found_text = re.compile("|".join(map(re.escape, self._texts)) or "(?!)")

    def __bool__(self) -> bool:
        return bool(self._forms)

    def holds_none(self, data: bytes) -> bool:
        """Whether no secret stands in this as it is; escapes are not read."""
        if len(data) > SEARCH_BYTES:
            return not any(_holds(data, form) for form in self._forms)
        for form in self._forms:  # noqa: SIM110  (a plain loop: this runs over every answer)
            if form in data:
                return False
        return True

    def bytes(self, data: bytes) -> bytes:
        """The data without secrets: the same object if it holds none."""
        if not self.holds_none(data):
            data = _replaced(self._found, self._longest, _mask, data)
        if self._forms and _holds(data, b"\\u00"):
            # JSON may spell any letter as an escape; read those that are plain characters.
            spelled_out = _replaced(_ESCAPE_BYTES, _ESCAPE_LENGTH, _plain, data)
            if not self.holds_none(spelled_out):
                data = _replaced(self._found, self._longest, _mask, spelled_out)
        return data

    def text(self, text: str) -> str:
        """The text without secrets."""
        for form in self._texts:
            if form in text:
                return self._found_text.sub(MASK, text)
        return text

    def json(self, value: Any) -> Any:
        """A parsed JSON value without secrets, in keys as well."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key): self.json(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.json(item) for item in value]
        return value

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
        """Headers without secrets: the same object if they hold none."""
        pairs = pairs if isinstance(pairs, tuple) else tuple(pairs)
        values = "\n".join([value for _, value in pairs])
        if self.text(values) is values:
            return pairs
        return tuple((name, self.text(value)) for name, value in pairs)


@lru_cache(maxsize=1024)
def redactor_of(secrets: frozenset[str]) -> Redactor:
    """The redactor for these secrets, made once: working out their forms takes its time."""
    return Redactor(secrets)


_ESCAPE_BYTES = re.compile(rb"\\u00([2-7][0-9a-fA-F])")
_ESCAPE_LENGTH = 6


def _mask(secret: re.Match[bytes]) -> bytes:
    return MASK.encode()


def _plain(escape: re.Match[bytes]) -> bytes:
    return _PLAIN[escape[1].lower()]


_PLAIN = {b"%x" % code: bytes([code]) for code in range(0x20, 0x80)}
_PLAIN |= {b"22": b'\\"', b"5c": b"\\\\"}


def _holds(data: bytes, form: bytes) -> bool:
    """As `form in data`, a step at a time."""
    if len(data) <= SEARCH_BYTES:
        return form in data
    at = 0
    while at < len(data):
        if data.find(form, at, at + SEARCH_BYTES + len(form)) >= 0:
            return True
        at += SEARCH_BYTES
    return False


def _replaced(
    pattern: re.Pattern[bytes],
    longest: int,
    instead: Callable[[re.Match[bytes]], bytes],
    data: bytes,
) -> bytes:
    """As `pattern.sub`, a step at a time; what it finds is not longer than said."""
    steps, at = [], 0
    while at < len(data):
        end, written = at + STEP_BYTES, BytesIO()
        for found in pattern.finditer(data, at, end + longest):
            if found.start() >= end:
                break
            written.write(data[at : found.start()] + instead(found))
            at = found.end()
        written.write(data[at:end])
        steps.append(written.getvalue())
        at = max(at, end)
    return b"".join(steps)


def _forms(secret: str) -> set[str]:
    """Every way in which a server is likely to echo this secret."""
    if len(secret) < SHORTEST_SECRET:
        return set()
    # Safe sets of Python's quote, JavaScript's encodeURIComponent and encodeURI, and none at all.
    quoted = [quote(secret, safe) for safe in ("", "/", "!'()*", "!'()*;,/?:@&=+$#")]
    quoted += [quote_plus(secret), quote(quote(secret, ""), "")]
    everything = "".join(f"%{byte:02X}" for byte in secret.encode("utf-8", "replace"))
    lower = [_PERCENT.sub(lambda found: found[0].lower(), text) for text in [*quoted, everything]]
    escaped = [json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]]
    escaped += [text.replace("/", "\\/") for text in escaped]
    return {
        secret,
        everything,
        *quoted,
        *lower,
        *escaped,
        html.escape(secret),
        html.escape(secret, quote=False),
        *_base64_forms(secret.encode("utf-8", "replace")),
    }


_PERCENT = re.compile(r"%[0-9A-F]{2}")


def _base64_forms(secret: bytes) -> set[str]:
    """What every base64 text that holds these bytes must contain, wherever in it they begin."""
    forms = {base64.b64encode(secret).decode(), base64.urlsafe_b64encode(secret).decode()}
    for lead in range(3):
        first = -(-lead * 8 // 6)  # characters that also carry bits of what stands before
        whole = (lead + len(secret)) * 8 // 6  # the last ones may carry bits of what follows
        text = base64.b64encode(bytes(lead) + secret).decode()[first:whole]
        forms |= {text, text.replace("+", "-").replace("/", "_"), quote(text, "")}
    return forms


def redact_arguments(value: Any) -> Any:
    """A copy in which values under names such as `password` or `api_key` are masked."""
    return _masked(value, 0, [MAX_NODES])


def _masked(value: Any, depth: int, budget: list[int]) -> Any:
    budget[0] -= 1
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (dict, Mapping)):  # a dict, nearly always, which is known at once
        if depth >= MAX_DEPTH or budget[0] < 0:
            return "[…]"
        return {
            key: MASK if names_a_secret(str(key)) and item else _masked(item, depth + 1, budget)
            for key, item in value.items()
            if budget[0] >= 0
        }
    if isinstance(value, (list, tuple)):
        if depth >= MAX_DEPTH or budget[0] < 0:
            return "[…]"
        return [_masked(item, depth + 1, budget) for item in value if budget[0] >= 0]
    return value


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = {"password", "passwd", "passwort", "pwd", "passphrase", "passcode", "secret"} | {
    "secrets", "authorization", "credential", "credentials", "apikey", "cvv", "cvc", "otp"
}  # fmt: skip
_SECRET_KEYS = {"api", "access", "private", "secret", "signing", "encryption", "account", "master"}
_PLAIN_TOKENS = {"page", "next", "previous", "continuation", "sync", "skip", "idempotency", "max"}


def names_a_secret(name: str) -> bool:
    """Whether a field of this name is likely to hold a secret."""
    return _known_name(name) if len(name) <= MAX_KNOWN_CHARS else _names_a_secret(name)


@lru_cache(maxsize=4096)
def _known_name(name: str) -> bool:
    return _names_a_secret(name)


def _names_a_secret(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    if _SECRET_WORDS.intersection(words) or "".join(words) in ("xapikey", "setcookie", "cookie"):
        return True
    *before, last = words
    if last in ("key", "keys"):
        return bool(before) and before[-1] in _SECRET_KEYS
    return last in ("token", "jwt", "bearer") and not (before and before[-1] in _PLAIN_TOKENS)
