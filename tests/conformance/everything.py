"""A server that has everything the conformance runner asks for, in both eras, on the SDK.

`python -m tests.conformance.everything PORT` serves it. It stands behind the gateway as an upstream
and beside it as what the gateway is compared with. The tools are those of `surface`; here they are
put on the SDK's server, with the prompts, resources, completion and logs that the runner looks for.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError

from gateway.calls.record import Caller
from gateway.errors import GatewayError
from gateway.mcp.messages import RpcError
from gateway.model import Principal
from tests.conformance.surface import PIXEL, TOOLS, Result, Surface, text, tool
from tests.peers_mcp import TellingServer

Context = ServerRequestContext[dict[str, Any], Any]

STATIC_TEXT = "This is the content of the static text resource."
NOBODY = Principal("nobody")
PROMPTS: dict[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}
_FORM: dict[str, Any] = {
    "type": "object",
    "properties": {"context": {"type": "string"}},
    "required": ["context"],
}


class NeedsInput(Exception):
    """In 2026 a question ends the call: the client calls again with the answer."""

    def __init__(self, method: str, params: Mapping[str, Any]) -> None:
        super().__init__(method)
        self.result = {
            "resultType": "input_required",
            "inputRequests": {"answer": {"method": method, "params": dict(params)}},
        }


class Everything:
    """The server's state: what was changed while it ran."""

    def __init__(self) -> None:
        self.surface = Surface()
        self.bus = InMemorySubscriptionBus()

    async def list_tools(self, ctx: Context, params: Any) -> types.ListToolsResult:
        tools = [
            types.Tool(name=name, description=f"{self.surface.changes}", input_schema=schema)
            for name, (schema, _) in TOOLS.items()
        ]
        return types.ListToolsResult(tools=tools, ttl_ms=0, cache_scope="private")

    async def call_tool(
        self, ctx: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if params.name not in TOOLS:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name}")
        asked = told(ctx, params)
        try:
            result = await TOOLS[params.name][1](self.surface, params.arguments or {}, asked)
        except NeedsInput as question:
            result = question.result
        except RpcError as error:
            raise MCPError(error.code, error.message, error.data) from error
        except GatewayError as error:
            result = {**text(error.message), "isError": True}
        await self._announce(ctx, params.name)
        if result.get("resultType") == "input_required":
            return types.InputRequiredResult.model_validate(result)
        return types.CallToolResult.model_validate(result)

    async def _announce(self, ctx: Context, name: str) -> None:
        if name == "test_trigger_tool_change":
            await self.bus.publish(ToolsListChanged())
        if name == "test_trigger_prompt_change":
            await self.bus.publish(PromptsListChanged())

    async def list_prompts(self, ctx: Context, params: Any) -> types.ListPromptsResult:
        prompts = [
            types.Prompt(
                name=name,
                description=name,
                arguments=[types.PromptArgument(name=each, required=True) for each in arguments],
            )
            for name, arguments in PROMPTS.items()
        ]
        return types.ListPromptsResult(prompts=prompts, ttl_ms=0, cache_scope="private")

    async def get_prompt(
        self, ctx: Context, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult | types.InputRequiredResult:
        given = params.arguments or {}
        match params.name:
            case "test_simple_prompt":
                return _said("This is a simple prompt for testing.")
            case "test_prompt_with_arguments":
                words = f"arg1='{given.get('arg1')}', arg2='{given.get('arg2')}'"
                return _said(f"Prompt with arguments: {words}")
            case "test_prompt_with_embedded_resource":
                resource = types.TextResourceContents(
                    uri=given.get("resourceUri", ""), mime_type="text/plain", text="Embedded."
                )
                return _said("Read it.", types.EmbeddedResource(resource=resource))
            case "test_prompt_with_image":
                return _said("Look.", types.ImageContent(data=PIXEL, mime_type="image/png"))
            case "test_input_required_result_prompt":
                return _asking_prompt(params)
        raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")

    async def list_resources(self, ctx: Context, params: Any) -> types.ListResourcesResult:
        kinds = {"static-text": "text/plain", "static-binary": "image/png"}
        kinds["watched-resource"] = "text/plain"
        resources = [
            types.Resource(uri=f"test://{name}", name=name, mime_type=mime)
            for name, mime in kinds.items()
        ]
        return types.ListResourcesResult(resources=resources, ttl_ms=0, cache_scope="private")

    async def list_templates(self, ctx: Context, params: Any) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            uri_template="test://template/{id}/data", name="template", mime_type="application/json"
        )
        return types.ListResourceTemplatesResult(
            resource_templates=[template], ttl_ms=0, cache_scope="private"
        )

    async def read_resource(self, ctx: Context, params: Any) -> types.ReadResourceResult:
        uri = params.uri
        content: types.TextResourceContents | types.BlobResourceContents
        if uri == "test://static-binary":
            content = types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PIXEL)
        elif uri in ("test://static-text", "test://watched-resource"):
            content = types.TextResourceContents(uri=uri, mime_type="text/plain", text=STATIC_TEXT)
        elif uri.startswith("test://template/") and uri.endswith("/data"):
            given = uri.split("/")[3]
            told = f'{{"id":"{given}","templateTest":true,"data":"Data for ID: {given}"}}'
            content = types.TextResourceContents(uri=uri, mime_type="application/json", text=told)
        else:
            code = -32002 if ctx.protocol_version < "2026" else types.INVALID_PARAMS
            raise MCPError(code, "Resource not found", {"uri": uri})
        return types.ReadResourceResult(contents=[content], ttl_ms=0, cache_scope="private")

    async def accept(self, ctx: Context, params: Any) -> types.EmptyResult:
        return types.EmptyResult()

    async def complete(self, ctx: Context, params: Any) -> types.CompleteResult:
        words = ("paris", "park", "party")
        values = [word for word in words if word.startswith(params.argument.value)]
        found = types.Completion(values=values, total=len(values), has_more=False)
        return types.CompleteResult(completion=found)


