"""The shape of one `[connections.NAME]` table, also of what `put_connection` takes.

Strict and frozen: an unknown key or a wrong type is an error that names it. The four kinds share
`Connection`; what differs is a few keys each. Values that are secret are `SecretStr`, so that they
never print by accident; `secrets_of` finds these, and all other texts that must not be shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    SecretStr,
    field_validator,
    model_validator,
)

from gateway.limits import SHORTEST_SECRET
from gateway.model import NO_TLS_FILES, Access, Kind, Level, Names, Risk, TlsFiles, Trust

NAME_PATTERN = re.compile(r"[a-z][a-z0-9_-]{0,31}")
NAME_RULE = "a lower-case letter, then letters, digits, _ or -, at most 32 in all"
PREFIX_PATTERN = r"^[A-Za-z0-9_]{0,48}$"
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class Table(BaseModel):
    """A table of config.toml: no unknown keys, no silent conversions, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, populate_by_name=True)


def must_fit(pattern: str, rule: str) -> AfterValidator:
    """A validator: refuses a text that does not begin with the pattern; people read the rule."""

    def check(text: str) -> str:
        if not re.match(pattern, text):
            raise ValueError(rule)
        return text

    return AfterValidator(check)


class NoAuth(Table):
    type: Literal["none"] = "none"


Per = Literal["connection", "user"]  # whose credentials calls go out with


class PerUser(Table):
    """A key that all calls of a connection share, or that each person gives for their own."""

    per: Per = "connection"
    personal_key: ClassVar[str]  # the key that is configured for all, or given by each person

    @model_validator(mode="after")
    def _is_given_once(self) -> Self:
        """Refuses a key for all where each person has their own, and none where all share it."""
        is_given = getattr(self, self.personal_key) is not None
        if self.per == "connection" and not is_given:
            raise ValueError(f'`{self.personal_key}` is required, or per = "user"')
        if self.per == "user" and is_given:
            raise ValueError(
                f'with per = "user" each person gives their own: remove `{self.personal_key}`'
            )
        return self


class BearerAuth(PerUser):
    type: Literal["bearer"]
    personal_key = "token"
    token: SecretStr | None = None


class BasicAuth(PerUser):
    type: Literal["basic"]
    personal_key = "username"
    username: str | None = None
    password: SecretStr = SecretStr("")


class ApiKeyAuth(PerUser):
    type: Literal["api-key"]
    personal_key = "value"
    name: str | None = None  # absent: taken from the definition's own security scheme
    place: Literal["header", "query"] | None = Field(default=None, alias="in")
    value: SecretStr | None = None


class OAuth2Auth(Table):
    """A token of the gateway's own, of a person who signs in, or in exchange for the caller's.

    Keys that `authorization_code` leaves out are found where the connection's kind has them: in the
    documents of an MCP server, in a manifest, in [azure].
    """

    type: Literal["oauth2"]
    grant: Literal["client_credentials", "authorization_code", "token_exchange"] = (
        "client_credentials"
    )
    per: Per = "connection"
    authorize_url: str | None = None
    token_url: str | None = None
    revoke_url: str | None = None  # called when a person signs out
    issuer: str | None = None  # the issuer that answers must name, where they name one
    client_id: str | None = None
    client_secret: SecretStr | None = None
    audience: str | None = None
    scopes: tuple[str, ...] = Field(default=(), strict=False)

    @model_validator(mode="after")
    def _has_keys_of_its_grant(self) -> OAuth2Auth:
        needed = {
            "client_credentials": ("token_url", "client_id", "client_secret"),
            "token_exchange": ("token_url",),
        }
        for key in needed.get(self.grant, ()):
            if getattr(self, key) is None:
                raise ValueError(f"`{key}` is required for grant = {self.grant!r}")
        if self.grant != "authorization_code" and (self.per == "user" or self.authorize_url):
            raise ValueError('`per` and `authorize_url` go with grant = "authorization_code"')
        if self.grant != "token_exchange" and self.audience is not None:
            raise ValueError('`audience` goes with grant = "token_exchange"')
        return self


class NangoAuth(Table):
    type: Literal["nango"]
    url: str = "https://api.nango.dev"
    secret_key: SecretStr
    connection_id: str
    provider_config_key: str


Auth = Annotated[
    NoAuth | BearerAuth | BasicAuth | ApiKeyAuth | OAuth2Auth | NangoAuth,
    Field(discriminator="type"),
]


def people_sign_in(auth: Auth) -> bool:
    """Whether calls go out with credentials that people gave: each person, or an admin for all."""
    return is_per_user(auth) or getattr(auth, "grant", "") == "authorization_code"


def is_per_user(auth: Auth) -> bool:
    """Whether each person has credentials of their own."""
    return getattr(auth, "per", "") == "user"


