"""A running gateway as seen from a terminal: its address, the token, and how answers are printed.

`--url` and `--token`, else GATEWAY_URL and GATEWAY_TOKEN, else the address in config.toml of the
working directory; nothing else in that file need be valid. `remote_command` gives these options,
and `--json`, to a function of a `Remote`; `completes` has a shell complete its arguments.

`gateway stdio` is the gateway for clients that only speak to a process over standard input. A line
in is one JSON-RPC message, or a batch of them, and one POST; what comes back, as JSON or as events,
goes out line by line. In the era of sessions the bridge keeps the session for its client and holds
the stream on which the gateway says that tools changed. It understands as little as it can.
"""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import re
import sys
import threading
import tomllib
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import CancelledError
from contextlib import nullcontext, redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeVar
from urllib.parse import quote

import aiohttp
import orjson
import typer

from gateway import __version__
from gateway.cli.terminal import age, fail, note, shorten, show_json, show_spinner, show_table
from gateway.limits import (
    BRIDGE_CALL_SECONDS,
    COMMAND_SECONDS,
    FETCH_SECONDS,
    MAX_MESSAGE_BYTES,
    MAX_TOLD_ITEMS,
    MOMENT_SECONDS,
    STEP_BYTES,
)

VERSION = "2026-07-28"
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
CLIENT = "gateway-cli"
ACCEPT = "application/json, text/event-stream"
META = {
    VERSION_KEY: VERSION,
    CLIENT_KEY: {"name": CLIENT, "version": __version__},
    "io.modelcontextprotocol/clientCapabilities": {},
}
# What the gateway's hints name for models and for REST, and the same for a terminal.
COMMANDS = {
    "list_dynamic_tools, or GET /api/v1/tools,": "gateway tools",
    "list_connections": "gateway connections list",
    "list_executions": "gateway executions list",
    "get_execution": "gateway executions show",
    "GET /approvals": "gateway approvals list",
    "GET /grants": "gateway grants list",
    "GET /principals": "gateway principals list",
}
ADVICE = f"Is it the address of a gateway {__version__}? --url or GATEWAY_URL names another one."

REASONS: tuple[tuple[type[Exception], str], ...] = (  # the first that fits
    (aiohttp.InvalidURL, "that is no address; one is like http://127.0.0.1:8080"),
    (
        aiohttp.ClientConnectorCertificateError,
        "its certificate is not trusted ({0.certificate_error}); SSL_CERT_FILE names authorities",
    ),
    (aiohttp.ClientSSLError, "no TLS with it ({0.strerror}); is it http:// and not https://?"),
    (aiohttp.ClientConnectorDNSError, "there is no machine of that name"),
    (aiohttp.ClientConnectorError, "nothing answers there; is it running? (`gateway serve`){1}"),
    (TimeoutError, "no answer in time"),
    (aiohttp.ClientError, "{0!r}"),
    (Exception, "the address or the token has characters that can't be sent"),
)
VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")  # read here: config/ takes long to load

UrlOption = Annotated[
    str | None,
    typer.Option("--url", envvar="GATEWAY_URL", help="The gateway's address.", show_default=False),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token", envvar="GATEWAY_TOKEN", help="Your token.", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON instead of words.")]
Command = TypeVar("Command", bound=Callable[..., None])
OnProgress = Callable[[dict[str, Any]], None]  # is given each progress message of a call


