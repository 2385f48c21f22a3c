"""The gateway's own tools for looking up what may go into another tool's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gateway.errors import NotFound
from gateway.invoke.lookups import Question

if TYPE_CHECKING:
    from gateway.edge.meta_tools import Asked


async def lookup_values(asked: Asked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What may go into one input of a tool."""
    question = _question(asked, arguments)
    return await asked.gateway.lookups.values(question, arguments["parameter"])


async def lookup_schema(asked: Asked, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A tool's input schema with what depends on the known inputs filled in."""
    question = _question(asked, arguments)
    schema = await asked.gateway.lookups.schema(question)
    return {"tool": question.tool.name, "input_schema": schema}


def _question(asked: Asked, arguments: Mapping[str, Any]) -> Question:
    tools = asked.view.tools
    tool = tools.get(arguments["tool"])
    if tool is None:
        raise NotFound(
            "invalid_arguments",
            f"there is no tool {arguments['tool']!r}",
            "list_dynamic_tools names those you can call.",
        )
    # What the caller wants of this call (a token, to be run later) is not about the calls it makes.
    caller = replace(asked.context, meta={}, input_responses=None, request_state=None)
    return Question(
        asked.snapshot,
        caller,
        tool,
        tools.keys(),
        arguments.get("known", {}),
        asked.view.bundle_ids,
    )
