"""The package loads where the system lacks what Linux has."""

from __future__ import annotations

import asyncio
import sys

from tests.house import ROOT, House
from tests.peers import soon

# Hides what Windows does not have, then loads everything.
ELSEWHERE = """
import asyncio, os, pkgutil, signal, socket, sys
import aiohttp, mcp, uvicorn  # what libraries do on other systems is theirs
for module in ("fcntl", "grp", "pwd", "resource", "termios", "uvloop"):
    sys.modules[module] = None
for place, names in (
    (os, "fork killpg nice sysconf O_CLOEXEC O_NOFOLLOW"),
    (signal, "SIGQUIT SIGKILL SIGPROF setitimer ITIMER_PROF"),
    (socket, "SO_REUSEPORT"),
):
    for name in names.split():
        delattr(place, name)
from importlib import import_module
for name in sys.stdin.read().split():
    import_module(name)
from gateway.system import confine, limit_cpu, lock_file, most_open_files, run_loop
confine(1); limit_cpu(1); lock_file(0)
assert most_open_files() is None
async def main(): print(type(asyncio.get_running_loop()).__module__)
run_loop(main())
"""


async def test_every_module_loads_without_what_only_some_systems_have() -> None:
    modules = House(ROOT / "gateway").modules
    names = [f"gateway.{name}" for name in modules if name not in ("", "__main__")]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", ELSEWHERE),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    out, err = await soon(child.communicate(" ".join(names).encode()))
    assert (child.returncode, out.decode().strip()) == (0, "asyncio.unix_events"), err.decode()
