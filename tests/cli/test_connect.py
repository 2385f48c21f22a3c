"""The gateway in clients' own configuration files, as these are on a user's machine."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app

URL = "http://127.0.0.1:8080/mcp"
BEARER = {"headers": {"Authorization": "Bearer gw_secret"}}
OTHER = {"command": "npx", "args": ["-y", "others"]}
CODEX = """model = "some-model"  # a comment that stays

[mcp_servers.others]
command = "npx"

[mcp_servers.others.env]
KEY = "value"
"""
# file, key of its servers, what is written for the gateway
WRITTEN: dict[str, tuple[str, str, dict[str, Any]]] = {
    "claude-code": (".claude.json", "mcpServers", {"type": "http", "url": URL, **BEARER}),
    "cursor": (".cursor/mcp.json", "mcpServers", {"url": URL, **BEARER}),
    "vscode": (".config/Code/User/mcp.json", "servers", {"type": "http", "url": URL, **BEARER}),
    "gemini": (".gemini/settings.json", "mcpServers", {"httpUrl": URL, **BEARER}),
    "codex": (
        ".codex/config.toml",
        "mcp_servers",
        {"url": URL, "bearer_token_env_var": "GATEWAY_TOKEN"},
    ),
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def connect(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["connect", *words, "--url", URL, "--token", "gw_secret"])
    assert result.exit_code == code, result.output
    return result


def read(file: Path) -> Any:
    text = file.read_text()
    return tomllib.loads(text) if file.suffix == ".toml" else json.loads(text)


@pytest.mark.parametrize("client", WRITTEN)
def test_a_clients_file_gets_the_gateway_keeps_the_rest_and_is_as_before_when_undone(
    home: Path, client: str
) -> None:
    where, key, entry = WRITTEN[client]
    file = home / where
    file.parent.mkdir(parents=True, exist_ok=True)
    json_before = json.dumps({"theme": "dark", key: {"others": OTHER}}, indent=2) + "\n"
    before = CODEX if file.suffix == ".toml" else json_before
    file.write_text(before)
    file.chmod(0o640)
    connect(client)
    connect(client)  # a second time changes nothing
    whole = read(file)
    assert whole[key].pop("gateway") == entry
    assert whole == (tomllib.loads if file.suffix == ".toml" else json.loads)(before)
    assert file.stat().st_mode & 0o777 == 0o640
    connect(client, "--undo")
    assert file.read_text().rstrip() == before.rstrip()
    assert "nothing to undo" in connect(client, "--undo", code=1).output


def test_claude_desktop_starts_the_bridge(home: Path) -> None:
    connect("claude-desktop")
    file = home / ".config/Claude/claude_desktop_config.json"
    entry = read(file)["mcpServers"]["gateway"]
    assert Path(entry.pop("command")).is_absolute()
    assert entry == {"args": ["stdio", "--url", URL], "env": {"GATEWAY_TOKEN": "gw_secret"}}
    assert file.stat().st_mode & 0o777 == 0o600
    assert "one project" in connect("claude-desktop", "--project", code=2).output


def test_one_project_another_name_and_only_printed(home: Path) -> None:
    connect("vscode", "--project", "--name", "apis")
    assert list(read(home / ".vscode/mcp.json")["servers"]) == ["apis"]
    assert f'"url": "{URL}"' in connect("cursor", "--print").output
    assert not (home / ".cursor").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("// mine\n{}", "use --print"),
        ("[]", "should be an object"),
        ('{"mcpServers": []}', "mcpServers should be an object"),
        ('{"mcpServers": {"gateway": {"url": "https://elsewhere"}}}', "has another server"),
    ],
)
def test_a_file_that_can_not_be_kept_whole_is_left_alone(home: Path, text: str, words: str) -> None:
    file = home / ".claude.json"
    file.write_text(text)
    assert words in connect("claude-code", code=1).output
    assert file.read_text() == text


def test_codex_servers_in_another_spelling_are_kept(home: Path) -> None:
    file = home / ".codex/config.toml"
    file.parent.mkdir()
    file.write_text('mcp_servers = {gateway = {url = "https://elsewhere"}}  # ours\n')
    assert "another server" in connect("codex", code=1).output
    connect("codex", "--undo")
    assert file.read_text().strip() in ("", "# ours")
    file.write_text('mcp_servers = {others = {url = "https://elsewhere"}}  # ours\n')
    connect("codex")
    assert set(read(file)["mcp_servers"]) == {"others", "gateway"}
    assert file.read_text().rstrip().endswith("# ours")
    file.write_text("[mcp_servers")
    assert "use --print" in connect("codex", code=1).output
