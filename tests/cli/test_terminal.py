"""What a person sees: on a terminal of 80 columns, in a pipe, while a call waits, when it fails."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from gateway.cli.manage import StatusFilter
from gateway.cli.remote import remote
from gateway.cli.terminal import show_spinner
from gateway.store.tables import ExecutionStatus
from tests.callers import api
from tests.certificates import authority
from tests.cli.terminals import Terminal
from tests.configs import principal, table, token_of
from tests.conftest import OPEN, GatewayMaker, Running
from tests.peers import items_api, look_until, provider, soon
from tests.processes import COMMAND, gateway_command
from tests.raw_server import Connection, Conversation, raw_server

ASKING = OPEN.replace("full_access", "execute_with_confirm") + "\n[demo]\nenabled = true\n"


@pytest.fixture
async def asking(make_gateway: GatewayMaker) -> Running:
    return await make_gateway(ASKING)


async def on_terminal(gateway: Running, *words: str, **environment: str) -> Terminal:
    terminal = Terminal(*words, "--url", gateway.url, **environment)
    assert await terminal.end() == 0, terminal.shown
    return terminal


async def piped(gateway: Running, *words: str, code: int = 0) -> str:
    found, out, err = await gateway_command(*words, "--url", gateway.url)
    assert found == code, err
    return out + err


async def test_lists_fit_a_terminal_and_their_short_ids_are_taken(asking: Running) -> None:
    async with api(asking.url) as rest:
        for stock in (1, 2):
            await rest.call("demo_update_book", id=4, stock=stock, title="A long title " * 9)
        first, second = await rest.pending(2)
    for words in (["tools"], ["connections", "list"], ["executions", "list"]):
        seen = (await on_terminal(asking, *words)).lines
        assert len(seen) > 2 and max(map(len, seen)) <= 80
    seen = (await on_terminal(asking, "approvals", "list")).lines
    short = seen[1].split()[0]
    assert max(map(len, seen)) <= 80
    assert first["id"].startswith(short) and not second["id"].startswith(short)
    assert "min" in seen[1] or " s " in seen[1]
    assert first["id"] in await piped(asking, "approvals", "list")
    several = await piped(asking, "approvals", "deny", first["id"][:4], code=2)
    assert first["id"][:12] in several and second["id"][:12] in several
    denied = await piped(asking, "approvals", "deny", short)
    assert denied == "Denied: demo_update_book was not called.\n"
    shown = await piped(asking, "executions", "show", first["execution_id"][:16])
    assert "status: denied\n" in shown and ("(now)" in shown or " ago)" in shown)
    missing = await piped(asking, "executions", "show", "ffff", code=1)
    assert missing.endswith("gateway executions list names yours.\n")


async def test_colours_are_for_terminals_and_not_for_those_who_want_none(asking: Running) -> None:
    assert "\x1b[32mconnected" in (await on_terminal(asking, "connections", "list")).shown
    plain = await on_terminal(asking, "connections", "list", NO_COLOR="1")
    assert "connected" in plain.shown and "\x1b" not in plain.shown
    assert "\x1b" not in await piped(asking, "connections", "list")


async def test_empty_lists_say_so_and_what_to_do_next(asking: Running) -> None:
    empty = ("approvals list", "approvals grants", "grants list", "changes list", "executions list")
    for words in (*empty, "credentials list"):
        code, out, err = await gateway_command(*words.split(), "--url", asking.url)
        assert (code, out) == (0, "") and err.startswith(("No", "Nothing"))
    assert await open_questions(asking) == []


async def open_questions(gateway: Running) -> Any:
    return orjson.loads(await piped(gateway, "approvals", "list", "--json"))["approvals"]


async def test_a_call_that_waits_says_for_what_and_can_be_left_and_taken_up_again(
    asking: Running,
) -> None:
    words = ("call", "demo_update_book", "id=4", "stock=2")
    left = Terminal(*words, "--url", asking.url)
    await left.read_until(f"or at {asking.url}/console/approvals")
    assert "anybody on this machine can (approval " in left.shown and "left." in left.shown
    assert await left.interrupt() != 0
    assert "The question stays open" in left.shown and "Traceback" not in left.shown
    [waiting] = await look_until(lambda: open_questions(asking), lambda n: n[0]["caller"] == "gone")
    approved = await piped(asking, "approvals", "approve", waiting["id"][:12])
    assert approved.startswith("Approved: nobody waits for demo_update_book now; the same call")
    assert '"stock":2' in await piped(asking, *words)
    again = Terminal(*words, "--url", asking.url)
    await again.read_until(f"at {asking.url}/console/approvals")
    [waiting] = await open_questions(asking)
    approved = await piped(asking, "approvals", "approve", waiting["id"][:12])
    assert approved == "Approved: demo_update_book was called, and has completed.\n"
    assert await again.end() == 0 and '"stock":2' in again.shown


async def test_a_connection_is_shown_and_completed(asking: Running) -> None:
    assert "status: connected\n" in await piped(asking, "connections", "show", "demo")
    unknown = await piped(asking, "connections", "show", "nope", code=1)
    assert unknown.endswith("gateway connections list names those you can use.\n")
    assert await completed(asking.url, "connections show d") == ["demo"]
    assert await completed(asking.url, "call demo_get") == ["demo_get_book"]
    assert await completed(asking.url, "executions list --status e") == ["executing", "expired"]
    assert await completed("http://127.0.0.1:9", "call demo_get") == []
    assert set(get_args(StatusFilter)) == set(get_args(ExecutionStatus))


async def completed(url: str, words: str) -> list[str]:
    """What a shell is told to complete the last of these words with."""
    environment = {
        "_GATEWAY_COMPLETE": "complete_bash",
        "COMP_WORDS": f"gateway {words}",
        "COMP_CWORD": str(len(words.split())),
        "GATEWAY_URL": url,
    }
    code, out, err = await gateway_command(cwd=Path.cwd(), **environment)
    assert (code, err) == (0, "")
    return out.split()


def says(body: bytes, when: asyncio.Event | None = None) -> Conversation:
    """A server that answers everything with this, once it may."""

    async def converse(connection: Connection) -> None:
        if await connection.request():
            if when is not None:
                await when.wait()
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
            await connection.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    return converse


async def test_whatever_answers_instead_of_a_gateway_is_told_in_words(
    tmp_path: Path, make_gateway: GatewayMaker
) -> None:
    guarded = await make_gateway(OPEN.replace('"none"', '"tokens"') + principal("ann"))
    tls = authority(tmp_path).server("localhost")
    (tmp_path / "config.toml").write_text('[server]\nport = "', encoding="utf-8")

    async with (
        raw_server(says(b"{}")) as json,
        raw_server(says(b"<html>")) as html,
        raw_server(says(b"<html>"), tls) as secure,
    ):
        rows: list[tuple[dict[str, str], int, str]] = [
            ({}, 2, "config.toml says no address (Unterminated string"),
            ({"GATEWAY_URL": "http://[::1"}, 1, "that is no address"),
            ({"GATEWAY_URL": "no.such.host.invalid"}, 1, "there is no machine of that name"),
            ({"GATEWAY_URL": "127.0.0.1:9"}, 1, "nothing answers there; is it running?"),
            ({"GATEWAY_URL": f"https://127.0.0.1:{guarded.port}"}, 1, "http:// and not https://?"),
            ({"GATEWAY_URL": f"https://localhost:{secure.port}"}, 1, "is not trusted"),
            ({"GATEWAY_URL": html.url}, 1, "something that is not JSON"),
            ({"GATEWAY_URL": json.url}, 1, "another one"),
            ({"GATEWAY_URL": guarded.url}, 1, "wants a token: give --token or GATEWAY_TOKEN"),
            ({"GATEWAY_URL": guarded.mcp, "GATEWAY_TOKEN": "no"}, 1, "wants another token"),
            ({"GATEWAY_URL": guarded.url, "GATEWAY_TOKEN": "a\nb"}, 1, "characters that can't"),
        ]
        for number, (environment, code, said) in enumerate(rows):
            words = (["tools"], ["executions", "list"])[number % 2]
            found, out, err = await gateway_command(*words, cwd=tmp_path, **environment)
            assert (found, out) == (code, ""), err
            assert said in err and "Traceback" not in err, (environment, err)
    token = {"GATEWAY_TOKEN": token_of("ann")}
    code, _, err = await gateway_command("tools", "--url", guarded.url, cwd=tmp_path, **token)
    assert (code, err) == (0, "")


async def test_only_the_address_of_a_configuration_is_looked_at(
    asking: Running, tmp_path: Path
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    text = f'nonsense = "${{NOT_SET}}"\n[server]\nport = {asking.port}\nprot = 1\n'
    (folder / "config.toml").write_text(text, encoding="utf-8")
    code, out, err = await gateway_command("connections", "list", "--json", cwd=folder)
    assert (code, err) == (0, "") and orjson.loads(out)["connections"]


async def test_where_an_address_is_from_is_told_where_nothing_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    gone = OSError()  # nothing here asks the address: another gateway may well be there
    assert "There is no config.toml here: --url names" in remote(None, None).source
    assert "config.toml" not in remote("127.0.0.1:9", None).explain(gone)
    (tmp_path / "config.toml").write_text("[server]\nport = 9\n", encoding="utf-8")
    code, _, err = await gateway_command("tools", cwd=tmp_path)
    assert code == 1 and "can't be reached at http://127.0.0.1:9: nothing answers there" in err
    assert "config.toml says so; a changed server.port holds only after a restart" in err


async def test_a_bridge_that_is_not_let_in_says_where_and_what_to_do(
    make_gateway: GatewayMaker,
) -> None:
    guarded = await make_gateway(OPEN.replace('"none"', '"tokens"') + principal("ann"))
    assert await bridged("http://127.0.0.1:9/mcp") == (
        "The gateway can't be reached at http://127.0.0.1:9: nothing answers there; is it running? "
        "(`gateway serve`)."
    )
    words = f"The gateway at {guarded.url} wants {{}}: give --token or GATEWAY_TOKEN."
    assert await bridged(guarded.url) == words.format("a token")
    assert await bridged(guarded.url, "--token", "no") == words.format("another token than this")


async def bridged(*words: str) -> Any:
    """The error that the bridge answers a ping with."""
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "stdio", "--url", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await soon(process.communicate(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n'))
    return orjson.loads(out)["error"]["message"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("executions list --status foo", "'foo' is not one of 'pending_confirmation', 'executing'"),
        ("connect foo", "'foo' is not one of 'claude-code',"),
        ("inspect x --access foo", "'foo' is not one of 'read-write', 'read-only'."),
        ("inspect x --kind foo", "'foo' is not one of 'openapi', 'arm', 'manifest'."),
        ("serve --port foo", "Invalid value for '--port': it must be a whole number"),
        ("serve --port 99999", "it must be less than or equal to 65535"),
    ],
)
async def test_a_value_that_is_not_allowed_is_told_in_plain_words(words: str, said: str) -> None:
    code, _, err = await gateway_command(*words.split())
    shown = " ".join(err.replace("│", " ").split())
    assert code == 2 and said in shown
    assert "Value error" not in shown and "Input" not in shown


async def test_a_look_ahead_says_what_a_put_would_give_and_leave_out(asking: Running) -> None:
    async with provider() as peer:
        put = ("connections", "put", "shop", "kind=openapi", f"spec={peer.spec}")
        seen = await piped(asking, *put, "--dry-run")
        assert "1 tools, 0 skipped, 0 problems" in seen and "\nadded    shop_get_items\n" in seen
        await piped(asking, *put)
        peer.document = items_api(peer.url, *(f"it{number}" for number in range(30)))
        seen = await piped(asking, *put, 'exclude=["get_it2*"]', "--dry-run")
        assert "\nskipped  get_it2: excluded by 'get_it2*'\n" in seen
        assert "\nadded    shop_get_it0, " in seen and "\nremoved  shop_get_items\n" in seen
        nothing = ("connections", "put", "other", *put[3:], 'exclude=["*"]', "--dry-run")
        seen = await piped(asking, *nothing)
    assert "No tool comes of it; what is skipped, and why:" in seen
    assert seen.count("\nskipped  ") == 20 and "--json has all of them" in seen
    assert "0 tools, 30 skipped, 0 problems" in seen


async def test_a_connection_with_problems_is_marked(make_gateway: GatewayMaker) -> None:
    async with provider() as peer:
        gateway = await make_gateway(OPEN + peer.table("a-b") + peer.table("a_b"))
        [titles, first, second, *_] = (await on_terminal(gateway, "connections", "list")).lines
        assert max(map(len, (titles, first, second))) <= 80 and "Problems" in titles
        at = titles.index("Problems")
        assert (first[at], second[at]) == (" ", "1")
        listed = orjson.loads(await piped(gateway, "connections", "list", "--json"))
        assert "not exposed" in listed["connections"][1]["problems"][0]["message"]


async def test_the_word_list_after_tools_lists_them_all(asking: Running) -> None:
    assert await piped(asking, "tools", "list") == await piped(asking, "tools")


async def test_pipes_that_end_early_are_no_errors(asking: Running) -> None:
    gateway = " ".join(COMMAND)
    script = f"{gateway} tools --json | head -1; {gateway} tools | true; {gateway} stdio </dev/null"
    process = await asyncio.create_subprocess_shell(
        script,
        env={**os.environ, "GATEWAY_URL": asking.url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await soon(process.communicate())
    assert (process.returncode, out, err) == (0, b"[\n", b"")


async def test_check_says_everything_at_once_with_its_line(
    make_gateway: GatewayMaker, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.toml"
    broken.write_text(
        '[server]\nprot = 1\n\n[connections.shop]\nkind = "openapi"\nspec = "${SHOP_SPEC}"\n'
        'auth = { type = "bearer", token = "${SHOP_TOKEN}" }\n',
        encoding="utf-8",
    )
    code, _, err = await gateway_command("check", "-c", "broken.toml", cwd=tmp_path)
    assert code == 2
    assert err.splitlines() == [
        f"broken.toml: {problem}"
        for problem in (
            "connections.shop.spec: the environment variable SHOP_SPEC is not set (line 6)",
            "connections.shop.auth.token: the environment variable SHOP_TOKEN is not set (line 7)",
            "server.prot: unknown key; did you mean 'port'? (line 2)",
        )
    ]
    gateway = await make_gateway(ASKING)
    async with api(gateway.url) as rest:
        await rest("PUT", "/permissions", {"timeout_seconds": 7})
    text = ASKING + table("connections.shop", kind="openapi", spec="none.yaml")
    gateway.config.write_text(text, encoding="utf-8")
    code, out, _ = await gateway_command("check", cwd=gateway.config.parent)
    line = text.splitlines().index("[connections.shop]") + 1
    assert code == 0
    assert "config.toml: warning: connections.shop.spec: there is no " in out
    assert f"none.yaml (line {line + 2})" in out
    assert "warning: permissions.timeout_seconds: the store overrides it: 7" in out


async def test_what_takes_a_while_spins_on_a_terminal_alone() -> None:
    answered = asyncio.Event()

    async with raw_server(says(b'{"approvals": []}', answered)) as peer:
        terminal = Terminal("approvals", "list", "--url", peer.url)
        await terminal.read_until(f"Waiting for {peer.url}")
        answered.set()
        assert await terminal.end() == 0
        assert terminal.lines[-2].endswith("shows what became of others.")


def test_a_name_in_brackets_is_a_name_to_a_spinner() -> None:
    with show_spinner("Reading specs[/shop].yaml"):
        pass
