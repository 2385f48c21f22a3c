"""Looks up what may go into a tool's input: by calling the operations its definition names.

Such a call is a call like any other: under the caller's access, within the connection's limits,
recorded and redacted. Three rules keep it harmless. It never waits for a person: what would have to
be confirmed is refused. A POST counts as a read only where its definition marks it safe and the
connection is trusted. And an operation that is a tool of its own must be in the caller's view.
Answers are remembered for a minute, for one principal and the same arguments.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson
from cachetools import TTLCache

from gateway.azure.lookup_rules import (
    Call,
    Known,
    Rule,
    Step,
    call_of,
    entry_of,
    fill_in,
    following,
    items_of,
    next_link,
    schema_step,
    values_rule,
    walk,
)
from gateway.calls.record import Caller, Door, arguments_digest
from gateway.catalog.snapshot import ConnectionState, Snapshot
from gateway.errors import Fixable, GatewayError, Refused, UpstreamFailed
from gateway.limits import (
    KEEP_SECONDS,
    LOOKUP_BYTES,
    LOOKUP_PAGES,
    LOOKUP_VALUES,
    MAX_ANSWER_BYTES,
)
from gateway.model import Result, Tool
from gateway.outbound.content import NOT_JSON, as_json
from gateway.policy.access import decide, level, shows
from gateway.store.database import Database
from gateway.store.ledger import read_result


@dataclass(frozen=True, slots=True)
class Question:
    """Who asks about which tool, and what they know already."""

    snapshot: Snapshot
    caller: Caller  # without anything that would have its own call go another way
    tool: Tool
    reachable: Collection[str]  # the names of the tools in the caller's view
    known: Mapping[str, Any] = field(default_factory=dict)
    bundle_ids: tuple[str, ...] = ()

    @property
    def state(self) -> ConnectionState:
        return self.snapshot.connections[self.tool.connection]


class LookUps:
    """Carries look-ups out."""

    def __init__(self, call: Callable[..., Awaitable[Result]], db: Database) -> None:
        self._call = call
        self._db = db
        self._answers: TTLCache[tuple[str, int, str], bytes] = TTLCache(
            MAX_ANSWER_BYTES, KEEP_SECONDS, getsizeof=len
        )

    async def values(self, asked: Question, parameter: str) -> dict[str, Any]:
        """What may go into this input: `{values: [{value, title}], more}`."""
        rules = _rules(asked.tool)
        if parameter not in rules:
            raise _nothing_to_look_up(asked.tool, parameter, rules)
        rule = values_rule(parameter, rules[parameter])
        node = asked.known.get(parameter) if rule.below is not None else None
        step = rule.below if rule.below is not None and node is not None else rule.first
        known = _known(asked, node, without=parameter if rule.below is not None else None)
        call = call_of(step, self._target(asked, step), known, parameter)
        return await self._listed(asked, call, step, rule)

    async def schema(self, asked: Question) -> dict[str, Any]:
        """The tool's input schema with what depends on the known inputs filled in."""
        schema: dict[str, Any] = orjson.loads(asked.tool.input_schema)
        for argument, rules in _rules(asked.tool).items():
            step = schema_step(argument or "the body", rules)
            if step is None:
                continue
            call = call_of(step, self._target(asked, step), _known(asked), argument)
            found = walk(await self._answer(asked, call), step.items)
            if isinstance(found, Mapping) and found:
                fill_in(schema, argument, dict(found))
        size, bound = len(orjson.dumps(schema)), asked.snapshot.settings.limits.max_schema_bytes
        if size > bound:
            raise Fixable(
                "invalid_arguments",
                f"the schema that was looked up has {size} bytes, more than {bound}",
                "Raise limits.max_schema_bytes to read it.",
            )
        return schema

    async def _listed(self, asked: Question, call: Call, step: Step, rule: Rule) -> dict[str, Any]:
        values: list[dict[str, Any]] = []
        link = ""
        for _ in range(LOOKUP_PAGES):
            answer = await self._answer(asked, call)
            found = (entry_of(item, step, rule) for item in items_of(answer, step.items))
            values += [entry for entry in found if entry is not None]
            link = next_link(answer)
            onward = following(call.tool, link, asked.state.build) if link else None
            if onward is None or len(values) >= LOOKUP_VALUES:
                break
            call = onward
        shown = _fitting(values[:LOOKUP_VALUES], asked.snapshot.settings.limits.max_output_bytes)
        return {"values": shown, "more": bool(link) or len(values) > len(shown)}

    def _target(self, asked: Question, step: Step) -> Tool:
        """The operation a step calls, as this caller may call it."""
        build = asked.state.build
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
        if tool in build.tools and tool.name not in asked.reachable:
            raise Refused(
                "access_denied",
                f"it is looked up by {tool.name}, which you have no access to",
                "Give the value itself.",
            )
        return _as_look_up(tool)

    async def _answer(self, asked: Question, call: Call) -> Any:
        """The JSON that the call answers with, perhaps remembered."""
        tool, state = call.tool, asked.state
        principal = asked.caller.principal
        if not shows(level(asked.snapshot, principal, state), tool):
            raise Refused(
                "read_only",
                f"this look-up is a {tool.access} ({tool.name}), and you may only read",
                "Give the value itself.",
            )
        decision = decide(tool, asked.snapshot.permissions)
        if decision.outcome != "allow":
            raise Refused(
                "access_denied",
                f"this look-up calls {tool.name}, which is not simply allowed: {decision.reason}",
                f'An operator may set permissions.tools.{tool.name} = "allowed".',
            )
        # Its revision: put again, a connection may speak for someone else.
        key = (principal.name, state.revision, _address(call))
        known = self._answers.get(key)
        if known is None:
            known = await self._asked(asked, call)
            self._answers[key] = known
        return await asyncio.to_thread(orjson.loads, known) if known else None

    async def _asked(self, asked: Question, call: Call) -> bytes:
        door = Door(lambda snapshot, principal: (call.tool, call.tool))  # it never waits
        result = await self._call(
            asked.snapshot, call.tool, call.arguments, asked.caller, door, asked.bundle_ids
        )
        structured = result.get("structuredContent")
        if result.get("isError"):
            raise _failure(structured)
        if isinstance(structured, dict) and structured.get("truncated") is True:
            return await self._whole(asked, structured)
        if structured is None:
            return b""
        return orjson.dumps(_plain(result, structured))

    async def _whole(self, asked: Question, structured: Mapping[str, Any]) -> bytes:
        """An answer too large for a result is kept for its caller: it is read there."""
        owner = asked.caller.principal.name
        kept = await read_result(self._db, str(structured.get("result_id")), owner, 0.0)
        if kept is None or kept.bytes > LOOKUP_BYTES or structured.get("incomplete"):
            raise UpstreamFailed("upstream_error", "the answer to the look-up is too large")
        value = await asyncio.to_thread(as_json, kept.body, kept.media_type)
        if value is NOT_JSON:
            raise UpstreamFailed("upstream_error", "the answer to the look-up is not JSON")
        return orjson.dumps(value)


