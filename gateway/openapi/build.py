"""A definition becomes plans of tools: read, filter, plan each operation, choose revisions.

Pure and synchronous: bytes in, a `Build` out, nothing fetched. An operation that can't be used is
skipped with its reason and never fails the rest.

Plans become tools: once all are made, each gets a name of its own, and the entry that lists it.

Nothing here is as the definition writes it: by now that is gone, and its room is for the tools.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast

import orjson

from gateway.blocklist import left_out
from gateway.errors import DefinitionUnreadable
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
    digest,
    pack,
    without_constants,
)
from gateway.openapi.bodies import Surroundings, Taken, chosen_content, media_kind, taken_body
from gateway.openapi.bundle import (
    INPUT_BUDGET,
    Listed,
    fair_share,
    input_budget,
    input_schema,
    output_schema,
    whole_input,
)
from gateway.openapi.document import (
    Document,
    Operation,
    Unusable,
    base_url_of,
    count_operations,
    declared_keys,
    elsewhere,
    folded,
    home_of,
    mapping,
    open_document,
    operation_base_url,
    operations,
    required_credentials,
    sent_with_every_call,
    sequence,
    spend,
    text_of,
)
from gateway.openapi.inputs import (
    ArgumentNames,
    Content,
    Input,
    Slot,
    answers,
    dead_look_ups,
    inputs,
    look_ups,
    parameter_slots,
    parameters,
    request_body,
    with_hint,
    without_detours,
)
from gateway.openapi.naming import Nameable, collisions, local_name, tool_names, unmatched
from gateway.openapi.operations import (
    NO_MARKS,
    Marks,
    Refusal,
    Revision,
    access_of,
    called_path,
    has_marks,
    marks_of,
    name_for_globs,
    override_of,
    refusal,
    revision_of,
    superseded,
)
from gateway.openapi.reading import PartUnreadable, read_definition, read_in_parts
from gateway.openapi.schema import Schemas, written
from gateway.openapi.wording import (
    fingerprint,
    phrase,
    token_cost,
    tool_annotations,
    tool_description,
    tool_title,
)


@dataclass(frozen=True, slots=True)
class Whole:
    """A tool's input before anything is left out of it."""

    root: dict[str, Any]
    refs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """All there is to a tool but its name."""

    operation: Nameable
    revision: Revision | None
    title: str
    description: str
    access: Access
    risk: Risk
    safe: bool  # the definition says that it only reads
    http: HttpOperation
    listed: Listed
    whole: Whole | None  # where more of it may be needed than is listed now
    answer: bytes | None
    keywords: str
    lookups: bytes
    security: str
    whole_schema: bytes = b""  # packed


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a definition was needed for."""

    source: Source
    format: str
    title: str
    base_url: str
    own_base_url: str  # whatever is configured
    plans: tuple[Plan, ...]
    hidden: tuple[Plan, ...]
    skipped: tuple[Skipped, ...]
    problems: tuple[Problem, ...]
    key: tuple[str | None, str | None]


def finished(found: Findings) -> Build:
    """The build, its tools under names that are theirs alone."""
    tools, hidden = _named(found.plans, found.source), _named(found.hidden, found.source)
    shared = collisions(found.source.prefix, [plan.operation for plan in found.plans])
    return Build(
        format=found.format,
        title=found.title,
        base_url=found.base_url,
        tools=tools,
        skipped=found.skipped,
        problems=(*found.problems, *dead_look_ups(tools, hidden), *shared),
        hidden=hidden,
        auth_name=found.key[0],
        auth_in=found.key[1],
        links_base=found.own_base_url if found.source.kind == "arm" else "",
    )


def _named(plans: Sequence[Plan], source: Source) -> tuple[Tool, ...]:
    names = tool_names(source.prefix, [plan.operation for plan in plans])
    return tuple(_tool(plan, name, source) for plan, name in zip(plans, names, strict=True))


def _tool(plan: Plan, name: str, source: Source) -> Tool:
    annotations = tool_annotations(plan.title, plan.access, plan.operation.method)
    if plan.safe:
        annotations["readOnlyHint"] = True
    entry = _entry(name, plan.title, plan.description, plan.listed.text, annotations)
    return Tool(
        name=name,
        local_name=name.removeprefix(source.prefix),
        connection=source.connection,
        operation=plan.operation.operation,
        method=plan.operation.method,
        path=plan.operation.path,
        access=plan.access,
        risk=plan.risk,
        trust=source.trust,
        title=plan.title,
        description=plan.description,
        input_schema=plan.listed.text,
        entry=entry,
        tokens=token_cost(entry),
        fingerprint=_fingerprint(plan, source),
        http=plan.http,
        output_schema=plan.answer,
        keywords=plan.keywords,
        security=plan.security,
        lookups=plan.lookups,
        whole_schema=plan.whole_schema,
    )


def _fingerprint(plan: Plan, source: Source) -> str:
    """Another credential is another tool to whoever approved it."""
    plain = fingerprint(source, plan.http, plan.access, plan.description, plan.listed.text)
    return digest(f"{plain} {plan.security}".encode()) if plan.security else plain


def _entry(
    name: str, title: str, description: str, schema: bytes, annotations: dict[str, str | bool]
) -> bytes:
    """The tools/list entry; the schema is text already and goes in as it is."""
    start = orjson.dumps({"name": name, "title": title, "description": description})
    end = orjson.dumps({"annotations": annotations})
    return b'%b,"inputSchema":%b,%b' % (start[:-1], schema, end[1:])


MAX_DISPLAY_NAME = 60
MAX_PROBLEMS = 200
MAX_LISTED = 24 * 1024 * 1024
MAX_ANSWERS = 12 * 1024 * 1024  # bytes of answers' schemas that are kept
MAX_WHOLE_INPUTS = 8 * 1024 * 1024  # packed, of those that are not listed whole
MAX_KEYWORDS = 1_000  # characters
MAX_KEYS = 5  # named in a problem
_MAX_ACCEPTED = 5
_LONG_TEXT = 4_096
_WORDS_COST = 256  # characters, for one unit of work
_OPERATION_COST = 5  # units of work, whatever is in it
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")


def build_openapi(raw: bytes, source: Source) -> Build:
    """The tools of one definition. Raises DefinitionUnreadable for what can't be read at all."""
    found = None
    with suppress(PartUnreadable):
        found = _findings(read_in_parts(raw), source, has_marks(raw))
    if found is None:
        found = _findings(read_definition(raw), source, has_marks(raw))
    del raw  # tools need the room
    return finished(found)


