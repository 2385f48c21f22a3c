"""The gateway as an OAuth client of the APIs behind it.

The gateway needs two addresses of an authorization server: one for a browser, and the token
endpoint, to which it posts forms. An operator has configured them, or an MCP server's own documents
name them (`discovery.py`). Nothing of a server's answer is quoted but the code of an OAuth error.
The vault that Nango keeps is asked in the same way.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import orjson
from msgspec import Struct
from msgspec.structs import replace

from gateway.config.connection import NangoAuth, OAuth2Auth
from gateway.errors import GatewayError, Refused, UpstreamFailed
from gateway.limits import (
    CLIENT_DOCUMENT_BYTES,
    LARGE_BYTES,
    STEP_BYTES,
    TOKEN_LIFE_SECONDS,
    TOKEN_SECONDS,
)
from gateway.outbound.client import Answer, Egress, Pairs, Request

JSON = "application/json"
EXCHANGE_GRANT = "urn:ietf:params:oauth:grant-type:token-exchange"
ACCESS_TOKEN = "urn:ietf:params:oauth:token-type:access_token"
_TOKEN = re.compile(rf"[\x21-\x7e]{{1,{CLIENT_DOCUMENT_BYTES}}}")  # what fits into a header
_ERROR = re.compile(r"[a-z_]{1,64}")

Form = Mapping[str, str]


class AuthorizationServer(Struct, frozen=True):
    """An authorization server, and our client id and secret there."""

    authorize_url: str = ""
    token_url: str = ""
    client_id: str = ""
    client_secret: str = ""
    scopes: tuple[str, ...] = ()
    issuer: str = ""
    names_itself: bool = False  # its answers all have `iss` (RFC 9207)
    resource: str = ""  # that tokens are for (RFC 8707)
    revoke_url: str = ""
    in_header: bool | None = None  # how it wants our secret; None: it has to be found out


class Tokens(Struct, frozen=True):
    """The tokens of one answer of a token endpoint."""

    access_token: str
    refresh_token: str = ""
    expires_at: float | None = None  # None: it does not say
    renew_at: float | None = None
    scope: str = ""


class Secret(Struct, frozen=True):
    """The content of a sealed credential: tokens and their server, or a person's own key."""

    tokens: Tokens | None = None
    server: AuthorizationServer | None = None
    token: str = ""
    username: str = ""
    password: str = ""
    value: str = ""


class TokenRefused(Exception):
    """The token endpoint said no, with the code of an OAuth error ("" where it gave none)."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__(f"{status} {code}".strip())
        self.code = code
        self.status = status


def challenge_of(verifier: str) -> str:
    """The PKCE challenge of a verifier."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def new_secret() -> str:
    """A state, nonce or verifier."""
    return secrets.token_urlsafe(32)


def basic_header(username: str, password: str) -> tuple[str, str]:
    """The header of a name and a password."""
    pair = base64.b64encode(f"{username}:{password}".encode()).decode()
    return "Authorization", f"Basic {pair}"


def authorize_address(server: AuthorizationServer, callback: str, state: str, verifier: str) -> str:
    """The address where a browser goes to sign in."""
    query = {
        "response_type": "code",
        "client_id": server.client_id,
        "redirect_uri": callback,
        "state": state,
        "code_challenge": challenge_of(verifier),
        "code_challenge_method": "S256",
    }
    query |= {"scope": " ".join(server.scopes)} if server.scopes else {}
    query |= {"resource": server.resource} if server.resource else {}
    joint = "&" if "?" in server.authorize_url else "?"
    return f"{server.authorize_url}{joint}{urlencode(query)}"


def is_answer_of(server: AuthorizationServer, iss: str | None) -> bool:
    """Whether an answer may come from this server, by what it says of its issuer.

    Where the issuer is not known, one that lives elsewhere than the server's pages is refused.
    """
    if iss is None:
        return not server.names_itself
    if server.issuer:
        return iss == server.issuer
    origins = {urlsplit(url)[:2] for url in (server.authorize_url, server.token_url)}
    try:
        return urlsplit(iss)[:2] in origins
    except ValueError:
        return False


async def exchange_code(
    egress: Egress, server: AuthorizationServer, code: str, verifier: str, callback: str
) -> tuple[Tokens, AuthorizationServer]:
    """The tokens for a code; and the server, with how it wants our secret."""
    return await ask_tokens(egress, server, code_form(code, verifier, callback))


