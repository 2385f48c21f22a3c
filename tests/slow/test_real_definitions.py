"""Every tool of real definitions can be called, and what it sends is what the definition allows.

Each definition beside the project is put into a gateway; arguments are made up from each tool's
listed schema; a server that answers everything keeps the requests, and each is judged by a reading
of the definition that is not the gateway's. Where the definition itself can't be understood, there
is no judgement.

GATEWAY_CORPUS is another folder, or one file; GATEWAY_CORPUS_TOOLS how many tools of a definition
are called (0: all). The same seed draws the same tools and arguments every time.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from mcp import Client

from tests.conftest import OPEN
from tests.definitions import CORPUS
from tests.peers import provider
from tests.processes import gateway_process
from tests.slow.generating import WAYS, made_up
from tests.slow.judging import Sent, faults
from tests.slow.reading import Definition, Unjudged

pytestmark = pytest.mark.slow

FOLDER = Path(os.environ.get("GATEWAY_CORPUS", CORPUS))
TOOLS = int(os.environ.get("GATEWAY_CORPUS_TOOLS", "25"))
SEED = 7
LEAST = 0.99  # of the calls that are judged
SHOWN = 3  # faults of a kind
AT_ONCE = 4  # definitions
ANSWER_SECONDS = 60
LOST = "definitions with operations that are neither tool nor skipped"


def _definitions() -> list[Path]:
    if FOLDER.is_file():
        return [FOLDER]
    found = [path for path in FOLDER.rglob("*.*") if path.suffix in (".json", ".yaml", ".yml")]
    other = ("index.json", "apiProperties.json", "settings.json")
    return sorted(path for path in found if path.name not in other)


@dataclass
class Recorder:
    """A server that hands out definitions and keeps each request, by its connection."""

    url: str
    definitions: dict[str, bytes] = field(default_factory=dict)
    kept: dict[str, list[Sent]] = field(default_factory=dict)

    async def answer(self, request: web.Request) -> web.Response:
        _, kind, name = request.raw_path.split("/", 3)[:3]
        if kind == "definitions":
            return web.Response(body=self.definitions[name])
        path = request.raw_path.removeprefix(f"/{kind}/{name}")
        headers = [(key.decode(), value.decode()) for key, value in request.raw_headers]
        sent = Sent(request.method, path, headers, await request.read())
        self.kept.setdefault(name, []).append(sent)
        return web.json_response({})


@dataclass
class Tally:
    """What became of the calls."""

    counts: Counter[str] = field(default_factory=Counter)
    shown: dict[str, list[str]] = field(default_factory=dict)

    def count(self, kind: str, words: str) -> None:
        self.counts[kind] += 1
        examples = self.shown.setdefault(kind, [])
        if kind != "valid" and len(examples) < SHOWN:
            examples.append(words)

    @property
    def share(self) -> float:
        return self.counts["valid"] / max(1, self.counts["calls"] - self.counts["not judged"])

    def lines(self) -> Iterator[str]:
        yield f"{self.share:.2%} of the calls that were judged are as their definition wants them"
        for kind, count in self.counts.most_common():
            yield f"{count:7,} {kind}"
            yield from (f"          {words[:1000]}" for words in self.shown.get(kind, ()))


async def test_calls_made_up_from_listed_schemas_are_as_the_definition_wants_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (paths := _definitions()):
        pytest.skip("the corpus is not beside the project")
    config = tmp_path / "config.toml"
    config.write_text(OPEN, encoding="utf-8")
    tally, gate = Tally(), asyncio.Semaphore(AT_ONCE)
    async with (
        provider() as peer,
        gateway_process(config) as (_, address),
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(ANSWER_SECONDS)) as session,
    ):
        gateway, recorder = Gateway(session, address), Recorder(peer.url)
        peer.answer = recorder.answer

        async def look_at(number: int, path: Path) -> None:
            async with gate:
                await _call_all(recorder, gateway, f"d{number}", path, tally)

        await asyncio.gather(*(look_at(number, path) for number, path in enumerate(paths)))
    with capsys.disabled():
        print("\n" + "\n".join(tally.lines()))
    assert tally.counts[LOST] == 0
    assert tally.share >= LEAST


@dataclass(frozen=True)
class Gateway:
    """The gateway's edges, as a program uses them."""

    session: aiohttp.ClientSession
    mcp: str

    async def ask(self, method: str, path: str, **body: Any) -> tuple[int, Any]:
        url = self.mcp.removesuffix("/mcp") + "/api/v1" + path
        async with self.session.request(method, url, json=body or None) as answer:
            return answer.status, await answer.json()

    async def operations(self, connection: str) -> dict[str, tuple[str, str]]:
        """Method and path of each tool of a connection."""
        found: dict[str, tuple[str, str]] = {}
        while True:
            query = f"connection={connection}&limit=500&offset={len(found)}"
            _, page = await self.ask("GET", f"/tools?{query}")
            found |= {each["name"]: (each["method"], each["path"]) for each in page["tools"]}
            if len(found) >= page["total"]:
                return found

    async def schemas(self, prefix: str) -> dict[str, dict[str, Any]]:
        """The input of each tool whose name begins so, as clients are shown it."""
        found: dict[str, dict[str, Any]] = {}
        cursor = None
        async with Client(self.mcp) as client:
            while True:
                page = await client.list_tools(cursor=cursor)
                found |= {t.name: t.input_schema for t in page.tools if t.name.startswith(prefix)}
                if (cursor := page.next_cursor) is None:
                    return found


