"""A definition becomes tools: read, filter, plan each operation, choose revisions, give names.

Pure and synchronous: bytes in, a `Build` out, nothing fetched. An operation that can't be used is
skipped with its reason and never fails the rest. A tool gets its name and its listed input last,
when all other tools are known: equal names get different suffixes, and the largest inputs are cut
down until the whole listing has its size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from gateway import naming
from gateway.limits import MAX_ANSWER_BYTES, MAX_PROBLEMS, NAME_CHARS
from gateway.model import (
    RISK_OF_ACCESS,
    Access,
    Build,
    HttpOperation,
    Problem,
    Risk,
    Severity,
    Skipped,
    Source,
    Tool,
    json_text,
    pack,
    without_constants,
)
from gateway.openapi import bundle, inputs, operations, repeats
from gateway.openapi.bodies import BodyPlan, choose_content, plan_body
from gateway.openapi.document import (
    Document,
    Operation,
    Unusable,
    find_operations,
    mapping,
    media_kind,
    open_document,
    read_definition,
    sequence,
    text_of,
)
from gateway.openapi.inputs import Content, OperationContext, Raw, Slot
from gateway.openapi.operations import Exclusion, Marks
from gateway.openapi.schema import Schemas
from gateway.plain import forms_of

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")


@dataclass(frozen=True, slots=True)
class Plan:
    """A tool without its name and its listed input: both depend on the other tools."""

    operation: Operation
    tool: Tool
    input: bytes  # the schema, before anything is left out of it
    input_size: int

    @property
    def base_url(self) -> str:
        return self.tool.http.base_url if self.tool.http else ""


def build_openapi(raw: bytes, source: Source) -> Build:
    """The tools of one definition. Raises DefinitionUnreadable for what can't be read at all."""
    document = open_document(read_definition(raw), source.location)
    microsoft = b"x-ms-" in raw.replace(b"\0", b"")  # in UTF-16 too
    marks = operations.marks_of(document) if microsoft else Marks()
    del raw  # a large one is memory that the build needs
    title = _about(document, "title", 60)
    source = replace(source, display_name=source.display_name or title or source.connection)
    return _Work(document, source, marks).build()


def _about(document: Document, key: str, length: int) -> str:
    return naming.phrase(mapping(document.root.get("info")).get(key), length)


