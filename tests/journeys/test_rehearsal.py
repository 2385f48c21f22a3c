"""A changed configuration, rehearsed on calls that were recorded under the old one."""

from __future__ import annotations

from pathlib import Path

import orjson
from mcp.client.client import Client

from tests.callers import own_call
from tests.conftest import OPEN, GatewayMaker
from tests.processes import gateway_command

DEMO = OPEN + "\n[demo]\nenabled = true\n"


async def test_a_stricter_level_names_the_calls_it_would_have_refused(
    make_gateway: GatewayMaker, tmp_path: Path
) -> None:
    gateway = await make_gateway(DEMO)
    async with Client(gateway.mcp) as client:
        await own_call(client, "demo_get_book", id=1)
        await own_call(client, "demo_add_book", title="Emma", author="Jane Austen")
    changed = tmp_path / "changed.toml"
    changed.write_text(DEMO.replace("full_access", "read_only"), encoding="utf-8")
    words = ("check", "--config", str(changed), "--replay", "10", "--json")
    code, out, err = await gateway_command(*words)
    assert (code, err) == (0, "")
    replayed = orjson.loads(out)["replayed"]
    assert [(row["tool"], row["outcome"], row["reason"]) for row in replayed] == [
        ("demo_add_book", "refused", "permissions.level is read_only")
    ]
