"""Chooses the operations that become tools, with their addresses; each other one gets a reason.

First everything is filtered by its own marks and by configuration; only then the newest revision
of each family is chosen among what is left, so that a newer revision that nobody may use does not
take an older one with it. Microsoft's marks are structural: nothing is guessed from names.

Configuration says where an API is, else an operation's own server, else its path's, else the
document's. Where calls carry secrets, all of them go to one host: a definition can't draw the
secrets out by naming another host for some operation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus, urljoin, urlsplit

from gateway.blocklist import blocked_by, may_reroute
from gateway.model import (
    ACCESS_OF_METHOD,
    DEFAULT_KEY_HEADER,
    Access,
    Nameable,
    Override,
    ParameterPlace,
    Source,
)
from gateway.naming import VARIABLE, cut, find_pattern, local_name, override_for
from gateway.openapi.document import (
    Document,
    Operation,
    Unusable,
    is_internal,
    mapping,
    objects_in,
    sequence,
    text_of,
)
from gateway.openapi.inputs import VALUES, Raw, fold_name, is_required, operation_ids
from gateway.openapi.keywords import DYNAMIC_SCHEMAS

_LOOK_UPS = (*VALUES, *DYNAMIC_SCHEMAS, "x-ms-capabilities")
_ANNOTATION = "x-ms-api-annotation"
_TUNNEL_TAGS = frozenset({"agentic", "McpStreamable"})


@dataclass(frozen=True, slots=True)
class Marks:
    """The marks of a whole document that bear on single operations."""

    microsoft: bool = False  # it uses Microsoft's extensions at all
    subscribing: frozenset[str] = frozenset()  # operations that subscribe a trigger
    looked_up: frozenset[str] = frozenset()  # operations that fill in values of others


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why an operation is not a tool, and whether look-ups may call it all the same."""

    reason: str
    callable: bool = False


def marks_of(document: Document) -> Marks:
    """The marks that Microsoft's extensions put on a whole document."""
    subscribing: set[str] = set()
    looked_up: set[str] = set()
    for part in objects_in(document.root):
        if isinstance(notification := part.get("x-ms-notification"), dict):
            subscribing.update(operation_ids(notification))
        for key in _LOOK_UPS:
            if key in part:
                looked_up.update(operation_ids(part[key]))
    return Marks(True, frozenset(subscribing), frozenset(looked_up))


def judge(operation: Operation, marks: Marks, source: Source, base_url: str) -> Exclusion | None:
    """Why the operation is no tool by its own marks or by configuration; None if it is a tool."""
    return _judge_by_settings(operation, source, base_url) or _judge_by_marks(operation, marks)


def name_for_globs(operation: Nameable) -> str:
    """The operation's name in configuration: its id, else the name made of method and path."""
    return operation.id or local_name(operation)


def override_of(operation: Nameable, source: Source) -> Override:
    """The settings for this operation."""
    return override_for(source.operations, name_for_globs(operation))


def access_of(operation: Nameable, source: Source) -> Access:
    """The access that this operation needs: as configured, else as its method says."""
    by_method = ACCESS_OF_METHOD.get(operation.method.upper(), "write")
    return override_of(operation, source).access or by_method


def _judge_by_settings(operation: Operation, source: Source, base_url: str) -> Exclusion | None:
    name = name_for_globs(operation)
    if pattern := find_pattern(name, source.exclude):
        return Exclusion(f"excluded by {pattern!r}")
    for path in {operation.path, operation.path.replace("/{connectionId}", "", 1)}:
        if pattern := blocked_by(source.blocklist, base_url, path):
            return Exclusion(f"its path is on the blocklist ({pattern})")
    if override_of(operation, source).access == "dangerous":
        return Exclusion("dangerous: never exposed")
    if not find_pattern(name, source.include):
        return Exclusion("not among the included operations", callable=True)
    return None


