"""The shape of config.toml: every table, every key, its default and its bounds.

`Settings` is the whole file. `[server]` and `[store]` are read once at start; everything else is
live and is carried by the snapshot. Cross-checks that need several tables are in `check_whole`.
"""

from __future__ import annotations

import ipaddress
import json
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, PositiveInt, SecretStr, field_validator, model_validator

from gateway.config.connection import (
    NAME_PATTERN,
    NAME_RULE,
    AnyConnection,
    Auth,
    Connection,
    NoAuth,
    OAuth2Auth,
    Seconds,
    Strings,
    Table,
    must_fit,
)
from gateway.model import Level, digest
from gateway.naming import WILDCARDS

Results = Literal["both", "text", "structured"]
RESTART_TABLES = ("server", "store")
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
ADDRESSED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # bundles, workflows, steps
BARE = re.compile(r"[A-Za-z0-9_-]+")  # a key that TOML takes without quotes
ADDRESSED_RULE = "a letter or digit, then letters, digits, _, - or ., at most 64 in all"
_PROXY = re.compile(r"http://(?:\S*@)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?/?")


class Server(Table):
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    public_url: str | None = None
    allowed_hosts: Strings = ()
    allowed_origins: Strings = ()
    workers: int = Field(default=1, ge=1, le=64)
    shutdown_seconds: Seconds = 20


KNOWN_DATABASE = must_fit("sqlite:///|postgresql://", "must start with sqlite:/// or postgresql://")


class Store(Table):
    url: Annotated[str, KNOWN_DATABASE] = "sqlite:///state/gateway.db"
    secret_key_file: str = "state/secret.key"

    def file_in(self, folder: Path) -> Path | None:
        """SQLite's file, seen from the folder of config.toml; None: the store is no file."""
        place = self.url.removeprefix("sqlite:///")
        return None if place == self.url else (folder / place).resolve()

    def url_in(self, folder: Path) -> str:
        """The address, with the whole path of a file."""
        file = self.file_in(folder)
        return self.url if file is None else f"sqlite:///{file}"


class EnterpriseSettings(Table):
    """The company's own provider, whose assertions (ID-JAG) let people in without a browser."""

    issuer: str
    jwks_url: str
    principal_claim: str = "sub"


class Claims(Table):
    """The claims of a token that give a principal's role, organization and admin right."""

    role_claim: str | None = None
    organization_claim: str | None = None
    admin_claim: str | None = None

    @property
    def by_field(self) -> dict[str, str]:
        """The configured claims, by the field of a principal that each one gives."""
        fields = ("role", "organization", "admin")
        return {field: claim for field in fields if (claim := getattr(self, f"{field}_claim"))}


class OAuthSettings(Claims):
    """The front door: how people sign in, and what their clients are given."""

    sign_in: Literal["oidc", "token"] = "token"
    issuer: str | None = None
    client_id: str | None = None
    client_secret: SecretStr | None = None
    scopes: Strings = ("openid", "email")
    principal_claim: str = "email"
    registration: Annotated[tuple[Literal["metadata", "dynamic"], ...], Field(strict=False)] = (
        "metadata",
        "dynamic",
    )
    access_minutes: Annotated[float, Field(gt=0, le=1440)] = 60
    refresh_days: Annotated[float, Field(gt=0, le=365)] = 30
    enterprise: EnterpriseSettings | None = None

    @model_validator(mode="after")
    def _provider_is_complete(self) -> OAuthSettings:
        missing = [key for key in ("issuer", "client_id") if not getattr(self, key)]
        if self.sign_in == "oidc" and missing:
            raise ValueError(f'sign_in = "oidc" needs {" and ".join(missing)}')
        return self


class Profile(Table):
    """How a client is served whose name fits `match`."""

    match: str | None = Field(default=None, min_length=1, max_length=128)
    schema_: Literal["full", "plain"] = Field(default="full", alias="schema")
    results: Results = "both"
    max_output_tokens: PositiveInt | None = None
    page_tools: int | None = Field(default=None, ge=1, le=100_000)


class ClientSettings(Profile):
    """One client that is known beforehand: how it signs in, how it is served, or both."""

    client_id: str | None = None
    client_secret: SecretStr | None = None
    display_name: str | None = None
    redirect_uris: Strings = ()
    principal: str | None = None  # whose rights it has by itself (client credentials)

    @model_validator(mode="after")
    def _has_a_use(self) -> ClientSettings:
        profile_keys = Profile.model_fields.keys() - {"match"}
        if self.match is None and profile_keys & self.model_fields_set:
            raise ValueError("needs match: a glob over the name that the client gives itself")
        if self.client_id is None:
            if self.match is None or self.model_fields_set - Profile.model_fields.keys():
                raise ValueError("needs client_id (to sign in), or match alone (to be told apart)")
            return self
        if self.client_id.startswith("https://"):
            raise ValueError("client_id can't be an address: those are metadata documents")
        if not self.redirect_uris and self.principal is None:
            raise ValueError("needs redirect_uris (for people), or principal (to act by itself)")
        if self.principal is not None and self.client_secret is None:
            raise ValueError("a client that acts by itself needs client_secret")
        return self


