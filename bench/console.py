"""What the console's pages weigh and cost on a gateway that has been busy for a month.

40 connections with 3,000 tools, 200 calls that wait for a person, 100,000 in the ledger. Each page
is asked for once in a fresh process (first) and some times after what it remembers is over (again);
then pages are held open while calls come in. CPU is the gateway's, not the database's.

    python -m bench.console [sqlite | postgresql] [--stay]

`--stay` leaves the gateway running, to be looked at in a browser.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import orjson
import uvloop
from msgspec.structs import asdict

from bench.catalog import settled
from bench.processes import Measured, configure, gateway, token_of
from bench.rows import Row, table
from gateway.limits import FIGURES_SECONDS
from gateway.model import json_bytes, new_id
from gateway.store import tables
from gateway.store.database import Database, insert_rows, values
from gateway.store.ledger import JSON_COLUMNS
from gateway.store.tables import Approval, Execution
from tests.databases import PostgresServer

CONNECTIONS = 40
OPERATIONS = 75  # of each
WAITING = 200
EXECUTIONS = 100_000
MOST_KB, MOST_MS = 300.0, 300.0
AGAIN = 3
OPEN_PAGES = 8  # of each kind that moves, in the burst
BURST = 200
WORDS = "customer invoice shipment ledger contract appointment candidate warehouse refund".split()
VERBS = {"get": "read", "post": "write", "delete": "delete"}
AGENTS = [f"{WORDS[number % len(WORDS)]}_agent_{number}" for number in range(1, 50)]
MONTH = 30 * 86_400.0


def name_of(connection: int) -> str:
    return f"{WORDS[connection % len(WORDS)]}-service-{connection:02}"


def definition(connection: int, edition: str = "") -> bytes:
    """An API like many: long names, many words, some deep inputs."""
    chance, paths = random.Random(connection), dict[str, Any]()
    text = {"type": "string"}
    for number in range(OPERATIONS):
        method, word = list(VERBS)[number % 3], chance.choice(WORDS)
        inner = {name: {**text, "description": f"the {name} of it"} for name in WORDS}
        about = f"{method.title()} a {word} of the {WORDS[connection % len(WORDS)]} service"
        operation: dict[str, Any] = {
            "operationId": f"{method}_{word}_of_the_department_by_number_{number}",
            "summary": about,
            "description": f"{about}{edition}. " + "It says at length what it does. " * 10,
            "responses": {"200": {"description": "ok"}},
        }
        query = {"name": "include", "in": "query", "schema": text, "description": "what else"}
        operation["parameters"] = [query, *({**query, "name": name} for name in WORDS[:4])]
        path = f"/v2/organizations/departments/{word}/{number}"
        if method == "post":
            body = {"type": "object", "properties": {**inner, "more": {"properties": inner}}}
            operation["requestBody"] = {"content": {"application/json": {"schema": body}}}
        paths[path] = {method: operation}
    info = {"title": f"The {WORDS[connection % len(WORDS)]} service", "version": "1"}
    servers = [{"url": f"http://127.0.0.1:9/{connection}"}]
    return orjson.dumps({"openapi": "3.1.0", "info": info, "servers": servers, "paths": paths})


def prepare(folder: Path, url: str) -> None:
    """Writes the configuration and its definitions."""
    connections = {}
    for number in range(CONNECTIONS):
        file = folder / f"{name_of(number)}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(definition(number))
        held = {"on_change": "hold_all"} if number == 1 else {}
        connections[name_of(number)] = {"kind": "openapi", "spec": file.name, **held}
    configure(folder, connections, principals=["ann", *AGENTS])
    more = f'\n[store]\nurl = "{url}"\n[ledger]\nkeep_days = 60\n'
    with (folder / "config.toml").open("a", encoding="utf-8") as config:
        config.write(more)


def change(folder: Path) -> None:
    """Edits a definition whose changes are held, and breaks another."""
    (folder / f"{name_of(1)}.json").write_bytes(definition(1, ", as of today"))
    (folder / f"{name_of(2)}.json").write_bytes(b"{}")


async def fill(url: str, tools: list[dict[str, Any]]) -> None:
    """Puts a month of calls into the store, and those that wait."""
    chance, now = random.Random(7), time.time()
    weights = [1 / (place + 3) for place in range(len(tools))]
    chance.shuffle(tools)
    chosen = chance.choices(tools, weights, k=EXECUTIONS)
    rows = [_row(chance, now, tool) for tool in chosen]
    asked = [_waiting(chance, now, tool) for tool in chance.choices(tools, k=WAITING)]
    async with Database(url) as db:
        for start in range(0, EXECUTIONS, 2000):
            part = rows[start : start + 2000]
            await db.write(partial(insert_rows, table=tables.executions, rows=part))
        calls = [call for call, _ in asked]
        await db.write(lambda tx: insert_rows(tx, tables.executions, calls))
        await db.write(
            lambda tx: [tx.execute(tables.approvals.insert(), values(each)) for _, each in asked]
        )


def _row(chance: random.Random, now: float, tool: dict[str, Any]) -> dict[str, Any]:
    at, took = now - chance.random() ** 1.5 * MONTH, chance.lognormvariate(-2.2, 0.6)
    failed = chance.random() < 0.02
    long = 15_000 if chance.random() < 0.01 else 60
    said = {"q": "words " * (long // 6), "include": chance.choice(WORDS), "page": 3}
    result = {"success": not failed, "output": {"items": [said] * 2}, "duration_ms": took * 1000}
    return _stored(
        Execution(
            id=new_id(at),
            tool=tool["name"],
            connection=tool["connection"],
            principal=AGENTS[int(chance.random() ** 2 * len(AGENTS))],
            status="failed" if failed else "completed",
            access=tool["access"],
            risk=tool["risk"],
            arguments=said,
            created_at=at,
            finished_at=at + took,
            revision=1,
            result=result,
            error_code="upstream_error" if failed else None,
            upstream_status=503 if failed else 200,
            client=f"{chance.choice(('Claude Code', 'Cursor', 'a client of our own'))}/1.0",
        )
    )


def _waiting(
    chance: random.Random, now: float, tool: dict[str, Any]
) -> tuple[dict[str, Any], Approval]:
    at, arguments = now - chance.random() * 60, {word: f"{word} " * 40 for word in WORDS}
    whose = {"tool": tool["name"], "connection": tool["connection"], "principal": "ann"}
    call = Execution(
        id=new_id(at),
        status="pending_confirmation",
        access=tool["access"],
        risk=tool["risk"],
        arguments=arguments,
        created_at=at,
        revision=1,
        **whose,
    )
    approval = Approval(
        id=new_id(at),
        execution_id=call.id,
        fingerprint="",
        args_digest="",
        arguments=arguments,
        sealed_arguments=b"",
        risk=tool["risk"],
        created_at=at,
        expires_at=now + 7200,
        client="Claude Code/2.1",
        method=tool["method"],
        url=f"https://api.example.com{tool['path']}",
        warnings=("it deletes, which can't be undone",),
        **whose,
    )
    return _stored(call), approval


def _stored(execution: Execution) -> dict[str, Any]:
    row = asdict(execution)
    return row | {name: json_bytes(row[name]) for name in JSON_COLUMNS if row[name] is not None}


# --- the walk -------------------------------------------------------------------------------------


def pages(tool: str, execution: str, agent: str) -> list[str]:
    """Every page, and the ways to narrow it down."""
    connection = name_of(0)
    of_calls = ("", "status=failed", f"connection={connection}", f"tool={tool}", "since=30d")
    return [
        "",
        *(f"/charts?range={span}&by=connection" for span in ("1h", "24h", "7d", "30d")),
        *(f"/charts?range={span}&by=tool" for span in ("24h", "30d")),
        f"/charts?range=30d&by=tool&connection={connection}",
        *(f"/executions?{query}" for query in of_calls),
        f"/executions?principal={agent}",
        f"/executions?since=30d&status=failed&connection={connection}",
        f"/executions?since=30d&principal={agent}&tool={tool}",
        f"/executions?tool={tool}&principal={agent}&status=failed",
        f"/executions/{execution}",
        "/connections",
        "/connections/new",
        f"/connections/{connection}",
        f"/connections/{connection}?range=30d",
        f"/connections/{name_of(1)}",
        f"/connections/{connection}/edit",
        "/tools",
        "/tools?q=refund+a+customer",
        f"/tools?connection={connection}&sort=-tokens",
        "/tools?start=2900",
        f"/tool?name={tool}",
        f"/tool?name={tool}&range=30d",
        "/approvals",
        "/approvals?risk=high",
        "/access",
        f"/access/view?principal={agent}",
    ]


async def rows(peer: Measured, folder: Path) -> list[Row]:
    """The pages on both stores."""
    found = []
    for kind in ("sqlite", "postgresql"):
        async with _busy(folder / f"console-{kind}", kind) as (server, http):
            found += await _walk(kind, server, http)
            found += await _burst(kind, server, http)
    return found


@asynccontextmanager
async def _busy(folder: Path, kind: str) -> AsyncIterator[tuple[Measured, httpx2.AsyncClient]]:
    """A gateway with all of it, started anew, and somebody who is signed in to its console."""
    with _store(folder, kind) as url:
        prepare(folder, url)
        async with gateway(folder) as server, _signed_in(server) as http:
            await settled(server)
            listed = await http.get("/api/v1/tools?limit=5000")
            assert listed.json()["total"] == CONNECTIONS * OPERATIONS, listed.text[:300]
            change(folder)
            await http.post("/api/v1/connections/" + name_of(1) + "/refresh")
        await fill(url, listed.json()["tools"])
        async with gateway(folder) as server, _signed_in(server) as http:
            await settled(server)
            yield server, http


@contextmanager
def _store(folder: Path, kind: str) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder}/gateway.db"
        return
    server = PostgresServer(Path(tempfile.mkdtemp(prefix="console-pg-")))
    try:
        yield server.url(server.new_database())
    finally:
        server.remove()


@asynccontextmanager
async def _signed_in(server: Measured) -> AsyncIterator[httpx2.AsyncClient]:
    base, token = f"http://127.0.0.1:{server.port}", token_of("ann")
    headers = {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=60) as http:
        answer = await http.post("/console/sign-in", data={"token": token})
        assert answer.status_code == 303, answer.text
        yield http


async def _walk(kind: str, server: Measured, http: httpx2.AsyncClient) -> list[Row]:
    found = (await http.get("/console/executions?format=json&status=failed")).json()["executions"]
    walked = pages(found[0]["tool"], found[0]["id"], found[0]["principal"])
    first = {path: await _ask(server, http, path) for path in walked}
    again = dict.fromkeys(walked, 0.0)
    for _ in range(AGAIN):
        await asyncio.sleep(FIGURES_SECONDS)  # what charts remember is over
        for path in walked:
            again[path] += (await _ask(server, http, path))[1] / AGAIN
    rows = []
    for path, (size, cpu) in first.items():
        words = f"{kind} {path or '/'}"[:52]
        note = f"{again[path]:.0f} ms again"
        rows.append(Row(f"{words}: HTML", size, "KB", MOST_KB))
        rows.append(Row(f"{words}: CPU", max(cpu, again[path]), "ms", MOST_MS, note=note))
    return rows


async def _ask(server: Measured, http: httpx2.AsyncClient, path: str) -> tuple[float, float]:
    before = server.own_cpu()
    answer = await http.get(f"/console{path}")
    if answer.status_code != 200:
        raise RuntimeError(f"{path}: {answer.status_code} {answer.text[-500:]}")
    return len(answer.content) / 1024, 1000 * (server.own_cpu() - before)


async def _burst(kind: str, server: Measured, http: httpx2.AsyncClient) -> list[Row]:
    """CPU of a burst of calls, alone and while pages are open."""
    alone, _ = await _burst_cpu(server, http)
    moving = ("", "/approvals", f"/connections/{name_of(0)}", "/executions")
    opened = [asyncio.create_task(_read(http, path)) for path in moving * OPEN_PAGES]
    await settled(server, 2.0)
    idle = server.own_cpu()
    await asyncio.sleep(4.0)
    idle = (server.own_cpu() - idle) / 4.0
    watched, seconds = await _burst_cpu(server, http)
    for task in opened:
        task.cancel()
    await asyncio.gather(*opened, return_exceptions=True)
    open_pages, more = len(opened), (watched - alone) / seconds
    words = f"{kind} {open_pages} open pages, CPU"
    return [
        Row(f"{words} while nothing happens", 100 * idle, "% core", 20.0),
        Row(f"{words} in a burst", 100 * more, "% core", 50.0, note=f"{seconds:.1f} s"),
    ]


async def _burst_cpu(server: Measured, http: httpx2.AsyncClient) -> tuple[float, float]:
    """CPU and seconds of many calls, which fail at once, and of telling all who watch."""
    tool = (await http.get("/api/v1/tools?limit=1")).json()["tools"][0]["name"]
    before, started = server.own_cpu(), time.monotonic()
    for _ in range(BURST):
        await http.post(f"/api/v1/tools/{tool}/call", json={"arguments": {}})
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    return server.own_cpu() - before, time.monotonic() - started


async def _read(http: httpx2.AsyncClient, path: str) -> None:
    async with http.stream("GET", f"/console/events{path}", timeout=None) as stream:
        async for _ in stream.aiter_bytes():
            pass


async def main(kind: str, stay: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with _busy(Path(folder), kind) as (server, http):
            if stay:
                token = token_of("ann")
                print(f"http://127.0.0.1:{server.port}/console  token {token}", flush=True)
                await asyncio.sleep(3600)
            print(table(await _walk(kind, server, http)), flush=True)
            print(table(await _burst(kind, server, http)))


if __name__ == "__main__":
    named = [word for word in sys.argv[1:] if not word.startswith("-")]
    uvloop.run(main(named[0] if named else "sqlite", "--stay" in sys.argv))
