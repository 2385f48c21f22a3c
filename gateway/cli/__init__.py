"""The `gateway` command. One file a group of commands; heavy imports wait until they are needed."""

from __future__ import annotations

from gateway.cli.main import main

__all__ = ["main"]