class _Work:
    """One build under way."""

    def __init__(self, document: Document, source: Source, marks: Marks) -> None:
        self.document, self.source, self.marks = document, source, marks
        self.plans: list[Plan] = []
        self.hidden: list[Plan] = []  # operations that look-ups call, though they are not listed
        self.skipped: list[Skipped] = []
        self.problems: dict[Problem, None] = {}  # for people to read, each once
        self.repeated: list[str] = []  # sentences that most descriptions have
        self.place = ""  # method and path of the operation that is being planned
        self.answer_bytes = 0
        self.whole_bytes = 0
        self.base_url = operations.base_url_of(document, source)
        self.home = operations.home_of(document, source, self.base_url)
        self.input_schemas = Schemas(document, for_inputs=True, report=self.note)
        self.answer_schemas = Schemas(document, for_inputs=False, report=lambda *_: None)
        self.sent_always = operations.sent_with_every_call(document, source)

    def note(self, severity: Severity, message: str, where: str = "") -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems[Problem(severity, where or self.place, message)] = None

    def build(self) -> Build:
        found = find_operations(self.document)
        if not self.base_url:
            self.note("error", "it does not say where the API is: give base_url", "servers")
        if not found:
            self.note("warning", "it has no operations, so there are no tools", "paths")
        self.repeated = repeats.repeated_sentences(found, self.source)
        for operation in found:
            self.plan(operation)
        plans, shared = self.share_words(self.drop_older())
        plans = self.fit_inputs(plans)
        keys = self.check_keys(plans)
        tools, hidden = self.name_tools(plans), self.name_tools(self.fit_inputs(self.hidden))
        own_base_url = operations.base_url_of(self.document, replace(self.source, base_url=None))
        return Build(
            format=self.document.format,
            title=_about(self.document, "title", 200),
            purpose=_about(self.document, "description", 400),
            instructions=repeats.instructions_of(self.repeated, shared),
            base_url=self.base_url,
            tools=tools,
            skipped=tuple(self.skipped),
            problems=(
                *naming.unmatched_patterns(self.source, set(map(operations.name_for_globs, found))),
                *self.problems,
                *naming.collisions(self.source.prefix, [plan.operation for plan in plans]),
            ),
            hidden=hidden,
            names=self.source.names,
            auth_name=keys[0][0] if len(keys) == 1 else None,
            auth_in=keys[0][1] if len(keys) == 1 else None,
            links_base=own_base_url if self.source.kind == "arm" else "",
        )

    def plan(self, operation: Operation) -> None:
        """Plans one operation, or notes why it is no tool."""
        if operation.problem:
            self.skip(operation, operation.problem, self.base_url)
            return
        try:
            base_url = operations.operation_base_url(operation, self.source, self.base_url)
        except Unusable as error:
            self.skip(operation, str(error), self.base_url)
            return
        self.home = self.home or base_url
        exclusion = operations.judge(operation, self.marks, self.source, base_url)
        if reason := operations.foreign_host_reason(self.source, self.home, base_url):
            exclusion = Exclusion(reason)
        if exclusion is not None:
            self.skip(operation, exclusion.reason, base_url)
            if not exclusion.callable or operation.id not in self.marks.looked_up:
                return
        plan = self.attempt(operation, partial(_plan, self, operation, base_url))
        if isinstance(plan, Plan):
            (self.plans if exclusion is None else self.hidden).append(plan)
        elif exclusion is None:
            self.skip(operation, plan, base_url)

    def attempt(self, operation: Operation, step: Callable[[], Plan]) -> Plan | str:
        """What a step makes of an operation, or the reason why it can't."""
        self.place = f"{operation.method} {operation.path}"
        try:
            return step()
        except Unusable as error:
            return str(error)
        except (RecursionError, orjson.JSONEncodeError):
            return "it is nested too deeply"
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            # Anyone may have written the definition: a case we did not foresee costs one operation.
            return f"not understandable ({type(error).__name__})"

    def skip(self, operation: Operation, reason: str, base_url: str) -> None:
        self.skipped.append(
            Skipped(
                operation.id,
                operation.method,
                operation.path,
                reason,
                operations.access_of(operation, self.source),
                self.source.prefix + naming.local_name(operation),
                base_url,
            )
        )

    def drop_older(self) -> list[Plan]:
        """The plans of operations that have no newer revision in the definition."""
        if not self.marks.microsoft:
            return self.plans
        old = operations.older_revisions([plan.operation for plan in self.plans])
        for index, newer in old.items():
            plan = self.plans[index]
            self.skip(plan.operation, f"an older revision of {newer}", plan.base_url)
            if plan.operation.id in self.marks.looked_up:
                self.hidden.append(plan)
        return [plan for index, plan in enumerate(self.plans) if index not in old]

    def share_words(self, plans: Sequence[Plan]) -> tuple[list[Plan], list[str]]:
        """The plans without the words that many inputs share, and these words."""
        whole_inputs = [(plan.tool, plan.input) for plan in plans]
        schemas, shared = repeats.say_inputs_once(whole_inputs, self.source)
        pairs = zip(plans, schemas, strict=True)
        return [replace(plan, input=schema) for plan, schema in pairs], shared

    def fit_inputs(self, plans: Sequence[Plan]) -> list[Plan]:
        """The plans with inputs as they are listed: together they have the size of a listing."""
        room = bundle.fair_share([plan.input_size for plan in plans])
        fitting = []
        for plan in plans:
            outcome = self.attempt(plan.operation, partial(self.with_input, plan, room))
            if isinstance(outcome, Plan):
                fitting.append(outcome)
            elif plan not in self.hidden:
                self.skip(plan.operation, outcome, plan.base_url)
        return fitting

    def with_input(self, plan: Plan, room: int) -> Plan:
        text, complete = bundle.input_schema(plan.input, self.input_schemas, self.note, room)
        listed = without_constants(text)
        whole = b"" if complete and listed is text else self.pack_whole_input(plan)
        return replace(plan, tool=replace(plan.tool, input_schema=listed, whole_schema=whole))

    def pack_whole_input(self, plan: Plan) -> bytes:
        """All of a tool's input, where more is known of it than is listed."""
        whole = bundle.whole_input(plan.input, self.input_schemas)
        packed = pack(whole) if whole else b""
        self.whole_bytes += len(packed)
        return packed if self.whole_bytes <= MAX_ANSWER_BYTES else b""

    def check_keys(self, plans: Sequence[Plan]) -> list[tuple[str, str]]:
        """The API keys that the definition declares; warns where the connection's does not fit."""
        if self.source.auth_type == "none" and all(plan.tool.security for plan in plans) and plans:
            words = f"asks for {plans[0].tool.security}; the connection has no auth"
            self.note("warning", words, "security")
        keys = operations.declared_keys(self.document, self.source)
        if self.source.auth_type == "api-key" and len(keys) > 1:
            several = ", ".join(f"{name} in {place}" for name, place in keys[:5])
            words = f"there are several API keys ({several}): auth.name and auth.in say which"
            self.note("warning", words, "security")
        return keys

    def name_tools(self, plans: Sequence[Plan]) -> tuple[Tool, ...]:
        current = self.source.given if self.source.names == "short" else None
        planned = [plan.operation for plan in plans]
        names = naming.tool_names(self.source.prefix, planned, current)
        return tuple(self.name_tool(plan, name) for plan, name in zip(plans, names, strict=True))

    def name_tool(self, plan: Plan, name: str) -> Tool:
        tool = replace(plan.tool, name=name, local_name=name.removeprefix(self.source.prefix))
        entry = _entry(tool, is_safe=plan.operation.raw.get("x-ms-safe-operation") is True)
        identity = naming.fingerprint(self.source, tool)
        cost, forms = naming.token_cost(entry), forms_of(entry)
        return replace(tool, entry=entry, tokens=cost, fingerprint=identity, forms=forms)