def is_personal(auth: Auth) -> bool:
    """Whether a call goes out as the person who makes it."""
    return is_per_user(auth) or getattr(auth, "grant", "") == "token_exchange"


def acts_as(auth: Auth, principal: str) -> str | None:
    """The principal on whose behalf its call goes out; None: the connection's own account."""
    return principal if is_personal(auth) else None


class RateLimitTable(Table):
    requests: PositiveInt
    window_seconds: PositiveFloat
    per: Per | None = None  # None: each principal's requests are counted, all share one circuit


Strings = Annotated[tuple[str, ...], Field(strict=False)]


class OperationOverride(Table):
    access: Access | None = None
    risk: Risk | None = None
    description: str | None = None
    headers_out: Strings | None = None

    @field_validator("headers_out")
    @classmethod
    def _headers_can_be_passed_on(cls, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        for name in names or ():
            if not HEADER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a header name")
            if name.lower().startswith("set-cookie"):
                raise ValueError("cookies are never passed on")
        return None if names is None else tuple(name.lower() for name in names)


Seconds = Annotated[float, Field(ge=0, le=86_400)]


class Connection(Table):
    """The keys that every kind of connection has."""

    kind: Kind
    display_name: str | None = Field(default=None, max_length=128)
    enabled: bool = True
    organization: str | None = None
    access: Level = "read-write"
    trust: Trust = "trusted"
    prefix: str | None = Field(default=None, pattern=PREFIX_PATTERN)
    names: Names | None = (
        None  # None: tools keep the names that the store has; new tools get short ones
    )
    include: Strings = ("*",)
    exclude: Strings = ()
    blocklist: Strings = ()
    rate_limit: RateLimitTable | None = None
    timeout_seconds: Annotated[PositiveFloat, Field(le=3600)] | None = None
    refresh_seconds: Seconds = 0
    on_change: Literal["accept", "hold_risky", "hold_all"] | None = None
    headers: dict[str, str] = Field(default_factory=dict)
    inject: dict[str, Any] = Field(default_factory=dict)
    operations: dict[str, OperationOverride] = Field(default_factory=dict)
    validation: Literal["strict", "lenient"] = "strict"
    tls: TlsFiles = NO_TLS_FILES
    auth: Auth = NoAuth()

    @field_validator("headers")
    @classmethod
    def _headers_can_be_sent(cls, headers: dict[str, str]) -> dict[str, str]:
        for name, value in headers.items():
            if not HEADER_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a header name")
            if any(c in value for c in "\r\n\0"):
                raise ValueError(f"the value of {name!r} holds a line break or NUL")
        return headers

    @field_validator("tls")
    @classmethod
    def _key_has_its_certificate(cls, tls: TlsFiles) -> TlsFiles:
        if tls.key_file and not tls.cert_file:
            raise ValueError("key_file goes with cert_file")
        return tls

    @model_validator(mode="after")
    def _can_be_signed_in(self) -> Connection:
        if self.kind == "openapi" and getattr(self.auth, "grant", "") == "authorization_code":
            for key in ("authorize_url", "token_url", "client_id"):
                if getattr(self.auth, key) is None:
                    raise ValueError(f"auth.{key} is required to sign in to an API")
        return self

    @property
    def address(self) -> str:
        """The address of calls by the settings: credentials for one address are for no other."""
        keys = ("url", "base_url", "spec", "manifest", "region", "resource_id", "api")
        parts = (getattr(self, key, None) for key in keys)
        return " ".join([self.kind, *(each for each in parts if each and len(each) < 2000)])

    @property
    def is_active(self) -> bool:
        """Whether the gateway reads and calls this connection at all."""
        return self.enabled and self.access != "disabled"

    @property
    def is_lazy(self) -> bool:
        """Whether the connection is read only once a caller needs it."""
        return isinstance(self, McpConnection) and self.lazy

    @property
    def change_policy(self) -> Literal["accept", "hold_risky", "hold_all"]:
        """How changes are treated; an untrusted connection holds risky changes by default."""
        return self.on_change or ("hold_risky" if self.trust == "untrusted" else "accept")


HTTP_BASE = must_fit(r"https?://[^/\s]+", "must start with http:// or https:// and name a host")


def _with_readable_host(url: str) -> str:
    """The URL; raises ValueError where its host is in brackets, and is no address."""
    urlsplit(url)
    return url


class OpenApiConnection(Connection):
    kind: Literal["openapi"]
    spec: Annotated[str, must_fit(r"\s*\S", "a path, a URL or the definition itself is needed")]
    base_url: Annotated[str, HTTP_BASE, AfterValidator(_with_readable_host)] | None = None
    idempotency_header: str | None = None


class ManifestConnection(Connection):
    kind: Literal["manifest"]
    manifest: str
    region: str | None = None
    on_behalf_of: str | None = None


class WrapRule(Table):
    tool: str
    as_: str | None = Field(default=None, alias="as", pattern=r"^[A-Za-z0-9_.-]{1,128}$")
    idempotency_field: str | None = None
    inject: dict[str, Any] = Field(default_factory=dict)
    record: Strings = ()


class McpConnection(Connection):
    kind: Literal["mcp"]
    transport: Literal["http", "stdio"] = "http"
    url: str | None = None
    command: str | None = None
    args: Strings = ()
    env: dict[str, str] = Field(default_factory=dict)
    cwd: str | None = None
    tools: Strings = ("*",)
    exclude_tools: Strings = ()
    lazy: bool = False
    session: Literal["shared", "principal"] | None = None  # None: by whether the server keeps state
    protocol: Literal["auto", "2025", "2026"] = "auto"
    wrap: Annotated[tuple[WrapRule, ...], Field(strict=False)] = ()

    @field_validator("operations")
    @classmethod
    def _tools_have_no_headers(
        cls, operations: dict[str, OperationOverride]
    ) -> dict[str, OperationOverride]:
        if any(each.headers_out is not None for each in operations.values()):
            raise ValueError("headers_out is for HTTP operations; an MCP server's tools have none")
        return operations

    @model_validator(mode="after")
    def _transport_has_its_keys(self) -> McpConnection:
        if self.transport == "http" and not self.url:
            raise ValueError('transport = "http" needs `url`')
        if self.transport == "stdio" and not self.command:
            raise ValueError('transport = "stdio" needs `command`')
        if self.transport == "http" and self.command:
            raise ValueError('`command` goes with transport = "stdio"')
        return self


class ArmConnection(Connection):
    kind: Literal["arm"]
    api: str | None = None
    resource_id: str | None = None
    invoke: Literal["dynamic", "runtime"] = "dynamic"
    parameter_values: dict[str, Any] = Field(default_factory=dict)
    created_here: bool = False  # by put_connection: delete_connection then deletes in Azure too


AnyConnection = Annotated[
    OpenApiConnection | ManifestConnection | McpConnection | ArmConnection,
    Field(discriminator="kind"),
]


# --- secrets --------------------------------------------------------------------------------------

# Names of headers, variables and options whose values must stay secret.
SECRET_NAME = re.compile(r"auth|token|secret|key|cookie|passw|credential|session", re.IGNORECASE)


def secrets_of(settings: Connection) -> set[str]:
    """Every text of the settings that must not be shown to anyone."""
    secrets = secrets_in(settings.auth)
    tables = ("parameter_values", "env")
    pairs = [pair for table in tables for pair in getattr(settings, table, {}).items()]
    pairs += [*settings.headers.items(), *_query_of(settings), *_options_of(settings)]
    secrets |= {v for name, value in pairs if SECRET_NAME.search(name) for v in _texts(value)}
    secrets |= set(_texts(settings.inject))
    secrets |= {text for rule in getattr(settings, "wrap", ()) for text in _texts(rule.inject)}
    return {value for value in secrets if value}


def without_secrets(text: str, settings: Connection) -> str:
    """The upstream's text, without the secrets of the settings that it repeats."""
    for secret in sorted(secrets_of(settings), key=len, reverse=True):
        text = text.replace(secret, "[redacted]") if len(secret) >= SHORTEST_SECRET else text
    return text


def _query_of(settings: Connection) -> list[tuple[str, str]]:
    """The query parameters of the connection's addresses: some services put their keys there."""
    addresses = [getattr(settings, key, None) or "" for key in ("spec", "url", "base_url")]
    queries = [urlsplit(a).query for a in addresses if a.startswith(("http://", "https://"))]
    return [pair for query in queries for pair in parse_qsl(query)]


def _options_of(settings: Connection) -> list[tuple[str, str]]:
    """The options of a child's command, `--name value` and `--name=value` alike."""
    args: tuple[str, ...] = getattr(settings, "args", ())
    spaced = [pair for pair in pairwise(args) if pair[0].startswith("-") and "=" not in pair[0]]
    return spaced + [(arg.partition("=")[0], arg.partition("=")[2]) for arg in args if "=" in arg]


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def secrets_in(auth: Auth) -> set[str]:
    """The texts of a connection's credentials that must not be shown."""
    secrets = {value.get_secret_value() for _, value in auth if isinstance(value, SecretStr)}
    if isinstance(auth, BasicAuth) and auth.username is not None:
        secrets |= {auth.username, f"{auth.username}:{auth.password.get_secret_value()}"}
    return {value for value in secrets if value}
