"""The form of a connection, for a new one and for one that is there.

Fields are named as config.toml names its keys (`auth.token`, `tls.ca_file`); settings without a
field stay as they were put. A secret is never on the page: its field is empty and leaves it as it
is, a tick removes it, and stars stand for it among headers and in an address.

A secret that is not typed again goes only to the hosts it went to before: otherwise a person who
may edit a connection could have its key sent to a server of their own.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count
from typing import Any, get_args
from urllib.parse import urlsplit

from pydantic import SecretStr

from gateway.catalog.discover import is_inline
from gateway.catalog.snapshot import ConnectionState
from gateway.config.connection import Auth, Connection, OAuth2Auth, secrets_of
from gateway.config.file import parse_connection
from gateway.errors import Fixable
from gateway.limits import MAX_BODY_BYTES
from gateway.model import Tool
from gateway.web.display import MASK, host_of, masked_settings, masked_url
from gateway.web.guard import Form

# By kind: its name for people, and the key of its source.
KINDS = {
    "openapi": ("OpenAPI definition", "spec"),
    "mcp": ("MCP server", "url"),
    "manifest": ("Built-in provider", "manifest"),
}
SOURCES = {kind: key for kind, (_, key) in KINDS.items()} | {"arm": "api"}
TEXTS = ("display_name", "access", "trust", "on_change", "base_url", "region")
TLS = ("ca_file", "cert_file", "key_file", "server_name")
FOR_ALL = ("token", "username", "password", "value")  # not used where each person gives their own
FOR_GRANT = {
    **dict.fromkeys(("authorize_url", "revoke_url", "issuer"), "authorization_code"),
    "audience": "token_exchange",
}


def _keys_of(model: Any) -> dict[str, bool]:
    """The keys of one kind of authentication, and whether each is a secret."""
    return {
        field.alias or name: SecretStr in (field.annotation, *get_args(field.annotation))
        for name, field in model.model_fields.items()
        if name not in ("type", "per", "grant")
    }


_MODELS = {get_args(m.model_fields["type"].annotation)[0]: m for m in get_args(get_args(Auth)[0])}
AUTHS = {kind: _keys_of(model) for kind, model in _MODELS.items()}
PER_USER = tuple(kind for kind, model in _MODELS.items() if "per" in model.model_fields)
GRANTS = get_args(OAuth2Auth.model_fields["grant"].annotation)


@dataclass(frozen=True, slots=True)
class Edit:
    """The connection that a form asks for."""

    name: str
    values: dict[str, Any]
    expected: int  # the revision that the form was made from; 0: a new connection
    state: ConnectionState | None  # of the connection that it would replace
    settings: Connection

    @property
    def may_change_hosts(self) -> bool:
        """Whether its tools may call other hosts than the tools that are served now."""
        keys = ("spec", "base_url")
        old = self.state and self.state.settings
        return any(getattr(old, key, None) != getattr(self.settings, key, None) for key in keys)


# --- from a connection to its form ----------------------------------------------------------------


def fields_of(settings: Connection) -> dict[str, str]:
    """The form's fields with the settings of a connection, without secrets."""
    masked = masked_settings(settings)
    auth = {key: value for key, value in masked.get("auth", {}).items() if value is not None}
    fields = {key: masked[key] for key in ("kind", *TEXTS) if masked.get(key)}
    fields |= {f"tls.{key}": value for key, value in masked.get("tls", {}).items() if value}
    fields |= {"auth": settings.auth.type} | {f"auth.{key}": value for key, value in auth.items()}
    for key in secret_keys(settings):
        fields.pop(f"auth.{key}", None)
    fields["auth.scopes"] = " ".join(auth.get("scopes", ()))
    fields["headers"] = "\n".join(f"{k}: {v}" for k, v in masked.get("headers", {}).items())
    source = getattr(settings, SOURCES[settings.kind], None) or ""
    fields["source"] = "" if is_inline(source) else masked.get(SOURCES[settings.kind], "")
    return fields


def secret_keys(settings: Connection | None) -> tuple[str, ...]:
    """The keys of the secrets that a connection's credentials have."""
    auth = settings.auth if settings else None
    keys = AUTHS[auth.type] if auth else {}
    return tuple(key for key, secret in keys.items() if secret and _secret(auth, key))


