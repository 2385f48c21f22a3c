"""The floor: the least that a Python server must do for one tool call, and nothing else.

No authentication, policy, limits, redaction or ledger; one tool, known beforehand; no check of what
comes in. uvicorn with uvloop and httptools in front, one aiohttp session behind, orjson between.
`python -m bench.floor PEER_PORT` prints its port.
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import aiohttp
import orjson
import uvicorn
import uvloop

_JSON = (b"content-type", b"application/json")
_SESSION = b"floor"


class Floor:
    """The ASGI application."""

    def __init__(self, base: str, session: aiohttp.ClientSession) -> None:
        self._base = base
        self._session = session

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        asked = orjson.loads(body)
        if "id" not in asked:
            await _respond(send, 202, b"", [])
            return
        headers = dict(scope["headers"])
        modern = headers.get(b"mcp-protocol-version", b"") >= b"2026"
        if asked["method"] == "initialize":
            version = asked["params"]["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": {}, "serverInfo": {}}
            answer = orjson.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result})
            await _respond(send, 200, answer, [(b"mcp-session-id", _SESSION)])
            return
        if not modern and headers.get(b"mcp-session-id") != _SESSION:
            await _respond(send, 404, b"", [])
            return
        result = await self._call(asked["params"]["arguments"])
        if modern:
            result["resultType"] = "complete"
        answer = orjson.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result})
        await _respond(send, 200, answer, [])

    async def _call(self, arguments: dict[str, Any]) -> dict[str, Any]:
        query = {"q": arguments["q"], "limit": arguments["limit"]}
        url = f"{self._base}/c0/items/{arguments['id']}"
        async with self._session.get(url, params=query) as response:
            body = await response.read()
        return {
            "content": [{"type": "text", "text": body.decode()}],
            "structuredContent": orjson.loads(body),
            "isError": response.status >= 400,
        }


async def _respond(send: Any, status: int, body: bytes, more: list[tuple[bytes, bytes]]) -> None:
    headers = [_JSON, (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def main(peer_port: int) -> None:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=512)) as session:
        app = Floor(f"http://127.0.0.1:{peer_port}", session)
        config = uvicorn.Config(
            app, http="httptools", lifespan="off", access_log=False, log_level="warning"
        )
        with socket.socket() as bound:
            bound.bind(("127.0.0.1", 0))
            bound.listen(1024)
            print(bound.getsockname()[1], flush=True)
            await uvicorn.Server(config).serve(sockets=[bound])


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
