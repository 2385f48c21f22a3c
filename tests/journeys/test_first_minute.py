"""The first minute: start as shipped, list, call, read a large answer, stop."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from mcp.client.client import Client

from tests.callers import names, own_call
from tests.peers import soon
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
        assert await soon(process.wait()) == 0


async def visit_bookshop(client: Client, title: str) -> None:
    """Lists, calls, and reads a large answer."""
    assert await names(client) >= BOOK_TOOLS
    added = await own_call(client, "demo_add_book", title=title, author="Jane Austen")
    book = {"id": added["id"], "title": title, "author": "Jane Austen", "genre": "fiction"}
    book |= {"year": 2000, "price": 10.0, "stock": 1}
    found = await own_call(client, "demo_search_books", q=title)
    assert found == {"books": [book], "total": 1}
    large = await own_call(client, "demo_export_catalogue")
    assert large["truncated"] is True
    where = {"pointer": "/reviews", "offset": 1000, "limit": 1}
    part = await own_call(client, "read_result", result_id=large["result_id"], **where)
    assert (part["total"], part["next_offset"]) == (4000, 1001)
