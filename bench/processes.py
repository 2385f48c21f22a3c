"""The processes that are measured: started, waited for, looked at, ended.

CPU is user and system time of a process and everything it started, those that ended included.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson
import psutil

START_SECONDS = 60.0
END_SECONDS = 15.0
ROOT = Path(__file__).parents[1]
TOKEN = "bench-token-0123456789abcdef"
SECRET = "upstream-secret-0123456789abcdef"


@dataclass(frozen=True, slots=True)
class Measured:
    """A process, and the port it answers on."""

    process: psutil.Process
    port: int

    def cpu(self) -> float:
        """Seconds of CPU used so far."""
        return sum(_cpu(one) for one in self._family())

    def own_cpu(self) -> float:
        """The same of the process alone, without those that read definitions for it."""
        times = self.process.cpu_times()
        used: float = times.user + times.system
        return used

    def memory(self) -> float:
        """Resident memory now, in MB."""
        resident: int = sum(one.memory_info().rss for one in self._family())
        return resident / 2**20

    def _family(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]


def _cpu(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    used: float = times.user + times.system + times.children_user + times.children_system
    return used


@asynccontextmanager
async def running(*command: str, log: IO[bytes] | None = None) -> AsyncIterator[Measured]:
    """A Python process that says its port, at the end of the first line it prints."""
    with log or tempfile.TemporaryFile() as file:
        async with _running(command, file) as measured:
            yield measured


@asynccontextmanager
async def _running(command: Sequence[str], log: IO[bytes]) -> AsyncIterator[Measured]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command),
        stdout=asyncio.subprocess.PIPE,
        stderr=log,
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},  # as Python is by itself
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_SECONDS):
            line = (await process.stdout.readline()).decode()
        if not line:
            log.seek(0)
            raise RuntimeError(f"{' '.join(command)} did not start: {log.read().decode()[-2000:]}")
        port = int(line.removesuffix("/mcp\n").rpartition(":")[2])
        yield Measured(psutil.Process(process.pid), port)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()


def gateway(folder: Path) -> Any:
    """A gateway as it is shipped, on the configuration in a folder."""
    config = str(folder / "config.toml")
    return running("-m", "gateway", "serve", "--config", config, "--port", "0")


def configure(
    folder: Path,
    connections: Mapping[str, Mapping[str, Any]],
    *,
    principals: Sequence[str] = ("ann",),
    workers: int = 1,
) -> None:
    """Write config.toml: tokens, defaults, these connections, and no question before a write."""
    tables: dict[str, Mapping[str, Any]] = {
        "server": {"workers": workers},
        "auth": {"mode": "tokens"},
        "network": {"allow": ["127.0.0.1/32"]},
        "permissions": {"level": "full_access"},
        **{f"connections.{name}": settings for name, settings in connections.items()},
        **{
            f"principals.{name}": {"token_sha256": digest(token_of(name)), "admin": name == "ann"}
            for name in principals
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(f"[{name}]\n{_lines(table)}" for name, table in tables.items())
    (folder / "config.toml").write_text(text, encoding="utf-8")


def token_of(principal: str) -> str:
    return f"{TOKEN}-{principal}"


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def api(port: int, operations: int) -> dict[str, Any]:
    """The peer's API as a connection, with a secret to be cleared from answers."""
    return {
        "kind": "openapi",
        "spec": f"http://127.0.0.1:{port}/definition/{operations}",
        "auth": {"type": "bearer", "token": SECRET},
    }


def upstream(port: int) -> dict[str, Any]:
    """The peer's MCP server as a connection."""
    return {
        "kind": "mcp",
        "url": f"http://127.0.0.1:{port}/mcp",
        "auth": {"type": "bearer", "token": SECRET},
    }


def _lines(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_toml(value)}\n" for key, value in table.items())


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + " }"
    return orjson.dumps(value).decode()
