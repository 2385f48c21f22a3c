"""Where large JSON is parsed: not here.

Parsing holds up every thread of a process, and takes up to forty times the memory of the text. A
function of ours that does so is run in another process, on bytes and a few words; `app` says how.
Its module has to import little: that process may have to be started first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

ELSEWHERE_BYTES = 256 * 1024  # below, it takes no longer than to ask another process


class Elsewhere(Protocol):
    """Another process."""

    async def __call__(
        self, job: Callable[..., bytes], data: bytes, /, *arguments: str
    ) -> bytes | bytearray | None:
        """What the function makes of the data; None where that takes too much, or fails."""
