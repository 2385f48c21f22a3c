"""Tools: the list with its search and filters, and a tool's page with a form to try the tool.

A form is read off the input schema: simple values get a field of their own, objects a group of
them, to a depth; whatever is more involved is written as JSON. The posted fields are read off the
schema again, so that a post can't add a field to the form. Arguments are checked later,
where every call's are: here a value only becomes what its field's type says, or stays text.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal
from urllib.parse import quote

import orjson
from starlette.responses import Response

from gateway.calls.record import output_of
from gateway.calls.redact import REDACTED
from gateway.console.pages import (
    Sort,
    Visit,
    clip,
    clip_text,
    download,
    file_links,
    fragment,
    go,
    is_partial,
    link,
    mcp_url,
    page,
    pretty,
    sort_rows,
)
from gateway.errors import Fixable
from gateway.limits import FORM_FIELDS, PAGE_ENTRIES, SEARCH_ENTRIES, TABLE_ROWS
from gateway.model import Tool, json_bytes
from gateway.policy.access import decide
from gateway.web.display import tool_row
from gateway.web.own_tools import list_executions


async def tools(visit: Visit) -> Response:
    filter = visit.filter("q", "connection", "access", "risk", "confirm")
    matches = await _find_tools(visit, filter)
    permissions, total = visit.snapshot.permissions, len(matches)
    if visit.query("format"):
        rows = [tool_row(tool, permissions) for tool in matches[:TABLE_ROWS]]
        if (file := download(visit, "tools", rows, total=total)) is not None:
            return file
    matches, sort = sort_rows(visit, matches, filter, "name", "access", "risk", "tokens")
    start_text = visit.query("start", 9)
    start = int(start_text) if start_text.isascii() and start_text.isdigit() else 0
    start = min(start, max(0, (total - 1) // PAGE_ENTRIES * PAGE_ENTRIES))
    after, before = start + PAGE_ENTRIES, max(0, start - PAGE_ENTRIES)
    page_tools, order = matches[start:after], {**filter, "sort": visit.query("sort")}
    return await page(
        visit,
        "tools.html",
        "Tools",
        rows=[tool_row(tool, permissions) for tool in page_tools],
        lines=await visit.figures.lines("tool", [tool.name for tool in page_tools]),
        sort=sort,
        total=total,
        start=start,
        tokens=sum(tool.tokens for tool in matches),
        filter=filter,
        facets=_facets(visit),
        next=link("/tools", **order, start=after) if after < total else None,
        previous=link("/tools", **order, start=before) if start else None,
        files=file_links(visit, filter),
    )


async def _find_tools(visit: Visit, filter: Mapping[str, str]) -> list[Tool]:
    permissions = visit.snapshot.permissions

    def fits(tool: Tool) -> bool:
        confirm = decide(tool, permissions).outcome
        facts = {"connection": tool.connection, "access": tool.access, "risk": tool.risk}
        return all(
            filter[key] in ("", value) for key, value in (facts | {"confirm": confirm}).items()
        )

    fitting = {name: tool for name, tool in visit.inquiry.view.tools.items() if fits(tool)}
    if not filter["q"]:
        return sorted(fitting.values(), key=lambda tool: (tool.connection, tool.name))
    names = await visit.gateway.search(visit.snapshot, filter["q"], set(fitting), len(fitting))
    literal = [n for n in fitting if filter["q"].lower() in n.lower() and n not in set(names)]
    return [fitting[name] for name in (*names, *sorted(literal))]


def _facets(visit: Visit) -> dict[str, list[str]]:
    found = visit.inquiry.view.tools.values()
    names = ("connection", "access", "risk")
    return {name: sorted({getattr(tool, name) for tool in found}) for name in names}


# --- one tool, and its form -----------------------------------------------------------------------


async def tool(visit: Visit) -> Response:
    named_tool, earlier_id = _named_tool(visit), visit.query("like")
    like = await visit.inquiry.execution(earlier_id) if earlier_id else None
    values = dict(like.arguments) if like else {}
    schema = _schema(named_tool)
    fields = form_fields(schema, values)
    open_fields = [field for field in fields if field.required or field.value]
    folded = [field for field in fields if field not in open_fields]
    if len(folded) <= 4:  # few enough to see at a glance
        open_fields, folded = fields, []
    calls, sort = await _recent_calls(visit, named_tool)
    return await page(
        visit,
        "tool.html",
        named_tool.name,
        tool=named_tool,
        decision=decide(named_tool, visit.snapshot.permissions),
        like=like,
        masked=REDACTED.encode() in json_bytes(values),
        fields=fields,
        shown=open_fields,
        folded=folded,
        snippets=snippets(visit, named_tool, values or example_of(fields)),
        calls=calls,
        sort=sort,
        schema=schema,
        output=orjson.loads(named_tool.output_schema) if named_tool.output_schema else None,
        written=orjson.dumps(values, option=orjson.OPT_INDENT_2).decode() if values else "",
        **await visit.figures.charts(visit.query("range"), tool=named_tool.name),
    )


async def _recent_calls(visit: Visit, tool: Tool) -> tuple[list[dict[str, Any]], Sort]:
    """The newest calls of a tool that the visitor may see."""
    found = await list_executions(visit.inquiry, tool=tool.name, limit=SEARCH_ENTRIES)
    rows = [
        row | {"duration_ms": (row["result"] or {}).get("duration_ms")}
        for row in found["executions"]
    ]
    columns = ("created_at", "status", "principal", "duration_ms")
    return sort_rows(visit, rows, {"name": tool.name}, *columns)


# --- a call, as other clients make it -------------------------------------------------------------


async def copy(visit: Visit) -> Response:
    """Snippets of the call in the form; while its JSON is wrong, the page keeps the last ones."""
    named_tool = _named_tool(visit)
    try:
        arguments = form_arguments(_schema(named_tool), visit.form)
    except Fixable:
        return Response(status_code=204)
    return fragment(visit, "_copy.html", snippets=snippets(visit, named_tool, arguments))


def snippets(visit: Visit, tool: Tool, arguments: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """A call of the tool for a terminal, with curl, and for an MCP client: id, name, words."""
    url, text = mcp_url(visit).removesuffix("/mcp"), _json(arguments)
    token = visit.snapshot.settings.auth.mode != "none"
    curl = [
        f"curl {shlex.quote(f'{url}/api/v1/tools/{quote(tool.name)}/call')}",
        *(['-H "Authorization: Bearer $GATEWAY_TOKEN"'] if token else ()),
        "-H 'Content-Type: application/json'",
        f"-d {shlex.quote(_json({'arguments': arguments}))}",
    ]
    cli = f"gateway call {shlex.quote(tool.name)} {shlex.quote(text)} --url {shlex.quote(url)}"
    params = {"name": tool.name, "arguments": arguments}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return [
        ("curl", "curl", " \\\n  ".join(curl)),
        ("cli", "CLI" + (", with GATEWAY_TOKEN set" if token else ""), cli),
        ("mcp", "MCP message", pretty(message)),
    ]


def example_of(fields: Sequence[FormField]) -> dict[str, Any]:
    """Arguments with a sample value in each required field."""
    values: dict[str, Any] = {}
    for field in fields:
        if field.required:
            kinds = {"number": 0, "json": {}, "text": f"<{field.path[-1]}>"}
            sample = kinds.get(field.control, kinds["text"])
            _put(values, field.path, orjson.loads(field.choices[0][0]) if field.choices else sample)
    return values


def _put(arguments: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for part in path[:-1]:
        arguments = arguments.setdefault(part, {})
    arguments[path[-1]] = value


# --- calling it -----------------------------------------------------------------------------------


async def call(visit: Visit) -> Response:
    """Tries the tool as the visitor; it is a call like every other."""
    named_tool, inquiry = _named_tool(visit), visit.inquiry
    arguments = form_arguments(_schema(named_tool), visit.form)
    result = await inquiry.call(named_tool, arguments, unattended=True)
    meta = result["_meta"]
    if not is_partial(visit.request):  # without a script: the call's record has the answer, too
        return go(visit, f"/console/executions/{meta['gateway/execution_id']}")
    return fragment(
        visit,
        "_result.html",
        id=meta["gateway/execution_id"],
        status_word=meta["gateway/status"],
        ms=meta.get("gateway/duration_ms"),
        failed=bool(result.get("isError")),
        output=output_of(result),
        others=[p["type"] for p in result.get("content", ()) if p.get("type") != "text"],
    )


def _named_tool(visit: Visit) -> Tool:
    return visit.inquiry.tool(visit.request.query_params.get("name", ""))


def _schema(tool: Tool) -> dict[str, Any]:
    schema: dict[str, Any] = orjson.loads(tool.input_schema)
    return schema


Control = Literal["text", "area", "number", "choice", "yes_no", "json"]
INPUT_TYPES = {"date": "date", "email": "email", "uri": "url", "password": "password"}


@dataclass(frozen=True, slots=True)
class FormField:
    """A field of the form, for one value of the arguments."""

    path: tuple[str, ...]
    help: str
    control: Control
    required: bool
    kind: str  # the input's type, or the schema's for a choice
    hint: str  # the expected value, in a word
    choices: tuple[tuple[str, str], ...]  # JSON and label
    value: str
    step: str

    @property
    def name(self) -> str:
        """The path to the value, as a JSON pointer."""
        return "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in self.path)

    @property
    def label(self) -> str:
        return clip(" › ".join(self.path), 80)


def form_fields(
    schema: Mapping[str, Any], values: Mapping[str, Any] | None = None
) -> list[FormField]:
    """The fields of a tool's form, filled with these arguments; the required ones first."""
    return list(islice(_fields(schema, schema, (), values or {}), FORM_FIELDS))


