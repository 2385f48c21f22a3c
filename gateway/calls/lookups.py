"""Looks up the values a tool's input may take, by calling the operations its definition names.

Such a call is a call like any other: under the caller's access, within the connection's limits,
recorded and redacted. Three rules keep it harmless. It never waits for a person: a call that needs
an approval is refused. A POST counts as a read only where its definition marks it safe and the
connection is trusted. And an operation that is a tool of its own must be in the caller's view.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import orjson

from gateway.azure.lookup_rules import (
    Call,
    KnownInputs,
    Rule,
    Step,
    call_of,
    entry_of,
    fill_in,
    items_of,
    next_link,
    next_page,
    schema_step,
    values_rule,
    walk,
)
from gateway.calls.record import Caller, failure_in
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.errors import Fixable, GatewayError, Refused, UpstreamFailed
from gateway.limits import LOOKUP_BYTES, LOOKUP_PAGES, LOOKUP_VALUES
from gateway.model import Result, Tool
from gateway.outbound.content import NOT_JSON, as_json
from gateway.policy.access import permit
from gateway.store.database import Database
from gateway.store.ledger import read_result


@dataclass(frozen=True, slots=True)
class LookUp:
    """Looks up inputs of one tool for one caller, who knows some of them already."""

    call: Callable[..., Awaitable[Result]]
    db: Database
    snapshot: Snapshot
    caller: Caller  # without anything that would have its own call go another way
    tool: Tool
    reachable: Collection[str]  # the names of the tools in the caller's view
    known: Mapping[str, Any]

    @property
    def state(self) -> ConnectionState:
        return self.snapshot.connections[self.tool.connection]

    async def values(self, parameter: str) -> dict[str, Any]:
        """The values this input may take: `{values: [{value, title}], more}`."""
        rules = _rules(self.tool)
        if parameter not in rules:
            names = ", ".join(name for name in rules if name) or "none"
            raise Fixable(
                "invalid_arguments",
                f"{self.tool.name} has no look-up for {parameter!r}",
                f"Inputs with one: {names}.",
            )
        rule = values_rule(parameter, rules[parameter])
        if rule.below is None:
            step, inputs = rule.first, self._known_inputs()
        else:  # of a tree: the input's own value is the folder to open
            node = self.known.get(parameter)
            step = rule.first if node is None else rule.below
            inputs = self._known_inputs(node, without=parameter)
        call = call_of(step, self._tool_of(step), inputs, parameter)
        return await self._list_values(call, step, rule)

    async def schema(self) -> dict[str, Any]:
        """The tool's input schema with what depends on the known inputs filled in."""
        schema: dict[str, Any] = orjson.loads(self.tool.input_schema)
        for argument, rules in _rules(self.tool).items():
            step = schema_step(argument or "the body", rules)
            if step is None:
                continue
            call = call_of(step, self._tool_of(step), self._known_inputs(), argument)
            found = walk(await self._answer(call), step.items)
            if isinstance(found, Mapping) and found:
                fill_in(schema, argument, dict(found))
        size, bound = len(orjson.dumps(schema)), self.snapshot.settings.limits.max_schema_bytes
        if size > bound:
            raise Fixable(
                "invalid_arguments",
                f"the schema that was looked up has {size} bytes, more than {bound}",
                "Raise limits.max_schema_bytes to read it.",
            )
        return schema

    def _known_inputs(self, node: Any = None, *, without: str | None = None) -> KnownInputs:
        values = {name: value for name, value in self.known.items() if name != without}
        return KnownInputs(self.tool, values, self.state.settings.inject, node)

    async def _list_values(self, call: Call, step: Step, rule: Rule) -> dict[str, Any]:
        values: list[dict[str, Any]] = []
        link = ""
        for _ in range(LOOKUP_PAGES):
            answer = await self._answer(call)
            entries = (entry_of(item, step, rule) for item in items_of(answer, step.items))
            values += [entry for entry in entries if entry is not None]
            link = next_link(answer)
            next_call = next_page(call.tool, link, self.state.build) if link else None
            if next_call is None or len(values) >= LOOKUP_VALUES:
                break
            call = next_call
        values_and_sizes = zip(values[:LOOKUP_VALUES], accumulate(map(_size, values)), strict=False)
        bound = self.snapshot.settings.limits.max_output_bytes  # of a result
        page = [value for value, size in values_and_sizes if size <= bound]
        return {"values": page, "more": bool(link) or len(values) > len(page)}

    def _tool_of(self, step: Step) -> Tool:
        """The operation a step calls, as this caller may call it."""
        build = self.state.build
        assert build is not None
        for tool in (*build.tools, *build.hidden):
            if tool.operation == step.operation and tool.http is not None:
                break
        else:
            raise Fixable(
                "invalid_arguments",
                f"it is looked up by {step.operation}, which this connection does not have",
                "Give the value itself.",
            )
        if tool in build.tools and tool.name not in self.reachable:
            raise Refused(
                "access_denied",
                f"it is looked up by {tool.name}, which you have no access to",
                "Give the value itself.",
            )
        return _as_look_up(tool)

    async def _answer(self, call: Call) -> Any:
        """The JSON that the call answers with."""
        self._check_allowed(call.tool)
        # No reference: the call never waits, so no process has to find its tool again.
        result = await self.call(self.snapshot, call.tool, call.arguments, self.caller, {})
        structured = result.get("structuredContent")
        if result.get("isError"):
            error = failure_in(result)
            message = f"the look-up failed: {error['message']}"
            raise GatewayError(**{**error, "message": message})
        if isinstance(structured, dict) and structured.get("truncated") is True:
            return await self._read_whole(structured)
        return None if structured is None else orjson.loads(result["content"][0]["text"])

    def _check_allowed(self, tool: Tool) -> None:
        """Refuses a tool that the caller may not call, or not without a person's approval."""
        decision = permit(self.snapshot, self.caller.principal, tool)
        if decision.outcome != "allow":
            raise Refused(
                "access_denied",
                f"this look-up calls {tool.name}, which is not simply allowed: {decision.reason}",
                f'An operator may set permissions.tools.{tool.name} = "allowed".',
            )

    async def _read_whole(self, structured: Mapping[str, Any]) -> Any:
        """Reads an answer from the store, where it is kept as too large for a result."""
        owner = self.caller.principal.name
        row = await read_result(self.db, str(structured.get("result_id")), owner, 0.0)
        if row is None or row.bytes > LOOKUP_BYTES or structured.get("incomplete"):
            raise UpstreamFailed("upstream_error", "the answer to the look-up is too large")
        value = await asyncio.to_thread(as_json, row.body, row.media_type)
        if value is NOT_JSON:
            raise UpstreamFailed("upstream_error", "the answer to the look-up is not JSON")
        return value


def _size(value: Any) -> int:
    return len(orjson.dumps(value)) + 1


def _rules(tool: Tool) -> dict[str, Any]:
    return orjson.loads(tool.lookups) if tool.lookups else {}


def _as_look_up(tool: Tool) -> Tool:
    """The tool as a read, where it is a POST that a trusted definition marks as safe."""
    hints = orjson.loads(tool.entry)["annotations"]
    if tool.access == "write" and tool.trust == "trusted" and hints.get("readOnlyHint"):
        return replace(tool, access="read", risk="none")
    return tool
