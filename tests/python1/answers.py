"""What the first generation's official client sees; runs where `mcp` 1 is installed.

    python answers.py URL ROWS

Prints one line of JSON: see `tests/report_peer.py`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from typing import Any

# By name: the type checker only knows the second generation.
ClientSession: Any = importlib.import_module("mcp").ClientSession
connect: Any = importlib.import_module("mcp.client.streamable_http").streamablehttp_client


async def main(url: str, rows: int) -> dict[str, Any]:
    """Lists, then calls in every way."""
    async with connect(url) as (read, write, _), ClientSession(read, write) as client:
        await client.initialize()
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        small = await client.call_tool("far_report", {"rows": 2})
        cut = (await client.call_tool("far_report", {"rows": rows})).structuredContent
        asked = {"result_id": cut["result_id"], "pointer": "/rows", "offset": rows - 1}
        last = await client.call_tool("read_result", asked)
        refused = await client.call_tool("far_report", {"rows": "many"})
        failed = await client.call_tool("far_report", {"rows": 1, "fail": True})
    assert refused.isError and failed.isError
    return {
        "promised": sorted(_properties(tools["far_report"].outputSchema)),
        "small": small.structuredContent,
        "truncated": cut["truncated"],
        "last": last.structuredContent["value"],
        "refused": refused.structuredContent["error"]["code"],
        "failed": failed.content[0].text,
    }


def _properties(schema: dict[str, Any]) -> set[str]:
    """At the top, or among what the server itself may answer."""
    return {*schema["properties"], *schema["anyOf"][0]["properties"]}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], int(sys.argv[2])))))
