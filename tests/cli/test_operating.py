"""`gateway doctor` and `gateway bench`, beside a gateway that runs."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway import __version__
from tests.callers import client, own_call
from tests.certificates import authority
from tests.configs import principal, table, token_of
from tests.conftest import GatewayMaker, Running, gateway_on
from tests.peers import provider
from tests.processes import gateway_command

PEOPLE = principal("ann", admin=True)
DEMO = table("demo", enabled=True) + PEOPLE


async def examine(config: Path, code: int) -> list[tuple[str, str, str, str]]:
    """What the doctor finds."""
    found, out, err = await gateway_command("doctor", "--config", str(config), "--json")
    assert found == code, out + err
    said = orjson.loads(out)
    assert said["ok"] == (code == 0)
    return [tuple(each.values()) for each in said["findings"]]


async def test_the_doctor_says_of_each_thing_how_it_is_and_what_to_fix(
    make_gateway: GatewayMaker, tmp_path: Path
) -> None:
    gateway, ca = await make_gateway(DEMO), authority(tmp_path)
    (tmp_path / "state/secret.key").chmod(0o644)
    async with client(gateway.url, "ann", called="desk") as agent:
        await own_call(agent, "demo_get_book", id=1)
    silent = await asyncio.start_server(
        lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=ca.server("localhost")
    )
    port = silent.sockets[0].getsockname()[1]
    async with provider() as shop, silent:
        config = tmp_path / "doctor.toml"
        here = {"port": gateway.port, "workers": 64}
        text = table("server", **here) + PEOPLE + shop.table(exclude=["nothing"])
        text += table("connections.far", kind="mcp", url=f"https://localhost:{port}/mcp")
        text += table("network", allow=["127.0.0.0/8", "::1/128"], ca_file="ca.pem")
        config.write_text(text, encoding="utf-8")
        found = await examine(config, 1)
    told = {(status, about) for status, about, *_ in found}
    assert told == {
        ("warn", "configuration"),
        ("warn", "store"),
        ("ok", "store"),
        ("ok", "clients"),
        ("ok", "clock"),
        ("ok", "address"),
        ("ok", "limits"),
        ("warn", "limits"),
        ("ok", "connection shop"),
        ("fail", "connection far"),
        ("warn", "certificates"),
    }
    said = "\n".join(" ".join(each) for each in found)
    for words in (
        "connections.shop.exclude",
        "chmod 600",
        "the key fits",
        "ok clients desk/1.0 ",
        f"a gateway {__version__} runs there: ok",
        "server.workers = 64",
        "1 tools, 0 skipped",
        "network.ca_file: ends in 0 days",
        "connections.far.url: ends in 0 days",
    ):
        assert words in said, said
    assert token_of("ann") not in said


async def test_the_doctor_ends_with_what_is_wrong_with_a_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[server]\nprt = 1\n", encoding="utf-8")
    [(status, about, message, _)] = await examine(config, 2)
    assert (status, about) == ("fail", "configuration")
    assert "server.prt: unknown key" in message
    config.write_text(table("server", port=0) + PEOPLE, encoding="utf-8")
    assert {status for status, *_ in await examine(config, 0)} == {"ok"}
    assert os.listdir(tmp_path) == ["config.toml"]  # nothing was made


async def test_a_port_that_something_else_holds_is_told(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    async with provider() as other:
        config.write_text(table("server", port=other.port) + PEOPLE, encoding="utf-8")
        found = await examine(config, 1)
    [(_, _, message, fix)] = [each for each in found if each[0] == "fail"]
    assert "no gateway answers there" in message and "server.port" in fix


async def test_the_doctor_tells_what_is_wrong_with_a_connection_that_can_be_read(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config.toml"
    async with provider() as shop:
        shop.document["paths"]["/it"] = {"get": {"operationId": "eu_items"}}
        text = table("network", allow=["127.0.0.0/8"]) + shop.table() + shop.table("shop_eu")
        config.write_text(table("server", port=0) + PEOPLE + text, encoding="utf-8")
        found = await examine(config, 0)
    told = {f"{status} {about}": message for status, about, message, _ in found}
    assert "'shop_eu_items' belongs to connection 'shop_eu'" in told["warn connection shop"]


@pytest.fixture(scope="module")
async def busy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    async with gateway_on(tmp_path_factory.mktemp("bench") / "config.toml", DEMO) as made:
        yield made


async def measure(gateway: Running, *words: str, who: str = "ann", code: int = 0) -> str:
    short = ("--seconds", "1", "--connections", "2", "--token", token_of(who))
    found, out, err = await gateway_command("bench", gateway.url, *short, *words)
    assert found == code, out + err
    return out or err


async def test_a_gateway_is_measured_by_a_list_or_by_a_tool_that_reads(busy: Running) -> None:
    call = ("--tool", "demo_get_book", "--arguments", '{"id": 1}')
    for words, request in (((), "tools/list"), (call, "demo_get_book")):
        found = orjson.loads(await measure(busy, *words, "--json"))
        times = found["milliseconds"]
        assert (found["request"], found["connections"], found["failed"]) == (request, 2, {})
        assert found["requests"] > 0
        assert 0 < times["p50"] <= times["p95"] <= times["p99"] <= times["max"]
    assert "a second" in await measure(busy)


async def test_what_may_write_or_fails_is_not_measured_as_if_it_were_fine(busy: Running) -> None:
    assert "only reads" in await measure(busy, "--tool", "demo_add_book", code=2)
    assert "no tool 'demo_x'" in await measure(busy, "--tool", "demo_x", code=2)
    refused = orjson.loads(await measure(busy, "--json", who="nobody", code=1))
    assert (refused["requests"], [*refused["failed"]]) == (0, ["HTTP 401"])
    lost = ("--tool", "demo_get_book", "--arguments", '{"id": 404}', "--json")
    failed = orjson.loads(await measure(busy, *lost, code=1))
    assert [*failed["failed"]] == ["upstream_error"]
