"""The shipped config.toml names every key, and starts as it is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gateway.config.connection import (
    ArmConnection,
    ManifestConnection,
    McpConnection,
    OpenApiConnection,
    WrapRule,
)
from gateway.config.reading import read_settings
from gateway.config.settings import Settings

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "config.toml"


def models() -> Iterator[type[BaseModel]]:
    waiting: list[Any] = [
        *(Settings, OpenApiConnection, ManifestConnection, McpConnection, ArmConnection, WrapRule)
    ]
    seen = set()
    while waiting:
        kind = waiting.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind not in seen:
            seen.add(kind)
            yield kind
            waiting.extend(field.annotation for field in kind.model_fields.values())
        else:
            waiting.extend(getattr(kind, "__args__", ()))


def test_the_shipped_configuration_names_every_key() -> None:
    text = CONFIG.read_text(encoding="utf-8")
    words = set(re.findall(r"[a-z_0-9]+", text))
    missing = {
        f"{kind.__name__}.{field.alias or name}"
        for kind in models()
        for name, field in kind.model_fields.items()
        if (field.alias or name) not in words
    }
    assert missing == set()


def test_the_shipped_configuration_is_valid_and_local() -> None:
    settings = read_settings(CONFIG, {})
    assert settings.auth.mode == "none"
    assert settings.server.host == "127.0.0.1"
    assert settings.demo.enabled
