"""`gateway principals`, `roles`, `bundles` and `routes` against a running gateway."""

from __future__ import annotations

import json
from pathlib import Path

from tests.callers import api
from tests.configs import LOCAL, principal, table, token_of
from tests.conftest import GatewayMaker
from tests.processes import gateway_command

CONFIG = LOCAL + table("demo", enabled=True) + principal("root", admin=True) + principal("bob")


async def test_one_makes_reads_and_deletes_them_from_a_terminal(
    make_gateway: GatewayMaker, tmp_path: Path
) -> None:
    gateway = await make_gateway(CONFIG)
    where = {"GATEWAY_URL": gateway.url, "GATEWAY_TOKEN": token_of("root")}

    async def run(*words: str, code: int = 0) -> str:
        found, out, err = await gateway_command(*words, cwd=tmp_path, **where)
        assert found == code, (words, out, err)
        return out + err

    reading = ("bundles", "put", "reading", '{"connections": ["demo"], "allow": ["list_*"]}')
    assert "It gives 1 tools" in await run(*reading, "--dry-run")
    await run(*reading)
    await run("roles", "put", "reader", 'bundles=["reading"]')
    await run("routes", "put", "hiring/reader", 'screen=["reading"]')
    said = await run("principals", "put", "agent", "role=reader", "new_token=true")
    token = said.split("token: ")[1].split()[0]
    async with api(gateway.url) as agent:
        agent.http.headers["Authorization"] = f"Bearer {token}"
        _, found = await agent("GET", "/tools")
    assert [each["name"] for each in found["tools"]] == ["demo_list_books"]
    listed = await run("principals", "list")
    assert "agent" in listed and "reader" in listed and token not in listed
    shown = json.loads(await run("routes", "show", "hiring/reader", "--json"))
    assert shown["settings"] == {"screen": ["reading"]} and shown["updated_by"] == "root"
    assert "is defined in config.toml" in await run("principals", "delete", "bob", code=1)
    assert "roles.reader.bundles" in await run("bundles", "delete", "reading", code=1)
    # `check` tells of rows that config.toml has taken over, or that don't hold.
    text = CONFIG + table("bundles.reading", connections=["demo"])
    (tmp_path / "config.toml").write_text(text, encoding="utf-8")
    said = await run("check")
    assert "bundles.reading: config.toml has one of this name" in said
    for words in (("principals", "agent"), ("routes", "hiring/reader"), ("roles", "reader")):
        assert "is deleted" in await run(words[0], "delete", words[1])
