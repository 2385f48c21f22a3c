"""Talking to a running gateway: where it is, who we are, and one exchange over REST or MCP.

`--url` and `--token`, else GATEWAY_URL and GATEWAY_TOKEN, else what config.toml in the working
directory says.

`gateway tools` and `gateway call`: the gateway as an MCP client sees it.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import math
import os
import sys
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar
from urllib.parse import quote

import orjson
import typer

from gateway import __version__
from gateway.limits import COMMAND_SECONDS

WHOLE = ("id", "name", "tool", "connection")  # what other commands are given is never cut
VERSION = "2026-07-28"
META = {
    "io.modelcontextprotocol/protocolVersion": VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "gateway-cli", "version": __version__},
    "io.modelcontextprotocol/clientCapabilities": {},
}

UrlOption = Annotated[
    str | None,
    typer.Option("--url", envvar="GATEWAY_URL", help="The gateway's address.", show_default=False),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar="GATEWAY_TOKEN", help="Your token.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of a table.")]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Remote:
    """A running gateway, as seen from a terminal."""

    base: str
    token: str | None

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    async def rest(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, str] | None = None,
    ) -> Any:
        """What the REST API answers; a refusal ends the command with its words."""
        import aiohttp  # here, not above: `gateway serve` starts without it

        url = f"{self.base}/api/v1{path}"
        timeout = aiohttp.ClientTimeout(total=COMMAND_SECONDS)
        async with (
            aiohttp.ClientSession(headers=self.headers, timeout=timeout) as http,
            http.request(method, url, json=body, params=query) as answer,
        ):
            return _value(answer.status, await answer.read())

    async def mcp(self, method: str, params: dict[str, Any], name: str | None = None) -> Any:
        """The result of one MCP request; the error object where it is refused."""
        import aiohttp

        message = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": method,
            "params": {**params, "_meta": META},
        }
        headers = {
            **self.headers,
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": method,
            **({"Mcp-Name": name} if name else {}),
        }
        timeout = aiohttp.ClientTimeout(total=COMMAND_SECONDS)
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as http,
            http.post(f"{self.base}/mcp", json=message) as answer,
        ):
            body = await answer.read()
            if answer.status == 401:
                wanted = "another token than this" if self.token else "a token"
                fail(f"the gateway wants {wanted}: give --token or GATEWAY_TOKEN")
            return _last_message(answer.content_type, body)


def remote(url: str | None, token: str | None) -> Remote:
    """The gateway that the options, the environment or config.toml name."""
    base = (url or _configured()).rstrip("/").removesuffix("/mcp")
    return Remote(base, token)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Does the work, with network trouble told in words."""
    import aiohttp

    try:
        return asyncio.run(work)
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        fail(f"the gateway can't be reached: {error}")


def quiet(level: int = logging.WARNING) -> None:
    """Sends what the gateway's parts log to standard error, and only what is amiss."""
    from gateway.telemetry import set_up

    set_up(level)


def fail(message: str, code: int = 1) -> NoReturn:
    """Ends the command."""
    print(message, file=sys.stderr)
    raise typer.Exit(code)


def show_json(value: Any) -> None:
    """A value as JSON on standard output."""
    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def show_table(rows: list[dict[str, Any]], columns: Mapping[str, str]) -> None:
    """Rows as a table, without anything in them being taken for markup."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for key, title in columns.items():
        table.add_column(title, no_wrap=key in WHOLE, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(row.get(key))) for key in columns))
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # no terminal says how wide it is
    console.print(table)


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _configured() -> str:
    config = Path("config.toml")
    if not config.exists():
        fail("there is no config.toml here: give --url or GATEWAY_URL", 2)
    from gateway.config.reading import read_settings

    server = read_settings(config, {**os.environ}).server
    return server.public_url or f"http://{server.host}:{server.port}"


def _value(status: int, body: bytes) -> Any:
    try:
        value = orjson.loads(body) if body else None
    except orjson.JSONDecodeError:
        fail(f"the gateway answered {status} with something that is not JSON")
    if status >= 400:
        error = (value or {}).get("error", {})
        fail(f"{error.get('message', status)}\n{error.get('hint', '')}".strip())
    return value


def _last_message(content_type: str, body: bytes) -> Any:
    if content_type == "text/event-stream":
        lines = [line for line in body.splitlines() if line.startswith(b"data:")]
        body = lines[-1].removeprefix(b"data:") if lines else b"{}"
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        fail("the gateway's answer is not JSON: is the address right?")


def tools(
    search: Annotated[str | None, typer.Argument(help="Only those whose name has this.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """List the tools you can call.

    Example: `gateway tools`, `gateway tools book --json`
    """
    listed = run(_listed(remote(url, token)))
    if search:
        listed = [tool for tool in listed if search.lower() in tool["name"].lower()]
    if as_json:
        show_json(listed)
        return
    rows = [
        {
            "name": tool["name"],
            "title": tool.get("title", ""),
            "reads": "read" if tool.get("annotations", {}).get("readOnlyHint") else "write",
            "tokens": f"≈{math.ceil(len(orjson.dumps(tool)) / 4.6)}",
        }
        for tool in listed
    ]
    show_table(rows, {"name": "Tool", "title": "Title", "reads": "Access", "tokens": "Tokens"})


def call(
    name: Annotated[str, typer.Argument(help="The tool's name.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="key=value …, or one JSON object.")
    ] = None,
    as_json: JsonOption = False,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Call a tool.

    Values that read as JSON are taken as such (`limit=5`, `tags='["a"]'`), others as text.

    Examples: `gateway call demo_search_books q=time`, `gateway call demo_get_book '{"id": 3}'`
    """
    gateway = remote(url, token)
    given = parsed(arguments or [])
    answer = run(gateway.mcp("tools/call", {"name": name, "arguments": given}, name))
    if error := answer.get("error"):
        fail(error.get("message", "the call was refused") + _suggestion(gateway, name, error))
    result = answer["result"]
    if as_json:
        show_json(result)
    else:
        for part in result.get("content", ()):
            print(part.get("text") or f"[{part.get('type')} {part.get('mimeType', '')}]")
    if result.get("isError"):
        raise typer.Exit(1)


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The arguments of a call from a command line."""
    if len(arguments) == 1 and arguments[0].lstrip().startswith("{"):
        try:
            value = orjson.loads(arguments[0])
        except orjson.JSONDecodeError as error:
            fail(f"that is not JSON: {error}", 2)
        if not isinstance(value, dict):
            fail("the arguments must be a JSON object", 2)
        return value
    given: dict[str, Any] = {}
    for argument in arguments:
        key, separator, text = argument.partition("=")
        if not separator or not key:
            fail(f"{argument!r} is not key=value", 2)
        given[key] = _json_or_text(text)
    return given


def _json_or_text(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text


async def _listed(gateway: Remote) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        answer = await gateway.mcp("tools/list", {"cursor": cursor} if cursor else {})
        if error := answer.get("error"):
            fail(error.get("message", "the list was refused"))
        found += answer["result"]["tools"]
        cursor = answer["result"].get("nextCursor")
        if cursor is None:
            return found


def _suggestion(gateway: Remote, name: str, error: dict[str, Any]) -> str:
    if error.get("code") != -32602:  # JSON-RPC: what is answered where a name is no tool
        return ""
    known = [tool["name"] for tool in run(_listed(gateway))]
    if name in known:
        return ""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"\nDid you mean {', '.join(close)}?" if close else "\n`gateway tools` lists yours."
