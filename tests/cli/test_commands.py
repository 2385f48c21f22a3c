"""The commands, in processes of their own, against a real gateway."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client

from gateway.config.settings import Permissions
from tests.callers import api, own_call
from tests.configs import table
from tests.conftest import OPEN, GatewayMaker, Running, gateway_on
from tests.peers import items_api, provider, soon
from tests.peers_mcp import mcp_peer
from tests.processes import COMMAND, gateway_command

DEMO = OPEN + "\n[demo]\nenabled = true\n"
GONE = "http://127.0.0.1:9/openapi.json"


@pytest.fixture(scope="module")
async def demo(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    async with gateway_on(tmp_path_factory.mktemp("demo") / "config.toml", DEMO) as made:
        yield made


async def run(gateway: Running, *words: str, code: int = 0) -> str:
    """What `gateway WORDS` prints of this gateway."""
    found, out, err = await gateway_command(*words, "--url", gateway.url)
    assert found == code, err
    return out or err


async def run_json(gateway: Running, *words: str) -> Any:
    return orjson.loads(await run(gateway, *words, "--json"))


async def test_call_prints_the_answer_and_json_the_whole_result(demo: Running) -> None:
    assert orjson.loads(await run(demo, "call", "demo_get_book", "id=3"))["title"] == "SPQR"
    found = await run_json(demo, "call", "demo_get_book", '{"id": 3}')
    assert found["structuredContent"]["author"] == "Mary Beard"
    assert orjson.loads(await run(demo, "call", "demo_search_books", "q=1984"))["total"] == 0
    assert "there is no book 99" in await run(demo, "call", "demo_get_book", "id=99", code=1)
    unknown = await run(demo, "call", "demo_get_bok", code=1)
    assert unknown.startswith("Unknown tool: demo_get_bok\nDid you mean demo_get_book")


async def test_what_there_is_is_listed_and_ids_are_never_cut(demo: Running) -> None:
    found = {tool["name"] for tool in await run_json(demo, "tools", "k")}  # a part of names
    assert found == {tool["name"] for tool in await run_json(demo, "tools") if "k" in tool["name"]}
    assert (await run_json(demo, "tools", "put", "a", "novel", "in"))[0]["name"] == "demo_add_book"
    listed = await run_json(demo, "connections", "list")
    assert [row["name"] for row in listed["connections"]] == ["demo"]
    await run(demo, "call", "demo_get_book", "id=3")
    id = (await run_json(demo, "executions", "list"))["executions"][0]["id"]
    assert id in await run(demo, "executions", "list")


async def test_a_connection_is_put_refreshed_and_deleted(demo: Running) -> None:
    await run(demo, "tools")
    async with provider() as peer:
        put = await run(demo, "connections", "put", "shop", "kind=openapi", f"spec={peer.spec}")
        assert put == "shop: connected (1 added)\n"
        called = await run(demo, "call", "demo_get_book", "id=3")
        assert "list_dynamic_tools" not in called  # that is for models, which hold a list
        refreshed = await run(demo, "connections", "refresh", "shop")
        assert refreshed == "shop: connected (nothing changed)\n"
        peer.raw = b"{"
        failed = await run(demo, "connections", "refresh", "shop", code=1)
        assert failed.startswith("shop: failing")
        assert await run(demo, "connections", "delete", "shop") == "shop is deleted\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("serve", "--config", "none.toml"), 2, "none.toml: can't be read"),
        (("check", "--config", "bad.toml"), 2, "bad.toml: server.prot: unknown key"),
        (("check", "--config", "manifest.toml"), 2, "connections.ats.manifest"),
        (("check", "--config", "files.toml"), 2, "network.ca_file: the file can't be read"),
        (("check", "--config", "files.toml"), 2, "connections.shop.tls.cert_file: the file does"),
        (("inspect", "none.yaml"), 1, "can't be read"),
        (("nonsense",), 2, "nonsense"),
        (("serve", "--port", "99999"), 2, "65535"),
        (("tools", "--url", "http://127.0.0.1:9"), 1, "can't be reached"),
    ],
    ids=str,
)
async def test_what_is_wrong_is_said_with_the_right_exit_code(
    tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    (tmp_path / "bad.toml").write_text("[server]\nprot = 1\n", encoding="utf-8")
    (tmp_path / "manifest.toml").write_text(
        '[connections.ats]\nkind = "manifest"\nmanifest = "grenhouse"\n', encoding="utf-8"
    )
    (tmp_path / "files.toml").write_text(
        '[network]\nca_file = "none.pem"\n[connections.shop]\nkind = "openapi"\nspec = "a.json"\n'
        'tls = { cert_file = "bad.toml" }\n',
        encoding="utf-8",
    )
    found, out, err = await gateway_command(*words, cwd=tmp_path)
    assert found == code
    assert said in err + out


async def test_check_warns_of_names_that_match_nothing(tmp_path: Path) -> None:
    async with provider() as shop, mcp_peer() as tools:
        (tmp_path / "local.json").write_bytes(orjson.dumps(shop.document))
        dangerous = {"access": "dangerous"}
        text = (
            OPEN
            + table("demo", enabled=True)
            + table("permissions.tools", demo_delete_book="blocked", demo_delet_book="blocked")
            + table(
                "connections.near",
                kind="openapi",
                spec="local.json",
                exclude=["old*"],
                operations={"get*": {"access": "read"}, "deleteAl": dangerous},
            )
            + shop.table("far", operations={"deleteAl": dangerous})
            + tools.table("up", operations={"echo": {"access": "read"}, "eco": dangerous})
            + table(
                "connections.ats",
                kind="manifest",
                manifest="greenhouse",
                auth={"type": "basic", "username": "x"},
                include=["listCandidats"],
            )
            + table("connections.gone", kind="openapi", spec=GONE, operations={"a": dangerous})
        )
        (tmp_path / "config.toml").write_text(text, encoding="utf-8")
        code, out, err = await gateway_command("check", "--json", cwd=tmp_path)
    assert (code, err) == (0, "")
    assert [warning["where"] for warning in orjson.loads(out)["warnings"]] == [
        "connections.gone",
        "permissions.tools.demo_delet_book",
        "connections.ats.include",
        "connections.far.operations.deleteAl",
        "connections.near.exclude",
        "connections.near.operations.deleteAl",
        "connections.up.operations.eco",
    ]
    assert set(os.listdir(tmp_path)) == {"config.toml", "local.json"}
    code, out, _ = await gateway_command("check", cwd=tmp_path)
    assert code == 0
    assert "config.toml: warning: connections.near.operations.deleteAl: matches no" in out


async def test_check_warns_of_permissions_that_were_put_over_stricter_ones(
    make_gateway: GatewayMaker, tmp_path: Path
) -> None:
    gateway = await make_gateway(DEMO)
    await gateway.app.gateway.catalog.rights.put_permissions(
        Permissions(level="full_access"), by="x"
    )
    stricter = DEMO.replace('level = "full_access"', 'level = "read_only"')
    (tmp_path / "config.toml").write_text(stricter, encoding="utf-8")
    code, out, _ = await gateway_command("check", cwd=tmp_path)
    assert code == 0
    assert "warning: permissions.level: config.toml says read_only" in out


async def test_what_is_always_allowed_is_listed_and_revoked(
    make_gateway: GatewayMaker,
) -> None:
    asking = await make_gateway(DEMO.replace("full_access", "execute_with_confirm"))
    async with api(asking.url) as rest:
        assert (await rest.call("demo_update_book", id=4, stock=1))[0] == 202
        [waiting] = await rest.pending()
    always = await run(asking, "approvals", "approve", waiting["id"], "--always")
    assert always.startswith("Approved: demo_update_book was called, and has completed.\n")
    [grant] = (await run_json(asking, "approvals", "grants"))["standing_grants"]
    assert (grant["tool"], grant["principal"]) == ("demo_update_book", "local")
    assert grant["id"] in await run(asking, "approvals", "grants")
    revoked = await run(asking, "approvals", "revoke", grant["id"][:14])
    assert revoked == "demo_update_book is asked about again\n"
    await run(asking, "approvals", "revoke", grant["id"], code=1)


async def test_a_token_is_made_with_its_configuration_line_as_users_ask_for_it() -> None:
    words = (*COMMAND, "token", "--json")
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    out, _ = await process.communicate()
    made: dict[str, str] = orjson.loads(out)
    assert process.returncode == 0
    assert len(made["token"]) > 40
    assert len(made["token_sha256"]) == 64


async def test_the_demo_is_inspected_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[demo]\nenabled = true\n", encoding="utf-8")
    code, out, _ = await gateway_command("inspect", "demo", "--json", cwd=tmp_path)
    shown = orjson.loads(out)
    assert (code, shown["connection"], len(shown["tools"])) == (0, "demo", 7)


async def test_an_operation_with_a_refused_server_is_skipped_where_a_file_is_inspected(
    tmp_path: Path,
) -> None:
    definition = items_api("http://127.0.0.1:9", "items", "more")
    definition["paths"]["/more/{id}"]["servers"] = [{"url": "http://169.254.169.254"}]
    (tmp_path / "local.json").write_bytes(orjson.dumps(definition))
    _, out, _ = await gateway_command("inspect", "local.json", cwd=tmp_path)
    assert "skipped  get_more: The address of 169.254.169.254 is not allowed" in out
    assert "\n1 tools, 1 skipped, 0 problems" in out


async def test_an_mcp_server_is_discovered_and_inspected_in_json_alone(tmp_path: Path) -> None:
    async with mcp_peer() as peer:
        text = OPEN + peer.table(tools=["echo", "gone"])
        (tmp_path / "config.toml").write_text(text, encoding="utf-8")
        code, out, err = await gateway_command("discover", "--json", cwd=tmp_path)
        assert (code, err) == (1, "")
        assert [drift["where"] for drift in orjson.loads(out)[0]["drift"]] == ["tools"]
        code, out, err = await gateway_command("inspect", "up", "--json", cwd=tmp_path)
        assert (code, err) == (0, "")
        shown = orjson.loads(out)
        assert [tool["name"] for tool in shown["tools"]] == ["up_echo"]
        assert shown["session"] == "shared"
        code, out, err = await gateway_command("inspect", "up", cwd=tmp_path)
        assert "all principals share one" in out


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_stdio_client_works_through_the_bridge_and_hears_of_changes(
    demo: Running, mode: Any
) -> None:
    words = [*COMMAND[1:], "stdio", "--url", demo.mcp]
    command = StdioServerParameters(command=COMMAND[0], args=words)
    changed = asyncio.Event()

    async def on_message(message: Any) -> None:
        if "list_changed" in str(getattr(message, "method", "")):
            changed.set()

    async with Client(stdio_client(command), mode=mode, message_handler=on_message) as client:
        assert "demo_get_book" in {tool.name for tool in (await client.list_tools()).tools}
        book = await own_call(client, "demo_get_book", id=1)
        assert book["author"] == "Ursula K. Le Guin"
        if mode == "legacy":
            async with provider() as peer:
                await own_call(
                    client, "put_connection", name="shop", kind="openapi", spec=peer.spec
                )
            await soon(changed.wait())
            await own_call(client, "delete_connection", name="shop")


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
