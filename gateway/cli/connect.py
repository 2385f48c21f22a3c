"""`gateway connect`: the gateway written into a client's own configuration, and taken out again.

Each client keeps its servers in one file, under one key, by name. What else the file holds stays
as it is; a file that could not be kept whole (comments in JSON) is left alone, and the lines to
add are printed instead. Where the formats were looked up: each client's documentation, 2026-11.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tomlkit
import typer

from gateway.cli.remote import TokenOption, UrlOption, remote
from gateway.cli.terminal import fail

ClientEntry = dict[str, Any]
ClientName = Literal["claude-code", "claude-desktop", "cursor", "vscode", "codex", "gemini"]


@dataclass(frozen=True, slots=True)
class ClientFile:
    """The file where a client keeps its servers, and the form in which it writes one down."""

    file: str  # for every project: its path from the home folder
    key: str
    entry: Callable[[str, str | None], ClientEntry]
    project: str | None = None  # for one project: its path from the project's folder
    next_step: str = "Restart it"


def _headers(token: str | None) -> ClientEntry:
    return {"headers": {"Authorization": f"Bearer {token}"}} if token else {}


def _bridge(url: str, token: str | None) -> ClientEntry:
    command = shutil.which("gateway") or str(Path(sys.argv[0]).resolve())  # clients may lack PATH
    environment = {"env": {"GATEWAY_TOKEN": token}} if token else {}
    return {"command": command, "args": ["stdio", "--url", url], **environment}


def _codex(url: str, token: str | None) -> ClientEntry:
    return {"url": url, **({"bearer_token_env_var": "GATEWAY_TOKEN"} if token else {})}


_APPLICATION_DATA = {"darwin": "Library/Application Support", "win32": "AppData/Roaming"}.get(
    sys.platform, ".config"
)
CLIENTS: dict[ClientName, ClientFile] = {
    "claude-code": ClientFile(
        ".claude.json",
        "mcpServers",
        lambda url, token: {"type": "http", "url": url, **_headers(token)},
        ".mcp.json",
        "Look with /mcp",
    ),
    "claude-desktop": ClientFile(
        f"{_APPLICATION_DATA}/Claude/claude_desktop_config.json", "mcpServers", _bridge
    ),
    "cursor": ClientFile(
        ".cursor/mcp.json",
        "mcpServers",
        lambda url, token: {"url": url, **_headers(token)},
        ".cursor/mcp.json",
    ),
    "vscode": ClientFile(
        f"{_APPLICATION_DATA}/Code/User/mcp.json",
        "servers",
        lambda url, token: {"type": "http", "url": url, **_headers(token)},
        ".vscode/mcp.json",
        "Start it with “MCP: List Servers”",
    ),
    "codex": ClientFile(
        ".codex/config.toml",
        "mcp_servers",
        _codex,
        ".codex/config.toml",
        "Set GATEWAY_TOKEN for it if the gateway wants a token, and restart it",
    ),
    "gemini": ClientFile(
        ".gemini/settings.json",
        "mcpServers",
        lambda url, token: {"httpUrl": url, **_headers(token)},
        ".gemini/settings.json",
    ),
}


def connect(
    client: Annotated[ClientName, typer.Argument(help="The client.")],
    url: UrlOption = None,
    token: TokenOption = None,
    name: Annotated[str, typer.Option(help="What the client calls the gateway.")] = "gateway",
    project: Annotated[bool, typer.Option("--project", help="For this folder alone.")] = False,
    only_print: Annotated[bool, typer.Option("--print", help="Write nothing.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take it out again.")] = False,
) -> None:
    """Write the gateway into a client's own configuration.

    A token that is given is written there too, unless the client reads it from its environment.

    Examples: `gateway connect claude-code`, `gateway connect cursor --project`,
    `gateway connect codex --undo`
    """
    if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        fail("--name: letters, digits, - and _ only", 2)
    place = CLIENTS[client]
    if project and place.project is None:
        fail(f"{client} has no configuration for one project", 2)
    file = Path(place.project) if project and place.project else Path.home() / place.file
    config = _parse(_read(file), file)
    table = _servers(config, file, place.key)
    if undo:
        if name not in table:
            fail(f"{file} has no server {name!r}: nothing to undo")
        del table[name]
        if not table:
            del config[place.key]
        write_whole(file, _spell(file, config))
        print(f"Took {name!r} out of {file}. {place.next_step}.")
        return
    entry = place.entry(f"{remote(url, token).base}/mcp", token)
    if only_print:
        print(f"In {file}:\n\n{_spell(file, {place.key: {name: entry}})}")
        return
    if table.get(name, entry) != entry:
        fail(f"{file} has another server {name!r}: take it out with --undo, or give a --name")
    if name not in table:
        table[name] = entry
        write_whole(file, _spell(file, config))
    print(f"{file} has the gateway as {name!r} now. {place.next_step}.")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig") if file.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{file} can't be read: {error}")


def _parse(text: str, file: Path) -> Any:
    """The file's config, in a form that can be edited and written again."""
    try:
        # All of the file is kept: tomlkit keeps comments, and JSON has none.
        config = tomlkit.parse(text) if file.suffix == ".toml" else json.loads(text.strip() or "{}")
    except ValueError as error:
        words = f"{file} is not plain {file.suffix[1:].upper()} ({error})"
        fail(f"{words}: use --print, and add the lines by hand")
    if not isinstance(config, dict):
        fail(f"{file} should be an object: mend it first")
    return config


def _servers(config: Any, file: Path, key: str) -> Any:
    is_toml = file.suffix == ".toml"
    table = config.setdefault(key, tomlkit.table(is_super_table=True) if is_toml else {})
    if not isinstance(table, dict):
        fail(f"{file}: {key} should be an object: mend it first")
    return table


def _spell(file: Path, config: Any) -> str:
    if file.suffix == ".toml":
        return tomlkit.dumps(config)
    return json.dumps(config, indent=2, ensure_ascii=False) + "\n"


def write_whole(file: Path, text: str) -> None:
    """Writes a file whole or not at all; only its owner can read a new one: it may hold a token."""
    target = file.resolve()
    new_file = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o600
        new_file.touch(mode=0o600)
        new_file.write_text(text, encoding="utf-8", newline="")
        new_file.chmod(mode)
        new_file.replace(target)
    except OSError as error:
        new_file.unlink(missing_ok=True)
        fail(f"{file} can't be written: {error.strerror}")