def code_form(code: str, verifier: str, callback: str) -> dict[str, str]:
    """The form that exchanges a code."""
    form = {"grant_type": "authorization_code", "code": code, "redirect_uri": callback}
    return {**form, "code_verifier": verifier}


async def refresh(egress: Egress, server: AuthorizationServer, tokens: Tokens) -> Tokens:
    """New tokens; a server that gives no other refresh token goes on taking this one."""
    form = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token}
    form |= {"scope": tokens.scope} if tokens.scope and not server.resource else {}
    new_tokens, _ = await ask_tokens(egress, server, form)
    return replace(new_tokens, refresh_token=new_tokens.refresh_token or tokens.refresh_token)


async def ask_tokens(
    egress: Egress, server: AuthorizationServer, form: Form
) -> tuple[Tokens, AuthorizationServer]:
    """The tokens that a token endpoint gives for a form. Raises TokenRefused, or UpstreamFailed.

    Where we don't know how a server wants our secret, it goes into the form, and then into a
    header if the server says that it does not know us.
    """
    form = {**form, "resource": server.resource} if server.resource else form
    for in_header in (False, True) if server.in_header is None else (server.in_header,):
        try:
            tokens = _tokens(await _post(egress, server, form, in_header=in_header))
            return tokens, replace(server, in_header=in_header)
        except TokenRefused as error:
            is_unknown = error.status == 401 or error.code == "invalid_client"
            if in_header or not is_unknown or not server.client_secret or server.in_header is False:
                raise
    raise AssertionError("a way was tried")


async def revoke(egress: Egress, server: AuthorizationServer, tokens: Tokens) -> None:
    """Tells a server that its tokens are not wanted any more; it may not listen."""
    token = tokens.refresh_token or tokens.access_token
    if server.revoke_url:
        endpoint = replace(server, token_url=server.revoke_url)
        try:
            await _post(egress, endpoint, {"token": token}, in_header=bool(server.in_header))
        except GatewayError:
            return


async def _post(
    egress: Egress, server: AuthorizationServer, form: Form, *, in_header: bool
) -> Answer:
    request = token_request(server, form, in_header=in_header)
    return await egress.send(request, deadline=TOKEN_SECONDS, max_bytes=STEP_BYTES)


def token_request(server: AuthorizationServer, form: Form, *, in_header: bool) -> Request:
    """The post of a form to a token endpoint, with our client id and secret."""
    headers: Pairs = (("Accept", JSON), ("Content-Type", "application/x-www-form-urlencoded"))
    if in_header:
        pair = quote(server.client_id, ""), quote(server.client_secret, "")
        headers += (basic_header(*pair),)
    else:
        form = {**form, "client_id": server.client_id}
        form |= {"client_secret": server.client_secret} if server.client_secret else {}
    return Request("POST", server.token_url, headers, urlencode(form).encode())


def _tokens(answer: Answer) -> Tokens:
    value = _read_object(answer)
    token = value.get("access_token")
    kind = str(value.get("token_type") or "bearer").lower()
    if not isinstance(token, str) or not _TOKEN.fullmatch(token) or kind in ("mac", "dpop", "n_a"):
        raise UpstreamFailed("upstream_error", "The token endpoint answered without a token.")
    renewal, scope = value.get("refresh_token"), value.get("scope")
    return Tokens(
        token,
        renewal if isinstance(renewal, str) and _TOKEN.fullmatch(renewal) else "",
        *_end_and_renewal(value.get("expires_in")),
        scope if isinstance(scope, str) else "",
    )


def _end_and_renewal(seconds: Any) -> tuple[float | None, float | None]:
    """When a token expires, and when it is to be renewed: a while before."""
    if seconds is None:
        return None, None
    try:
        life = float(seconds)
    except (TypeError, ValueError):
        life = TOKEN_LIFE_SECONDS
    life = max(life if math.isfinite(life) else TOKEN_LIFE_SECONDS, 1.0)
    return time.time() + life, time.time() + 0.8 * life


def _read_object(answer: Answer, server_name: str = "The token endpoint") -> dict[str, Any]:
    """The JSON object of an answer. Raises TokenRefused, or UpstreamFailed where there is none."""
    value = json_object(answer)
    error = value.get("error")
    code = error if isinstance(error, str) and _ERROR.fullmatch(error) else ""
    if code in ("temporarily_unavailable", "server_error", "slow_down"):
        raise _no_tokens(server_name, answer.status)
    if answer.status in (400, 401, 403, 404) or (code and answer.status == 200):
        raise TokenRefused(code, answer.status)
    if answer.status != 200 or not value:
        raise _no_tokens(server_name, answer.status)
    return value