class AuthMode(Claims):
    mode: Literal["tokens", "jwt", "oauth", "none"] = "tokens"
    oauth: OAuthSettings | None = None
    issuer: str | None = None
    audience: str | None = None
    jwks_url: str | None = None
    jwks_file: str | None = None
    principal_claim: str = "sub"

    @model_validator(mode="after")
    def _jwt_is_complete(self) -> AuthMode:
        if self.mode == "jwt":
            missing = [key for key in ("issuer", "audience") if not getattr(self, key)]
            if missing:
                raise ValueError(f'mode = "jwt" needs {" and ".join(missing)}')
            if bool(self.jwks_url) == bool(self.jwks_file):
                raise ValueError('mode = "jwt" needs one of jwks_url and jwks_file')
        return self


class PrincipalSettings(Table):
    token_sha256: str | None = Field(default=None, pattern=r"^[0-9a-fA-F]{64}$")
    token: SecretStr | None = None
    admin: bool = False
    organization: str | None = None
    role: str | None = None
    access: Level = "read-write"
    connections: dict[str, Level] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_one_token(self) -> PrincipalSettings:
        if self.token_sha256 and self.token:
            raise ValueError("give token_sha256 or token, not both")
        if self.token is not None and len(self.token.get_secret_value()) < 16:
            raise ValueError(
                "the token is shorter than 16 characters; `gateway token` makes a good one"
            )
        return self

    @property
    def token_hash(self) -> str | None:
        """The hash that its token is known by."""
        if self.token is not None:
            return digest(self.token.get_secret_value().encode())
        return self.token_sha256.lower() if self.token_sha256 else None


def new_token() -> tuple[str, str]:
    """A new random token, and its hash for a principal's table."""
    value = f"gw_{secrets.token_urlsafe(32)}"
    return value, digest(value.encode())


class AutoApprove(Table):
    enabled: bool = False
    tools: Strings = ()


class Permissions(Table):
    level: Literal["read_only", "execute_with_confirm", "full_access"] = "execute_with_confirm"
    tools: dict[str, Literal["allowed", "confirm", "blocked"]] = Field(default_factory=dict)
    auto_approve: AutoApprove = AutoApprove()
    timeout_seconds: Seconds = 120
    always_allow_minutes: Annotated[float, Field(ge=0, le=43_200)] = 60
    always_allow_high_risk: bool = False
    self_approval: bool = True


class Limits(Table):
    call_timeout_seconds: Annotated[float, Field(gt=0, le=3600)] = 30
    max_call_seconds: Annotated[float, Field(gt=0, le=86_400)] = 600
    max_output_bytes: int = Field(default=65_536, ge=1024, le=64 * 1024 * 1024)
    max_spec_bytes: int = Field(default=33_554_432, ge=1024, le=256 * 1024 * 1024)
    max_schema_bytes: int = Field(default=65_536, ge=1024)
    page_tools: int = Field(default=2000, ge=1, le=100_000)
    max_description_chars: int = Field(default=1024, ge=64, le=65_536)
    max_concurrent_calls: PositiveInt = 256
    request_seconds: Annotated[float, Field(gt=0, le=600)] = 30
    upstream_sessions: PositiveInt = 64


class Cache(Table):
    schema_ttl_seconds: Seconds = 300
    max_entries: PositiveInt = 512


class Network(Table):
    allow: Strings = ()
    proxy: SecretStr | None = None  # it may hold a password
    ca_file: str | None = None

    @property
    def rules(self) -> dict[str, Any]:
        """The settings that `outbound.client.Egress` follows."""
        proxy = self.proxy.get_secret_value() if self.proxy else None
        return {"allow": self.allow, "proxy": proxy, "ca_file": self.ca_file}

    @field_validator("proxy")
    @classmethod
    def _is_an_http_proxy(cls, proxy: SecretStr | None) -> SecretStr | None:
        if proxy is not None and not _PROXY.fullmatch(proxy.get_secret_value()):
            raise ValueError("must be an address such as http://user:password@proxy.example:3128")
        return proxy

    @field_validator("allow")
    @classmethod
    def _are_networks(cls, allow: tuple[str, ...]) -> tuple[str, ...]:
        for network in allow:
            try:
                ipaddress.ip_network(network, strict=False)
            except ValueError:
                raise ValueError(f"{network!r} is not a network such as 10.0.0.0/8") from None
        return allow


