"""From nothing to a tool that answers: `gateway serve` on what is named, `init` and `add`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client

from gateway.cli.named_apis import LOOPBACK, Options, free_name
from gateway.config.file import read_settings
from gateway.config.settings import Settings
from gateway.errors import ConfigInvalid
from tests.callers import names, own_call
from tests.cli.terminals import Terminal
from tests.configs import principal, table
from tests.conftest import GatewayMaker
from tests.peers import Provider, items_api, listening, provider
from tests.processes import COMMAND, gateway_command, gateway_process


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a person is, who has nothing yet."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


async def save(peer: Provider, *operations: str, at: Path) -> Path:
    """A definition of the peer's API as a file."""
    await asyncio.to_thread(at.write_bytes, orjson.dumps(items_api(peer.url, *operations)))
    return at


async def called(client: Client) -> set[str]:
    """The tools that are not the gateway's own."""
    return {name for name in await names(client) if "_get_" in name or name.startswith("demo_")}


async def shown(client: Client, tools: set[str]) -> None:
    """Returns when the tools are these."""
    async with asyncio.timeout(30):
        while True:
            if await called(client) == tools:
                return
            await asyncio.sleep(0.05)


async def test_definitions_are_served_at_once_and_nothing_is_left_in_the_folder(
    folder: Path,
) -> None:
    async with provider() as peer:
        file = await save(peer, "books", at=folder / "shop.json")
        words = (peer.spec, "shop.json", str(file), "--bearer-env", "KEY", "--header", "X-Team=hr")
        serving = gateway_process(None, *words, cwd=folder, KEY="sesame")
        async with serving as (_, url), Client(url) as client:
            expected = {"api_get_items", "shop_get_books", "shop_2_get_books"}
            assert await called(client) == expected
            await own_call(client, "shop_get_books", id="1")
            sent = peer.headers[-1]
            assert (sent["Authorization"], sent["X-Team"]) == ("Bearer sesame", "hr")
            await save(peer, "books", "authors", at=file)
            await shown(client, expected | {"shop_get_authors", "shop_2_get_authors"})
        assert os.listdir(folder) == ["shop.json"]


async def test_a_client_that_starts_processes_is_served_on_standard_streams(folder: Path) -> None:
    async with provider() as peer:
        await save(peer, at=folder / "shop.json")
        words = [*COMMAND[1:], "serve", "--stdio", "shop.json"]
        said = folder.parent / "stderr.txt"
        command = StdioServerParameters(command=COMMAND[0], args=words, cwd=folder)
        with said.open("w", encoding="utf-8") as errors:
            async with Client(stdio_client(command, errlog=errors)) as client:
                found = await own_call(client, "shop_get_items", id="7")
                assert found["path"] == "/items/7"
        assert "Gateway ready: http://127.0.0.1:" in said.read_text(encoding="utf-8")
        assert os.listdir(folder) == ["shop.json"]


async def answers_on_stdio(folder: Path, *lines: Any) -> list[Any]:
    """What `gateway serve --stdio` writes to these lines, and no more, before it ends well."""
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "serve", "--stdio"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
    )
    given = (line if isinstance(line, bytes) else orjson.dumps(line) for line in lines)
    async with asyncio.timeout(60):
        out, err = await process.communicate(b"\n".join(given) + b"\n")
    assert process.returncode == 0, err
    assert os.listdir(folder) == []
    return [orjson.loads(line) for line in out.splitlines()]


def hello(version: str) -> dict[str, Any]:
    client = {"capabilities": {}, "clientInfo": {"name": "plain", "version": "1"}}
    return asked(1, "initialize", protocolVersion=version, **client)