def _judge_by_marks(operation: Operation, marks: Marks) -> Exclusion | None:
    raw = operation.raw
    if operation.method in ("OPTIONS", "TRACE"):
        return Exclusion(f"{operation.method} operations are not tools", callable=True)
    if marks.microsoft and (reason := _microsoft_reason(operation, marks)):
        return Exclusion(reason)
    if marks.microsoft and is_internal(raw):
        return Exclusion("internal: meant for look-ups only", callable=True)
    if raw.get("deprecated") is True:
        return Exclusion("deprecated", callable=True)
    return None


def _microsoft_reason(operation: Operation, marks: Marks) -> str | None:
    raw, item = operation.raw, operation.item
    if raw.get("x-ms-trigger"):
        return "a trigger: it starts workflows and can't be called"
    if operation.id in marks.subscribing:
        return "it subscribes a trigger"
    if "x-ms-notification-content" in item or "x-ms-notification-content" in raw:
        return "it waits for a callback (webhook)"
    if "$subscriptions" in operation.path.split("/"):
        return "it subscribes a webhook"
    if _TUNNEL_TAGS.intersection(_texts(raw.get("tags"))) or "x-ms-agentic-protocol" in raw:
        return "an MCP server tunnelled through the connector"
    return None


def _texts(value: Any) -> Iterator[str]:
    return (text for text in sequence(value) if isinstance(text, str))


def older_revisions(operations: Sequence[Operation]) -> dict[int, str]:
    """The indexes of operations that have a newer revision in the list, each with that one's id."""
    revisions = [_revision_of(each) for each in operations]
    annotated = {_revision_of(each)[0] for each in operations if _ANNOTATION in each.raw}
    newest: dict[str, int] = {}
    for index, (family, number) in enumerate(revisions):
        if family not in newest or number > revisions[newest[family]][1]:
            newest[family] = index
    return {
        index: operations[newest[family]].id or ""
        for index, (family, _) in enumerate(revisions)
        if family and family in annotated and newest[family] != index
    }


def _revision_of(operation: Operation) -> tuple[str, int]:
    """The family and number that an operation declares; without a declaration its id, and 1."""
    annotation = mapping(operation.raw.get(_ANNOTATION))
    number = str(annotation.get("revision")).strip()
    family = text_of(annotation.get("family")) or operation.id or ""
    return family, int(number[:9]) if number.isdecimal() else 1


# --- base URLs ------------------------------------------------------------------------------------


def base_url_of(document: Document, source: Source) -> str:
    """The definition's own base URL, or the configured one; "" if there is none."""
    if source.base_url:
        return source.base_url.rstrip("/")
    servers = document.root.get("servers")
    return _first_url(servers if servers else [{"url": "/"}], source.location)


def operation_base_url(operation: Operation, source: Source, default: str) -> str:
    """The operation's base URL: its own server or its path's, unless one is configured.

    Raises Unusable where it has servers of its own, and none that can be called.
    """
    if source.base_url:
        return default
    for servers in (operation.raw.get("servers"), operation.item.get("servers")):
        # A relative one counts from the definition, unless the API is at another host than that.
        is_apart = default and _origin(source.location) != _origin(default)
        if own := sequence(servers):
            if url := _first_url(own, f"{default}/" if is_apart else source.location):
                return url
            spelled = cut(text_of(mapping(own[0]).get("url")), 100)
            if default or "://" in spelled:  # else base_url is needed, whatever it is
                raise Unusable(f"its server's address can't be used: {spelled}")
    return default


def home_of(document: Document, source: Source, default: str) -> str:
    """The base URL that credentials are meant for; "" where the first operation decides it."""
    return default if source.base_url or document.root.get("servers") else ""


def foreign_host_reason(source: Source, home: str, base_url: str) -> str | None:
    """Why an operation at this base URL is no tool of a connection whose secrets are for `home`."""
    if not source.carries_secrets or _origin(home) == _origin(base_url):
        return None
    host = urlsplit(base_url).netloc or "nowhere"
    return f"its server ({host}) is not the one that the connection's credentials are for"


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, port


def _first_url(servers: Any, location: str) -> str:
    for server in sequence(servers):
        if url := _server_url(mapping(server), location):
            return url
    return ""


