"""A stand-in for the models behind real clients: it calls tools as planned and keeps the answers.

It speaks as much of the three APIs as the clients need: Anthropic's messages, OpenAI's responses,
Gemini's streams. Which step is next is seen from how many results a request carries.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aiohttp import web

Step = tuple[str, dict[str, Any]]  # the end of a tool's name, as each client has its own prefix


@dataclass
class Model:
    """What it does, and what it saw."""

    plan: list[Step]
    url: str = ""
    told: list[str] = field(default_factory=list)  # what the tools answered, as clients pass it on
    tools: list[list[str]] = field(default_factory=list)  # that it was offered, a request each

    def next_call(self, tools: list[str], results: list[Any]) -> tuple[str, dict[str, Any]] | None:
        """The tool to call now and its arguments, None at the end."""
        if not any(name.endswith(self.plan[0][0]) for name in tools):
            return None  # one of the small questions that clients ask beside the conversation
        self.tools.append(tools)
        if results:
            self.told.append(json.dumps(results[-1], ensure_ascii=False))
        if len(results) >= len(self.plan):
            return None
        wanted, arguments = self.plan[len(results)]
        return next((name for name in tools if name.endswith(wanted)), wanted), arguments


@asynccontextmanager
async def model(plan: list[Step]) -> AsyncIterator[Model]:
    """A model at work."""
    it = Model(plan)
    app = web.Application(client_max_size=64 << 20)
    for path, answer in (
        ("/v1/messages", _anthropic),
        ("/v1/responses", _openai),
        ("/v1beta/models/{method}", _gemini),
    ):
        app.router.add_post(path, partial(answer, it))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0]
    it.url = f"http://{host}:{port}"
    try:
        yield it
    finally:
        await runner.cleanup()


def _events(events: list[dict[str, Any]]) -> web.Response:
    lines = [
        f"event: {each.get('type', 'message')}\ndata: {json.dumps(each)}\n\n" for each in events
    ]
    return web.Response(text="".join(lines), content_type="text/event-stream")


async def _anthropic(it: Model, request: web.Request) -> web.Response:
    body = await request.json()
    parts = [
        part for m in body["messages"] if isinstance(m["content"], list) for part in m["content"]
    ]
    results = [part["content"] for part in parts if part["type"] == "tool_result"]
    call = it.next_call([tool["name"] for tool in body.get("tools", [])], results)
    block: dict[str, Any] = {"type": "text", "text": "done"}
    delta: dict[str, Any] = {"type": "text_delta", "text": ""}
    if call is not None:
        block = {"type": "tool_use", "id": f"toolu_{len(results)}", "name": call[0], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
    usage = {"input_tokens": 1, "output_tokens": 1}
    stop = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
    message = {"id": "m", "type": "message", "role": "assistant", "model": body["model"]}
    if not body.get("stream"):
        return web.json_response({**message, "content": [block], **stop, "usage": usage})
    start = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    return _events(
        [
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": stop, "usage": {"output_tokens": 1}},
            {"type": "message_stop"},
        ]
    )


async def _openai(it: Model, request: web.Request) -> web.Response:
    body = await request.json()
    spaces = {
        tool["name"]: each.get("name") if each.get("type") == "namespace" else None
        for each in body.get("tools", [])
        for tool in (each["tools"] if each.get("type") == "namespace" else [each])
        if "name" in tool
    }
    results = [i["output"] for i in body["input"] if i.get("type") == "function_call_output"]
    call = it.next_call(list(spaces), results)
    text = {"type": "output_text", "text": "done"}
    item: dict[str, Any] = {"type": "message", "id": "m", "role": "assistant", "content": [text]}
    if call is not None:
        item = {"type": "function_call", "id": "f", "call_id": f"c{len(results)}", "name": call[0]}
        item |= {"arguments": json.dumps(call[1])}
        if space := spaces.get(call[0]):
            item["namespace"] = space
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    return _events(
        [
            {"type": "response.created", "response": {"id": "r"}},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": {"id": "r", "usage": usage}},
        ]
    )


async def _gemini(it: Model, request: web.Request) -> web.Response:
    body = await request.json()
    names = [
        f["name"] for tool in body.get("tools", []) for f in tool.get("functionDeclarations", [])
    ]
    parts = [part for content in body["contents"] for part in content.get("parts", [])]
    results = [part["functionResponse"] for part in parts if "functionResponse" in part]
    call = it.next_call(names, results)
    part = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": "done"}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    answer = {"candidates": [candidate], "usageMetadata": {"totalTokenCount": 2}}
    if "stream" in request.match_info["method"]:
        text = f"data: {json.dumps(answer)}\r\n\r\n"
        return web.Response(text=text, content_type="text/event-stream")
    return web.json_response(answer)
