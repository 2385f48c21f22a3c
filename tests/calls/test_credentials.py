from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qsl

import orjson
import pytest
from pydantic import TypeAdapter

from gateway.calls.credentials import (
    Credentials,
    Proof,
    RequestCredentials,
    proof_of,
    with_credentials,
)
from gateway.config.connection import Auth
from gateway.errors import GatewayError, Refused
from gateway.model import Build
from gateway.outbound.client import Answer, Egress, Request
from tests.clock import Clock
from tests.raising import raises
from tests.raw_server import Connection, answer, raw_server


@pytest.fixture
async def egress() -> AsyncIterator[Egress]:
    async with Egress(["127.0.0.1/32"]) as egress:
        yield egress


class TokenServer:
    """Answers each request with the next of these, and with `token-N` for ever after."""

    def __init__(self, *answers: bytes, expires_in: Any = 100) -> None:
        self.answers = list(answers)
        self.expires_in = expires_in
        self.count = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self, connection: Connection) -> None:
        while await connection.request():
            self.count += 1
            token = {"access_token": f"token-{self.count}", "expires_in": self.expires_in}
            reply = self.answers.pop(0) if self.answers else answer(orjson.dumps(token))
            await self.gate.wait()
            await connection.write(reply)


def proof(type: str, build: Build | None = None, **settings: Any) -> Proof:
    return proof_of("c", TypeAdapter[Auth](Auth).validate_python({"type": type, **settings}), build)


def oauth2(url: str) -> Proof:
    client: dict[str, Any] = {"client_id": "me", "client_secret": "s&cret"}
    return proof("oauth2", token_url=f"{url}/token", **client, scopes=("a", "b"))


def header(value: str, *secrets: str) -> RequestCredentials:
    """The credentials that are an Authorization header."""
    return RequestCredentials((("Authorization", value),), secrets=secrets)


def bearer(token: str) -> RequestCredentials:
    return header(f"Bearer {token}", token)


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        (proof("none"), RequestCredentials()),
        (proof("bearer", token="t"), bearer("t")),
        (
            proof("bearer", Build("manifest", "", "", auth_scheme="Zoho-oauthtoken"), token="t"),
            header("Zoho-oauthtoken t", "t"),
        ),
        (proof("basic", username="ü", password="p"), header("Basic w7w6cA==", "ü:p", "p")),
        (proof("api-key", name="Key", value="k"), RequestCredentials((("Key", "k"),), (), ("k",))),
        (
            proof("api-key", Build("", "", "", auth_name="sid", auth_in="cookie"), value="k"),
            RequestCredentials((("Cookie", "sid=k"),), secrets=("k",)),
        ),
        (
            proof("api-key", name="key", place="query", value="k"),
            RequestCredentials(query=(("key", "k"),), secrets=("k",)),
        ),
    ],
)
async def test_credentials_that_are_ready(egress: Egress, auth: Proof, expected: object) -> None:
    assert await Credentials(egress).obtain(auth) == expected


def test_secrets_are_not_in_the_representation() -> None:
    assert "hunter2" not in repr(proof("basic", username="u", password="hunter2"))


def test_credentials_replace_what_a_caller_gave_by_the_same_name() -> None:
    request = Request(
        "GET", "https://a.test/x?k%65y=mine&b=1", (("authorization", "mine"), ("B", "1"))
    )
    own = RequestCredentials((("Authorization", "Bearer t"),), (("key", "k&k"),))
    assert with_credentials(request, own, "https://A.test:443/base") == Request(
        "GET", "https://a.test/x?b=1&key=k%26k", (("B", "1"), ("Authorization", "Bearer t"))
    )


@pytest.mark.parametrize(
    "url", ["https://b.test/x", "http://a.test/x", "https://a.test:444/x", "https://a.test.b/x"]
)
def test_credentials_go_to_the_own_host_only(url: str) -> None:
    with raises(Refused, code="access_denied"):
        with_credentials(Request("GET", url), bearer("t"), "https://a.test")