def inline_length(settings: Connection | None) -> int:
    """The length of a definition that was pasted; 0 for one that has an address."""
    source = getattr(settings, "spec", "")
    return len(source) if is_inline(source) else 0


def keys_without_field(settings: Connection) -> list[str]:
    """The keys that are set and have no field in the form."""
    fields = {"kind", *SOURCES.values(), *TEXTS, "auth", "tls", "headers", "names", "organization"}
    return sorted(masked_settings(settings).keys() - fields)


# --- from a form to a connection ------------------------------------------------------------------


def read_edit(form: Form, states: Mapping[str, ConnectionState]) -> Edit:
    """The connection that a posted form asks for."""
    text = form.get("over") or form.get("revision") or "0"
    expected = int(text) if text.isascii() and text.isdigit() and len(text) < 16 else -1
    kind, source = form.get("kind", "openapi"), _source(form)
    if kind not in SOURCES:
        raise Fixable("connection_invalid", f"kind must be one of {', '.join(KINDS)}")
    name = form.get("name", "").strip() or free_name(suggest_name(source, kind), states)
    state = states.get(name)
    revision = state.revision if state else 0
    if expected == 0 and state is not None:
        problem = f"There is a connection {name} already."
        raise Fixable("connection_invalid", problem, "Choose another name, or edit that one.")
    if expected != revision:
        problem = f"The connection {name} was changed meanwhile."
        raise Fixable("precondition", problem, "Look at what it is now.", revision=revision)
    before = _stored_values(state.settings) if state else {}
    values = {**before, "kind": kind, **_source_value(kind, source, before)}
    for key in TEXTS:
        if key in form:
            _set(values, key, form[key].strip())
    if kind != "openapi":
        values.pop("base_url", None)
    if kind != "manifest":
        values.pop("region", None)
    if "headers" in form:
        _set(values, "headers", dict(_headers(form["headers"], before.get("headers", {}))))
    if any(f"tls.{key}" in form for key in TLS):
        files = {key: form.get(f"tls.{key}", "").strip() for key in TLS}
        _set(values, "tls", {key: path for key, path in files.items() if path})
    if "auth" in form:
        _set(values, "auth", _auth(form, before.get("auth", {})))
    draft = Edit(name, values, expected, state, parse_connection(name, values))
    _refuse_places(draft, form, places_of(draft.settings))
    return draft


def refuse_hosts(draft: Edit, form: Form, tools: Iterable[Tool]) -> None:
    """Refuses tools that would take a kept secret to another host."""
    _refuse_places(draft, form, set(_hosts(tools)))


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    values.pop(key, None)
    if value:
        values[key] = value


def _source(form: Form) -> str:
    """The source that was typed or pasted, or the text of the chosen file."""
    file = form.get("file", "")
    if len(file) > MAX_BODY_BYTES:
        problem = f"The file has more than {MAX_BODY_BYTES >> 20} MB."
        raise Fixable("connection_invalid", problem, "Give the address where it can be fetched.")
    return file if file.strip() else form.get("source", "").strip()


def _source_value(kind: str, source: str, before: Mapping[str, Any]) -> dict[str, str]:
    key = SOURCES[kind]
    old = str(before.get(key) or "")
    if not source or source == masked_url(old):
        return {key: old} if old else {}
    if MASK in source and not is_inline(source):
        raise Fixable("connection_invalid", "Write the address whole, with what the stars hide.")
    return {key: source}


