"""Several processes on one port, as users start them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

from tests.conftest import OPEN, gateway_process


async def test_workers_end_when_their_parent_is_gone(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f"{OPEN}\n[server]\nworkers = 2\n", encoding="utf-8")
    async with gateway_process(config) as (process, url):
        port = urlsplit(url).port
        process.kill()
        await process.wait()
        async with asyncio.timeout(10):
            while await answers(port):  # noqa: ASYNC110 - another process makes it so
                await asyncio.sleep(0.1)


async def answers(port: int | None) -> bool:
    """Whether someone listens on the port."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return False
    writer.close()
    return True
