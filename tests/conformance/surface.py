"""The tools the conformance runner looks for.

The runner prescribes their names and answers. What is tested is the edge: envelopes, streams,
headers, sessions. Tools that ask back come in two forms, one for each era: `elicit` on the
request's own stream, and results that say what input is missing.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from mcp_types.jsonrpc import INVALID_PARAMS, MISSING_REQUIRED_CLIENT_CAPABILITY

from gateway.calls.record import Caller
from gateway.errors import Fixable
from gateway.mcp.messages import RpcError

Result = dict[str, Any]
Call = Callable[["Surface", dict[str, Any], Caller], Awaitable[Result]]

PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5Erk"
    "Jggg=="
)
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA="
NO_ARGUMENTS: dict[str, Any] = {"type": "object", "properties": {}}
STATE_KEY = b"conformance"

TOOLS: dict[str, tuple[dict[str, Any], Call]] = {}


def tool(name: str, schema: dict[str, Any] | None = None) -> Callable[[Call], Call]:
    """Add a function as a tool."""

    def add(call: Call) -> Call:
        TOOLS[name] = (schema or NO_ARGUMENTS, call)
        return call

    return add


@dataclass
class Surface:
    """What was changed while the server ran."""

    changes: int = 0


def text(value: str) -> Result:
    return {"content": [{"type": "text", "text": value}]}


def _resource(uri: str, mime_type: str, content: str) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": content}}


def _always(name: str, *content: dict[str, Any], schema: dict[str, Any] | None = None) -> None:
    """A tool with one answer."""

    async def call(surface: Surface, arguments: dict[str, Any], context: Caller) -> Result:
        return {"content": list(content)}

    tool(name, schema)(call)


PICTURE = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
SIMPLE = {"type": "text", "text": "This is a simple text response for testing."}
EMBEDDED = "This is an embedded resource content."

_always("test_simple_text", SIMPLE)
_always("test_image_content", PICTURE)
_always("test_audio_content", {"type": "audio", "data": SILENCE, "mimeType": "audio/wav"})
_always("test_embedded_resource", _resource("test://embedded-resource", "text/plain", EMBEDDED))
_always(
    "test_multiple_content_types",
    {"type": "text", "text": "Multiple content types test:"},
    PICTURE,
    _resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
)
_always("test_logging_tool", {"type": "text", "text": "Nothing was logged"})
_always("test_trigger_prompt_change", {"type": "text", "text": "The prompts have changed"})


@tool("test_error_handling")
async def error(surface: Surface, arguments: dict[str, Any], context: Caller) -> Result:
    raise Fixable("invalid_arguments", "This tool intentionally returns an error for testing")


@tool("test_tool_with_progress")
async def progress(surface: Surface, arguments: dict[str, Any], context: Caller) -> Result:
    for done in (0, 50, 100):
        if context.progress is not None:
            await context.progress(done, 100, None)
        await asyncio.sleep(0.05)
    return text("Done in three steps")


@tool("test_trigger_tool_change")
async def trigger(surface: Surface, arguments: dict[str, Any], context: Caller) -> Result:
    surface.changes += 1
    return text("The list has changed")


@tool("test_missing_capability")
async def missing(surface: Surface, arguments: dict[str, Any], context: Caller) -> Result:
    _require(context, "sampling")
    return text("The client can sample")


def _require(context: Caller, capability: str) -> None:
    if capability not in context.capabilities:
        raise RpcError(
            MISSING_REQUIRED_CLIENT_CAPABILITY,
            f"This tool needs a client with {capability}",
            {"requiredCapabilities": {capability: {}}},
        )


SCHEMA_2020_12: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
ROUTED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "priority": {"type": "integer", "x-mcp-header": "Priority"},
        "query": {"type": "string"},
    },
}

_always("json_schema_2020_12_tool", SIMPLE, schema=SCHEMA_2020_12)
_always("test_custom_headers", SIMPLE, schema=ROUTED)


# --- asking back, 2025: on the request's own stream -----------------------------------------------


def _form(properties: dict[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


async def _elicited(context: Caller, message: str, schema: dict[str, Any]) -> Result:
    if context.ask is None:
        raise Fixable("invalid_arguments", "This client can't be asked")
    question = {"message": message, "requestedSchema": schema}
    answer = await context.ask("elicitation/create", question)
    content = orjson.dumps(answer.get("content")).decode()
    return text(f"Elicitation completed: action={answer['action']}, content={content}")


@tool("test_elicitation", _form({"message": {"type": "string"}}, ("message",)))
async def elicit(surface: Surface, arguments: dict[str, Any], context: Caller) -> Result:
    fields = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    return await _elicited(context, arguments["message"], _form(fields, ("username", "email")))


@tool("test_elicitation_sep1034_defaults")
async def elicit_defaults(surface: Surface, arguments: dict[str, Any], context: Caller) -> Result:
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    }
    return await _elicited(context, "Check these values", _form(fields))


@tool("test_elicitation_sep1330_enums")
async def elicit_enums(surface: Surface, arguments: dict[str, Any], context: Caller) -> Result:
    plain = ["option1", "option2", "option3"]
    titled = [{"const": f"value{n}", "title": f"Option {n}"} for n in (1, 2, 3)]
    fields = {
        "untitledSingle": {"type": "string", "enum": plain},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return await _elicited(context, "Choose", _form(fields))


# --- asking back, 2026: a result that says what is missing ----------------------------------------


def _ask(message: str, name: str, kind: str = "string") -> dict[str, Any]:
    schema = _form({name: {"type": kind}}, (name,))
    return {
        "method": "elicitation/create",
        "params": {"message": message, "requestedSchema": schema},
    }


def _sample(prompt: str) -> dict[str, Any]:
    message = {"role": "user", "content": {"type": "text", "text": prompt}}
    return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 100}}


ROOTS: dict[str, Any] = {"method": "roots/list", "params": {}}
NAME = _ask("What is your name?", "name")


def _needs(requests: Mapping[str, Any], state: str | None = None) -> Result:
    result: Result = {"resultType": "input_required", "inputRequests": dict(requests)}
    return result if state is None else {**result, "requestState": _signed(state)}


def _signed(state: str) -> str:
    mark = hmac.new(STATE_KEY, state.encode(), hashlib.sha256).hexdigest()
    return f"{state}.{mark}"


def _state(context: Caller) -> str:
    state = (context.request_state or "").rpartition(".")[0]
    if not hmac.compare_digest(_signed(state), context.request_state or ""):
        raise RpcError(INVALID_PARAMS, "requestState is not ours")
    return state


def _answered(context: Caller, requests: Mapping[str, Any]) -> Mapping[str, Any] | None:
    answers = context.input_responses or {}
    return answers if all(key in answers for key in requests) else None


def _asking(name: str, requests: Mapping[str, Any], state: str | None = None) -> None:
    """A tool that needs all of `requests` answered once."""

    async def call(surface: Surface, arguments: dict[str, Any], context: Caller) -> Result:
        answers = _answered(context, requests)
        if answers is None:
            return _needs(requests, state)
        if state is not None:
            _state(context)
        return text(f"state-ok: {orjson.dumps(dict(answers)).decode()}")

    tool(name)(call)


_asking("test_input_required_result_elicitation", {"user_name": NAME})
_asking("test_streaming_elicitation", {"user_name": NAME})
_asking(
    "test_input_required_result_sampling",
    {"capital_question": _sample("What is the capital of France?")},
)
_asking("test_input_required_result_list_roots", {"client_roots": ROOTS})
_asking(
    "test_input_required_result_request_state",
    {"confirm": _ask("Please confirm", "ok", "boolean")},
    "state",
)
_asking(
    "test_input_required_result_tampered_state",
    {"confirm": _ask("Please confirm", "ok", "boolean")},
    "state",
)
_asking(
    "test_input_required_result_multiple_inputs",
    {"user_name": NAME, "greeting": _sample("Generate a greeting"), "client_roots": ROOTS},
    "state",
)


@tool("test_input_required_result_multi_round")
async def rounds(surface: Surface, arguments: dict[str, Any], context: Caller) -> Result:
    first = {"step1": _ask("Step 1: What is your name?", "name")}
    second = {"step2": _ask("Step 2: What is your favorite color?", "color")}
    if context.request_state is None:
        return _needs(first, "round-1")
    if _state(context) == "round-1":
        return _needs(second, "round-2") if _answered(context, first) else _needs(first, "round-1")
    return text("All rounds done") if _answered(context, second) else _needs(second, "round-2")


@tool("test_input_required_result_capabilities")
async def by_capability(surface: Surface, arguments: dict[str, Any], context: Caller) -> Result:
    possible = {
        "elicitation": ("user_name", NAME),
        "sampling": ("greeting", _sample("Generate a greeting")),
        "roots": ("client_roots", ROOTS),
    }
    requests = dict(possible[name] for name in possible if name in context.capabilities)
    if not requests or _answered(context, requests):
        return text("Enough is known")
    return _needs(requests)