def _headers(text: str, before: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for line in filter(str.strip, text.splitlines()):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon:
            raise Fixable("connection_invalid", f"headers: {name[:40]!r} is no `Name: value`")
        if value == MASK and name not in before:
            raise Fixable("connection_invalid", f"headers: give the value of {name!r}")
        yield name, before[name] if value == MASK else value


def _auth(form: Form, before: Mapping[str, Any]) -> dict[str, Any]:
    kind, per = form["auth"], form.get("auth.per", "connection")
    grant = form.get("auth.grant", GRANTS[0]) if kind == "oauth2" else ""
    if kind not in AUTHS:
        raise Fixable("connection_invalid", f"auth must be one of {', '.join(AUTHS)}")
    personal = per == "user" and kind in PER_USER and grant in ("", "authorization_code")
    auth: dict[str, Any] = {"type": kind}
    for key, secret in AUTHS[kind].items():
        text = form.get(f"auth.{key}", "")
        if secret and not text and f"remove.{key}" not in form and before.get("type") == kind:
            text = before.get(key) or ""
        if (personal and key in FOR_ALL) or FOR_GRANT.get(key, grant) != grant:
            continue
        _set(auth, key, text if secret else text.split() if key == "scopes" else text.strip())
    _set(auth, "grant", grant)
    _set(auth, "per", "user" if personal else "")
    return auth if kind != "none" else {}


def _stored_values(settings: Connection) -> dict[str, Any]:
    """The settings as they were put, with their secrets: for the store, never for a page."""
    values = settings.model_dump(by_alias=True, exclude_unset=True)
    auth = settings.auth.model_dump(by_alias=True, exclude_unset=True)
    for key in secret_keys(settings):
        auth[key] = _secret(settings.auth, key)
    return values | {"auth": {**auth, "type": settings.auth.type}}


def _secret(auth: Any, key: str) -> str:
    value = getattr(auth, key, None)
    return value.get_secret_value() if isinstance(value, SecretStr) else ""


# --- where secrets go -----------------------------------------------------------------------------


def places_of(settings: Connection) -> set[str]:
    """The places that a connection's secrets go to, as far as its settings say."""
    keys = ("base_url", "spec", "url")
    first = next((value for key in keys if (value := getattr(settings, key, None))), "")
    urls = [getattr(settings.auth, key, None) for key in ("token_url", "revoke_url", "url")]
    origins = {_origin(address) for address in (first, *urls) if address and "://" in address[:12]}
    places = (getattr(settings, key, None) for key in ("manifest", "region", "api"))
    return origins | {name for name in places if name}


def _hosts(tools: Iterable[Tool]) -> Iterator[str]:
    return (_origin(tool.http.base_url) for tool in tools if tool.http)


def _origin(address: str) -> str:
    return f"{urlsplit(address).scheme}://{host_of(address)}".lower()


def _refuse_places(draft: Edit, form: Form, places: set[str]) -> None:
    if draft.state is None:
        return
    old, auth = draft.state.settings, draft.values.get("auth", {})
    pair = f"{auth.get('username')}:{form.get('auth.password') or MASK}"
    typed = "\n".join((*form.values(), pair))
    kept_secrets = [s for s in secrets_of(old) & secrets_of(draft.settings) if s not in typed]
    new = places - places_of(old) - set(_hosts(draft.state.tools))
    if kept_secrets and new:
        raise Fixable(
            "connection_invalid",
            f"The secrets that are kept were not given for {', '.join(sorted(new))}.",
            "Type them again, or remove them, if that is where they are to go.",
        )


# --- names ----------------------------------------------------------------------------------------

_TITLE = re.compile(r"""["']?title["']?\s*:\s*["']?(\w[^"'\n,}]*)""")
_NOT_NAME = re.compile(r"[^a-z0-9_-]+")


def suggest_name(source: str, kind: str) -> str:
    """A name for a connection without one: from its manifest, its title or its host."""
    host = urlsplit(source).hostname if "://" in source[:12] else None
    title = _TITLE.search(source[:4000])
    if kind == "manifest":
        text = source
    elif title:
        text = title[1].split()[0]
    elif host is None or host.replace(".", "").isdigit() or ":" in host:
        text = "api"
    else:
        words = [word for word in host.split(".") if word not in ("www", "api", "com", "org", "io")]
        text = words[0] if words else host
    return (_NOT_NAME.sub("-", text.lower()).strip("-_0123456789") or "api")[:32]


def free_name(name: str, used_names: Container[str]) -> str:
    """The name, with a number where another connection has it."""
    numbered = (f"{name[:28]}-{number}" for number in count(2))
    return next(each for each in chain([name], numbered) if each not in used_names)
