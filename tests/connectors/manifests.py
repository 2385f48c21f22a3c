"""What the tests of manifests share: where fixtures are, and a connection to build for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.connectors.manifest import load_builtin
from gateway.model import Build, Source, Tool, pack
from gateway.reader import build_definition

FIXTURES = Path(__file__).parents[2] / "fixtures" / "manifests"
LIBRARY = (FIXTURES / "valid" / "library.toml").read_bytes()

CONNECTION = Source(
    connection="city",
    kind="manifest",
    display_name="",
    prefix="city_",
    location="library.toml",
    auth_type="bearer",
    on_behalf_of="reader-7",
)


def library(**changes: Any) -> Build:
    """The library's manifest for a connection with these settings."""
    return build_definition(pack(LIBRARY), replace(CONNECTION, **changes))


def provider(name: str, **changes: Any) -> Build:
    """A manifest that comes with the gateway, for a connection with these settings."""
    settings = {"connection": name, "prefix": "", "location": f"{name}.toml", **changes}
    return build_definition(pack(load_builtin(name)), replace(CONNECTION, **settings))


def tool(build: Build, operation: str) -> Tool:
    """The tool made of this operation."""
    return next(tool for tool in build.tools if tool.operation == operation)
