"""What people see of a connection's settings holds none of its secrets."""

from __future__ import annotations

import pytest

from gateway.config.connection import McpConnection, OpenApiConnection
from gateway.web.display import MASK, masked_settings, masked_url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://a.example/v1", "https://a.example/v1"),
        ("https://a.example/v1?", "https://a.example/v1?"),
        ("https://a.example/mcp?api_key=k&x=1", f"https://a.example/mcp?api_key={MASK}&x={MASK}"),
        ("https://a.example/mcp?k", f"https://a.example/mcp?k={MASK}"),
    ],
)
def test_values_in_the_query_of_an_address_are_masked(url: str, shown: str) -> None:
    assert masked_url(url) == shown


def test_a_definition_that_is_text_is_no_address() -> None:
    settings = OpenApiConnection(kind="openapi", spec='{"x": "a?b=c"}')

    assert masked_settings(settings) == {"kind": "openapi", "spec": '{"x": "a?b=c"}'}


def test_options_of_a_command_that_hold_secrets_are_masked() -> None:
    args = ("-y", "server", "--api-key", "k1", "--token=k2", "--verbose", "on")
    settings = McpConnection(
        kind="mcp", transport="stdio", command="npx", args=args, env={"KEY": "k3"}
    )

    assert masked_settings(settings) == {
        "kind": "mcp",
        "transport": "stdio",
        "command": "npx",
        "args": ["-y", "server", "--api-key", MASK, f"--token={MASK}", "--verbose", "on"],
        "env": {"KEY": MASK},
    }