@dataclass(frozen=True, slots=True)
class Remote:
    """A running gateway, and whether its answers are printed as JSON."""

    base: str
    token: str | None
    as_json: bool = False
    seconds: float = COMMAND_SECONDS
    source: str = ""  # where an address is from that no one named, in words

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def rest(
        self, method: str, path: str, body: Any = None, query: Mapping[str, str] | None = None
    ) -> Any:
        """The answer of the REST API; a refusal ends the command with its message."""
        status, raw = self.exchange(method, f"/api/v1{path}", {}, body, query)
        value = self._read(status, raw or b"null")
        if status >= 400:
            error = value["error"]
            hint = error.get("hint") or ("" if status != 404 else ADVICE)
            fail(in_commands(f"{error['message']}\n{hint}".strip()))
        return value

    def mcp(
        self,
        method: str,
        params: dict[str, Any],
        on_progress: OnProgress | None = None,
        client: str = CLIENT,
    ) -> Any:
        """The answer to one MCP request: its result, or the error object where it is refused.

        `on_progress` is given the progress messages that come before it.
        """
        meta: dict[str, Any] = META | {CLIENT_KEY: {"name": client, "version": __version__}}
        meta |= {"progressToken": 1} if on_progress else {}
        message, headers = mcp_request(method, params, meta)
        status, raw = self.exchange("POST", "/mcp", headers, message, on_progress=on_progress)
        answer = self._read(status, raw)
        return answer if "result" in answer else {"error": answer["error"]}

    def _read(self, status: int, raw: bytes) -> Any:
        try:
            return orjson.loads(raw)
        except orjson.JSONDecodeError:
            fail(f"{self.base} answered {status} with something that is not JSON.\n{ADVICE}")

    def list_rows(self, path: str, columns: str, empty: str) -> None:
        """Prints the rows that the REST API lists at a path."""
        found = self.rest("GET", path)
        self.show(found, lambda: show_table(found[_list_key(path)], columns, empty))

    def find_id(self, path: str, start: str, by: str = "id", **query: str) -> str:
        """The one id at a path that begins with `start`, or is `start` itself."""
        found = self.rest("GET", path, query={"limit": "500", by: start, **query})[_list_key(path)]
        rows = {row[by]: row for row in found if row[by].startswith(start)}
        if start in rows or not rows:
            return start  # for an unknown id the gateway answers with an error
        if len(rows) == 1:
            return str(*rows)
        first_ids = list(rows)[:MAX_TOLD_ITEMS]
        lines = map(_candidate_line, shorten(first_ids), (rows[id] for id in first_ids))
        fail(f"{start!r} is the start of {len(rows)}; give more of it:\n" + "\n".join(lines), 2)

    def find(self, path: str, start: str, by: str = "id", **query: str) -> str:
        """The path of the one row whose id begins with `start`."""
        return f"{path}/{segment(self.find_id(path, start, by, **query))}"

    def act(self, method: str, path: str, words: str, body: Any = None) -> None:
        """Sends one request to the REST API and says so, in words with keys of the answer."""
        answer = self.rest(method, path, body)
        self.show(answer, lambda: print(words.format_map(answer)))

    def show(self, value: Any, in_words: Callable[[], None]) -> None:
        """Prints a value as JSON, or in words."""
        show_json(value) if self.as_json else in_words()

    def exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: Any,
        query: Mapping[str, str] | None = None,
        on_progress: OnProgress | None = None,
    ) -> tuple[int, bytes]:
        """Status and body of an answer; of a stream, the last message."""

        async def exchange() -> tuple[int, bytes]:
            all_headers, url = {**self.headers, **headers}, self.base + path
            total = None if on_progress else self.seconds  # a person may take long
            wait = aiohttp.ClientTimeout(total, sock_connect=FETCH_SECONDS, sock_read=self.seconds)
            async with (
                aiohttp.ClientSession(timeout=wait, read_bufsize=MAX_MESSAGE_BYTES) as http,
                http.request(method, url, headers=all_headers, json=body, params=query) as answer,
            ):
                if answer.content_type != "text/event-stream":
                    return answer.status, await answer.read()
                last = b""
                async for line in answer.content:
                    if line.startswith(b"data:"):
                        last = line.removeprefix(b"data:")
                        _report_progress(last, on_progress)
                return answer.status, last

        try:
            with show_spinner(f"Waiting for {self.base}") if on_progress is None else nullcontext():
                status, raw = asyncio.run(exchange())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            fail(self.explain(error))
        if status == 401:
            fail(self.ask_for_token())
        return status, raw

    def explain(self, error: Exception) -> str:
        """Why the gateway could not be reached, and what to do."""
        why = next(words for kind, words in REASONS if isinstance(error, kind))
        return f"The gateway can't be reached at {self.base}: {why.format(error, self.source)}."

    def ask_for_token(self) -> str:
        """What to do where the gateway does not know who this is."""
        token_words = "another token than this" if self.token else "a token"
        return f"The gateway at {self.base} wants {token_words}: give --token or GATEWAY_TOKEN."


