"""Secrets stay with us: whatever an upstream echoes is cleared of secrets before anybody sees it.

A secret is looked for as it stands and in the forms in which servers echo it: percent-encoded, in
JSON and HTML escapes, and inside base64 at each of its three alignments. All forms are worked out
once; a body that holds none of them costs a search and is handed back as it is. Secrets shorter
than `SHORTEST_SECRET` are not looked for: they would tear holes into innocent text, and a password
that short is caught as part of `user:password`.

`redact_arguments` is for what callers send: it goes by the names of fields, not by known values.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

from gateway.limits import MAX_REMEMBERED, SHORTEST_SECRET

REDACTED = "[redacted]"


class Redactor:
    """Clears bytes, text and parsed JSON of a set of secrets."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms = {form for secret in secrets for form in _forms(secret)}
        self._texts = tuple(sorted(forms, key=len, reverse=True))
        self._forms = tuple(text.encode() for text in self._texts)

    def clear_bytes(self, data: bytes) -> bytes:
        """The data without secrets: the same object if it holds none."""
        data = self._mask_forms(data)
        if self._forms and data.find(b"\\u00") >= 0:  # quicker than `in` for bytes
            # JSON may spell any letter as an escape; read the escapes of plain characters.
            spelled_out = _ESCAPE.sub(_read_escape, data)
            masked = self._mask_forms(spelled_out)
            data = data if masked is spelled_out else masked
        return data

    def _mask_forms(self, data: bytes) -> bytes:
        # Nearly always there is no secret; a loop of our own, or a regex, would take longer.
        if max(map(data.find, self._forms), default=-1) >= 0:
            for form in self._forms:
                data = data.replace(form, REDACTED.encode())
        return data

    def clear_text(self, text: str) -> str:
        """The text without secrets: the same object if it holds none."""
        if max(map(text.find, self._texts), default=-1) >= 0:
            for form in self._texts:
                text = text.replace(form, REDACTED)
        return text

    def clear_json(self, value: Any) -> Any:
        """A parsed JSON value without secrets, in keys as well."""
        if isinstance(value, str):
            return self.clear_text(value)
        if isinstance(value, Mapping):
            return {self.clear_text(key): self.clear_json(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.clear_json(item) for item in value]
        return value

    def clear_pairs(self, pairs: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Headers without secrets: the same object if they hold none."""
        values = "\n".join([value for _, value in pairs])
        if self.clear_text(values) is values:
            return pairs
        return tuple((name, self.clear_text(value)) for name, value in pairs)


@lru_cache(maxsize=MAX_REMEMBERED)
def redactor_of(secrets: frozenset[str]) -> Redactor:
    """The redactor for these secrets, made once: working out their forms takes time."""
    return Redactor(secrets)


_ESCAPE = re.compile(rb"\\u00([2-7][0-9a-fA-F])")


def _read_escape(escape: re.Match[bytes]) -> bytes:
    character = bytes.fromhex(escape[1].decode())
    return b"\\" + character if character in b'"\\' else character


def _forms(secret: str) -> set[str]:
    """The texts as which a server is likely to echo this secret."""
    if len(secret) < SHORTEST_SECRET:
        return set()
    # Safe sets of Python's quote, JavaScript's encodeURIComponent and encodeURI, and none at all.
    quoted = [quote(secret, safe) for safe in ("", "/", "!'()*", "!'()*;,/?:@&=+$#")]
    quoted += [quote_plus(secret), quote(quote(secret, ""), "")]
    raw = secret.encode("utf-8", "replace")
    all_bytes = "".join(f"%{byte:02X}" for byte in raw)
    lower = [_PERCENT.sub(lambda match: match[0].lower(), text) for text in [*quoted, all_bytes]]
    escaped = [json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]]
    escaped += [text.replace("/", "\\/") for text in escaped]
    escaped += [html.escape(secret), html.escape(secret, quote=False)]
    escaped += ["".join(written.format(ord(c)) for c in secret) for written in _ENTITIES]
    escaped += [raw.hex(), raw.hex().upper()]
    in_base64 = _base64_forms(raw)
    return {secret, all_bytes, *quoted, *lower, *escaped, *in_base64}


_PERCENT = re.compile(r"%[0-9A-F]{2}")
_ENTITIES = ("&#{};", "&#x{:x};", "&#x{:X};")


def _base64_forms(secret: bytes) -> set[str]:
    """What every base64 text that holds these bytes must contain, wherever in it they begin."""
    forms = {base64.b64encode(secret).decode(), base64.urlsafe_b64encode(secret).decode()}
    for lead in range(3):
        start = -(-lead * 8 // 6)  # characters that also carry bits of what stands before
        end = (lead + len(secret)) * 8 // 6  # the last ones may carry bits of what follows
        text = base64.b64encode(bytes(lead) + secret).decode()[start:end]
        forms |= {text, text.replace("+", "-").replace("/", "_"), quote(text, "")}
    return forms


def redact_arguments(value: Any) -> Any:
    """A copy in which values under names such as `password` or `api_key` are masked."""
    if isinstance(value, list):
        return [redact_arguments(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: REDACTED
        if item and names_a_secret(key[-64:])
        else (redact_arguments(item) if isinstance(item, (dict, list)) else item)
        for key, item in value.items()
    }


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = {"password", "passwd", "passwort", "pwd", "passphrase", "passcode", "secret"} | {
    "secrets", "authorization", "credential", "credentials", "apikey", "cvv", "cvc", "otp"
}  # fmt: skip
_SECRET_KEYS = {"api", "access", "private", "secret", "signing", "encryption", "account", "master"}
_PLAIN_TOKENS = {"page", "next", "previous", "continuation", "sync", "skip", "idempotency", "max"}


@lru_cache(maxsize=MAX_REMEMBERED)
def names_a_secret(name: str) -> bool:
    """Whether a field of this name is likely to hold a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    if _SECRET_WORDS.intersection(words) or "".join(words) in ("xapikey", "setcookie", "cookie"):
        return True
    *before, last = words
    if last in ("key", "keys"):
        return bool(before) and before[-1] in _SECRET_KEYS
    return last in ("token", "jwt", "bearer") and not (before and before[-1] in _PLAIN_TOKENS)