async def test_token_is_asked_for_once_however_many_calls_wait(egress: Egress) -> None:
    tokens = TokenServer()
    tokens.gate.clear()
    async with raw_server(tokens) as server, asyncio.timeout(60):
        credentials = Credentials(egress)
        calls = [asyncio.create_task(credentials.obtain(oauth2(server.url))) for _ in range(50)]
        await asyncio.sleep(0)
        calls[0].cancel()
        tokens.gate.set()
        found = await asyncio.gather(*calls[1:])
    assert found == [bearer("token-1")] * 49
    head, body = server.requests[0].split(b"\r\n\r\n")
    assert head.startswith(b"POST /token HTTP/1.1\r\n") and len(server.requests) == 1
    assert parse_qsl(body.decode()) == [
        ("grant_type", "client_credentials"),
        ("scope", "a b"),
        ("client_id", "me"),
        ("client_secret", "s&cret"),
    ]


async def test_token_is_renewed_ahead_of_its_end(egress: Egress) -> None:
    tokens, clock = TokenServer(expires_in="100"), Clock()
    async with raw_server(tokens) as server, asyncio.timeout(60):
        credentials, auth = Credentials(egress, clock=clock), oauth2(server.url)
        assert await credentials.obtain(auth) == bearer("token-1")
        clock.now += 79
        assert await credentials.obtain(auth) == bearer("token-1")
        assert tokens.count == 1
        clock.now += 2
        assert await credentials.obtain(auth) == bearer("token-2")
    assert tokens.count == 2


async def test_failed_renewal_leaves_the_token_in_use_until_its_end(egress: Egress) -> None:
    tokens, clock = TokenServer(), Clock()
    async with raw_server(tokens) as server, asyncio.timeout(60):
        credentials, auth = Credentials(egress, clock=clock), oauth2(server.url)
        await credentials.obtain(auth)
        tokens.answers = [answer(status="500 Oops")] * 2
        clock.now += 90
        assert await credentials.obtain(auth) == bearer("token-1")
        assert await credentials.obtain(auth) == bearer("token-1")
        clock.now += 10
        with raises(GatewayError, code="upstream_error"):
            await credentials.obtain(auth)
        assert await credentials.obtain(auth) == bearer("token-4")


async def test_rejected_token_is_replaced_once_for_all_who_used_it(egress: Egress) -> None:
    tokens = TokenServer()
    async with raw_server(tokens) as server, asyncio.timeout(60):
        credentials, auth = Credentials(egress), oauth2(server.url)
        old = await credentials.obtain(auth)
        for _ in range(3):
            credentials.reject(auth, old)
            assert await credentials.obtain(auth) == bearer("token-2")
    assert tokens.count == 2


async def test_other_settings_get_a_token_of_their_own(egress: Egress) -> None:
    async with raw_server(TokenServer()) as server, asyncio.timeout(60):
        credentials = Credentials(egress)
        await credentials.obtain(oauth2(server.url))
        assert await credentials.obtain(oauth2(server.url + "/other")) == bearer("token-2")


async def test_server_that_wants_basic_auth_gets_it(egress: Egress) -> None:
    tokens = TokenServer(answer(b'{"error":"invalid_client"}', "401 Unauthorized"))
    async with raw_server(tokens) as server, asyncio.timeout(60):
        await Credentials(egress).obtain(oauth2(server.url))
    expected = base64.b64encode(b"me:s%26cret")
    assert b"Authorization: Basic " + expected in server.requests[1]
    assert b"client_secret" not in server.requests[1]


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (answer(b'{"error":"invalid_scope s&cret"}', "400 Bad Request"), "not_connected"),
        (answer(b"s&cret", "500 Oops"), "upstream_error"),
        (answer(b"not json"), "upstream_error"),
        (answer(b'{"token_type":"bearer"}'), "upstream_error"),
        (answer(status="302 Found", headers={"Location": "/elsewhere"}), "upstream_error"),
    ],
)
async def test_failure_to_get_a_token_names_no_secret(
    egress: Egress, reply: bytes, code: str
) -> None:
    async with raw_server(TokenServer(reply)) as server, asyncio.timeout(60):
        with pytest.raises(GatewayError) as failure:
            await Credentials(egress).obtain(oauth2(server.url))
    assert failure.value.code == code
    assert "s&cret" not in str(failure.value.as_dict())


# --- Nango ----------------------------------------------------------------------------------------


def nango(url: str) -> Proof:
    names: dict[str, Any] = {"connection_id": "a/b", "provider_config_key": "green house"}
    return proof("nango", url=url + "/", secret_key="nango-secret", **names)


