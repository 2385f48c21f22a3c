"""Every hostile definition is answered in time and in little memory, by a gateway of its own.

Memory is what the gateway and its readers take together above what they took since the start,
sampled; validators, which give advice later and have a bound of their own, are not counted. The
gateway has no reader at first, so all that one takes counts. On a machine that is busy with other
things, time is the processor's; the answer itself is not waited for longer than the deadlines of
fetching and reading together, or of fetching alone where nothing comes to be read.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import aiohttp
import psutil
import pytest

from gateway.limits import READ_SECONDS
from tests.conftest import OPEN
from tests.processes import gateway_process
from tests.raw_server import Connection, Conversation, raw_server
from tests.slow.hostile import FAMILY, MANNERS, PACKED
from tests.test_workers import Peak

pytestmark = pytest.mark.slow

CPU_SECONDS = 8
FETCHED_SECONDS = 10  # 5 on a machine that is not busy
MEMORY = 200 * 1024 * 1024  # of which a reader may take 160
CHUNK = 262_144
START_SECONDS = 20


@pytest.mark.parametrize("name", FAMILY)
async def test_a_hostile_definition_is_answered_in_time_and_little_memory(
    name: str, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(OPEN, encoding="utf-8")
    async with (
        raw_server(_sending(name, FAMILY[name]())) as peer,
        gateway_process(config) as (process, address),
        aiohttp.ClientSession() as session,
    ):
        puts = address.removesuffix("/mcp") + "/api/v1/connections/"
        gateway = psutil.Process(process.pid)
        await _settled(gateway)
        before, cpu = _memory(gateway), _cpu(gateway)
        with Peak(lambda: _memory(gateway)) as peak:
            async with (
                asyncio.timeout(FETCHED_SECONDS + (0 if name in MANNERS else READ_SECONDS)),
                session.put(f"{puts}bad", json={"kind": "openapi", "spec": peer.url}) as answer,
            ):
                said = await answer.json()
        print(f"{name}: {answer.status}, {(peak.bytes - before) >> 20} MB")
        assert answer.status == 200 or said["error"]["message"]
        assert answer.status in (200, 422)
        assert peak.bytes - before < MEMORY
        assert _cpu(gateway) - cpu < CPU_SECONDS


async def _settled(gateway: psutil.Process) -> None:
    """Until its memory stays as it is; it has no reader before the first definition."""
    known = -1
    async with asyncio.timeout(START_SECONDS):
        while (memory := _memory(gateway)) != known:
            known = memory
            await asyncio.sleep(0.3)


def _memory(gateway: psutil.Process) -> int:
    readers = sum(_memory_of_reader(child) for child in gateway.children())
    return int(gateway.memory_info().rss) + readers


def _memory_of_reader(child: psutil.Process) -> int:
    """Nothing of a child that is still the gateway's image, before it becomes a reader."""
    with suppress(psutil.Error):
        if child.cmdline()[-2:] == ["gateway.reader", "build"]:
            return int(child.memory_info().rss)
    return 0


def _cpu(gateway: psutil.Process) -> float:
    used = 0.0
    with suppress(psutil.Error):
        for process in (gateway, *gateway.children()):
            times = process.cpu_times()
            used += times.user + times.system + times.children_user + times.children_system
    return used


def _sending(name: str, raw: bytes) -> Conversation:
    """The conversation of a peer that sends the definition in the manner it asks for."""

    async def conversation(connection: Connection) -> None:
        await connection.request()
        if name != "silent":
            await _send(connection.writer, name, raw)
        await connection.request()  # until the gateway is gone

    return conversation


async def _send(writer: asyncio.StreamWriter, name: str, raw: bytes) -> None:
    lines = ["HTTP/1.1 200 OK", "Connection: close"]
    if name in PACKED:
        lines.append(f"Content-Encoding: {PACKED[name]}")
    if name not in MANNERS:
        lines.append(f"Content-Length: {len(raw)}")
    writer.write("\r\n".join([*lines, "", ""]).encode())
    for at in range(0, len(raw), CHUNK):
        writer.write(raw[at : at + CHUNK])
        await writer.drain()
    while name in MANNERS:
        writer.write(b"s" * (CHUNK if name == "endless" else 1))
        await writer.drain()
        await asyncio.sleep(0 if name == "endless" else 0.05)
