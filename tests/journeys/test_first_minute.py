"""The first minute: start as shipped, list, call, read a large answer, stop."""

from __future__ import annotations

import asyncio
import shutil
import signal
from pathlib import Path

from mcp.client.client import Client

from tests.processes import gateway_process

SHIPPED = Path(__file__).parents[2] / "config.toml"
BOOK_TOOLS = {
    *("demo_add_book", "demo_delete_book", "demo_export_catalogue", "demo_get_book"),
    *("demo_list_books", "demo_search_books", "demo_update_book"),
}


async def test_the_shipped_configuration_serves_the_bookshop_and_ends_in_good_order(
    tmp_path: Path,
) -> None:
    shutil.copy(SHIPPED, tmp_path)
    async with gateway_process(tmp_path / "config.toml") as (process, url):
        for mode, title in (("legacy", "Emma"), ("2026-07-28", "Persuasion")):
            async with Client(url, mode=mode) as client:
                await visit_bookshop(client, title)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(10):
            assert await process.wait() == 0


async def visit_bookshop(client: Client, title: str) -> None:
    """Lists, calls, and reads a large answer."""
    tools = {tool.name for tool in (await client.list_tools()).tools}
    assert tools >= BOOK_TOOLS
    added = await client.call_tool("demo_add_book", {"title": title, "author": "Jane Austen"})
    assert added.structured_content is not None
    book = added.structured_content["id"]
    found = await client.call_tool("demo_search_books", {"q": title})
    assert found.structured_content == {
        "books": [
            {
                "id": book,
                "title": title,
                "author": "Jane Austen",
                "genre": "fiction",
                "year": 2000,
                "price": 10.0,
                "stock": 1,
            }
        ],
        "total": 1,
    }
    large = await client.call_tool("demo_export_catalogue", {})
    assert large.structured_content is not None
    assert large.structured_content["truncated"] is True
    part = await client.call_tool(
        "read_result",
        {
            "result_id": large.structured_content["result_id"],
            "pointer": "/reviews",
            "offset": 1000,
            "limit": 1,
        },
    )
    assert part.structured_content is not None
    assert part.structured_content["total"] == 4000
    assert part.structured_content["next_offset"] == 1001
