"""Ids that sort by age: the time in milliseconds, then chance."""

from __future__ import annotations

import secrets


def new_id(now: float) -> str:
    """32 hex digits: 12 of time, 20 nobody can guess."""
    return f"{int(now * 1000):012x}{secrets.token_hex(10)}"