def mcp_request(
    method: str, params: dict[str, Any], meta: dict[str, Any] = META
) -> tuple[dict[str, Any], dict[str, str]]:
    """One MCP request of the 2026 era, and the headers that go with it."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return message, {"Accept": ACCEPT, **_routing_headers(message)}


def _report_progress(data: bytes, on_progress: OnProgress | None) -> None:
    message = orjson.loads(data)
    if on_progress is not None and message.get("method") == "notifications/progress":
        on_progress(message["params"])


def _list_key(path: str) -> str:
    """The key of the answer that has the list at this path."""
    return path.strip("/").replace("-", "_")


def _candidate_line(short: str, row: Mapping[str, Any]) -> str:
    """One of several rows that a start of an id may mean, on a line."""
    title = row.get("tool") or row.get("client_name") or row.get("type") or ""
    at = row.get("created_at") or row.get("at")
    return f"  {short}  {title}  {age(at) if at else ''}".rstrip()


def in_commands(text: str) -> str:
    """The gateway's words with commands in place of the tools and addresses that they name."""
    names = "|".join(map(re.escape, COMMANDS))
    return re.sub(names, lambda match: COMMANDS[match[0]], text)


def remote(
    url: str | None, token: str | None, as_json: bool = False, seconds: float = COMMAND_SECONDS
) -> Remote:
    """The gateway that the options, the environment or config.toml name."""
    address, source = (url, "") if url else _configured_address()
    base = address.strip().rstrip("/").removesuffix("/mcp")
    return Remote(base if "://" in base else f"http://{base}", token, as_json, seconds, source)


def _configured_address() -> tuple[str, str]:
    """The address in config.toml, of which nothing else is read, and where it is from."""
    try:
        text = Path("config.toml").read_text(encoding="utf-8-sig")
        server = tomllib.loads(text).get("server", {})
        host, port = server.get("host", "127.0.0.1"), server.get("port", 8080)
        address = server.get("public_url") or f"http://{host}:{port}"
        address = VARIABLE.sub(lambda found: os.environ.get(found[1], found[2] or ""), address)
        return address, "\nconfig.toml says so; a changed server.port holds only after a restart"
    except FileNotFoundError:
        return "http://127.0.0.1:8080", "\nThere is no config.toml here: --url names another one"
    except (OSError, ValueError, AttributeError, TypeError) as error:
        fail(f"config.toml says no address ({error}): give --url or GATEWAY_URL", 2)


def _options(url: UrlOption = None, token: TokenOption = None, as_json: JsonOption = False) -> None:
    """The options of every command that talks to a running gateway."""


def remote_command(group: typer.Typer, name: str) -> Callable[[Command], Command]:
    """Makes a function of a `Remote` a command that also takes the options of all such commands."""

    def register(function: Command) -> Command:
        def command(url: Any, token: Any, as_json: Any, **arguments: Any) -> None:
            gateway = remote(url, token, as_json)
            try:
                function(gateway, **arguments)
            except (AttributeError, IndexError, KeyError, TypeError) as error:
                # The boundary to a gateway of another version, or to a server that is no gateway.
                fail(f"{gateway.base} answered what was not expected ({error!r}).\n{ADVICE}")

        own, common = (inspect.signature(f, eval_str=True).parameters for f in (function, _options))
        signature = inspect.Signature([*list(own.values())[1:], *common.values()])
        command.__signature__ = signature  # type: ignore[attr-defined]  # what Typer reads
        command.__doc__ = function.__doc__
        group.command(name)(command)
        return function

    return register