def _rules(tool: Tool) -> dict[str, Any]:
    return orjson.loads(tool.lookups) if tool.lookups else {}


def _known(asked: Question, node: Any = None, *, without: str | None = None) -> Known:
    values = {name: value for name, value in asked.known.items() if name != without}
    return Known(asked.tool, values, asked.state.settings.inject, node)


def _as_look_up(tool: Tool) -> Tool:
    """A POST that is marked safe reads, if the one who marks it is trusted."""
    if tool.access == "write" and tool.trust == "trusted" and _marked_safe(tool):
        return replace(tool, access="read", risk="none")
    return tool


def _marked_safe(tool: Tool) -> bool:
    return orjson.loads(tool.entry)["annotations"].get("readOnlyHint") is True


def _address(call: Call) -> str:
    """Names the request, whatever it is called for."""
    http = call.tool.http
    assert http is not None
    fixed = [[p.name, p.constant] for p in http.parameters if p.constant is not None]
    return arguments_digest(
        {
            "of": call.tool.connection,
            "tool": call.tool.fingerprint,
            "path": http.path,
            "fixed": fixed,
            "is": call.arguments,
        }
    )


def _plain(result: Mapping[str, Any], structured: Any) -> Any:
    """What the API answered: other JSON than objects is in a result as `{"result": …}`."""
    text = next((part["text"] for part in result["content"] if part.get("type") == "text"), "")
    wrapped = structured.keys() == {"result"} and not text.lstrip().startswith("{")
    return structured["result"] if wrapped else structured


def _fitting(values: list[dict[str, Any]], bound: int) -> list[dict[str, Any]]:
    """As many as a result may hold."""
    size = 0
    for index, value in enumerate(values):
        size += len(orjson.dumps(value)) + 1
        if size > bound:
            return values[:index]
    return values


def _failure(structured: Any) -> GatewayError:
    error = structured.get("error", {}) if isinstance(structured, Mapping) else {}
    details = {key: value for key, value in error.items() if key not in ("code", "message", "hint")}
    message = f"the look-up failed: {error.get('message', 'no reason was given')}"
    return GatewayError(
        error.get("code", "upstream_error"), message, error.get("hint", ""), **details
    )


def _nothing_to_look_up(tool: Tool, parameter: str, rules: Mapping[str, Any]) -> Fixable:
    listed = ", ".join(name for name in rules if name) or "none"
    return Fixable(
        "invalid_arguments",
        f"{tool.name} has no look-up for {parameter!r}",
        f"Inputs with one: {listed}.",
    )