def json_object(answer: Answer) -> dict[str, Any]:
    """The JSON object of an answer; an empty one where it holds no other."""
    try:
        value = orjson.loads(answer.body) if not answer.truncated else None
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}


def _no_tokens(server_name: str, status: int) -> UpstreamFailed:
    """The error for a server that said neither yes nor no."""
    words = f"{server_name} gave no token ({status})."
    return UpstreamFailed("upstream_error", words, "Try again later.", sent=False, status=status)


def misconfigured(error: TokenRefused) -> Refused:
    """The error for a token endpoint that does not take our own credentials."""
    return Refused(
        "not_connected",
        f"The token endpoint refused to give a token ({error}).",
        "An operator must check client_id, client_secret and token_url.",
    )


# --- tokens of the gateway's own ------------------------------------------------------------------


async def ask_token(egress: Egress, auth: OAuth2Auth, subject: str) -> tuple[str, float]:
    """A token and its life: the gateway's own, or the one for a caller's token (RFC 8693)."""
    form = {"grant_type": "client_credentials"}
    if subject:
        kinds = dict.fromkeys(("subject_token_type", "requested_token_type"), ACCESS_TOKEN)
        form = {"grant_type": EXCHANGE_GRANT, "subject_token": subject, **kinds}
        form |= {"audience": auth.audience} if auth.audience else {}
    if auth.scopes:
        form["scope"] = " ".join(auth.scopes)
    secret = auth.client_secret.get_secret_value() if auth.client_secret else ""
    server = AuthorizationServer("", auth.token_url or "", auth.client_id or "", secret)
    try:
        tokens, _ = await ask_tokens(egress, server, form)
    except TokenRefused as error:
        if subject and error.code in ("invalid_grant", "invalid_request", "invalid_target"):
            words = f"Your token was not exchanged ({error})."
            hint = "Sign in anew, then call again."
            raise UpstreamFailed("sign_in_required", words, hint, sent=False) from error
        raise misconfigured(error) from error
    expires = tokens.expires_at
    return tokens.access_token, TOKEN_LIFE_SECONDS if expires is None else expires - time.time()


# --- Nango ----------------------------------------------------------------------------------------


_NANGO_TOKENS = ("access_token", "token", "apiKey", "api_key", "jwt_token", "oauth_token")


async def read_nango(
    egress: Egress, auth: NangoAuth, fresh: bool, now: float
) -> tuple[Secret, float]:
    """The secret in the vault, and its life; `fresh` makes the vault renew it first."""
    query = {"provider_config_key": auth.provider_config_key}
    if fresh:
        query["force_refresh"] = "true"
    url = f"{auth.url.rstrip('/')}/connection/{quote(auth.connection_id, '')}?{urlencode(query)}"
    key = auth.secret_key.get_secret_value()
    request = Request("GET", url, (("Accept", JSON), ("Authorization", f"Bearer {key}")))
    answer = await egress.send(request, deadline=TOKEN_SECONDS, max_bytes=LARGE_BYTES)
    try:
        credentials = _read_object(answer, "Nango").get("credentials")
    except TokenRefused as error:
        words = f"Nango refused to give a token ({error.status})."
        hint = "An operator must check secret_key, connection_id and provider_config_key."
        raise Refused("not_connected", words, hint) from error
    if not isinstance(credentials, dict):
        raise UpstreamFailed("upstream_error", "Nango answered without credentials.")
    return _nango_secret(credentials), _seconds_until(credentials.get("expires_at"), now)


def _nango_secret(fields: dict[str, Any]) -> Secret:
    if isinstance(fields.get("username"), str) and "access_token" not in fields:
        return Secret(username=fields["username"], password=str(fields.get("password") or ""))
    token = next((t for n in _NANGO_TOKENS if (t := fields.get(n)) and isinstance(t, str)), "")
    if not token:
        words = "Nango holds credentials of a kind that can't be sent as a token."
        raise UpstreamFailed("upstream_error", words)
    return Secret(token=token)


def _seconds_until(value: Any, now: float) -> float:
    """Seconds until a time that is written as in ISO 8601."""
    try:
        moment = datetime.fromisoformat(str(value))
    except ValueError:
        return TOKEN_LIFE_SECONDS
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now