def completes(path: str, by: str = "id", **query: str) -> Callable[..., list[str]]:
    """Has a shell complete the ids listed at a path; silent where the gateway is away."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        with suppress(Exception), redirect_stderr(io.StringIO()):
            url, token = (
                ctx.params.get(name) or os.environ.get(f"GATEWAY_{name.upper()}")
                for name in ("url", "token")
            )
            gateway = remote(url, token, seconds=MOMENT_SECONDS)
            rows = gateway.rest("GET", path, query={"limit": "500", **query})[_list_key(path)]
            return [row[by] for row in rows if row[by].startswith(incomplete)]
        return []

    return complete


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


# --- standard input and output ------------------------------------------------------------------

RpcBody = dict[str, Any] | list[Any]  # a list is a batch, which one version of MCP has
NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}


def stdio(url: UrlOption = None, token: TokenOption = None) -> None:
    """Bridge a client that only speaks stdio to the gateway.

    Example, in a client's configuration: `gateway stdio --url http://127.0.0.1:8080/mcp`
    """
    asyncio.run(carry_messages(remote(url, token), sys.stdout.buffer))


async def carry_messages(gateway: Remote, out: BinaryIO) -> None:
    """Carries messages between standard streams and the gateway until standard input ends."""
    headers = {**gateway.headers, "Accept": ACCEPT}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    http = aiohttp.ClientSession(headers=headers, timeout=timeout, read_bufsize=MAX_MESSAGE_BYTES)
    async with http:
        await Bridge(http, gateway, out).run()


class Bridge:
    """One client on standard input and output."""

    def __init__(self, http: aiohttp.ClientSession, gateway: Remote, out: BinaryIO) -> None:
        self._http, self._gateway, self._url, self._out = http, gateway, f"{gateway.base}/mcp", out
        self._session: dict[str, str] = {}  # the headers of each of its requests

    async def run(self) -> None:
        """Carries messages until standard input ends, then lets answers arrive."""
        stream = None
        async with asyncio.TaskGroup() as carrying:
            async for line in _read_lines():
                if (message := self._read_line(line)) is None:
                    continue
                task = carrying.create_task(self._carry(message))
                if isinstance(message, dict) and message.get("method") == "initialize":
                    await asyncio.wait([task])  # the messages after it need the session
                    stream = asyncio.create_task(self._hold_stream())
        if stream is not None:
            stream.cancel()
            await asyncio.wait([stream])
        await self._end_session()

    async def _carry(self, message: RpcBody) -> None:
        try:
            async with asyncio.timeout(BRIDGE_CALL_SECONDS):
                await self._post(message)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._answer_failure(message, self._gateway.explain(error))

    async def _post(self, message: RpcBody) -> None:
        single = message if isinstance(message, dict) else {}
        headers = {**self._session, **_routing_headers(single)}
        async with self._http.post(self._url, json=message, headers=headers) as answer:
            if single.get("method") == "initialize" and "Mcp-Session-Id" in answer.headers:
                self._session = {"Mcp-Session-Id": answer.headers["Mcp-Session-Id"]}
            if answer.content_type == "text/event-stream":
                await self._relay(answer)
                return
            body = await answer.read()
        if answer.status == 202 or not body:
            return
        value = None
        with suppress(orjson.JSONDecodeError):
            value = orjson.loads(body)
        if isinstance(value, list):
            self._write(value)
        elif isinstance(value, dict) and "jsonrpc" in value:
            self._pass_on(value | ({"id": single.get("id")} if value.get("id") is None else {}))
        else:
            words = f"{self._url} answered {answer.status}. {ADVICE}"
            words = self._gateway.ask_for_token() if answer.status == 401 else words
            self._answer_failure(message, words)

    async def _relay(self, answer: aiohttp.ClientResponse) -> None:
        async for line in answer.content:
            if line.startswith(b"data:") and (data := line.removeprefix(b"data:").strip()):
                self._pass_on(orjson.loads(data))

    def _pass_on(self, value: dict[str, Any]) -> None:
        version = (value.get("result") or {}).get("protocolVersion")
        if self._session and isinstance(version, str):
            self._session["MCP-Protocol-Version"] = version
        self._write(value)

    async def _hold_stream(self) -> None:
        """Holds the stream of the session, and takes it up again when it breaks."""
        while self._session:
            with suppress(aiohttp.ClientError, OSError):
                async with self._http.get(self._url, headers=self._session) as answer:
                    if answer.status in (404, 405):
                        return
                    if answer.content_type == "text/event-stream":
                        await self._relay(answer)
            await asyncio.sleep(2)

    async def _end_session(self) -> None:
        if self._session:
            # If the gateway can't be reached, it ends the session by itself later.
            with suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with asyncio.timeout(2):
                    await self._http.delete(self._url, headers=self._session)

    def _read_line(self, line: bytes) -> RpcBody | None:
        """The message or batch in a line; None: there is none, and the client got an error."""
        code, reason = -32700, "Parse error"
        with suppress(orjson.JSONDecodeError):
            message = orjson.loads(line)
            if isinstance(message, dict | list):
                return message
            code, reason = -32600, "Invalid Request: a line must be a JSON-RPC object"
        if line.strip():
            self._write_error(None, code, reason)
        return None

    def _answer_failure(self, message: RpcBody, reason: str) -> None:
        for request in message if isinstance(message, list) else [message]:
            if isinstance(request, dict) and "id" in request and "method" in request:
                self._write_error(request["id"], -32603, reason)
            else:
                note(reason)

    def _write_error(self, id: Any, code: int, message: str) -> None:
        self._write({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})

    def _write(self, message: RpcBody) -> None:
        with suppress(BrokenPipeError):  # the client is gone, and its input ends next
            self._out.write(orjson.dumps(message) + b"\n")
            self._out.flush()


def _routing_headers(message: dict[str, Any]) -> dict[str, str]:
    """The headers that repeat the version, method and name of a message of the 2026 era."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, dict) else None
    version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
    if not isinstance(version, str) or not isinstance(params, dict):
        return {}
    headers = {"MCP-Protocol-Version": version, "Mcp-Method": str(message.get("method"))}
    name = params.get(NAMED.get(str(message.get("method")), ""))
    return headers | ({"Mcp-Name": name} if isinstance(name, str) else {})


async def _read_lines() -> AsyncIterator[bytes]:
    """The lines of standard input, read by a thread: of files, pipes and terminals, everywhere.

    The thread reads the descriptor itself, since a lock of Python's own stream would keep the
    process from ending while the thread waits.
    """
    loop, chunks, line = asyncio.get_running_loop(), asyncio.Queue[bytes](1), bytearray()

    def read() -> None:
        chunk = b" "
        with suppress(RuntimeError, CancelledError):  # the loop has ended
            while chunk:
                chunk = b""
                with suppress(OSError, AttributeError, ValueError):  # stdin is closed or absent
                    chunk = os.read(sys.stdin.fileno(), STEP_BYTES)
                asyncio.run_coroutine_threadsafe(chunks.put(chunk), loop).result()

    threading.Thread(target=read, daemon=True).start()
    while (chunk := await chunks.get()) and len(line) < MAX_MESSAGE_BYTES:
        for piece in chunk.splitlines(keepends=True):
            line += piece
            if piece.endswith(b"\n"):
                yield bytes(line)
                line.clear()
    yield bytes(line)
