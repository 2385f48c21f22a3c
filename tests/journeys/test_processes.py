"""The processes a gateway starts: what they hold, and that they end with it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any
from urllib.parse import urlsplit

import psutil
from mcp.client.client import Client

from gateway.server import bind
from tests.callers import names
from tests.configs import STDIO_PEER, stdio_table, table
from tests.conftest import OPEN, GatewayMaker
from tests.journeys.trio import asked, plain_http
from tests.peers import provider, until
from tests.processes import ForkedGateway, gateway_process, users_process

READER = "gateway.reader"
SOON_SECONDS = 60.0  # a second, where the machine has nothing else to do


@asynccontextmanager
async def serving(
    folder: Path, workers: int, *tables: str, start: Any = gateway_process, **how: Any
) -> AsyncIterator[Any]:
    """A gateway process whose stdio servers are all started; the process and its port."""
    config = folder / "config.toml"
    text = f"{OPEN}[server]\nworkers = {workers}\n{''.join(tables)}"
    await asyncio.to_thread(config.write_text, text, encoding="utf-8")
    async with start(config, "--port", str(how.pop("port", 0)), **how) as (process, url):
        await started(psutil.Process(process.pid), len(tables) * workers)
        yield process, urlsplit(url).port


def found(parent: psutil.Process, program: str) -> list[psutil.Process]:
    """The processes under this one that run the program."""
    return [each for each in parent.children(recursive=True) if program in seen(each.cmdline, [])]


def seen(look: Callable[[], Any], otherwise: Any) -> Any:
    """What is seen of a process, or something else where it ended meanwhile."""
    try:
        return look()
    except (psutil.Error, OSError):
        return otherwise


async def started(parent: psutil.Process, servers: int) -> None:
    """Returns when there are so many stdio servers."""
    await until(lambda: len(found(parent, STDIO_PEER)) == servers, SOON_SECONDS)


def held_by(processes: list[psutil.Process]) -> set[tuple[int, ...]]:
    """The descriptors that these processes hold; a program that starts reads files for a moment."""
    looks = (partial(os.listdir, f"/proc/{each.pid}/fd") for each in processes)
    found = (seen(look, None) for look in looks)
    return {tuple(sorted(map(int, names))) for names in found if names is not None}


async def test_children_hold_nothing_of_the_gateway_and_end_with_it_though_it_is_killed(
    tmp_path: Path,
) -> None:
    workers = 2
    left_open = os.open(tmp_path, os.O_RDONLY)  # by whoever started the gateway
    users: dict[str, Any] = {"start": users_process, "pass_fds": (left_open,)}
    async with (
        provider() as peer,
        plain_http() as http,
        serving(tmp_path, workers, stdio_table("one"), **users) as (process, port),
    ):
        os.close(left_open)
        url = f"http://127.0.0.1:{port}/api/v1/connections/shop"
        put = {"kind": "openapi", "spec": peer.spec}
        assert (await asked(http, "PUT", url, put))[0] == 200
        with (tmp_path / "config.toml").open("a", encoding="utf-8") as config:
            config.write(stdio_table("late"))  # started while requests and definitions come in
        everyone = psutil.Process(process.pid)
        await started(everyone, 2 * workers)
        servers, readers = found(everyone, STDIO_PEER), found(everyone, READER)
        await until(lambda: held_by(servers) == {(0, 1, 2)}, SOON_SECONDS)
        # A reader closes what it inherited before anything else; one may be just starting.
        of_a_reader = {(0, 1, 2), (0, 1, 2, 3)}
        await until(lambda: held_by(readers) <= of_a_reader, SOON_SECONDS)
        assert readers and not any(seen(each.net_connections, []) for each in readers)
        children = everyone.children(recursive=True)
        process.kill()
        await process.wait()
        with bind("127.0.0.1", port, shared=True):
            await until(lambda: not any(map(lives, children)), SOON_SECONDS)


def lives(process: psutil.Process) -> bool:
    return bool(process.is_running() and seen(process.status, "") not in ("", psutil.STATUS_ZOMBIE))


async def test_after_a_kill_the_port_is_free_even_where_a_child_lives_on(tmp_path: Path) -> None:
    tables = (stdio_table("one"), stdio_table("two", "--stubborn"))
    async with serving(tmp_path, 1, *tables) as (process, port):
        children = psutil.Process(process.pid).children(recursive=True)
        [stubborn] = found(psutil.Process(process.pid), "--stubborn")
        process.kill()
        await process.wait()
        try:
            async with serving(tmp_path, 1, stdio_table("one"), port=port) as (_, again):
                assert again == port
            await until(lambda: [*filter(lives, children)] == [stubborn], SOON_SECONDS)
        finally:
            stubborn.kill()


async def test_workers_end_with_a_parent_that_is_killed_while_they_start(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"{OPEN}[server]\nworkers = 2\n", encoding="utf-8")
    words = ("serve", "--config", str(config), "--port", "0")
    with TemporaryFile() as said:
        parent = ForkedGateway(words, said.fileno(), said.fileno(), tmp_path)
    process = psutil.Process(parent.pid)
    await until(lambda: len(process.children()) == 2, SOON_SECONDS)
    workers = process.children()
    parent.kill()
    await parent.wait()
    await until(lambda: not any(map(lives, workers)), SOON_SECONDS)


async def test_a_gateway_whose_log_nobody_reads_any_more_ends_when_it_is_told_to(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(OPEN, encoding="utf-8")
    reading, writing = os.pipe()
    process = ForkedGateway(("serve", "--port", "0"), writing, writing, tmp_path)
    os.close(writing)
    with os.fdopen(reading, "rb") as said:
        await asyncio.to_thread(lambda: next(line for line in said if b"Console:" in line))
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(SOON_SECONDS):
        assert await process.wait() == 0


async def test_paths_of_a_stdio_server_count_from_the_folder_of_the_configuration(
    tmp_path: Path, make_gateway: GatewayMaker
) -> None:
    (tmp_path / "tools").mkdir()
    shutil.copy(STDIO_PEER, tmp_path / "tools/peer.py")
    child = {"kind": "mcp", "transport": "stdio", "command": sys.executable}
    here = table("connections.here", **child, args=["tools/peer.py"])
    there = table("connections.there", **child, args=["peer.py"], cwd="tools")
    gateway = await make_gateway(f"{OPEN}{here}{there}")
    async with Client(gateway.mcp) as client:
        assert await names(client) >= {"here_echo", "there_echo"}