def asked(id: int, method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


async def test_nothing_but_messages_is_on_standard_output_and_the_end_of_input_is_the_end(
    folder: Path,
) -> None:
    wrong = (b"not JSON", b"7", b"null")  # and none of it ends what comes after
    answers = await answers_on_stdio(folder, *wrong, hello("2025-11-25"))
    assert [answer["id"] for answer in answers] == [None, None, None, 1]


@pytest.mark.parametrize("version", ["2025-03-26", "2025-11-25"])
async def test_batches_are_answered_on_standard_streams_where_the_version_has_them(
    folder: Path, version: str
) -> None:
    batch = [asked(2, "ping"), {"jsonrpc": "2.0", "method": "notifications/initialized"}]
    first, second = await answers_on_stdio(folder, hello(version), [*batch, asked(3, "ping")])
    assert first["result"]["protocolVersion"] == version
    if version == "2025-03-26":
        assert second == [{"jsonrpc": "2.0", "id": id, "result": {}} for id in (2, 3)]
    else:
        assert (second["id"], second["error"]["code"]) == (None, -32600)


async def test_an_mcp_server_is_told_from_a_definition_by_what_it_answers(
    folder: Path, make_gateway: GatewayMaker
) -> None:
    books = table("bundles.books", connections=["demo"], allow=["get_*"])
    role = table("roles.reader", bundles=["books"]) + table("principals.local", role="reader")
    text = table("auth", mode="none") + table("demo", enabled=True) + books + role
    gateway = await make_gateway(text)
    words = (f"{gateway.mcp}/bundles/books", "--port", "0")
    async with gateway_process(None, *words, cwd=folder) as (_, url), Client(url) as client:
        assert "books_demo_get_book" in await names(client)


async def test_an_address_that_is_asked_what_it_is_leads_headers_nowhere_else(folder: Path) -> None:
    seen = []

    async def lead_away(request: web.Request) -> web.Response:
        seen.append(request.headers.get("X-Team"))
        raise web.HTTPTemporaryRedirect(f"http://localhost:{peer.port}/{request.method}")

    app = web.Application()
    app.router.add_route("*", "/{rest:.*}", lead_away)
    async with provider() as peer, listening(app) as port:
        options = Options(headers=["X-Team=hr"])
        api = await options.read(f"http://127.0.0.1:{port}/it", Settings(), folder, "it")
    assert api.table["kind"] == "openapi"  # whose reader says what is wrong
    assert seen[0] is None and set(seen[1:]) == {"hr"}  # the address was named, with its header
    assert peer.requests == []


async def test_an_empty_folder_has_the_demo_and_follows_the_file_that_is_made(
    folder: Path,
) -> None:
    async with (
        provider() as peer,
        gateway_process(None, cwd=folder) as (_, url),
        Client(url) as client,
    ):
        assert len(await called(client)) == 7
        assert os.listdir(folder) == ["state"]
        code, out, err = await gateway_command("add", peer.spec, "--yes", cwd=folder)
        assert (code, err) == (0, "")
        assert "api_get_items" in out and "network.allow gets 127.0.0.1/32" in out
        await shown(client, {"api_get_items"})
        assert (await own_call(client, "api_get_items", id="1"))["method"] == "GET"


WRONG: dict[str, tuple[tuple[str, ...], int, str]] = {
    "a misspelt file": (("shpo.json",), 2, "no such file; did you mean shop.json?"),
    "a folder": (("..",), 2, "is a folder"),
    "a name that is no text": (
        ("sh\udcffop.json",),
        2,
        "'sh\\udcffop.json': the name is not UTF-8",
    ),
    "no definition": (("notes.txt",), 1, "not an OpenAPI definition"),
    "nobody there": (("http://127.0.0.1:1/openapi.json",), 1, "refused"),
    "a variable that is not set": (("shop.json", "--bearer-env", "NO_SUCH"), 2, "NO_SUCH is not"),
    "a token for a variable": (("shop.json", "--bearer-env", "sk-1"), 2, "name of a variable"),
    "half a header": (("shop.json", "--header", "X-Team"), 2, "'X-Team' is not NAME=VALUE"),
    "options for nothing": (("--bearer-env", "HOME"), 2, "go with a SPEC"),
    "a file that is not there": (("--config", "no.toml"), 2, "no.toml: can't be read"),
    "the whole network": (("shop.json", "--host", "0.0.0.0"), 2, "only accepted on a loopback"),
}


@pytest.mark.parametrize("case", WRONG)
async def test_what_cannot_be_served_is_said_in_a_sentence(folder: Path, case: str) -> None:
    (folder / "shop.json").write_bytes(orjson.dumps(items_api("http://127.0.0.1:1")))
    (folder / "notes.txt").write_text("Buy milk.", encoding="utf-8")
    words, expected, said = WRONG[case]
    code, out, err = await gateway_command("serve", "--port", "0", *words, cwd=folder)
    assert (code, out) == (expected, "")
    assert said in err and "Traceback" not in err
    assert sorted(os.listdir(folder)) == ["notes.txt", "shop.json"]


async def test_a_folder_that_cannot_hold_the_state_is_named(folder: Path) -> None:
    (folder / "state").write_text("in the way", encoding="utf-8")
    code, _, err = await gateway_command("serve", cwd=folder)
    assert code == 2 and f"store.url: {folder / 'state'} can't be written to" in err


async def test_standard_streams_need_a_token_where_people_do(folder: Path) -> None:
    (folder / "config.toml").write_text(principal("ann"), encoding="utf-8")
    code, out, err = await gateway_command("serve", "--stdio", cwd=folder)
    assert (code, out) == (2, "")
    assert "set GATEWAY_TOKEN to the token of a principal" in err


KEPT = """\
# Ours.
[auth]
mode = "none"   # for now

[network]       # what may be called
allow = [
    "10.0.0.0/8",  # the office
]

[connections.other]
kind = "openapi"
spec = "other.json"
headers = { Key = "${OTHER_KEY}" }  # set by the init system
"""


ADDED = """
[connections.shop]
kind = "openapi"
spec = "shop.json"
headers = { X-Api-Key = "${KEY}" }
auth = { type = "bearer", token = "${SHOP_KEY}" }
"""


async def test_a_connection_is_added_and_every_line_of_the_file_stays(folder: Path) -> None:
    config = folder / "config.toml"
    config.write_bytes(KEPT.replace("\n", "\r\n").encode())
    async with provider() as peer:
        await save(peer, at=folder / "shop.json")
        words = ("add", "shop.json", "--bearer-env", "SHOP_KEY", "--header", "X-Api-Key=${KEY}")
        code, out, err = await gateway_command(*words, cwd=folder)
        assert code == 2 and "--yes" in err and "shop_get_items" in out
        assert config.read_bytes() == KEPT.replace("\n", "\r\n").encode()
        code, out, err = await gateway_command(*words, "--yes", "--json", cwd=folder)
    assert (code, orjson.loads(out)["connection"]) == (0, "shop")
    assert "connections.shop.auth.token: the environment variable SHOP_KEY is not set" in err
    text = config.read_bytes().decode()
    office = '    "10.0.0.0/8",  # the office\n'
    allowed = KEPT.replace(office, f'{office}    "127.0.0.1/32",\n    "::1/128",\n')
    assert text == f"{allowed}{ADDED}".replace("\n", "\r\n")
    settings = read_settings(config, {"OTHER_KEY": "o", "SHOP_KEY": "s", "KEY": "k"})
    assert settings.network.allow == ("10.0.0.0/8", "127.0.0.1/32", "::1/128")


async def test_what_was_added_and_does_not_hold_yet_is_told_with_what_to_do(folder: Path) -> None:
    (folder / "shop.json").write_bytes(orjson.dumps(ITEMS))
    words = ("add", "shop.json", "--bearer-env", "NO_SUCH", "--yes")
    code, out, err = await gateway_command(*words, cwd=folder)
    assert code == 0 and "config.toml has shop now. It does not hold yet." in out
    assert "connections.shop.auth.token: the environment variable NO_SUCH is not set" in err
    assert "keeps the last good configuration" in err and "again with NO_SUCH set" in err
    code, out, err = await gateway_command(*words, "--name", "b", cwd=folder, NO_SUCH="x")
    assert (code, err) == (0, "") and "follows at once" in out
    text = table("auth", mode="none")
    text += table("connections.ats", kind="manifest", manifest="gone.toml")
    (folder / "config.toml").write_text(text, encoding="utf-8")
    code, out, err = await gateway_command(*words, "--json", cwd=folder, NO_SUCH="x")
    [problem] = orjson.loads(out)["config_problems"]
    assert code == 0 and "connections.ats.manifest: gone.toml can't be read" in problem
    assert problem in err and "last good" in err and "started again" not in err


async def test_names_that_several_connections_may_want_are_told_beforehand(folder: Path) -> None:
    (folder / "shop.json").write_bytes(orjson.dumps(ITEMS))
    shop = {"kind": "openapi", "spec": "shop.json"}
    prefixes = {"up": "a_b_c_", "y": "", "z": "", "off": "a_b_", "mine": "demo_"}
    tables = [table(f"connections.{name}", **shop) for name in ("a_b", "a-b")]
    for name, prefix in prefixes.items():
        tables.append(table(f"connections.{name}", prefix=prefix, enabled=name != "off", **shop))
    text = "".join([table("auth", mode="none"), table("demo", enabled=True), *tables])
    (folder / "config.toml").write_text(text, encoding="utf-8")
    code, out, _ = await gateway_command("check", "--json", cwd=folder)
    assert code == 0
    assert {each["where"]: each["message"] for each in orjson.loads(out)["warnings"]} == {
        "connections.a_b.prefix": "a-b and a_b have the prefix 'a_b_': a tool's name that both "
        "want is a-b's; set another prefix",
        "connections.mine.prefix": "demo and mine have the prefix 'demo_': a tool's name that both "
        "want is demo's; set another prefix",
        "connections.up.prefix": "up's prefix extends 'a_b_' of a-b: names that begin with "
        "'a_b_c_' are up's alone",
    }
    code, out, _ = await gateway_command("inspect", "a-b", cwd=folder)
    assert code == 0 and "warning  prefix: a-b and a_b have" in out and "demo_" not in out
    words = ("add", "shop.json", "--name", "a_b-c", "--yes")
    code, out, _ = await gateway_command(*words, cwd=folder)
    assert code == 0 and "warning  prefix: a_b-c and up have the prefix 'a_b_c_'" in out


async def test_secrets_in_an_address_are_neither_said_nor_written_down(folder: Path) -> None:
    secret = "http://me:sesame@127.0.0.1:1/openapi.json?api_key=sesame"
    code, _, said = await gateway_command("serve", "--port", "0", secret, cwd=folder)
    assert code == 1 and "Serving http://127.0.0.1:1/openapi.json as api" in said
    code, out, err = await gateway_command("add", secret, "--yes", cwd=folder)
    assert code == 2 and "say 'api_key=${VARIABLE}'" in err
    assert "sesame" not in said + out + err and os.listdir(folder) == []


@pytest.mark.parametrize(
    ("text", "words", "code", "said"),
    [
        ("[connections.shop]\nkind = 'openapi'\nspec = 'a'", (), 2, "connections.shop: is there"),
        ("", ("--header", "X-Api-Key=abc"), 2, "secrets are not written down"),
        ("connections = {}", (), 1, "can't be edited safely; add this to it by hand"),
        ("[connections", (), 2, "not valid TOML"),
    ],
)
async def test_what_cannot_be_added_leaves_the_file_as_it_was(
    folder: Path, text: str, words: tuple[str, ...], code: int, said: str
) -> None:
    config, definition = folder / "config.toml", folder / "shop.json"
    config.write_text(text, encoding="utf-8")
    definition.write_bytes(orjson.dumps(items_api("https://shop.example")))
    named = ("--name", "shop", "--yes", *words)
    found, _, err = await gateway_command("add", "shop.json", *named, cwd=folder)
    assert found == code and said in err
    assert config.read_text(encoding="utf-8") == text
    assert sorted(os.listdir(folder)) == ["config.toml", "shop.json"]


async def test_a_file_whose_name_is_a_variable_to_the_configuration_is_refused(
    folder: Path,
) -> None:
    definition = folder / "${HOME}.json"
    definition.write_bytes(orjson.dumps(items_api("https://shop.example")))
    for words in (("add", "--yes"), ("serve", "--port", "0")):
        code, _, err = await gateway_command(*words, definition.name, cwd=folder)
        assert code == 2 and "${HOME}.json: ${HOME} is a variable in config.toml" in err
    assert os.listdir(folder) == [definition.name]


ITEMS = items_api("https://shop.example")
PATH = {"/items": {"get": {"operationId": "list"}}}
HERE = {"url": "http://{host}:9/v1", "variables": {"host": {"default": "localhost"}}}
SWAGGER = {"swagger": "2.0", "info": {"title": "It", "version": "1"}, "paths": PATH}
FILES = {
    "in a description": (ITEMS | {"info": {"title": "http://localhost:9", "version": "1"}}, False),
    "in an example": (ITEMS | {"x-example": {"servers": [HERE]}}, False),
    "as the server": (ITEMS | {"servers": [HERE]}, True),
    "as a path's server": (ITEMS | {"paths": {"/items": {"get": {}, "servers": [HERE]}}}, True),
    "as an operation's": (ITEMS | {"paths": {"/items": {"get": {"servers": [HERE]}}}}, True),
    "as the host of 2.0": (SWAGGER | {"host": "127.0.0.1:9", "schemes": ["http"]}, True),
    "in a path of 2.0": (SWAGGER | {"host": "shop.example", "basePath": "/localhost"}, False),
}


@pytest.mark.parametrize("where", FILES)
async def test_only_servers_of_a_definition_may_be_on_this_machine(
    folder: Path, where: str
) -> None:
    document, is_allowed = FILES[where]
    (folder / "shop.json").write_bytes(orjson.dumps(document))
    api = await Options().read(str(folder / "shop.json"), Settings(), folder, "shop")
    assert api.allow == (LOOPBACK if is_allowed else ())


async def test_a_first_configuration_asks_two_questions_and_is_never_written_over(
    folder: Path,
) -> None:
    definition = orjson.dumps(items_api("https://shop.example"))
    (folder / "shop.json").write_bytes(definition)
    terminal = Terminal("init", cwd=folder)
    await terminal.read_until("How do people sign in?")
    terminal.type("token")
    await terminal.read_until("A first API")
    terminal.type("shop.json")
    await terminal.read_until("The admin's token, shown once: gw_")
    assert await terminal.end() == 0
    settings = read_settings(folder / "config.toml", {})
    assert (settings.auth.mode, [*settings.connections]) == ("oauth", ["shop"])
    code, _, err = await gateway_command("init", cwd=folder)
    assert code == 2 and "is there already" in err
    assert read_settings(folder / "config.toml", {}) == settings


async def test_a_first_configuration_says_what_of_it_stands_for_something_else(
    folder: Path,
) -> None:
    code, out, _ = await gateway_command("init", "--sign-in", "oidc", cwd=folder)
    assert code == 0
    for words in ("issuer and client_id", "OIDC_SECRET"):
        assert 0 < out.index(words) < out.index("gateway serve")


NAMES = {
    "petstore.yaml": "petstore",
    "shop/openapi.json": "shop",
    "shop/apiDefinition.swagger.json": "shop",
    "github-v3.1.swagger.yaml": "github_v3_1",
    "https://petstore3.swagger.io/api/v3/openapi.json": "petstore3",
    "https://api.github.com/openapi.yaml": "github",
    "https://raw.example.com/acme/billing/main/openapi.yaml": "example",
    "https://mcp.linear.app/mcp": "linear",
    "http://127.0.0.1:9000/openapi.json": "api",
    "http://localhost:9000/orders/swagger.json": "orders",
    "2024-report.json": "report",
    "greenhouse": "greenhouse",
}


@pytest.mark.parametrize("what", NAMES)
def test_a_connection_is_named_after_its_file_or_host(what: str) -> None:
    assert free_name(what, ()) == NAMES[what]
    assert free_name(what, {NAMES[what]}) == f"{NAMES[what]}_2"


def test_the_base_address_of_what_is_no_definition_is_refused() -> None:
    with pytest.raises(ConfigInvalid, match="--base-url"):
        Options(base_url="https://x.example").table("greenhouse", "manifest", Path())
