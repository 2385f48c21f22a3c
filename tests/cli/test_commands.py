"""The commands, in processes of their own, against a real gateway."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import aiohttp
import orjson
import pytest
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client

from gateway.config.settings import Permissions
from tests.callers import own_call
from tests.conftest import OPEN, GatewayMaker, Running
from tests.peers import provider
from tests.peers_mcp import mcp_peer
from tests.processes import COMMAND, gateway_command

DEMO = OPEN + "\n[demo]\nenabled = true\n"


@pytest.fixture
async def demo(make_gateway: GatewayMaker) -> Running:
    return await make_gateway(DEMO)


async def test_call_prints_the_answer_and_json_the_whole_result(demo: Running) -> None:
    code, out, _ = await gateway_command("call", "demo_get_book", "id=3", "--url", demo.url)
    assert (code, orjson.loads(out)["title"]) == (0, "SPQR")
    words = ("call", "demo_get_book", '{"id": 3}', "--json", "--url", demo.mcp)
    code, out, _ = await gateway_command(*words)
    assert (code, orjson.loads(out)["structuredContent"]["author"]) == (0, "Mary Beard")


async def test_an_unknown_tool_gets_a_suggestion(demo: Running) -> None:
    code, _, err = await gateway_command("call", "demo_get_bok", "--url", demo.url)
    assert code == 1
    assert err.startswith("Unknown tool: demo_get_bok\nDid you mean demo_get_book")


async def test_a_failed_call_exits_with_1(demo: Running) -> None:
    code, out, _ = await gateway_command("call", "demo_get_book", "id=99", "--url", demo.url)
    assert code == 1
    assert "there is no book 99" in out


async def test_tools_and_connections_are_listed(demo: Running) -> None:
    code, out, _ = await gateway_command("tools", "book", "--json", "--url", demo.url)
    assert code == 0
    assert len(orjson.loads(out)) == 6
    code, out, _ = await gateway_command("connections", "list", "--json", "--url", demo.url)
    assert [row["name"] for row in orjson.loads(out)["connections"]] == ["demo"]


async def test_a_connection_is_put_refreshed_and_deleted(demo: Running) -> None:
    async with provider() as peer:
        at = ("--url", demo.url)
        words = ("connections", "put", "shop", "kind=openapi", f"spec={peer.spec}", *at)
        assert (await gateway_command(*words))[:2] == (0, "shop: connected (1 added)\n")
        code, out, err = await gateway_command("connections", "refresh", "shop", *at)
        assert (code, out) == (0, "shop: connected (nothing changed)\n")
        assert err == ""
        peer.raw = b"{"
        code, out, _ = await gateway_command("connections", "refresh", "shop", *at)
        assert code == 1
        assert out.startswith("shop: failing")
        code, out, _ = await gateway_command("connections", "delete", "shop", *at)
        assert (code, out) == (0, "shop is deleted\n")


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
        (tmp_path / "config.toml").write_text(
            f"""{OPEN}
[demo]
enabled = true
[permissions.tools]
demo_delete_book = "blocked"
demo_delet_book = "blocked"
[connections.near]
kind = "openapi"
spec = "local.json"
exclude = ["old*"]
operations = {{ "get*" = {{ access = "read" }}, deleteAl = {{ access = "dangerous" }} }}
[connections.far]
kind = "openapi"
spec = "{shop.spec}"
operations = {{ deleteAl = {{ access = "dangerous" }} }}
[connections.up]
kind = "mcp"
url = "{tools.url}"
operations = {{ echo = {{ access = "read" }}, eco = {{ access = "dangerous" }} }}
[connections.ats]
kind = "manifest"
manifest = "greenhouse"
auth = {{ type = "basic", username = "x" }}
include = ["listCandidats"]
[connections.gone]
kind = "openapi"
spec = "http://127.0.0.1:9/openapi.json"
operations = {{ a = {{ access = "dangerous" }} }}
""",
            encoding="utf-8",
        )
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
    await gateway.app.gateway.catalog.put_permissions(Permissions(level="full_access"), by="x")
    stricter = DEMO.replace('level = "full_access"', 'level = "read_only"')
    (tmp_path / "config.toml").write_text(stricter, encoding="utf-8")
    code, out, _ = await gateway_command("check", cwd=tmp_path)
    assert code == 0
    assert "warning: permissions.level: config.toml says read_only" in out


async def test_what_is_always_allowed_is_listed_and_revoked(
    make_gateway: GatewayMaker,
) -> None:
    asking = await make_gateway(DEMO.replace("full_access", "execute_with_confirm"))
    async with aiohttp.ClientSession() as http:
        call = f"{asking.url}/api/v1/tools/demo_update_book/call"
        async with http.post(call, json={"arguments": {"id": 4, "stock": 1}}) as answer:
            assert answer.status == 202
        async with http.get(f"{asking.url}/api/v1/approvals") as answer:
            [waiting] = (await answer.json())["approvals"]
        at = ("--url", asking.url)
        words = ("approvals", "approve", waiting["id"], "--always", *at)
        assert (await gateway_command(*words))[:2] == (0, "always allow\n")
        code, out, _ = await gateway_command("approvals", "grants", "--json", *at)
        [grant] = orjson.loads(out)["standing_grants"]
        assert (code, grant["tool"], grant["principal"]) == (0, "demo_update_book", "local")
        assert grant["id"] in (await gateway_command("approvals", "grants", *at))[1]
        code, out, _ = await gateway_command("approvals", "revoke", grant["id"], *at)
        assert (code, out) == (0, "demo_update_book is asked about again\n")
        assert (await gateway_command("approvals", "revoke", grant["id"], *at))[0] == 1


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


async def test_an_mcp_server_is_discovered_and_inspected_in_json_alone(tmp_path: Path) -> None:
    async with mcp_peer() as peer:
        (tmp_path / "config.toml").write_text(
            f"""{OPEN}
[connections.up]
kind = "mcp"
url = "{peer.url}"
tools = ["echo", "gone"]
""",
            encoding="utf-8",
        )
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


async def test_ids_are_never_cut_in_lists(demo: Running) -> None:
    await gateway_command("call", "demo_get_book", "id=3", "--url", demo.url)
    _, out, _ = await gateway_command("executions", "list", "--json", "--url", demo.url)
    id = orjson.loads(out)["executions"][0]["id"]
    assert id in (await gateway_command("executions", "list", "--url", demo.url))[1]


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_stdio_client_works_through_the_bridge_and_hears_of_changes(
    demo: Running, mode: Any
) -> None:
    command = StdioServerParameters(
        command=COMMAND[0], args=[*COMMAND[1:], "stdio", "--url", demo.mcp]
    )
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
            async with asyncio.timeout(15):
                await changed.wait()