class Demo(Table):
    enabled: bool = False


AN_ORIGIN = must_fit(
    r"https?://[^/?#\s@]+/?\Z", "must be an address such as https://management.azure.com"
)


class Azure(Table):
    endpoint: Annotated[str, AN_ORIGIN] = "https://management.azure.com"
    subscription_id: str
    resource_group: str
    location: str
    auth: Auth = NoAuth()
    invoke: Literal["dynamic", "runtime"] = "dynamic"
    refresh_seconds: Seconds = 0


class Ledger(Table):
    keep_days: Annotated[float, Field(gt=0, le=3650)] = 30


class Bundle(Table):
    mode: Literal["direct", "meta", "auto"] = "direct"
    token_budget: PositiveInt = 20_000
    connections: Strings
    allow: Strings = ("*",)
    deny: Strings = ()

    @property
    def is_explicit(self) -> bool:
        """Whether each pattern of `allow` holds a part of a name, and is not all wildcards."""
        return all(WILDCARDS.sub("", pattern) for pattern in self.allow)


class Role(Table):
    bundles: Strings = ()


class Settings(Table):
    """The whole of config.toml."""

    server: Server = Server()
    store: Store = Store()
    auth: AuthMode = AuthMode()
    principals: dict[str, PrincipalSettings] = Field(default_factory=dict)
    clients: dict[str, ClientSettings] = Field(default_factory=dict)
    permissions: Permissions = Permissions()
    limits: Limits = Limits()
    cache: Cache = Cache()
    network: Network = Network()
    demo: Demo = Demo()
    connections: dict[str, AnyConnection] = Field(default_factory=dict)
    azure: Azure | None = None
    ledger: Ledger = Ledger()
    capabilities: dict[str, str] = Field(default_factory=dict)
    bundles: dict[str, Bundle] = Field(default_factory=dict)
    roles: dict[str, Role] = Field(default_factory=dict)
    routes: dict[str, dict[str, dict[str, Strings]]] = Field(default_factory=dict)


Mistakes = Iterator[tuple[str, str]]  # key path, and what is wrong there


def check_whole(settings: Settings) -> list[tuple[str, str]]:
    """The mistakes that no single table can see, as (key path, what is wrong)."""
    untrusted = {name for name, c in settings.connections.items() if c.trust == "untrusted"}
    return [
        *_check_names(settings),
        *_check_surroundings(settings),
        *_check_tokens(settings),
        *_check_front_door(settings),
        *_check_roles_and_bundles(settings),
        *untrusted_in_bundles(settings, untrusted),
    ]


def key_path(*names: str) -> str:
    """A key as config.toml spells it: quoted where a dot would make it another one."""
    return ".".join(n if BARE.fullmatch(n) else json.dumps(n, ensure_ascii=False) for n in names)


def _check_names(settings: Settings) -> Mistakes:
    for name in settings.connections:
        if not NAME_PATTERN.fullmatch(name):
            yield f"connections.{name}", f"the name must be {NAME_RULE}"
    address_parts = [(key_path("bundles", name), name) for name in settings.bundles]
    for workflow, roles in settings.routes.items():
        at = key_path("routes", workflow)
        steps = ((f"{at}.{key_path(role, s)}", s) for role in roles for s in roles[role])
        address_parts += [(at, workflow), *steps]
    for where, name in address_parts:
        if not ADDRESSED.fullmatch(name):
            yield where, f"{name!r} is part of an address: {ADDRESSED_RULE}"
    if settings.demo.enabled and "demo" in settings.connections:
        yield "connections.demo", "the name is taken by [demo] while demo.enabled = true"


def _check_surroundings(settings: Settings) -> Mistakes:
    for name, connection in settings.connections.items():
        if connection.kind == "arm" and settings.azure is None:
            words = '"arm" needs an [azure] table: subscription, resource group'
            yield f"connections.{name}.kind", words
        for key, words in sign_in_problems(settings, connection):
            yield f"connections.{name}.{key}", words
    host = settings.server.host
    if settings.auth.mode == "none" and not settings.permissions.self_approval:
        yield "permissions.self_approval", 'false needs a second person: auth.mode is "none"'
    if settings.auth.mode == "none" and host not in LOOPBACK_HOSTS:
        start = '"none" is only accepted on a loopback host, and server.host is'
        yield "auth.mode", f'{start} {host!r}; use "tokens" or "jwt"'


