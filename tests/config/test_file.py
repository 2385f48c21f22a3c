"""config.toml: what is accepted, and the words for what is not."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.config.connection import ApiKeyAuth, McpConnection
from gateway.config.file import ConfigWatch, parse_connection, parse_settings, read_settings
from gateway.config.settings import Settings
from gateway.errors import Broken, ConfigInvalid, Fixable
from tests.raising import raises

FIXTURES = Path(__file__).parents[2] / "fixtures" / "config"
INVALID = sorted((FIXTURES / "invalid").glob("*.toml"))


@pytest.mark.parametrize("path", INVALID, ids=[path.stem for path in INVALID])
def test_a_wrong_file_is_refused_with_place_and_remedy(path: Path) -> None:
    with pytest.raises(ConfigInvalid) as refused:
        parse_settings(path.read_bytes(), "config.toml", {})
    assert f"{refused.value}\n" == path.with_suffix(".txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("text", ["a = " + "[" * 9000, "a." * 3000 + "b = 1"])
def test_a_file_nested_too_deeply_is_a_mistake_like_any_other(text: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"config\.toml: not valid TOML: .* depth"):
        parse_settings(text.encode(), "config.toml", {})


def test_a_file_with_every_kind_of_table_is_read() -> None:
    settings = read_settings(FIXTURES / "valid" / "everything.toml", {})
    token = settings.principals["ann"].token
    assert token is not None
    assert token.get_secret_value() == "a-token-of-twenty-characters"
    auth = settings.connections["shop"].auth
    assert isinstance(auth, ApiKeyAuth) and auth.value is not None
    assert (auth.name, auth.place, auth.value.get_secret_value()) == ("X-Key", "header", "k")
    desk = settings.connections["desk"]
    assert isinstance(desk, McpConnection)
    assert desk.wrap[0].as_ == "book_with_token"
    assert settings.routes == {"opening": {"clerk": {"morning": ("reading",)}}}


def test_a_secret_never_shows_in_a_settings_value() -> None:
    settings = read_settings(FIXTURES / "valid" / "everything.toml", {"ANN_TOKEN": "x" * 20})
    assert "x" * 20 not in repr(settings)


@pytest.mark.parametrize(
    ("text", "environment", "expected"),
    [
        ("${A}", {"A": "one"}, "one"),
        ("${A:-two}", {}, "two"),
        ("${A:-}", {}, ""),
        ("x${A}y${B}", {"A": "1", "B": "2"}, "x1y2"),
        ("${A}", {"A": "${B}"}, "${B}"),
        ("$A {A}", {"A": "no"}, "$A {A}"),
    ],
)
def test_variables_expand_once_in_every_string(
    text: str, environment: dict[str, str], expected: str
) -> None:
    toml = f'[connections.a]\nkind = "openapi"\nspec = "s"\nheaders = {{ h = "{text}" }}'
    settings = parse_settings(toml.encode(), environment=environment)
    assert settings.connections["a"].headers == {"h": expected}


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("Shop", {"kind": "openapi", "spec": "s"}, "'Shop' is not a connection's name"),
        ("shop", {"kind": "openapi"}, "spec: is required"),
        ("shop", {"kind": "openapi", "spec": "s", "x": 1}, "x: unknown key"),
        (
            "shop",
            {"kind": "openapi", "spec": "s", "auth": {"type": "sk-1234-0123456789"}},
            "auth.type: this value is not allowed; allowed: 'none', 'bearer', 'basic', 'api-key',"
            " 'oauth2', 'nango'",
        ),
        (
            "shop",
            {"kind": "openapi", "spec": "s", "auth": {"type": "oauth3"}},
            "auth.type: 'oauth3' is not allowed; allowed: 'none', 'bearer', 'basic', 'api-key',"
            " 'oauth2', 'nango'",
        ),
        (
            "shop",
            {"kind": "openapi", "spec": "s", "auth": {"type": "bearer", "per": "sk-123456"}},
            "auth.per: this value is not allowed; allowed: 'connection' or 'user'",
        ),
        (
            "shop",
            {"kind": "mcp", "url": "u", "spec": "s"},
            "spec: unknown key here: it belongs to another table, or another kind of connection",
        ),
        (
            "shop",
            {"kind": "openapi", "spec": "s", "auth": {"type": "bearer", "token": "${HOME}"}},
            "auth.token: environment references are read from config.toml only",
        ),
        (
            "shop",
            {"kind": "openapi", "spec": "http://a/?q=1&key=**********", "base_url": "***"},
            "spec: the stars only show that there is a secret",
        ),
        (
            "shop",
            {"kind": "openapi", "spec": "s", "headers": {"X-Key": "**********"}},
            "headers.X-Key: the stars only show that there is a secret",
        ),
    ],
)
def test_a_wrong_put_is_refused_with_place(name: str, values: dict[str, Any], message: str) -> None:
    with raises(Fixable, code="connection_invalid", message=message):
        parse_connection(name, values)


def watch(config: Path, told: list[object], failures: int = 0) -> ConfigWatch:
    """Notes the pages of the settings that are applied, and what is reported."""
    tries = count()

    async def apply(settings: Settings) -> None:
        if next(tries) < failures:
            raise Broken("store_unavailable", "the store is away")
        told.append(settings.limits.page_tools)

    first = read_settings(config) if config.exists() else Settings()
    return ConfigWatch(config, first, lambda read: read, apply, told.append)


async def write(live: ConfigWatch, text: str, looks: int) -> None:
    live.config.write_text(text, encoding="utf-8")
    for _ in range(looks):
        await live.read_edit()


async def test_a_file_that_is_still_being_written_is_left_alone(tmp_path: Path) -> None:
    told: list[object] = []
    live = watch(tmp_path / "config.toml", told)
    for text in ("", "[limits]\npage_tools = ", "[limits]\npage_tools = 7"):
        await write(live, text, looks=1)
    assert told == []
    await live.read_edit()
    assert told == [7, None]


@pytest.mark.parametrize("text", ["demo.enabled = false", "permissions.auto_approve.tools = []"])
async def test_a_file_that_sets_something_is_not_empty(tmp_path: Path, text: str) -> None:
    told: list[object] = []
    config = tmp_path / "config.toml"
    config.write_text("limits.page_tools = 7", encoding="utf-8")
    await write(watch(config, told), text, looks=2)
    assert told == [2000, None]


async def test_an_edit_that_is_not_applied_is_told_of_once_and_tried_again(tmp_path: Path) -> None:
    told: list[object] = []
    live = watch(tmp_path / "config.toml", told, failures=3)
    with capture_logs() as logged:
        await write(live, "limits.page_tools = 7", looks=3)
        await write(live, "limits.page_tools = 8", looks=3)
    assert told == ["the store is away", "the store is away", 8, None]
    events = [line["event"] for line in logged]
    assert events == [*["configuration not applied"] * 2, "configuration applied"]
