"""Which servers give a view more than tools, and what they may ask of a client."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.catalog.snapshot import ConnectionState, assemble
from gateway.config.file import parse_settings
from gateway.config.settings import Settings
from gateway.model import Level, Principal, ViewAddress
from gateway.policy.view import make_view, servers_of_view, usable_capabilities
from tests.configs import table

API = table("connections.api", kind="openapi", spec="api.json")
BARE = 'prefix = ""'
WHOLE_BUNDLE = table("bundles.whole", connections=["one"])
BUNDLES = WHOLE_BUNDLE + table("bundles.some", connections=["one"], deny=["delete_*"])
OWN = ViewAddress()
WHOLE, SOME = ViewAddress("bundles", ("whole",)), ViewAddress("bundles", ("some",))


def server(name: str, more: str = "") -> str:
    return table(f"connections.{name}", kind="mcp", url=f"https://{name}.example/mcp") + more + "\n"


@pytest.mark.parametrize(
    ("text", "address", "access", "expected"),
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
    text: str, address: ViewAddress, access: Level, expected: tuple[list[str], bool]
) -> None:
    settings = parse_settings(text.encode(), "config.toml")
    found = _offering(settings, Principal("ann", access=access), address)
    assert ([state.name for state in found.servers], found.sole is not None) == expected


EVERYTHING: dict[str, Any] = {"elicitation": {"url": {}}, "sampling": {}, "roots": {}, "x": {}}


@pytest.mark.parametrize(
    ("trust", "capabilities", "expected"),
    [
        ("trusted", EVERYTHING, {"elicitation": {"url": {}}, "sampling": {}, "roots": {}}),
        ("untrusted", EVERYTHING, {"elicitation": {"url": {}}}),
        ("trusted", {"elicitation": {}}, {"elicitation": {"form": {}}}),
        ("trusted", {"sampling": {"tools": {}, "context": {}}}, {"sampling": {"tools": {}}}),
        ("trusted", {"roots": {"listChanged": True}}, {"roots": {}}),
        ("trusted", {"roots": None, "sampling": True}, {}),
        ("trusted", {}, {}),
    ],
)
def test_a_server_may_ask_for_what_the_client_offers_and_an_untrusted_one_its_user_only(
    trust: str, capabilities: dict[str, Any], expected: Any
) -> None:
    settings = parse_settings(server("one", f'trust = "{trust}"').encode(), "config.toml")
    state = ConnectionState("one", settings.connections["one"], "config", status="connected")
    assert usable_capabilities(capabilities, state) == expected


def _offering(settings: Settings, principal: Principal, address: ViewAddress) -> Any:
    states = [
        ConnectionState(name, connection, "config", status="connected")
        for name, connection in settings.connections.items()
    ]
    snapshot = assemble(1, settings, states)
    return servers_of_view(snapshot, principal, make_view(snapshot, principal, address, ()))