async def _call_all(
    recorder: Recorder, gateway: Gateway, name: str, path: Path, tally: Tally
) -> None:
    """Put one definition, call its tools, and take the connection away again."""
    raw = recorder.definitions[name] = await asyncio.to_thread(path.read_bytes)
    where = f"{path.parent.name}/{path.name}"
    put = {"kind": "openapi", "spec": f"{recorder.url}/definitions/{name}", "prefix": f"{name}_"}
    put["base_url"] = f"{recorder.url}/calls/{name}"
    status, answer = await gateway.ask("PUT", f"/connections/{name}", **put)
    if status != 200:
        tally.count("definitions that are refused", f"{where}: {answer['error']['message']}")
        return
    try:
        definition = await asyncio.to_thread(Definition, raw)
        _, shown = await gateway.ask("GET", f"/connections/{name}")
        if shown["tools"] + shown["skipped"] != len(list(definition.operations())):
            tally.count(LOST, where)
        schemas = await gateway.schemas(f"{name}_")
        tools = sorted((await gateway.operations(name)).items())
        for tool, operation in Random(SEED).sample(tools, min(TOOLS or len(tools), len(tools))):
            for way in WAYS:
                arguments = made_up(schemas[tool], way, f"{SEED} {tool} {way}")
                sent, refused = await _called(recorder, gateway, name, tool, arguments)
                kind, words = _judged(definition, operation, sent) if sent else refused
                tally.counts["calls"] += 1
                tally.count(kind, f"{where} {' '.join(operation)}: {words}; {arguments}")
    except Unjudged as error:
        tally.count("definitions that are not judged", f"{where}: {error}")
    finally:
        await gateway.ask("DELETE", f"/connections/{name}")


async def _called(
    recorder: Recorder, gateway: Gateway, name: str, tool: str, arguments: Any
) -> tuple[Sent | None, tuple[str, str]]:
    """The one request that a call makes, or why there is none."""
    if arguments is None:
        return None, ("nothing fits the listed schema", "")
    recorder.kept.pop(name, None)
    status, answer = await gateway.ask("POST", f"/tools/{tool}/call", arguments=arguments)
    sent = recorder.kept.pop(name, [])
    if status == 200 and answer["success"] and len(sent) == 1:
        return sent[0], ("", "")
    return None, ("refused", f"{status} {answer.get('error')}, {len(sent)} requests")


def _judged(definition: Definition, operation: tuple[str, str], sent: Sent) -> tuple[str, str]:
    """`valid`, or what is wrong with a request, in a word and in full."""
    try:
        found = faults(definition, *operation, sent)
    except Unjudged as error:
        return "not judged", str(error)
    return (found[0].kind, found[0].words) if found else ("valid", "")
