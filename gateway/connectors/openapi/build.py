"""A definition becomes tools: read, filter, plan each operation, choose revisions, name, finish.

Pure and synchronous: bytes in, a `Build` out, nothing fetched. An operation that can't be used is
skipped with its reason and never fails the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson

from gateway.connectors.naming import Nameable, collisions, local_name, tool_names
from gateway.connectors.openapi.arguments import ArgumentNames, Slot, parameter_slots
from gateway.connectors.openapi.bodies import Surroundings, body_slots, chosen_content, media_kind
from gateway.connectors.openapi.bundle import (
    INPUT_BUDGET,
    fair_share,
    input_budget,
    input_schema,
    output_schema,
)
from gateway.connectors.openapi.checks import written
from gateway.connectors.openapi.document import (
    Document,
    Operation,
    Unusable,
    mapping,
    open_document,
    operations,
    sequence,
    spend,
    text_of,
)
from gateway.connectors.openapi.inputs import (
    Content,
    Input,
    answers,
    inputs,
    parameters,
    request_body,
)
from gateway.connectors.openapi.lookups import dead_look_ups, look_ups, with_hint
from gateway.connectors.openapi.paths import called_path, path_inputs
from gateway.connectors.openapi.reading import read_definition
from gateway.connectors.openapi.schema import Schemas
from gateway.connectors.openapi.security import (
    declared_key,
    folded,
    provided_by_auth,
    required_credentials,
)
from gateway.connectors.openapi.selection import (
    NO_MARKS,
    Marks,
    Refusal,
    has_marks,
    marks_of,
    override_of,
    refusal,
    superseded,
)
from gateway.connectors.openapi.servers import base_url_of, elsewhere, home_of, operation_base_url
from gateway.connectors.openapi.wording import phrase, tool_description, tool_title
from gateway.connectors.tools import fingerprint, token_cost, tool_annotations
from gateway.errors import DefinitionUnreadable
from gateway.model import (
    RISK_OF_ACCESS,
    Access,
    Build,
    HttpOperation,
    Problem,
    Severity,
    Skipped,
    Source,
    Tool,
    digest,
)

MAX_DISPLAY_NAME = 60
MAX_PROBLEMS = 200
MAX_LISTED = 24 * 1024 * 1024
MAX_ANSWERS = 12 * 1024 * 1024  # bytes of answers' schemas that are kept
MAX_KEYWORDS = 1_000  # characters
_MAX_ACCEPTED = 5
_LONG_TEXT = 4_096
_WORDS_COST = 256  # characters, for one unit of work
_OPERATION_COST = 5  # units of work, whatever is in it
_ACCESS: dict[str, Access] = {"GET": "read", "HEAD": "read", "DELETE": "delete"}


def build_openapi(raw: bytes, source: Source) -> Build:
    """The tools of one definition. Raises DefinitionUnreadable for what can't be read at all."""
    document, microsoft = open_document(read_definition(raw)), has_marks(raw)
    del raw  # as large as what was read from it, and not needed beside it
    title = phrase(mapping(document.root.get("info")).get("title"), MAX_DISPLAY_NAME)
    source = replace(source, display_name=source.display_name or title or source.connection)
    marks = marks_of(document) if microsoft else NO_MARKS
    work = _Work(document, source, marks, base_url_of(document, source))
    if not work.base_url:
        work.reports.add("error", "servers", "it does not say where the API is: give base_url")
    found = list(operations(document))
    if not found:
        work.reports.add("warning", "paths", "it has no operations, so there are no tools")
    work.budget = input_budget(len(found))
    for each in found:
        work.take(each)
    return work.finish()


@dataclass(frozen=True, slots=True)
class _Plan:
    """All there is to a tool but its name."""

    operation: Operation
    http: HttpOperation
    slots: tuple[Slot, ...]
    schema: bytes
    answer: bytes | None
    keywords: str
    lookups: bytes
    security: str