def form_arguments(schema: Mapping[str, Any], form: Mapping[str, str]) -> dict[str, Any]:
    """The arguments of a posted form. An empty field is not an argument."""
    json_text = form.get("json", "").strip()
    if json_text:
        value = _parse(json_text, "The arguments are not JSON.")
        if not isinstance(value, dict):
            raise Fixable("invalid_arguments", "The arguments must be a JSON object: { … }")
        return value
    arguments: dict[str, Any] = {}
    for field in form_fields(schema):
        if (text := form.get(field.name, "")).strip():
            _put(arguments, field.path, _read_value(field, text))
    return arguments


def _fields(
    schema: Mapping[str, Any],
    root: Mapping[str, Any],
    above: tuple[str, ...],
    values: Any,
    *,
    optional: bool = False,
) -> Iterator[FormField]:
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return
    # A property is required in the form only if the objects around it are required too.
    required = required if isinstance(required, list) and not optional else []
    for name in sorted(properties, key=lambda key: key not in required):
        inner, path = _resolve(properties[name], root), (*above, name)
        value = values.get(name) if isinstance(values, Mapping) else None
        if not above and _type(inner) == "object" and inner.get("properties"):
            yield from _fields(inner, root, path, value, optional=name not in required)
        else:
            yield _field(path, inner, name in required, value)