def _check_tokens(settings: Settings) -> Mistakes:
    owners = dict[str, str]()
    for name, principal in settings.principals.items():
        digest = principal.token_hash
        if digest is None and settings.auth.mode == "tokens":
            yield key_path("principals", name), "needs token_sha256 (see `gateway token`) or token"
        elif digest is not None and owners.setdefault(digest, name) != name:
            yield key_path("principals", name), f"has the same token as {owners[digest]}"


def _check_front_door(settings: Settings) -> Mistakes:
    for name, client in settings.clients.items():
        names = [client.principal] if client.principal is not None else []
        yield from _undefined(f"clients.{name}.principal", "principal", names, settings.principals)
    if settings.auth.mode != "oauth":
        return
    oauth, people = settings.auth.oauth or OAuthSettings(), settings.principals.values()
    if oauth.sign_in == "token" and not any(each.token or each.token_sha256 for each in people):
        words = '"token" lets nobody in: no principal has a token (see `gateway token`)'
        yield "auth.oauth.sign_in", words
    addresses = {"auth.oauth.issuer": oauth.issuer if oauth.sign_in == "oidc" else None}
    if oauth.enterprise is not None:
        addresses["auth.oauth.enterprise.jwks_url"] = oauth.enterprise.jwks_url
    for where, address in addresses.items():
        if address and not is_safe_address(address, settings.network.allow):
            yield where, "must be https, or http at an address that network.allow lists"
    public, loopback = settings.server.public_url, ("127.0.0.0/8", "::1/128")
    if public and not is_safe_address(public, loopback):
        words = 'must be https where auth.mode = "oauth": clients sign in over it'
        yield "server.public_url", words


def sign_in_problems(settings: Settings, connection: Connection) -> Mistakes:
    """The mistakes that keep people from signing in to a connection."""
    auth = connection.auth
    if not isinstance(auth, OAuth2Auth) or auth.grant == "client_credentials":
        return
    if auth.grant == "token_exchange" and settings.auth.mode not in ("jwt", "oauth"):
        words = '"token_exchange" needs callers with tokens: auth.mode must be "jwt" or "oauth"'
        yield "auth.grant", f"{words}, and is {settings.auth.mode!r}"
    for key in ("authorize_url", "token_url", "revoke_url", "issuer"):
        address = getattr(auth, key)
        if address and not is_safe_address(address, settings.network.allow):
            yield f"auth.{key}", "must be https, or http at an address that network.allow lists"


def is_safe_address(address: str, allow: Sequence[str]) -> bool:
    """Whether secrets may be sent there: https, or http to an address that is listed as allowed."""
    parts = urlsplit(address)
    if parts.scheme == "https":
        return bool(parts.hostname)
    host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    is_listed = any(ip in ipaddress.ip_network(network, strict=False) for network in allow)
    return parts.scheme == "http" and is_listed


def _check_roles_and_bundles(settings: Settings) -> Mistakes:
    for name, role in settings.roles.items():
        where = key_path("roles", name, "bundles")
        yield from _undefined(where, "bundle", role.bundles, settings.bundles)
    for name, principal in settings.principals.items():
        if settings.roles and principal.role:
            where = key_path("principals", name, "role")
            yield from _undefined(where, "role", [principal.role], settings.roles)
    for workflow, roles in settings.routes.items():
        for role_name, steps in roles.items():
            where = key_path("routes", workflow, role_name)
            yield from _undefined(where, "role", [role_name], settings.roles)
            for step, bundles in steps.items():
                at = f"{where}.{key_path(step)}"
                yield from _undefined(at, "bundle", bundles, settings.bundles)


def _undefined(where: str, noun: str, names: Iterable[str], defined: Collection[str]) -> Mistakes:
    choices = ", ".join(sorted(defined)) or "none is defined"
    for name in names:
        if name not in defined:
            yield where, f"there is no {noun} {name!r}; known: {choices}"


def untrusted_in_bundles(settings: Settings, untrusted: set[str]) -> Mistakes:
    """The mistakes of bundles that hold these untrusted connections."""
    for name, bundle in settings.bundles.items():
        members = ", ".join(sorted(untrusted.intersection(bundle.connections)))
        if members and bundle.mode != "meta":
            yield (
                key_path("bundles", name, "mode"),
                f'must be "meta": {members} is an untrusted connection',
            )
        if members and not bundle.is_explicit:
            words = f"must name tools, not wildcards alone: {members} is untrusted"
            yield key_path("bundles", name, "allow"), words