def _entry(tool: Tool, *, is_safe: bool) -> bytes:
    """The tools/list entry, serialised once; the schema is text already and goes in as it is."""
    annotations = naming.tool_annotations(tool.title, tool.access, tool.method)
    if is_safe:
        annotations["readOnlyHint"] = True
    start = orjson.dumps({"name": tool.name, "title": tool.title, "description": tool.description})
    end = orjson.dumps({"annotations": annotations})
    return b'%b,"inputSchema":%b,%b' % (start[:-1], tool.input_schema, end[1:])


# --- one operation --------------------------------------------------------------------------------


def _plan(work: _Work, operation: Operation, base_url: str) -> Plan:
    document, source = work.document, work.source
    declared, raw_body = inputs.read_request(document, operation)
    override = operations.override_of(operation, source)
    access = operations.access_of(operation, source)
    microsoft, arm = work.marks.microsoft, source.kind == "arm"
    path, placed = operations.plan_path(operation, declared, microsoft=microsoft, arm=arm)
    parameters = [raw for raw in placed if _is_input(work, raw, access)]
    context = OperationContext(document, work.input_schemas, source, work.note, operation.method)
    sent, slots = inputs.parameter_slots(context, parameters)
    body_plan, body = BodyPlan(None), choose_content(document, raw_body)
    if body is not None:
        body_plan = plan_body(context, body, tuple(slots))
        slots.extend(body_plan.slots)
    lookups = inputs.look_ups(document, slots, body.schema if body else None) if microsoft else b""
    if lookups:
        slots = [inputs.with_hint(document, slot) for slot in slots]
    contents = _answers(document, operation)
    whole = _whole_input(slots, body_plan)
    tool = Tool(
        name="",
        local_name="",
        connection=source.connection,
        operation=operation.id,
        method=operation.method,
        path=operation.path,
        access=access,
        risk=override.risk or _risk(operation, access),
        trust=source.trust,
        title=naming.tool_title(operation.raw, _name_in_words(operation)),
        description=naming.tool_description(
            source, operation.raw, override.description, work.place, work.repeated
        ),
        http=HttpOperation(
            method=operation.method,
            base_url=base_url,
            path=path,
            parameters=tuple(sent),
            body=body_plan.body,
            accept=_accept(contents, parameters),
            idempotency_header=source.idempotency_header,
            headers_out=override.headers_out or (),
        ),
        output_schema=_answer(work, contents),
        keywords=_keywords(operation, slots),
        lookups=lookups,
        security=operations.required_credentials(document, operation),
    )
    return Plan(operation, tool, whole, bundle.input_size(whole, work.input_schemas))


