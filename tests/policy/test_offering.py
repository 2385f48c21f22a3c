"""Which servers give a view more than tools, and what they may ask of a client."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.catalog.snapshot import ConnectionState, assemble
from gateway.config.reading import parse_settings
from gateway.config.settings import Settings
from gateway.model import Level, Principal
from gateway.policy.offering import askable, offering
from gateway.policy.view import Scope, view

SERVER = '[connections.{name}]\nkind = "mcp"\nurl = "https://{name}.example/mcp"\n{more}\n'
API = '[connections.api]\nkind = "openapi"\nspec = "api.json"\n'
BARE = 'prefix = ""'
BUNDLES = """
[bundles.whole]
connections = ["one"]
[bundles.some]
connections = ["one"]
deny = ["delete_*"]
"""
OWN, WHOLE, SOME = Scope(), Scope("bundles", ("whole",)), Scope("bundles", ("some",))


def server(name: str, more: str = "") -> str:
    return SERVER.format(name=name, more=more)


@pytest.mark.parametrize(
    ("text", "scope", "access", "expected"),
    [
        (server("one", BARE), OWN, "read-write", (["one"], True)),
        (server("one", BARE), OWN, "read-only", (["one"], True)),
        (server("one", BARE), OWN, "disabled", ([], False)),
        (server("one"), OWN, "read-write", (["one"], False)),
        (server("one", BARE + "\nenabled = false"), OWN, "read-write", ([], False)),
        (server("one", BARE) + API, OWN, "read-write", (["one"], False)),
        (server("one", BARE) + server("two"), OWN, "read-write", (["one", "two"], False)),
        (server("one", BARE) + server("two") + BUNDLES, WHOLE, "read-write", (["one"], True)),
        (server("one", BARE) + BUNDLES, SOME, "read-write", ([], False)),
        (API, OWN, "read-write", ([], False)),
    ],
)
def test_a_view_has_the_servers_it_holds_whole(
    text: str, scope: Scope, access: Level, expected: tuple[list[str], bool]
) -> None:
    settings = parse_settings(text.encode(), "config.toml")
    found = _offering(settings, Principal("ann", access=access), scope)
    assert ([state.name for state in found.servers], found.transparent) == expected


EVERYTHING: dict[str, Any] = {"elicitation": {"url": {}}, "sampling": {}, "roots": {}, "x": {}}


@pytest.mark.parametrize(
    ("more", "capabilities", "expected"),
    [
        (BARE, EVERYTHING, {"elicitation": {"url": {}}, "sampling": {}, "roots": {}}),
        (BARE + '\ntrust = "untrusted"', {**EVERYTHING, "elicitation": {}}, "form"),
        ("", {**EVERYTHING, "elicitation": {}}, "form"),
        ("", {"elicitation": {"form": {}, "url": {}}}, {"elicitation": {"form": {}, "url": {}}}),
        ("", EVERYTHING, {"elicitation": {"url": {}}}),
        ("", {}, {}),
    ],
)
def test_only_a_trusted_server_that_is_all_there_is_may_ask_for_everything(
    more: str, capabilities: dict[str, Any], expected: Any
) -> None:
    settings = parse_settings(server("one", more).encode(), "config.toml")
    found = askable(capabilities, _offering(settings, Principal("ann"), OWN))
    assert found == ({"elicitation": {"form": {}}} if expected == "form" else expected)


def _offering(settings: Settings, principal: Principal, scope: Scope) -> Any:
    states = [
        ConnectionState(name, connection, "config", status="connected")
        for name, connection in settings.connections.items()
    ]
    snapshot = assemble(1, settings, states)
    return offering(snapshot, principal, view(snapshot, principal, scope, ()))