def _server_url(server: Mapping[str, Any], location: str) -> str:
    variables = mapping(server.get("variables"))
    url = VARIABLE.sub(
        lambda match: _default_of(mapping(variables.get(match[1])), match[0]),
        text_of(server.get("url")).strip(),
    )
    return _absolute(url, location)


def _default_of(variable: Mapping[str, Any], unknown: str) -> str:
    value = variable.get("default", next(iter(sequence(variable.get("enum"))), unknown))
    return str(value) if isinstance(value, (str, int)) else unknown


def _absolute(url: str, location: str) -> str:
    """The URL as seen from where the definition came from, "" unless it is http or https."""
    try:
        joined = urljoin(location, url) if location.startswith(("http://", "https://")) else url
        parts = urlsplit(joined)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return ""
    if not usable or "@" in parts.netloc or "{" in joined or any(map(str.isspace, joined)):
        return ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}".rstrip("/")


# --- credentials ----------------------------------------------------------------------------------


def sent_with_every_call(document: Document, source: Source) -> frozenset[tuple[str, str]]:
    """Place and name of what the connection itself sends: no caller fills it in."""
    sent = {("header", name) for name in source.headers}
    keys = declared_keys(document, source)
    if source.auth_type == "api-key":
        name, place = keys[0] if len(keys) == 1 else (DEFAULT_KEY_HEADER, "header")
        sent.add((source.auth_in or place, source.auth_name or name))
    elif source.auth_type != "none":
        sent.add(("header", "Authorization"))
    if source.kind == "arm":  # Azure holds what a connector asks for
        sent.update((place, name) for name, place in keys)
    return frozenset((place, fold_name(place, name)) for place, name in sent)


def declared_keys(document: Document, source: Source) -> list[tuple[str, str]]:
    """Name and place of each API key of the definition that the connection's may be."""
    schemes = map(document.find, _schemes(document).values())
    keys = (
        (text_of(scheme.get("name")), text_of(scheme.get("in")))
        for scheme in schemes
        if scheme.get("type") == "apiKey" and scheme.get("in") in ("header", "query", "cookie")
    )
    return [
        (name, place)
        for name, place in dict.fromkeys(keys)
        if source.auth_name in (None, name) and source.auth_in in (None, place)
    ]


def required_credentials(document: Document, operation: Operation) -> str:
    """The credentials an operation asks for, always spelled the same: a change is a risk."""
    own = operation.raw.get("security")
    alternatives = own if isinstance(own, list) else document.root.get("security")
    schemes = _schemes(document)
    spelled = {
        " and ".join(_words(document.find(schemes.get(name))) for name in sorted(mapping(each)))
        for each in sequence(alternatives)
    }
    return cut(" or ".join(sorted(each or "none" for each in spelled)), 1_000)


def _words(scheme: Mapping[str, Any]) -> str:
    parts = [text_of(scheme.get(key)) for key in ("type", "scheme", "in", "name")]
    return " ".join([part for part in parts if part] + sorted(_addresses(scheme)))


def _addresses(scheme: Mapping[str, Any]) -> Iterator[str]:
    """Where tokens come from: an address that changed would get the client's secret."""
    for flow in (scheme, *mapping(scheme.get("flows")).values()):
        for key in ("tokenUrl", "authorizationUrl", "openIdConnectUrl"):
            if address := text_of(mapping(flow).get(key)):
                yield cut(address, 200)


def _schemes(document: Document) -> Mapping[str, Any]:
    return mapping(mapping(document.root.get("components")).get("securitySchemes"))


# --- its path -------------------------------------------------------------------------------------

# The template's own text stays as it is: slashes are not tidied, some APIs tell operations apart by
# them. Three things are not part of a path: a fragment (it only tells operations apart, the address
# has none), a query (its variables are parameters, the rest is always sent), and this in front,
# where Microsoft's connectors have it and their gateway fills it in.
_CONNECTION = "{connectionId}"


