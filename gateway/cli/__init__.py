"""The `gateway` command: `main` has its words, the other files what it does."""

from __future__ import annotations

from gateway.cli.main import main

__all__ = ["main"]
