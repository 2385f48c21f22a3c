"""What a child process holds of ours: its three standard streams, and nothing else.

Readers of definitions and MCP servers that run as commands are both started with this.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress

import uvloop


def streams_only() -> Callable[[], None] | None:
    """What runs in a child before its program, so that it holds its three streams and no more.

    asyncio's own loop sees to that itself. uvloop closes nothing for a child, not even its own
    copies of these streams.
    """
    return _keep_streams_only if isinstance(asyncio.get_running_loop(), uvloop.Loop) else None


def _keep_streams_only() -> None:
    """Marks all else to be closed as the program starts: by now that may still be needed."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2:
            with suppress(OSError):  # the list itself is open no more
                os.set_inheritable(int(name), False)