def plan_path(
    operation: Operation, declared: Sequence[Raw], *, microsoft: bool, arm: bool
) -> tuple[str, list[Raw]]:
    """The path template to fill in, and the parameters that have a place in the request."""
    path, _, query = operation.path.partition("#")[0].partition("?")
    if _is_microsofts(path, declared, microsoft, arm):
        path = path.replace(_CONNECTION, "", 1).replace("//", "/", 1)
    path = _with_declared_variables(path, declared)
    parameters, fixed = list(declared), dict[str, Raw]()
    for pair in query.split("&") if query else ():
        name, equals, value = pair.partition("=")
        wire = unquote_plus(name) if equals else name.strip("{}")
        if "{" in wire:
            raise Unusable("its path has a query (?) in which a name varies")
        if VARIABLE.fullmatch(value if equals else name):
            _move(parameters, path, (value or name)[1:-1], "query", wire)
        elif may_reroute(wire, "query"):
            raise Unusable(f"its path has {wire} in it, which makes it another request")
        elif "{" in pair:  # filled in where it stands, in the midst of other text
            for variable in VARIABLE.findall(pair):
                _move(parameters, path, variable, "path", variable)
            path += f"{'&' if '?' in path else '?'}{pair}"
        elif pair:
            constant = {"default": unquote_plus(value), "x-ms-visibility": "internal"}
            fixed[wire] = {"name": wire, "in": "query", **constant}
    _check_braces(path)
    variables = dict.fromkeys(VARIABLE.findall(path))
    in_path = {raw["name"] for raw in parameters if raw["in"] == "path"}
    placed = [_undeclared(name, "path") for name in variables if name not in in_path]
    for raw in parameters:
        is_fixed = raw["in"] == "query" and raw["name"] in fixed
        if not is_fixed and (raw["in"] != "path" or raw["name"] in variables):
            placed.append(raw)
    return path if path.startswith("/") else f"/{path}", [*placed, *fixed.values()]


def _with_declared_variables(path: str, declared: Sequence[Raw]) -> str:
    """The path with its variables as parameters declare them.

    Frameworks write more into a template than a name: `{id:int}`, `{rest+}`, `{+name}`, `:id`.
    """
    for name in {raw["name"] for raw in declared if raw["in"] == "path"}:
        if f"{{{name}}}" not in path:
            plain = re.escape(name)
            written = rf"\{{\+?{plain}(?:[+*?]|[:=][^{{}}]*)?\}}|(?<=/):{plain}(?=/|$)"
            path = re.sub(written, lambda _, name=name: f"{{{name}}}", path)  # type: ignore[misc]
    return path


def _move(
    parameters: list[Raw], path: str, variable: str, place: ParameterPlace, name: str
) -> None:
    """Puts a variable of the query where it belongs, wherever the definition thinks it is."""
    spellings = ((variable, "path"), (variable, "query"), (name, "query"))
    found = [i for i, raw in enumerate(parameters) if (raw["name"], raw["in"]) in spellings]
    if not found:
        parameters.append(_undeclared(name, place))
        return
    raw = parameters[found[0]]
    moved = {**raw, "name": name, "in": place, "required": is_required(raw)}
    if raw["in"] == "path" and place == "query" and f"{{{variable}}}" in path:
        parameters.append(moved)  # the variable is in the path and in the query
    else:
        parameters[found[0]] = moved


def _undeclared(name: str, place: ParameterPlace) -> Raw:
    text = {"schema": {"type": "string"}, "style": "simple", "explode": False}
    return {"name": name, "in": place, "required": True, **text}


def _is_microsofts(path: str, parameters: Sequence[Raw], microsoft: bool, arm: bool) -> bool:
    """Whether the path's `connectionId` is Microsoft's: in front, and not shown to people."""
    if not path.lstrip("/").startswith(_CONNECTION) or not (microsoft or arm):
        return False
    declared = [raw for raw in parameters if (raw["in"], raw["name"]) == ("path", "connectionId")]
    return arm or not declared or is_internal(declared[0])


def _check_braces(path: str) -> None:
    rest = VARIABLE.sub("", path)
    if "{" in rest or "}" in rest or "{}" in path:
        raise Unusable("its path has braces that don't match")