@dataclass(slots=True)
class _Reports:
    """What there is to say about a definition, each thing once.

    Apart from the work, which hands it out: what is finished is freed at once, without a circle.
    """

    problems: dict[Problem, None] = field(default_factory=dict)
    place: str = ""

    def here(self, severity: str, message: str) -> None:
        self.add(cast(Severity, severity), self.place, message)

    def add(self, severity: Severity, where: str, message: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems[Problem(severity, where, message)] = None


@dataclass(slots=True)
class _Work:
    """One build under way."""

    document: Document
    source: Source
    marks: Marks
    base_url: str
    plans: list[_Plan] = field(default_factory=list)
    hidden: list[_Plan] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    reports: _Reports = field(default_factory=_Reports)
    home: str = ""
    budget: int = INPUT_BUDGET
    listed_bytes: int = 0
    answer_bytes: int = 0
    answers: dict[bytes, bytes | None] = field(default_factory=dict)  # by what they begin with
    taken: Schemas = field(init=False)
    given: Schemas = field(init=False)
    provided: frozenset[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.taken = Schemas(self.document, "input", self.reports.here)
        self.given = Schemas(self.document, "output", lambda severity, message: None)
        self.provided = provided_by_auth(self.document, self.source)
        self.home = home_of(self.document, self.source, self.base_url)

    def take(self, found: Operation | tuple[str, str, str]) -> None:
        """Plan one operation, or note why not."""
        if not isinstance(found, Operation):
            method, path, reason = found
            self.skipped.append(Skipped(None, method, path, reason))
            return
        self.reports.place = f"{found.method} {found.path}"
        spend(self.document, _OPERATION_COST + _length_of_words(found) // _WORDS_COST)
        base_url = operation_base_url(self.document, found, self.source, self.base_url)
        self.home = self.home or base_url
        refused = refusal(self.document, found, self.marks, self.source, base_url)
        if away := elsewhere(self.source, self.home, base_url):
            refused = Refusal(away)
        if refused is not None:
            self.skip(found, refused.reason)
            self.hide(found, refused, base_url)
        elif isinstance(plan := self.planned(found, base_url), _Plan):
            self.plans.append(plan)
        else:
            self.skip(found, plan)

    def hide(self, operation: Operation, refused: Refusal, base_url: str) -> None:
        """Keep what look-ups call, though nobody is shown it."""
        wanted = refused.callable and operation.id in self.marks.looked_up
        if wanted and isinstance(plan := self.planned(operation, base_url), _Plan):
            self.hidden.append(plan)

    def planned(self, operation: Operation, base_url: str) -> _Plan | str:
        """The plan, or the reason why there can't be one."""
        try:
            return _plan(self, operation, base_url)
        except Unusable as error:
            return str(error)
        except (RecursionError, orjson.JSONEncodeError):
            return "it is nested too deeply"
        except (TypeError, ValueError, KeyError, AttributeError, IndexError) as error:
            # The definition is anyone's writing: what we did not foresee costs one operation.
            return f"not understandable ({type(error).__name__})"

    def finish(self) -> Build:
        """Choose revisions, give names, and put everything together."""
        old = superseded([plan.operation for plan in self.plans]) if self.marks.microsoft else {}
        for index, newer in old.items():
            operation = self.plans[index].operation
            self.skip(operation, f"an older revision of {newer}")
            if operation.id in self.marks.looked_up:
                self.hidden.append(self.plans[index])
        plans = [plan for index, plan in enumerate(self.plans) if index not in old]
        key, hidden = declared_key(self.document), self.named(self.hidden)
        tools = self.named(self.fitted(plans))
        shared = collisions(self.source.prefix, [_nameable(p.operation) for p in plans])
        if self.source.auth_type == "none" and all(tool.security for tool in tools) and tools:
            asked = tools[0].security
            self.reports.add("warning", "security", f"asks for {asked}; the connection has no auth")
        return Build(
            format=self.document.format,
            title=phrase(mapping(self.document.root.get("info")).get("title"), 200),
            base_url=self.base_url,
            tools=tools,
            skipped=tuple(self.skipped),
            problems=(*self.reports.problems, *dead_look_ups(tools, hidden), *shared),
            hidden=hidden,
            auth_name=key[0],
            auth_in=key[1],
        )

    def fitted(self, plans: Sequence[_Plan]) -> list[_Plan]:
        """The same, with the largest inputs cut down until a whole listing has its size."""
        share = fair_share([len(plan.schema) for plan in plans])
        return [plan if len(plan.schema) <= share else self.cut_down(plan, share) for plan in plans]

    def cut_down(self, plan: _Plan, share: int) -> _Plan:
        self.reports.place = f"{plan.operation.method} {plan.operation.path}"
        self.listed_bytes -= len(plan.schema)
        try:
            return replace(plan, schema=_input_schema(self, plan.slots, share))
        except Unusable:  # it costs room then, but not the other operations
            return plan

    def named(self, plans: Sequence[_Plan]) -> tuple[Tool, ...]:
        """The finished tools, under names that are theirs alone."""
        wanted = [_nameable(plan.operation) for plan in plans]
        names = tool_names(self.source.prefix, wanted)
        pairs = zip(plans, names, strict=True)
        return tuple(_tool(plan, name, self.source) for plan, name in pairs)

    def skip(self, operation: Operation, reason: str) -> None:
        self.skipped.append(Skipped(operation.id, operation.method, operation.path, reason))


def _nameable(operation: Operation) -> Nameable:
    return Nameable(operation.id, operation.method, operation.path)


def _length_of_words(operation: Operation) -> int:
    texts = (text_of(operation.raw.get(key)) for key in ("summary", "description"))
    return sum(min(len(text), _LONG_TEXT) for text in texts)


# --- one operation --------------------------------------------------------------------------------


def _plan(work: _Work, operation: Operation, base_url: str) -> _Plan:
    document, source = work.document, work.source
    listed = parameters(document, operation)
    declared = inputs(document, listed)
    path, fixed = called_path(
        operation, declared, microsoft=work.marks.microsoft, arm=source.kind == "arm"
    )
    wanted = [each for each in path_inputs(path, declared) if not _is_provided(work, each)]
    names = ArgumentNames()
    sent, slots = parameter_slots(document, wanted, names, work.taken, source)
    body, taken = None, None
    if (written := request_body(document, operation, listed)) is not None:
        around = Surroundings(document, work.taken, source, operation.method)
        body, more = body_slots(around, written, names)
        slots.extend(more)
        taken = chosen_content(written).schema
    contents = answers(document, operation)
    http = HttpOperation(
        method=operation.method,
        base_url=base_url,
        path=path,
        parameters=(*sent, *fixed),
        body=body,
        accept=_accept(contents),
        idempotency_header=source.idempotency_header,
    )
    lookups = look_ups(document, slots, taken) if work.marks.microsoft else b""
    if lookups:
        slots = [with_hint(document, slot) for slot in slots]
    return _Plan(
        operation=operation,
        http=http,
        slots=tuple(slots),
        schema=_input_schema(work, slots, work.budget),
        answer=_answer(work, contents),
        keywords=_keywords(operation, slots),
        lookups=lookups,
        security=required_credentials(document, operation),
    )


def _is_provided(work: _Work, given: Input) -> bool:
    return (given.place, folded(given.place, given.name)) in work.provided


def _input_schema(work: _Work, slots: Sequence[Slot], budget: int) -> bytes:
    ordered = sorted(slots, key=lambda slot: slot.rank)
    root: dict[str, Any] = {
        "type": "object",
        "properties": {slot.argument: slot.schema for slot in ordered},
    }
    if required := [slot.argument for slot in ordered if slot.required]:
        root["required"] = required
    root["additionalProperties"] = False
    refs = dict.fromkeys(ref for slot in ordered for ref in slot.refs)
    schema = input_schema(root, refs, work.taken, work.reports.here, budget)
    work.listed_bytes += len(schema)
    if work.listed_bytes > MAX_LISTED:
        raise DefinitionUnreadable(
            f"The definition's tools would take more than {MAX_LISTED // 1024 // 1024} MB to list.",
            "Split the definition, or serve only the part that is needed.",
        )
    return schema


def _accept(contents: Sequence[Content]) -> str:
    types = [content.media_type for content in contents]
    json = next((kind for kind in types if media_kind(kind) == "json" and "*" not in kind), None)
    return json or ", ".join(types[:_MAX_ACCEPTED]) or "application/json"


def _answer(work: _Work, contents: Sequence[Content]) -> bytes | None:
    if work.answer_bytes > MAX_ANSWERS:
        return None  # a comfort that is not worth more
    for content in contents:
        if content.schema is not None and media_kind(content.media_type) == "json":
            fragment = work.given.translate(content.schema)
            key = written(fragment.schema)
            if key not in work.answers:
                work.answers[key] = output_schema(fragment.schema, fragment.refs, work.given)
            work.answer_bytes += len(work.answers[key] or b"")
            return work.answers[key]
    return None


def _keywords(operation: Operation, slots: Sequence[Slot]) -> str:
    tags = [tag[:50] for tag in sequence(operation.raw.get("tags"))[:20] if isinstance(tag, str)]
    return " ".join([*tags, *(slot.argument for slot in slots)])[:MAX_KEYWORDS]


def _tool(plan: _Plan, name: str, source: Source) -> Tool:
    operation, raw = plan.operation, plan.operation.raw
    override = override_of(operation, source)
    access = override.access or _ACCESS.get(operation.method, "write")
    not_for_agents = "AgentHidden" in sequence(raw.get("tags"))
    words = local_name(_nameable(operation))
    title = tool_title(raw, words)
    description = tool_description(
        source, raw, override.description, f"{operation.method} {operation.path}"
    )
    annotations = tool_annotations(title, access, operation.method)
    if raw.get("x-ms-safe-operation") is True:
        annotations["readOnlyHint"] = True
    entry = _entry(name, title, description, plan.schema, annotations)
    return Tool(
        name=name,
        local_name=name.removeprefix(source.prefix),
        connection=source.connection,
        operation=operation.id,
        method=operation.method,
        path=operation.path,
        access=access,
        risk=override.risk or ("high" if not_for_agents else RISK_OF_ACCESS[access]),
        trust=source.trust,
        title=title,
        description=description,
        input_schema=plan.schema,
        entry=entry,
        tokens=token_cost(entry),
        fingerprint=_fingerprint(plan, source, access, description),
        http=plan.http,
        output_schema=plan.answer,
        keywords=plan.keywords,
        security=plan.security,
        lookups=plan.lookups,
    )


def _fingerprint(plan: _Plan, source: Source, access: Access, description: str) -> str:
    """Another credential is another tool to whoever approved it."""
    plain = fingerprint(source, plan.http, access, description, plan.schema)
    return digest(f"{plain} {plan.security}".encode()) if plan.security else plain


def _entry(
    name: str, title: str, description: str, schema: bytes, annotations: dict[str, str | bool]
) -> bytes:
    """The tools/list entry; the schema is text already and goes in as it is."""
    start = orjson.dumps({"name": name, "title": title, "description": description})
    end = orjson.dumps({"annotations": annotations})
    return b'%b,"inputSchema":%b,%b' % (start[:-1], schema, end[1:])
