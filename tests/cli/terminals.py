"""A terminal of 80 columns with a command on it, as a person has one."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import signal
import struct
import termios
from pathlib import Path

from tests.processes import START_SECONDS, ForkedGateway

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command on a terminal of its own, and all that it has shown so far."""

    def __init__(self, *words: str, cwd: str | Path = "", **environment: str) -> None:
        self._screen, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {"TERM": "xterm", "COLUMNS": "80", **environment}
        folder = Path.cwd() / cwd
        self.process = ForkedGateway(words, other, other, folder, environment, stdin=other)
        os.close(other)
        self.shown = ""

    async def read_until(self, words: str) -> None:
        """Reads on until these words are shown."""
        async with asyncio.timeout(START_SECONDS):
            while words not in " ".join(self.shown.split()):
                assert await self._read(), self.shown

    def type(self, line: str) -> None:
        """What a person types, with Enter."""
        os.write(self._screen, f"{line}\n".encode())

    async def interrupt(self) -> int:
        """Ctrl-C, then the end."""
        self.process.send_signal(signal.SIGINT)
        return await self.end()

    async def end(self) -> int:
        """The exit code, once the command has ended."""
        async with asyncio.timeout(START_SECONDS):
            while await self._read():
                pass
            code = await self.process.wait()
        os.close(self._screen)
        return code

    @property
    def lines(self) -> list[str]:
        """What was shown, without colours."""
        return [ESCAPES.sub("", line).rstrip() for line in self.shown.split("\r\n")]

    async def _read(self) -> bool:
        try:
            read = await asyncio.to_thread(os.read, self._screen, 65_536)
        except OSError:  # the other end is closed
            return False
        self.shown += read.decode(errors="replace")
        return bool(read)
