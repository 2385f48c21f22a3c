"""Writes config.toml: `gateway init` makes a first one, `gateway add` adds a connection to it.

A file that is there keeps every line and comment: a table is put at its end, and an address into
`network.allow` where this machine's own must be reached. The new text is read again before it is
kept; unless it is the old document plus the new table, nothing is written and the lines are
printed for a person to add. A file is written whole or not at all.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import tomlkit
import typer

from gateway.catalog.discover import is_url
from gateway.cli.connect import write_whole
from gateway.cli.inspect import check_files, preview_connection, print_preview
from gateway.cli.named_apis import (
    LOOPBACK,
    NamedApi,
    Options,
    connection_of,
    free_name,
    header_of,
    is_local,
    without_secrets,
)
from gateway.cli.terminal import fail, note, show_json, show_spinner
from gateway.config.connection import NAME_PATTERN, NAME_RULE, SECRET_NAME
from gateway.config.file import VARIABLE, parse_settings, read_settings
from gateway.config.settings import BARE, Settings, new_token
from gateway.errors import ConfigInvalid

HEAD = """\
# The gateway's configuration. `gateway check` validates it; edits are live at once. Paths count
# from here, ${NAME} in a string is the environment's. The project's own config.toml has every key.
"""
SIGN_IN = {
    "none": """
[auth]
mode = "none"                      # everybody on this machine; others can't reach it
""",
    "token": """
[auth]
mode = "oauth"                     # clients that know only the address sign people in

[auth.oauth]
sign_in = "token"                  # with the token of their [principals] table
""",
    "oidc": """
[auth]
mode = "oauth"                     # clients that know only the address sign people in

[auth.oauth]
sign_in = "oidc"                   # its redirect to us: PUBLIC_URL/oauth/callback
issuer = "https://login.example.com/tenant"
client_id = "gateway"
client_secret = "${OIDC_SECRET}"
principal_claim = "email"
""",
}
ADMIN = """
[principals.admin]                 # for machines, and for the first sign-in to the console
token_sha256 = "{sha256}"          # `gateway token` makes others
admin = true
"""
DEMO = """
[demo]
enabled = true                     # a small bookshop to try things with

# An API of your own: `gateway add openapi.yaml` writes such a table, with a preview before.
# [connections.shop]
# kind = "openapi"
# spec = "openapi.yaml"            # a path, which is watched, or a URL
# auth = { type = "bearer", token = "${SHOP_TOKEN}" }
"""


def write_first(config: Path, sign_in: str, api: str | None) -> None:
    """Writes a first config.toml, with the demo or an API; never over an existing file."""
    token, digest = new_token()
    text = HEAD + SIGN_IN[sign_in] + ("" if sign_in == "none" else ADMIN.format(sha256=digest))
    if api is None:
        text += DEMO
    else:
        named_api, report = _preview(api, Options(), None, config, Settings())
        print_preview(report)
        text = _with_connection(text, named_api)
    try:
        with config.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigInvalid([f"{config}: can't be written: {error.strerror}"]) from error
    if sign_in == "oidc":
        print(f"Wrote {config}. Fill in your provider's issuer and client_id under [auth.oauth],")
        print("and set the environment variable OIDC_SECRET; then start with: gateway serve")
    else:
        print(f"Wrote {config}. Start with: gateway serve")
    if sign_in != "none":
        print(f"The admin's token, shown once: {token}")


def add_connection(
    config: Path, spec: str, options: Options, name: str | None, *, yes: bool, as_json: bool
) -> None:
    """Puts one API into config.toml, once a person has seen its preview and agreed."""
    text, document = _read(config)
    settings = _lenient_settings(text, config)
    api, report = _preview(spec, options, name, config, settings, document.get("connections", {}))
    after = _with_connection(text, api)
    _refuse_damage(document, after, api, config)
    block = _spell(api)
    if not as_json:
        print_preview(report)
        print(f"\n{block}")
        if missing := _missing_addresses(document, api):
            print(f"network.allow gets {', '.join(missing)}: it is on this machine or network.")
    if not yes:
        if not sys.stdin.isatty():
            fail(f"Nothing is written: --yes puts it into {config} without asking.", 2)
        typer.confirm(f"Put it into {config}?", abort=True)
    write_whole(config, after)
    faults = _find_faults(config)
    if as_json:
        written = {"connection": api.name, "config": str(config), "config_problems": faults}
        show_json(report | written)
    else:
        follows = "A gateway that runs on it follows at once."
        print(f"{config} has {api.name} now. {'It does not hold yet.' if faults else follows}")
    if faults:
        _explain_faults(faults, _unset_variables(json.dumps(_read(config)[1], default=str)))


def _find_faults(config: Path) -> list[str]:
    """What `gateway check` refuses in the file, in this environment."""
    try:
        check_files(read_settings(config), config)
    except ConfigInvalid as error:
        return list(error.problems)
    return []


def _explain_faults(faults: Iterable[str], variables: Iterable[str]) -> None:
    """Says what keeps the file from holding, and what a running gateway does until it holds."""
    for fault in faults:
        note(fault)
    note("Until this is mended, a gateway that runs on it keeps the last good configuration.")
    for variable in dict.fromkeys(variables):
        note(f"One whose environment lacks {variable} must be started again with {variable} set.")


# --- the preview ----------------------------------------------------------------------------------


def _preview(
    spec: str,
    options: Options,
    name: str | None,
    config: Path,
    settings: Settings,
    used_names: Iterable[str] = (),
) -> tuple[NamedApi, dict[str, Any]]:
    """The API with its name, and its preview."""
    used_names = {*used_names, "demo"}
    if name is not None and not NAME_PATTERN.fullmatch(name):
        raise ConfigInvalid([f"--name: must be {NAME_RULE}"])
    if name in used_names:
        raise ConfigInvalid(
            [f"{config}: connections.{name}: is there already; give another --name"]
        )
    query = parse_qsl(urlsplit(spec).query) if is_url(spec) else []
    headers = [("--header", *header_of(each)) for each in options.headers]
    for where, key, value in (*headers, *(("the query", *each) for each in query)):
        if SECRET_NAME.search(key) and not VARIABLE.search(value):
            words = f"secrets are not written down; say '{key}=${{VARIABLE}}', quoted like this"
            raise ConfigInvalid([f"{where}: {words}"])
    folder = config.resolve().parent

    async def look() -> tuple[NamedApi, dict[str, Any]]:
        api = await options.read(spec, settings, folder, name or free_name(spec, used_names))
        environment = {**dict.fromkeys(_unset_variables(_spell(api)), "unset"), **os.environ}
        connection = connection_of(api.table, environment)
        return api, await preview_connection(api.name, connection, settings, folder)

    with show_spinner(f"Reading {without_secrets(spec)}"):
        api, report = asyncio.run(look())
    if is_local(report.get("base_url") or ""):
        allow = tuple(dict.fromkeys((*api.allow, *LOOPBACK)))
        api = NamedApi(api.name, api.table, allow)
    return api, report


def _unset_variables(text: str) -> list[str]:
    """The variables without a default in a text that this environment does not set."""
    names = VARIABLE.findall(text)
    return [name for name, default in names if not default and name not in os.environ]


def _lenient_settings(text: str, config: Path) -> Settings:
    """The settings for networks and limits; its variables may be set for the gateway alone."""
    environment = {**dict.fromkeys(_unset_variables(text), "unset"), **os.environ}
    return parse_settings(text.encode(), str(config), environment)


# --- the text -------------------------------------------------------------------------------------


def _read(config: Path) -> tuple[str, dict[str, Any]]:
    """The file's text and its document; those of a first file where there is none."""
    try:
        text = config.read_bytes().decode("utf-8") if config.exists() else HEAD + SIGN_IN["none"]
        return text, tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise ConfigInvalid([f"{config}: not valid TOML: {error}"]) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigInvalid([f"{config}: can't be read: {error}"]) from error