def _name_in_words(operation: Operation) -> str:
    """The operation's name for people: an id that is not ASCII as it is."""
    id = operation.id or ""
    return naming.short_name(operation) if id.isascii() else naming.phrase(id, NAME_CHARS)


def _is_input(work: _Work, raw: Raw, access: Access) -> bool:
    """Whether callers can give this parameter, and the connection does not send it itself."""
    place, name = raw["in"], inputs.fold_name(raw["in"], raw["name"])
    if place == "header" and not _HEADER_NAME.fullmatch(name):
        work.note("warning", f"no header can be called {name!r}: it is never sent")
        return False
    token = (work.source.idempotency_header or "").lower() if access != "read" else ""
    return (place, name) not in work.sent_always and (place, name) != ("header", token)


def _risk(operation: Operation, access: Access) -> Risk:
    not_for_agents = "AgentHidden" in sequence(operation.raw.get("tags"))
    return "high" if not_for_agents else RISK_OF_ACCESS[access]


def _whole_input(slots: Sequence[Slot], body: BodyPlan) -> bytes:
    ordered = sorted(slots, key=lambda slot: slot.rank)
    root: dict[str, Any] = {
        "type": "object",
        "properties": {slot.argument: slot.schema for slot in ordered},
    }
    if required := [slot.argument for slot in ordered if slot.required]:
        root["required"] = required
    root |= {"additionalProperties": False, **body.keywords}
    return json_text(root)


def _accept(contents: Sequence[Content], parameters: Sequence[Raw]) -> str:
    """The Accept header: our choice, unless a parameter of this name allows only others."""
    types = [content.media_type for content in contents]
    json = next((kind for kind in types if media_kind(kind) == "json" and "*" not in kind), None)
    own = json or ", ".join(types[:5]) or "application/json"
    for header in (raw for raw in parameters if raw["name"] == "Accept"):
        allowed = [kind for kind in sequence(header.get("enum")) if isinstance(kind, str)]
        default = text_of(header.get("default")).strip()
        return default or (own if own in allowed or not allowed else allowed[0])
    return own


def _answer(work: _Work, contents: Sequence[Content]) -> bytes | None:
    if work.answer_bytes > MAX_ANSWER_BYTES:
        return None  # a comfort that is not worth more
    schemas = work.answer_schemas
    for content in contents:
        if content.schema is not None and media_kind(content.media_type) == "json":
            answer = bundle.output_schema(json_text(schemas.translate(content.schema)), schemas)
            work.answer_bytes += len(answer or b"")
            return answer
    return None


def _answers(document: Document, operation: Operation) -> tuple[Content, ...]:
    """What a successful answer may be: the contents of the first 2xx response that has any."""
    responses = mapping(operation.raw.get("responses"))
    for status in sorted(key for key in responses if key.startswith("2")):
        response = document.find(responses[status])
        if document.swagger and "schema" in response:
            types = inputs.media_types(document, operation, "produces") or ["application/json"]
            response = {"content": dict.fromkeys(types, {"schema": response["schema"]})}
        if contents := inputs.contents_of(document, response):
            return contents
    return ()


def _keywords(operation: Operation, slots: Sequence[Slot]) -> str:
    """The words by which a search finds a tool, beside its name and its description."""
    tags = [tag[:50] for tag in sequence(operation.raw.get("tags"))[:20] if isinstance(tag, str)]
    return " ".join([*tags, *(slot.argument for slot in slots)])[:1_000]
