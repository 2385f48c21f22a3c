from __future__ import annotations

import base64
import html
import json
from urllib.parse import quote, quote_plus

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls.redact import REDACTED, Redactor, names_a_secret, redact_arguments

secrets = st.text(
    alphabet=st.characters(codec="utf-8", min_codepoint=0x21), min_size=8, max_size=30
)


@given(secret=secrets, before=st.binary(max_size=5), after=st.binary(max_size=5))
def test_secret_is_in_no_output_whatever_its_encoding(
    secret: str, before: bytes, after: bytes
) -> None:
    raw = secret.encode()
    lead, tail = before.hex(), after.hex()
    wrapped = f"{lead}{secret}{tail}"
    forms = [
        secret,
        quote(secret),
        quote(secret, safe=""),
        quote(secret, safe="").lower() if secret.isascii() and secret.islower() else secret,
        quote_plus(secret),
        json.dumps(secret),
        json.dumps(secret, ensure_ascii=False),
        html.escape(secret),
        "".join(f"&#{ord(c)};" for c in secret),
        "".join(f"&#x{ord(c):x};" for c in secret),
        raw.hex(),
        raw.hex().upper(),
        f"{lead}{secret}{tail}",
    ]
    redactor = Redactor([secret])
    for form in forms:
        cleared = redactor.clear_bytes(f"<{form}>".encode())
        assert REDACTED.encode() in cleared
        assert redactor.clear_text(f"<{form}>") == cleared.decode()
        assert secret not in cleared.decode().replace(REDACTED, "")
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(before + raw + after)
        assert redactor.clear_bytes(encoded) != encoded
    assert REDACTED in redactor.clear_json({wrapped: [wrapped]}).popitem()[0]


def test_basic_credentials_are_found_in_their_header() -> None:
    redactor = Redactor(["user:hunter22", "hunter22"])
    header = "Basic " + base64.b64encode(b"user:hunter22").decode()
    assert redactor.clear_pairs((("x-echo", header), ("b", "hunter22!"))) == (
        ("x-echo", f"Basic {REDACTED}"),
        ("b", f"{REDACTED}!"),
    )


def test_letters_spelled_as_json_escapes_are_read() -> None:
    redactor = Redactor(['hunter"22'])
    data = rb'{"a":"\u0068unt\u0065r\u002222","b":"\u00e9\u0041"}'
    assert orjson.loads(redactor.clear_bytes(data)) == {"a": REDACTED, "b": "éA"}


def test_clean_data_is_handed_back_as_it_is() -> None:
    data = b'{"a": "\\u0041"}' * 1000
    assert Redactor(["hunter2222"]).clear_bytes(data) is data
    assert Redactor([]).clear_bytes(data) is data


def test_short_secrets_do_not_tear_holes_into_text() -> None:
    assert Redactor(["abc", ""]).clear_text("abcabc") == "abcabc"


def test_json_is_cleared_in_keys_and_values() -> None:
    value = {"hunter22": ["x hunter22", {"n": None}, 1]}
    assert Redactor(["hunter22"]).clear_json(value) == {REDACTED: [f"x {REDACTED}", {"n": None}, 1]}


SECRETS = """password Password new_password passwordConfirmation client_secret clientSecret api_key
apiKey APIKey X-API-Key x-api-key apikey access_token token Authorization privateKey credentials
cookie""".split()
HARMLESS = """key primaryKey page_token nextPageToken max_tokens tokens idempotency_token author
title""".split()


def test_field_names_tell_secrets() -> None:
    assert [name for name in (*SECRETS, *HARMLESS, "") if names_a_secret(name)] == SECRETS


def test_arguments_are_masked_by_name_at_any_depth() -> None:
    arguments = {
        "title": "x",
        "password": "p",
        "empty": {"password": ""},
        "list": [{"api_key": ["k"], "id": 1}],
    }
    assert redact_arguments(arguments) == {
        "title": "x",
        "password": REDACTED,
        "empty": {"password": ""},
        "list": [{"api_key": REDACTED, "id": 1}],
    }