@pytest.mark.parametrize(
    ("credentials", "expected"),
    [
        ({"type": "OAUTH2", "access_token": "t"}, bearer("t")),
        ({"type": "OAUTH2_CC", "token": "t"}, bearer("t")),
        ({"type": "API_KEY", "apiKey": "t"}, bearer("t")),
        ({"type": "BASIC", "username": "u", "password": "p"}, header("Basic dTpw", "u:p", "p")),
    ],
)
async def test_nango_gives_credentials_of_several_kinds(
    egress: Egress, credentials: dict[str, str], expected: object
) -> None:
    reply = answer(orjson.dumps({"id": 1, "credentials": credentials}))
    async with raw_server(TokenServer(reply)) as server, asyncio.timeout(60):
        assert await Credentials(egress).obtain(nango(server.url)) == expected
    head = server.requests[0].decode()
    assert head.startswith("GET /connection/a%2Fb?provider_config_key=green+house HTTP/1.1\r\n")
    assert "\r\nAuthorization: Bearer nango-secret\r\n" in head


def held(token: str, expires_at: str) -> bytes:
    credentials = {"access_token": token, "expires_at": expires_at}
    return answer(orjson.dumps({"credentials": credentials}))


async def test_token_of_nango_is_kept_to_its_end_and_renewed_when_rejected(egress: Egress) -> None:
    clock = Clock(1_750_000_000.0)  # 2025-06-15T15:06:40Z
    vault = TokenServer(
        held("t1", "2025-06-15T15:16:40.000Z"),
        held("t2", "2025-06-15T18:00:00Z"),
        held("t3", "never"),
    )
    async with raw_server(vault) as server, asyncio.timeout(60):
        credentials, auth = Credentials(egress, clock=clock), nango(server.url)
        assert await credentials.obtain(auth) == bearer("t1")
        clock.now += 400
        assert await credentials.obtain(auth) == bearer("t1")
        clock.now += 100
        assert await credentials.obtain(auth) == bearer("t2")
        credentials.reject(auth, bearer("t2"))
        assert await credentials.obtain(auth) == bearer("t3")
    forced = [b"force_refresh=true" in request for request in server.requests]
    assert forced == [False, False, True]


@pytest.mark.parametrize("body", [b'{"credentials": {}}', b'{"credentials": null}', b"{}", b"[]"])
async def test_nango_without_usable_credentials_is_an_error(egress: Egress, body: bytes) -> None:
    async with raw_server(TokenServer(answer(body))) as server:
        with raises(GatewayError, code="upstream_error"):
            await Credentials(egress).obtain(nango(server.url))


# --- together -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statuses", "status", "tokens"),
    [
        ([200], 200, ["token-1"]),
        ([401, 200], 200, ["token-1", "token-2"]),
        ([401, 401], 401, ["token-1", "token-2"]),
        ([403], 403, ["token-1"]),
    ],
)
async def test_call_is_repeated_once_with_a_fresh_token(
    egress: Egress, statuses: list[int], status: int, tokens: list[str]
) -> None:
    used: list[str] = []

    async def send(request: Request) -> Answer:
        used.append(dict(request.headers)["Authorization"].removeprefix("Bearer "))
        return Answer(statuses.pop(0), (), b"")

    async with raw_server(TokenServer()) as server, asyncio.timeout(60):
        request = Request("POST", "https://a.test/x")
        sent = Credentials(egress).send(oauth2(server.url), request, "https://a.test", send)
        reply, credentials = await sent
    assert (reply.status, used) == (status, tokens)
    assert credentials.headers == bearer(tokens[-1]).headers
    assert set(credentials.secrets) == set(tokens)  # a refused token is a secret still


async def test_rejected_password_is_not_tried_again(egress: Egress) -> None:
    async def send(request: Request) -> Answer:
        sent.append(request)
        return Answer(401, (), b"")

    sent: list[Request] = []
    auth = proof("basic", username="u", password="p")
    request = Request("GET", "https://a.test/x")
    reply, _ = await Credentials(egress).send(auth, request, "https://a.test", send)
    assert (reply.status, len(sent)) == (401, 1)


async def test_closing_ends_requests_for_tokens(egress: Egress) -> None:
    tokens = TokenServer()
    tokens.gate.clear()
    async with raw_server(tokens) as server, asyncio.timeout(60):
        credentials = Credentials(egress)
        call = asyncio.create_task(credentials.obtain(oauth2(server.url)))
        await asyncio.sleep(0)
        await credentials.close()
        with pytest.raises(asyncio.CancelledError):
            await call