class Told(Caller, kw_only=True):
    """A call of the SDK's server as the tools of `surface` know calls."""

    ctx: Context

    def __post_init__(self) -> None:
        self.ask = self._asked

    async def _asked(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        if self.era == "2025":
            answer = await self.ctx.session.elicit_form(
                params["message"], params["requestedSchema"], self.ctx.request_id
            )
            return answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        return self.answered("elicitation/create", {**params, "mode": "form"})

    def answered(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """The client's answer, if it came with one. Raises NeedsInput."""
        answer = (self.input_responses or {}).get("answer")
        if answer is None:
            raise NeedsInput(method, params)
        return dict(answer)


def told(ctx: Context, params: types.CallToolRequestParams) -> Told:
    said = params.model_dump(by_alias=True, mode="json", exclude_none=True)
    capabilities = ctx.session.client_capabilities
    known = capabilities.model_dump(by_alias=True, exclude_none=True) if capabilities else {}
    return Told(
        NOBODY,
        ctx=ctx,
        era="2025" if ctx.protocol_version < "2026" else "2026",
        capabilities=known,
        progress=ctx.session.report_progress,
        input_responses=said.get("inputResponses"),
        request_state=said.get("requestState"),
    )


def _said(words: str, *more: Any) -> types.GetPromptResult:
    contents = [*more, types.TextContent(text=words)]
    messages = [types.PromptMessage(role="user", content=content) for content in contents]
    return types.GetPromptResult(messages=messages)


def _asking_prompt(
    params: types.GetPromptRequestParams,
) -> types.GetPromptResult | types.InputRequiredResult:
    if params.input_responses and "user_context" in params.input_responses:
        return _said("Now the context is known.")
    question = types.ElicitRequest(
        params=types.ElicitRequestFormParams(
            message="What context should the prompt use?", requested_schema=_FORM
        )
    )
    return types.InputRequiredResult(input_requests={"user_context": question})


@tool("test_tool_with_logging")
async def logging_steps(surface: Surface, arguments: dict[str, Any], context: Caller) -> Result:
    assert isinstance(context, Told)
    for words in ("started", "processing data", "completed"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MCPDeprecationWarning)
            await context.ctx.session.send_log_message(
                "info", f"Tool {words}", "everything", context.ctx.request_id
            )
        await asyncio.sleep(0.05)
    return text("Logged three times")


@tool("test_sampling", {"type": "object", "properties": {"prompt": {"type": "string"}}})
async def sampling(surface: Surface, arguments: dict[str, Any], context: Caller) -> Result:
    assert isinstance(context, Told)
    message = {"role": "user", "content": {"type": "text", "text": arguments["prompt"]}}
    params = {"messages": [message], "maxTokens": 100}
    if "sampling" not in context.capabilities:
        return {**text("The client can't sample"), "isError": True}
    if context.era == "2025":
        request = types.CreateMessageRequest.model_validate(
            {"method": "sampling/createMessage", "params": params}
        )
        answer = await context.ctx.session.send_request(request, types.CreateMessageResult)
        return text(f"LLM response: {answer.model_dump_json()}")
    return text(f"LLM response: {context.answered('sampling/createMessage', params)}")


def server() -> Server[dict[str, Any]]:
    """The SDK's server over everything."""
    everything = Everything()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        return TellingServer(
            "everything",
            version="1",
            instructions="Everything the runner asks for.",
            on_list_tools=everything.list_tools,
            on_call_tool=everything.call_tool,
            on_list_prompts=everything.list_prompts,
            on_get_prompt=everything.get_prompt,
            on_list_resources=everything.list_resources,
            on_list_resource_templates=everything.list_templates,
            on_read_resource=everything.read_resource,
            on_subscribe_resource=everything.accept,
            on_unsubscribe_resource=everything.accept,
            on_completion=everything.complete,
            on_set_logging_level=everything.accept,
            on_subscriptions_listen=ListenHandler(everything.bus),
            get_tool_input_schema=lambda name: TOOLS[name][0] if name in TOOLS else None,
        )


if __name__ == "__main__":
    uvicorn.run(
        server().streamable_http_app(),
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