def _findings(definition: Mapping[str, Any], source: Source, microsoft: bool) -> Findings:
    document = open_document(definition)
    title = phrase(mapping(document.root.get("info")).get("title"), MAX_DISPLAY_NAME)
    source = replace(source, display_name=source.display_name or title or source.connection)
    marks = marks_of(document) if microsoft else NO_MARKS
    work = _Work(document, source, marks, base_url_of(document, source))
    if not work.base_url:
        work.reports.add("error", "servers", "it does not say where the API is: give base_url")
    count = count_operations(document)
    if not count:
        work.reports.add("warning", "paths", "it has no operations, so there are no tools")
    work.budget = input_budget(count)
    for each in operations(document):
        work.take(each)
    return work.findings()


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
    plans: list[Plan] = field(default_factory=list)
    hidden: list[Plan] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    names: set[str] = field(default_factory=set)  # what configuration may call operations by
    reports: _Reports = field(default_factory=_Reports)
    home: str = ""
    budget: int = INPUT_BUDGET
    listed_bytes: int = 0
    answer_bytes: int = 0
    whole_bytes: int = 0
    answers: dict[bytes, bytes | None] = field(default_factory=dict)  # by what they begin with
    taken: Schemas = field(init=False)
    given: Schemas = field(init=False)
    provided: frozenset[tuple[str, str]] = field(init=False)

    def __post_init__(self) -> None:
        self.taken = Schemas(self.document, "input", self.reports.here)
        self.given = Schemas(self.document, "output", lambda severity, message: None)
        self.provided = sent_with_every_call(self.document, self.source)
        self.home = home_of(self.document, self.source, self.base_url)

    def take(self, found: Operation | tuple[str, str, str]) -> None:
        """Plan one operation, or note why not."""
        if not isinstance(found, Operation):
            method, path, reason = found
            self.skip(Nameable(None, method, path), reason, self.base_url)
            return
        self.reports.place = f"{found.method} {found.path}"
        spend(self.document, _OPERATION_COST + _length_of_words(found) // _WORDS_COST)
        base_url = operation_base_url(self.document, found, self.source, self.base_url)
        self.home = self.home or base_url
        refused = refusal(self.document, found, self.marks, self.source, base_url)
        if away := elsewhere(self.source, self.home, base_url):
            refused = Refusal(away)
        if refused is not None:
            self.skip(_nameable(found), refused.reason, base_url)
            self.hide(found, refused, base_url)
        elif isinstance(plan := self.planned(found, base_url), Plan):
            self.names.add(name_for_globs(plan.operation))
            self.plans.append(plan)
        else:
            self.skip(_nameable(found), plan, base_url)

    def hide(self, operation: Operation, refused: Refusal, base_url: str) -> None:
        """Keep what look-ups call, though nobody is shown it."""
        wanted = refused.callable and operation.id in self.marks.looked_up
        if wanted and isinstance(plan := self.planned(operation, base_url), Plan):
            self.hidden.append(plan)

    def planned(self, operation: Operation, base_url: str) -> Plan | str:
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

    def findings(self) -> Findings:
        """Choose revisions, and put everything together that the document is needed for."""
        old = superseded([plan.revision for plan in self.plans if plan.revision is not None])
        for index, newer in old.items():
            plan = self.plans[index]
            self.skip(plan.operation, f"an older revision of {newer}", plan.http.base_url)
            if plan.operation.operation in self.marks.looked_up:
                self.hidden.append(plan)
        plans = self.fitted([plan for index, plan in enumerate(self.plans) if index not in old])
        if self.source.auth_type == "none" and all(plan.security for plan in plans) and plans:
            asked = plans[0].security
            self.reports.add("warning", "security", f"asks for {asked}; the connection has no auth")
        keys = declared_keys(self.document, self.source)
        if self.source.auth_type == "api-key" and len(keys) > 1:
            several = ", ".join(f"{name} in {place}" for name, place in keys[:MAX_KEYS])
            words = f"there are several API keys ({several}): auth.name and auth.in say which"
            self.reports.add("warning", "security", words)
        own = replace(self.source, base_url=None)
        return Findings(
            source=self.source,
            format=self.document.format,
            title=phrase(mapping(self.document.root.get("info")).get("title"), 200),
            base_url=self.base_url,
            own_base_url=base_url_of(self.document, own),
            plans=tuple(plans),
            hidden=tuple(self.with_whole(plan) for plan in self.hidden),
            skipped=tuple(self.skipped),
            problems=(*unmatched(self.source, self.names), *self.reports.problems),
            key=keys[0] if len(keys) == 1 else (None, None),
        )

    def fitted(self, plans: Sequence[Plan]) -> list[Plan]:
        """The same, with the largest inputs cut down until a whole listing has its size."""
        share = fair_share([len(plan.listed.text) for plan in plans])
        return [
            self.with_whole(plan if len(plan.listed.text) <= share else self.cut_down(plan, share))
            for plan in plans
        ]

    def cut_down(self, plan: Plan, share: int) -> Plan:
        if plan.whole is None:
            return plan
        self.reports.place = f"{plan.operation.method} {plan.operation.path}"
        self.listed_bytes -= len(plan.listed.text)
        try:
            return replace(plan, listed=_listed(self, plan.whole, share))
        except Unusable:  # it costs room then, but not the other operations
            return plan

    def with_whole(self, plan: Plan) -> Plan:
        """The plan with all of its input packed, where more is known of it than is listed."""
        if plan.whole is None:
            return plan
        shown = without_constants(plan.listed.text)
        if shown is plan.listed.text and plan.listed.complete:
            return replace(plan, whole=None)
        whole = whole_input(plan.whole.root, plan.whole.refs, self.taken)
        packed = pack(whole) if whole else b""
        self.whole_bytes += len(packed)
        kept = packed if self.whole_bytes <= MAX_WHOLE_INPUTS else b""
        listed = Listed(shown, plan.listed.complete)
        return replace(plan, listed=listed, whole=None, whole_schema=kept)

    def skip(self, operation: Nameable, reason: str, base_url: str) -> None:
        self.names.add(name_for_globs(operation))
        self.skipped.append(
            Skipped(
                operation.operation,
                operation.method,
                operation.path,
                reason,
                access_of(operation, self.source),
                self.source.prefix + local_name(operation),
                base_url,
            )
        )


def _nameable(operation: Operation) -> Nameable:
    return Nameable(operation.id, operation.method, operation.path)


def _length_of_words(operation: Operation) -> int:
    texts = (text_of(operation.raw.get(key)) for key in ("summary", "description"))
    return sum(min(len(text), _LONG_TEXT) for text in texts)


# --- one operation --------------------------------------------------------------------------------


def _plan(work: _Work, operation: Operation, base_url: str) -> Plan:
    document, source = work.document, work.source
    given = parameters(document, operation)
    nameable = _nameable(operation)
    override, access = override_of(nameable, source), access_of(nameable, source)
    microsoft, arm = work.marks.microsoft, source.kind == "arm"
    path, wanted, fixed = called_path(
        operation, inputs(document, given), microsoft=microsoft, arm=arm
    )
    wanted = [each for each in wanted if _is_asked_for(work, each, access)]
    names = ArgumentNames()
    sent, slots = parameter_slots(document, wanted, names, work.taken, source)
    sent, slots = without_detours(source, work.reports.here, sent, slots)
    taken, body_schema = Taken(None), None
    if (body := request_body(document, operation, given)) is not None:
        around = Surroundings(document, work.taken, source, operation.method, tuple(slots))
        taken = taken_body(around, body, names)
        slots.extend(taken.slots)
        body_schema = chosen_content(document, body).schema
        for name in taken.left_out:
            work.reports.here("warning", left_out(name, "body"))
    contents = answers(document, operation)
    http = HttpOperation(
        method=operation.method,
        base_url=base_url,
        path=path,
        parameters=(*sent, *fixed),
        body=taken.body,
        accept=_accept(contents, wanted),
        idempotency_header=source.idempotency_header,
        headers_out=override.headers_out or (),
    )
    lookups = look_ups(document, slots, body_schema) if work.marks.microsoft else b""
    if lookups:
        slots = [with_hint(document, slot) for slot in slots]
    whole = _whole_input(slots, taken)
    listed = _listed(work, whole, work.budget)
    return Plan(
        operation=nameable,
        revision=revision_of(operation) if work.marks.microsoft else None,
        title=tool_title(operation.raw, local_name(nameable)),
        description=tool_description(
            source, operation.raw, override.description, f"{operation.method} {operation.path}"
        ),
        access=access,
        risk=override.risk or _risk(operation, access),
        safe=operation.raw.get("x-ms-safe-operation") is True,
        http=http,
        listed=listed,
        whole=None if listed.is_final else whole,
        answer=_answer(work, contents),
        keywords=_keywords(operation, slots),
        lookups=lookups,
        security=required_credentials(document, operation),
    )


def _is_asked_for(work: _Work, given: Input, access: Access) -> bool:
    """Whether callers can give this, and the connection does not send it itself."""
    place, name = given.place, folded(given.place, given.name)
    if place == "header" and not _HEADER_NAME.fullmatch(name):
        work.reports.here("warning", f"no header can be called {name!r}: it is never sent")
        return False
    token = (work.source.idempotency_header or "").lower() if access != "read" else ""
    return (place, name) not in work.provided and (place, name) != ("header", token)


def _risk(operation: Operation, access: Access) -> Risk:
    not_for_agents = "AgentHidden" in sequence(operation.raw.get("tags"))
    return "high" if not_for_agents else RISK_OF_ACCESS[access]


def _whole_input(slots: Sequence[Slot], taken: Taken) -> Whole:
    ordered = sorted(slots, key=lambda slot: slot.rank)
    root: dict[str, Any] = {
        "type": "object",
        "properties": {slot.argument: slot.schema for slot in ordered},
    }
    if required := [slot.argument for slot in ordered if slot.required]:
        root["required"] = required
    root |= {"additionalProperties": False, **taken.keywords}
    refs = (*(ref for slot in ordered for ref in slot.refs), *taken.refs)
    return Whole(root, tuple(dict.fromkeys(refs)))


def _listed(work: _Work, whole: Whole, budget: int) -> Listed:
    listed = input_schema(whole.root, whole.refs, work.taken, work.reports.here, budget)
    work.listed_bytes += len(listed.text)
    if work.listed_bytes > MAX_LISTED:
        raise DefinitionUnreadable(
            f"The definition's tools would take more than {MAX_LISTED // 1024 // 1024} MB to list.",
            "Split the definition, or serve only the part that is needed.",
        )
    return listed


def _accept(contents: Sequence[Content], wanted: Sequence[Input]) -> str:
    """The header, unless the caller has a say in it: one that the definition allows."""
    types = [content.media_type for content in contents]
    json = next((kind for kind in types if media_kind(kind) == "json" and "*" not in kind), None)
    own = json or ", ".join(types[:_MAX_ACCEPTED]) or "application/json"
    for header in (each.raw for each in wanted if each.name == "Accept"):
        allowed = [kind for kind in sequence(header.get("enum")) if isinstance(kind, str)]
        default = text_of(header.get("default")).strip()
        return default or (own if own in allowed or not allowed else allowed[0])
    return own


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
