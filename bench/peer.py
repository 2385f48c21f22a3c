"""What the gateway calls while it is measured: a small API and a small MCP server on one port.

A protocol of its own on the bare loop, so that its share of the machine stays small. The API has
collections of items (`GET /cN/items/{id}`, `POST /cN/items`); `/definition/N` describes so many of
its operations, `/giant` is a definition of 1,200. `/mcp` speaks both eras and has one tool that
reads and one that writes. `python -m bench.peer` prints its port.
"""

from __future__ import annotations

import asyncio
import sys
from functools import cache
from typing import Any

import httptools
import orjson
import uvloop

from tests.definitions import like_github

ITEM = {"id": "42", "name": "teapot", "stock": 7, "tags": ["kitchen", "blue"]}
ITEM_BODY = orjson.dumps(ITEM)
_FRESH = {"ttlMs": 0, "cacheScope": "private"}
_INFO = {"name": "peer", "version": "1"}
_TOOL_SCHEMA = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string"},
        "q": {"type": "string"},
        "limit": {"type": "integer"},
    },
}
_TOOLS = [
    {"name": "look", "inputSchema": _TOOL_SCHEMA, "annotations": {"readOnlyHint": True}},
    {"name": "change", "inputSchema": _TOOL_SCHEMA},
]
_RESULT = {
    "content": [{"type": "text", "text": ITEM_BODY.decode()}],
    "structuredContent": ITEM,
    "isError": False,
}


class Peer(asyncio.Protocol):
    """One connection."""

    port = 0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._parser = httptools.HttpRequestParser(self)
        self.on_message_begin()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        self._url, self._body, self._modern = b"", b"", False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 20 and name.lower() == b"mcp-protocol-version":
            self._modern = value >= b"2026"

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        path = self._url.partition(b"?")[0]
        if path.startswith(b"/c"):
            self._answer(ITEM_BODY)
        elif path == b"/mcp":
            self._answer_mcp()
        elif path == b"/giant":
            self._answer(_giant())
        elif path.startswith(b"/definition/"):
            self._answer(definition(int(path.rpartition(b"/")[2]), self.port))
        else:
            self._answer(b"{}", b"404 Not Found")

    def _answer(self, body: bytes, status: bytes = b"200 OK", more: bytes = b"") -> None:
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%b\r\n"
        self._transport.write(head % (status, len(body), more) + body)

    def _answer_mcp(self) -> None:
        if self._parser.get_method() != b"POST":
            self._answer(b"{}", b"405 Method Not Allowed")
            return
        asked = orjson.loads(self._body)
        if "id" not in asked:
            self._answer(b"", b"202 Accepted")
            return
        result = self._result(asked["method"], asked.get("params") or {})
        more = b"mcp-session-id: bench\r\n" if asked["method"] == "initialize" else b""
        said = {"error": {"code": -32601, "message": "no such method"}}
        if result is not None:
            said = {"result": {**result, **({"resultType": "complete"} if self._modern else {})}}
        self._answer(orjson.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), more=more)

    def _result(self, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        if method == "tools/call":
            return _RESULT
        if method == "tools/list":
            return {
                "tools": _TOOLS,
                **({"ttlMs": 0, "cacheScope": "private"} if self._modern else {}),
            }
        if method == "initialize":
            version = min(params["protocolVersion"], "2025-11-25")
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": _INFO}
        if method == "server/discover":
            return {
                "supportedVersions": ["2026-07-28", "2025-11-25"],
                "capabilities": {"tools": {}},
                **_FRESH,
                "_meta": {"io.modelcontextprotocol/serverInfo": _INFO},
            }
        return {} if method == "ping" else None


@cache
def definition(operations: int, port: int) -> bytes:
    """An OpenAPI definition of so many operations: reads and writes in turn."""
    text, number = {"type": "string"}, {"type": "integer", "minimum": 1, "maximum": 100}
    item = {
        "type": "object",
        "required": ["id", "name"],
        "properties": {"id": text, "name": text, "stock": {"type": "integer"}},
    }
    new_item = {"type": "object", "required": ["name"], "properties": {"name": text}}
    answers = {"200": {"description": "ok", "content": _json_of("Item")}}
    paths: dict[str, Any] = {}
    for n in range(operations):
        about = {"summary": f"Collection {n}", "tags": [f"group {n % 10}"], "responses": answers}
        if n % 2:
            body = {"required": True, "content": _json_of("NewItem")}
            paths[f"/c{n}/items"] = {
                "post": {"operationId": f"add{n}", "requestBody": body, **about}
            }
            continue
        parameters = [
            {"name": "id", "in": "path", "required": True, "schema": text},
            {"name": "q", "in": "query", "description": "words to look for", "schema": text},
            {"name": "limit", "in": "query", "description": "how many", "schema": number},
        ]
        operation = {"operationId": f"get{n}", "parameters": parameters, **about}
        paths[f"/c{n}/items/{{id}}"] = {"get": operation}
    return orjson.dumps(
        {
            "openapi": "3.0.3",
            "info": {"title": "Shop", "version": "1"},
            "servers": [{"url": f"http://127.0.0.1:{port}"}],
            "paths": paths,
            "components": {"schemas": {"Item": item, "NewItem": new_item}},
        }
    )


def _json_of(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


@cache
def _giant() -> bytes:
    return like_github()


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Peer, "127.0.0.1", 0, backlog=1024)
    Peer.port = server.sockets[0].getsockname()[1]
    if "giant" in sys.argv:
        _giant()
    print(Peer.port, flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
