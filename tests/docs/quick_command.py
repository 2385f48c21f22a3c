"""The command `gateway` for pages' shells, forked from a process that has loaded it already.

Loading takes longer than most commands do. A small program called `gateway` hands its words,
folder, variables and streams to the tests over a socket, and ends with the exit code that comes
back. `gateway serve` is started as users start it.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.processes import ForkedGateway

COMMAND = f"""#!{sys.executable} -SE
import json, os, socket, sys
if "serve" in sys.argv:
    os.execv(sys.executable, [sys.executable, "-m", "gateway", *sys.argv[1:]])
tests = socket.socket(socket.AF_UNIX)
tests.connect(os.path.join(os.path.dirname(__file__), "tests"))
told = json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode()
socket.send_fds(tests, [len(told).to_bytes(4, "big") + told], [1, 2])
sys.exit(int(tests.recv(16) or 1))
"""


@asynccontextmanager
async def commands_in(folder: Path) -> AsyncIterator[None]:
    """Puts the command into this folder, which belongs on a PATH."""
    _write_command(folder)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.setblocking(False)
        listening.bind(str(folder / "tests"))
        listening.listen()
        taking = asyncio.create_task(_take(listening))
        try:
            yield
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)


def _write_command(folder: Path) -> None:
    folder.mkdir()
    command = folder / "gateway"
    command.write_text(COMMAND, encoding="utf-8")
    command.chmod(0o755)


async def _take(listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as running:
        while True:
            caller, _ = await loop.sock_accept(listening)
            running.create_task(_run(caller))


async def _run(caller: socket.socket) -> None:
    with caller:
        caller.setblocking(True)
        (words, cwd, variables), (out, err) = await asyncio.to_thread(_hear, caller)
        try:
            process = ForkedGateway(tuple(words), out, err, Path(cwd), variables)
        finally:
            os.close(out)
            os.close(err)
        caller.sendall(str(await process.wait()).encode())


def _hear(caller: socket.socket) -> tuple[tuple[list[str], str, dict[str, str]], list[int]]:
    told, streams, _, _ = socket.recv_fds(caller, 65536, 2)
    while len(told) < 4 + int.from_bytes(told[:4], "big"):
        told += caller.recv(65536)
    return json.loads(told[4:]), streams
