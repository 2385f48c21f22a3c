"""`gateway bench`: how fast a gateway answers from where the command runs.

Some connections send one request after the other for a while: `tools/list`, or one tool that says
it only reads. Requests are of the 2026 era, so no session is left behind. Every request and the
whole run have an end.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter
from typing import Annotated, Any

import aiohttp
import orjson
import typer

from gateway.cli.remote import JsonOption, Remote, TokenOption, mcp_request, remote
from gateway.cli.terminal import fail
from gateway.cli.tools import fetch_tools, parse_arguments
from gateway.limits import FETCH_SECONDS, MOMENT_SECONDS


def bench(
    url: Annotated[str | None, typer.Argument(help="Its address, if not as for others.")] = None,
    tool: Annotated[str | None, typer.Option(help="One that only reads; else tools/list.")] = None,
    arguments: Annotated[str, typer.Option(help="Of the tool, as JSON.")] = "{}",
    seconds: Annotated[int, typer.Option(min=1, max=300, help="How long.")] = 10,
    connections: Annotated[int, typer.Option(min=1, max=256, help="How many at a time.")] = 8,
    token: TokenOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure how fast a running gateway answers: answers a second, and times.

    Example: `gateway bench http://127.0.0.1:8080 --tool demo_get_book --arguments '{"id": 1}'`
    """
    gateway = remote(url, token, as_json)
    if tool is not None:
        _require_reading(gateway, tool)
    figures = Bench(gateway, tool, parse_arguments([arguments])).run(seconds, connections)
    gateway.show(figures, lambda: _print_figures(figures))
    raise typer.Exit(0 if figures["requests"] else 1)


def _require_reading(gateway: Remote, name: str) -> None:
    """Refuses a tool that might change something: it would be called thousands of times."""
    hints = {tool["name"]: tool.get("annotations", {}) for tool in fetch_tools(gateway)}
    if name not in hints:
        fail(f"there is no tool {name!r} here; `gateway tools` lists yours", 2)
    if not hints[name].get("readOnlyHint"):
        fail(f"{name} does not say that it only reads: choose one that does", 2)


class Bench:
    """One request sent over and over, with the times and failures of its answers."""

    def __init__(self, gateway: Remote, tool: str | None, arguments: dict[str, Any]) -> None:
        self._url, self._tool = f"{gateway.base}/mcp", tool
        self._method = "tools/list" if tool is None else "tools/call"
        params = {"name": tool, "arguments": arguments} if tool else {}
        message, headers = mcp_request(self._method, params)
        self._body = orjson.dumps(message)
        self._headers = {**gateway.headers, **headers, "Content-Type": "application/json"}
        self._seconds = array("d")  # of each good answer
        self._failed: Counter[str] = Counter()

    def run(self, seconds: float, connections: int) -> dict[str, Any]:
        """Sends for so long; the figures have times in milliseconds."""
        duration = asyncio.run(self._send_from(connections, seconds))
        times, shares = sorted(self._seconds), {"p50": 0.5, "p95": 0.95, "p99": 0.99, "max": 1.0}
        return {
            "url": self._url,
            "request": self._tool or self._method,
            "connections": connections,
            "seconds": round(duration, 2),
            "requests": len(times),
            "per_second": round(len(times) / duration, 1),
            "milliseconds": {
                name: round(times[min(len(times) - 1, int(share * len(times)))] * 1000, 2)
                for name, share in shares.items()
                if times
            },
            "failed": dict(self._failed),
        }

    async def _send_from(self, connections: int, seconds: float) -> float:
        """Sends until the time is over; gives the seconds it took, with the last answers."""
        async with aiohttp.ClientSession(
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(FETCH_SECONDS),
            connector=aiohttp.TCPConnector(limit=connections),
        ) as http:
            began = time.perf_counter()
            senders = (self._send_until(http, began + seconds) for _ in range(connections))
            async with asyncio.timeout(seconds + FETCH_SECONDS + MOMENT_SECONDS):
                await asyncio.gather(*senders)
            return time.perf_counter() - began

    async def _send_until(self, http: aiohttp.ClientSession, end: float) -> None:
        while (began := time.perf_counter()) < end:
            if (problem := await self._send(http)) is None:
                self._seconds.append(time.perf_counter() - began)
            else:
                self._failed[problem] += 1
                await asyncio.sleep(0.01)  # a gateway that refuses is not to be flooded

    async def _send(self, http: aiohttp.ClientSession) -> str | None:
        """Sends once; gives the problem with the answer, or None."""
        try:
            async with http.post(self._url, data=self._body) as answer:
                raw = await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return type(error).__name__
        if answer.status != 200:
            return f"HTTP {answer.status}"
        return _error_in(raw) if self._tool else None


def _error_in(raw: bytes) -> str | None:
    """The error code in an answer; None: it is no error."""
    lines = [line for line in raw.splitlines() if line.startswith(b"data:")]
    try:
        answer = orjson.loads(lines[-1].removeprefix(b"data:") if lines else raw)
    except orjson.JSONDecodeError:
        return "not JSON"
    if "error" in answer:
        return str(answer["error"].get("code"))
    result = answer.get("result", {})
    error = (result.get("structuredContent") or {}).get("error") or {}
    return str(error.get("code", "isError")) if result.get("isError") else None


def _print_figures(stats: dict[str, Any]) -> None:
    """The stats in words."""
    print(f"{stats['request']} at {stats['url']}, {stats['connections']} connections")
    print(
        f"{stats['requests']:,} answers in {stats['seconds']} s: {stats['per_second']:,} a second"
    )
    if times := stats["milliseconds"]:
        print(", ".join(f"{name} {value} ms" for name, value in times.items()))
    for problem, count in stats["failed"].items():
        print(f"failed: {count:,} × {problem}")
