"""A running gateway as seen from a terminal: where it is, who asks, and how answers are printed.

`--url` and `--token`, else GATEWAY_URL and GATEWAY_TOKEN, else what config.toml in the working
directory says. `remote_command` gives these options, and `--json`, to a function of a `Remote`.

`gateway stdio` is the gateway for clients that only speak to a process over standard input. A line
in is one JSON-RPC message and one POST; what comes back, as JSON or as events, goes out line by
line. In the era of sessions the bridge keeps the session for its client and holds the stream on
which the gateway says that tools changed. It understands as little of the messages as it can.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar
from urllib.parse import quote

import aiohttp
import orjson
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from gateway import __version__
from gateway.config.reading import read_settings
from gateway.limits import BRIDGE_CALL_SECONDS, COMMAND_SECONDS, MAX_MESSAGE_BYTES

VERSION = "2026-07-28"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
META = {
    VERSION_KEY: VERSION,
    "io.modelcontextprotocol/clientInfo": {"name": "gateway-cli", "version": __version__},
    "io.modelcontextprotocol/clientCapabilities": {},
}
WHOLE = ("id", "name", "tool", "connection")  # what other commands are given is never cut
TITLES = {
    "created_at": "At",
    "effective_access": "Access",
    "error_code": "Error",
    "expires_at": "Until",
    "granted_by": "By",
    "principal": "Who",
    "tokens": "≈ Tokens",
    "url": "URL",
}

UrlOption = Annotated[
    str | None,
    typer.Option("--url", envvar="GATEWAY_URL", help="The gateway's address.", show_default=False),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar="GATEWAY_TOKEN", help="Your token.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of words.")]
Tell = Callable[[str], None]
Command = TypeVar("Command", bound=Callable[..., None])


@dataclass(frozen=True, slots=True)
class Remote:
    """A running gateway, and whether its answers are printed as JSON."""

    base: str
    token: str | None
    as_json: bool = False

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def rest(
        self, method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None
    ) -> Any:
        """What the REST API answers; a refusal ends the command with its words."""
        status, _, raw = self._exchange(method, f"/api/v1{path}", {}, body, query)
        try:
            value = orjson.loads(raw) if raw else None
        except orjson.JSONDecodeError:
            fail(f"the gateway answered {status} with something that is not JSON")
        if status >= 400:
            error = (value or {}).get("error", {})
            fail(f"{error.get('message', status)}\n{error.get('hint', '')}".strip())
        return value

    def mcp(self, method: str, params: dict[str, Any], name: str | None = None) -> Any:
        """The answer to one MCP request: its result, or the error object where it is refused."""
        params = {**params, "_meta": META}
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        headers = {
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": VERSION,
            "Mcp-Method": method,
            **({"Mcp-Name": name} if name else {}),
        }
        status, content_type, raw = self._exchange("POST", "/mcp", headers, message)
        if status == 401:
            wanted = "another token than this" if self.token else "a token"
            fail(f"the gateway wants {wanted}: give --token or GATEWAY_TOKEN")
        if content_type == "text/event-stream":
            events = [line for line in raw.splitlines() if line.startswith(b"data:")]
            raw = events[-1].removeprefix(b"data:") if events else b"{}"
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            fail("the gateway's answer is not JSON: is the address right?")

    def list_rows(self, path: str, columns: str, query: Mapping[str, str] | None = None) -> Any:
        """Prints the rows that the REST API lists at a path; gives the whole answer."""
        found = self.rest("GET", path, query=query)
        key = path.strip("/").replace("-", "_")
        self.show(found, lambda: show_table(found[key], columns))
        return found

    def act(self, method: str, path: str, words: str, body: Any = None) -> None:
        """Does one thing over the REST API and says so, in words that may name what it answered."""
        answer = self.rest(method, path, body)
        self.show(answer, lambda: print(words.format_map(answer)))

    def show(self, value: Any, in_words: Callable[[], None]) -> None:
        """Prints a value as JSON, or in words."""
        show_json(value) if self.as_json else in_words()

    def _exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Any,
        query: Mapping[str, str] | None = None,
    ) -> tuple[int, str, bytes]:
        async def exchange() -> tuple[int, str, bytes]:
            sent, timeout = {**self.headers, **headers}, aiohttp.ClientTimeout(COMMAND_SECONDS)
            async with (
                aiohttp.ClientSession(headers=sent, timeout=timeout) as http,
                http.request(method, self.base + path, json=body, params=query) as answer,
            ):
                return answer.status, answer.content_type, await answer.read()

        try:
            return asyncio.run(exchange())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            fail(f"the gateway can't be reached: {error}")


def remote(url: str | None, token: str | None, as_json: bool = False) -> Remote:
    """The gateway that the options, the environment or config.toml name."""
    base = (url or _configured()).rstrip("/").removesuffix("/mcp")
    return Remote(base, token, as_json)


def _configured() -> str:
    config = Path("config.toml")
    if not config.exists():
        fail("there is no config.toml here: give --url or GATEWAY_URL", 2)
    server = read_settings(config, {**os.environ}).server
    return server.public_url or f"http://{server.host}:{server.port}"


def _options(url: UrlOption = None, token: TokenOption = None, as_json: JsonOption = False) -> None:
    """The options of every command that talks to a running gateway."""


def remote_command(group: typer.Typer, name: str) -> Callable[[Command], Command]:
    """Makes a function of a `Remote` a command that also takes the options of all such commands."""

    def register(function: Command) -> Command:
        def command(url: Any, token: Any, as_json: Any, **more: Any) -> None:
            function(remote(url, token, as_json), **more)

        own, ours = (inspect.signature(f, eval_str=True).parameters for f in (function, _options))
        signature = inspect.Signature([*list(own.values())[1:], *ours.values()])
        command.__signature__ = signature  # type: ignore[attr-defined]  # what Typer reads
        command.__doc__ = function.__doc__
        group.command(name)(command)
        return function

    return register


def fail(message: str, code: int = 1) -> NoReturn:
    """Ends the command."""
    print(message, file=sys.stderr)
    raise typer.Exit(code)


def show_json(value: Any) -> None:
    """A value as JSON on standard output."""
    print(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def show_table(rows: Iterable[Mapping[str, Any]], columns: str, **titles: str) -> None:
    """Rows as a table, without anything in them being taken for markup."""
    table, names, known = Table(), columns.split(), TITLES | titles
    for name in names:
        title = known.get(name, name.capitalize())
        table.add_column(title, no_wrap=name in WHOLE, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_cell(name, row.get(name))) for name in names))
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)  # no terminal says how wide it is
    console.print(table)


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if name.endswith("_at"):
        return datetime.fromtimestamp(value).isoformat(" ", "seconds")
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def show_progress(total: int, doing: str = "Loading", done: str = "loaded") -> Tell:
    """Tells of each of so many connections once it was read: a bar on a terminal, else lines.

    One connection needs no progress, so nothing is said of it.
    """
    counted, terminal = itertools.count(1), Console(stderr=True)
    bar = Progress(console=terminal, transient=True)
    task = bar.add_task(doing, total=total)

    def tell(name: str) -> None:
        number = next(counted)
        if total == 1:
            return
        if not terminal.is_terminal:
            print(f"{done} {name} ({number} of {total})", file=sys.stderr, flush=True)
            return
        bar.start()
        bar.update(task, completed=number, description=f"{doing} {name}")
        if number == total:
            bar.stop()

    return tell


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


# --- standard input and output ------------------------------------------------------------------

NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def stdio(url: UrlOption = None, token: TokenOption = None) -> None:
    """Bridge a client that only speaks stdio to the gateway.

    Example, in a client's configuration: `gateway stdio --url http://127.0.0.1:8080/mcp`
    """
    asyncio.run(_bridge(remote(url, token)))


async def _bridge(gateway: Remote) -> None:
    headers = {**gateway.headers, "Accept": "application/json, text/event-stream"}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(
        headers=headers, timeout=timeout, read_bufsize=MAX_MESSAGE_BYTES
    ) as http:
        await Bridge(http, f"{gateway.base}/mcp").run()


class Bridge:
    """One client on standard input and output."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url
        self._session: dict[str, str] = {}  # the headers that every request of it has

    async def run(self) -> None:
        """Carries messages until standard input ends, then lets answers arrive."""
        reader, stream = await _stdin(), None
        async with asyncio.TaskGroup() as carrying:
            while line := await reader.readline():
                if (message := _read_line(line)) is None:
                    continue
                task = carrying.create_task(self._carry(message))
                if message.get("method") == "initialize":
                    await asyncio.wait([task])  # what follows needs the session
                    stream = asyncio.create_task(self._stream())
        if stream is not None:
            stream.cancel()
            await asyncio.wait([stream])
        await self._leave()

    async def _carry(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(BRIDGE_CALL_SECONDS):
                await self._post(message)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            _excuse(message, f"the gateway can't be reached: {type(error).__name__}")

    async def _post(self, message: dict[str, Any]) -> None:
        headers = {**self._session, **_routing(message)}
        async with self._http.post(self._url, json=message, headers=headers) as answer:
            if message.get("method") == "initialize" and "Mcp-Session-Id" in answer.headers:
                self._session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
            if answer.content_type == "text/event-stream":
                await self._relay(answer)
                return
            body = await answer.read()
        if answer.status == 202 or not body:
            return
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            value = None
        if not isinstance(value, dict) or "jsonrpc" not in value:
            _excuse(message, f"the gateway answered {answer.status}")
            return
        if value.get("id") is None and "id" in message:
            value["id"] = message["id"]
        self._pass_on(value)

    async def _relay(self, answer: aiohttp.ClientResponse) -> None:
        async for line in answer.content:
            if line.startswith(b"data:") and (data := line.removeprefix(b"data:").strip()):
                self._pass_on(orjson.loads(data))

    def _pass_on(self, value: dict[str, Any]) -> None:
        version = (value.get("result") or {}).get("protocolVersion")
        if self._session and isinstance(version, str):
            self._session["MCP-Protocol-Version"] = version
        _write(value)

    async def _stream(self) -> None:
        """Holds the stream of the session, and takes it up again when it breaks."""
        while self._session:
            with suppress(aiohttp.ClientError, OSError):
                async with self._http.get(self._url, headers=self._session) as answer:
                    if answer.status in (404, 405):
                        return
                    if answer.content_type == "text/event-stream":
                        await self._relay(answer)
            await asyncio.sleep(2)

    async def _leave(self) -> None:
        if self._session:
            # Where it can't be told, the session ends by itself in time.
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with asyncio.timeout(2):
                    await self._http.delete(self._url, headers=self._session)


def _read_line(line: bytes) -> dict[str, Any] | None:
    """The message in a line; None: there is none, and its sender was told so."""
    if not line.strip():
        return None
    try:
        message: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        _write_error(None, -32700, "Parse error")
        return None
    return message


def _excuse(message: dict[str, Any], why: str) -> None:
    if "id" in message and "method" in message:
        _write_error(message["id"], -32603, why)
    else:
        print(why, file=sys.stderr, flush=True)


def _routing(message: dict[str, Any]) -> dict[str, str]:
    """The headers that say again what a message of the 2026 era says."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
    if not isinstance(version, str) or not isinstance(params, dict):
        return {}
    headers = {"MCP-Protocol-Version": version, "Mcp-Method": str(message.get("method"))}
    name = params.get(NAMED.get(str(message.get("method")), ""))
    return headers | ({"Mcp-Name": name} if isinstance(name, str) else {})


async def _stdin() -> asyncio.StreamReader:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def _write_error(id: Any, code: int, message: str) -> None:
    _write({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})


def _write(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(orjson.dumps(message) + b"\n")
    sys.stdout.buffer.flush()