def _field(
    path: tuple[str, ...], schema: Mapping[str, Any], required: bool, value: Any
) -> FormField:
    kind = _type(schema)
    control, input_type, choices = _control(schema, kind)
    plain = isinstance(value, str) and control in ("text", "area")
    return FormField(
        path=path,
        help=clip_text(schema.get("description", ""), 400),
        control=control,
        required=required,
        kind=input_type,
        hint=clip(_hint(schema, kind), 80),
        choices=choices,
        value="" if value is None else value if plain else _json(value),
        step="1" if kind == "integer" else "any",
    )


def _control(
    schema: Mapping[str, Any], kind: str
) -> tuple[Control, str, tuple[tuple[str, str], ...]]:
    options, form = schema.get("enum"), str(schema.get("format"))
    if isinstance(options, list) and 0 < len(options) <= PAGE_ENTRIES:
        return "choice", kind, tuple((_json(option), clip(option)) for option in options)
    match kind:
        case "boolean":
            return "yes_no", kind, (("true", "true"), ("false", "false"))
        case "integer" | "number":
            return "number", "number", ()
        case "string":
            longest = schema.get("maxLength")
            is_long = form == "byte" or isinstance(longest, int) and longest > 300
            return ("area", "text", ()) if is_long else ("text", INPUT_TYPES.get(form, "text"), ())
    return "json", "text", ()


def _hint(schema: Mapping[str, Any], kind: str) -> str:
    if "default" in schema:
        return f"default: {_json(schema['default'])}"
    examples = schema.get("examples")
    if "example" in schema or isinstance(examples, list) and examples:
        return f"e.g. {_json(schema.get('example', examples and examples[0]))}"
    return {"array": "a JSON list", "object": "a JSON object", "": "any JSON value"}.get(kind, kind)


def _type(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = [each for each in kind if each != "null"]
        kind = kinds[0] if len(kinds) == 1 else ""
    return kind if isinstance(kind, str) else ""


def _resolve(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema that a reference names, with the keywords that stand beside the reference."""
    ref = schema.get("$ref") if isinstance(schema, dict) else None
    if isinstance(ref, str):
        defs = root.get("$defs")
        target = defs.get(ref.removeprefix("#/$defs/")) if isinstance(defs, dict) else None
        schema = {**(target if isinstance(target, dict) else {}), **schema}
    return schema if isinstance(schema, dict) else {}


def _read_value(field: FormField, text: str) -> Any:
    match field.control:
        case "text" | "area":
            return text
        case "json":
            words = f"{field.label} is not JSON. Put text into quotes, or write [ ] or {{ }}."
            return _parse(text, words)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text  # the check of the arguments says what is wrong with it


def _parse(text: str, problem: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise Fixable("invalid_arguments", problem) from None


def _json(value: Any) -> str:
    return json_bytes(value).decode("utf-8", "replace")