def _with_connection(text: str, api: NamedApi) -> str:
    """The text with the API's table at its end, and with the addresses that the API needs."""
    document = tomlkit.parse(text.removeprefix("\ufeff"))
    if missing := _missing_addresses(document.unwrap(), api):
        network = document.setdefault("network", tomlkit.table())
        allow = network.setdefault("allow", tomlkit.array())
        allow.extend(missing)
    mark = "\ufeff" * text.startswith("\ufeff")
    newline = "\r\n" if "\r\n" in text else "\n"
    block = f"\n\n{_spell(api)}".replace("\n", newline)
    return f"{mark}{tomlkit.dumps(document).rstrip()}{block}"


def _missing_addresses(document: Mapping[str, Any], api: NamedApi) -> list[str]:
    """The API's addresses that `network.allow` does not have yet."""
    networks = [ipaddress.ip_network(each, strict=False) for each in _allowed_addresses(document)]
    addresses = {each: ipaddress.ip_interface(each).ip for each in api.allow}
    return [each for each, ip in addresses.items() if not any(ip in net for net in networks)]


def _allowed_addresses(document: Mapping[str, Any]) -> list[str]:
    return list(document.get("network", {}).get("allow", ()))


def _refuse_damage(before: dict[str, Any], text: str, api: NamedApi, config: Path) -> None:
    """Ends the command unless the text is the old document plus the new table."""
    expected = {**before, "connections": {**before.get("connections", {}), api.name: api.table}}
    if missing := _missing_addresses(before, api):
        network = before.get("network", {})
        expected["network"] = {**network, "allow": [*_allowed_addresses(before), *missing]}
    try:
        if tomllib.loads(text.removeprefix("\ufeff")) == expected:
            return
    except tomllib.TOMLDecodeError:
        pass
    fail(f"{config} can't be edited safely; add this to it by hand:\n\n{_spell(api)}")


def _spell(api: NamedApi) -> str:
    lines = (f"{key} = {_value(value)}" for key, value in api.table.items())
    return "\n".join([f"[connections.{api.name}]", *lines, ""])


def _value(value: Any) -> str:
    """A value in the words of TOML, which has JSON's strings."""
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    pairs = ((key if BARE.fullmatch(key) else json.dumps(key), value[key]) for key in value)
    return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in pairs) + " }"
