"""The nouns of the gateway: what connectors build, what a snapshot holds, what a call carries.

Everything here is a frozen value without behaviour that could fail. Tools and their targets travel
between processes and into the store as MessagePack, so their fields are plain types only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import msgspec
import orjson

from gateway.errors import Fixable

Access = Literal["read", "write", "delete", "dangerous"]
Risk = Literal["none", "low", "medium", "high"]
Level = Literal["read-write", "read-only", "disabled"]
Trust = Literal["trusted", "untrusted"]
Names = Literal["short", "full"]  # of tools: full ones keep what a generator put behind the ids
Kind = Literal["openapi", "manifest", "mcp", "arm"]
Status = Literal["connected", "unauthenticated", "disabled", "failing", "pending"]
BuiltStatus = Literal["connected", "unauthenticated", "failing"]
Severity = Literal["error", "warning", "info"]
ParameterPlace = Literal["path", "query", "header", "cookie"]
Separated = Literal["spaceDelimited", "pipeDelimited", "tabDelimited"]
Style = Literal["form", "simple", "label", "matrix", "deepObject", Separated]
Result = dict[str, Any]  # of a tool's call, as MCP writes it

RISK_OF_ACCESS: Mapping[Access, Risk] = {
    "read": "none",
    "write": "medium",
    "delete": "high",
    "dangerous": "high",
}
ACCESS_OF_METHOD: Mapping[str, Access] = {
    "GET": "read",
    "HEAD": "read",
    "POST": "write",
    "PUT": "write",
    "PATCH": "write",
    "DELETE": "delete",
}

# Headers that the gateway sets itself: those of the connection, and how answers are packed.
OWN_HEADERS = frozenset(
    "host connection keep-alive te trailer transfer-encoding upgrade content-length expect"
    " accept-encoding proxy-connection proxy-authenticate proxy-authorization".split()
)
# The gateway's own tools: no other tool may have one of these names.
OWN_TOOL_NAMES = frozenset(
    "call_dynamic_tool delete_connection find_execution get_connection get_execution"
    " get_managed_api list_connections list_dynamic_tools list_executions list_managed_apis"
    " lookup_schema lookup_values mcp_call_tool mcp_get_tool_schema mcp_list_tools mcp_search_tools"
    " put_connection read_result refresh_tools".split()
)
DEFAULT_KEY_HEADER = "X-Api-Key"  # if neither the connection nor its definition names a header


# --- what a tool does when it is called -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    """One value outside the body: which argument it comes from and how it is written."""

    name: str
    place: ParameterPlace
    argument: str | None = None  # key in the tool's arguments; None: always `constant`
    style: Style = "simple"
    explode: bool = False
    reserved: bool = False  # allowReserved: `:/?#[]@!$&'()*+,;=` stay as they are (query only)
    media_type: str | None = None  # a `content` parameter: written as this media type
    double_encoded: bool = False  # x-ms-url-encoding: double
    constant: Any = None  # sent when no argument gives a value


# What a caller may give as the media type of a file: a media type, or an empty text.
MEDIA_TYPE_PATTERN = r"^([A-Za-z0-9_!#$&^.+-]+/[A-Za-z0-9_!#$&^.+-]+( *;[ -~]*)?)?$"


@dataclass(frozen=True, slots=True)
class Field:
    """One property of an object body that is an argument of its own."""

    argument: str
    name: str
    file: bool = False  # base64 in the arguments, bytes on the wire
    file_name_argument: str | None = None
    content_type_argument: str | None = None
    media_type: str | None = None  # of this part; a file may have several: `image/*, text/csv`
    style: Style = "form"
    explode: bool = True


@dataclass(frozen=True, slots=True)
class Body:
    """The plan of a request body: made from fields, or whole from one argument."""

    media_type: str
    fields: tuple[Field, ...] = ()
    whole: str | None = None
    binary: bool = False  # the whole body is base64 in the arguments
    required: bool = False
    constants: Mapping[str, Any] = field(default_factory=dict)  # hidden properties, merged in
    wrap: str | None = None  # "data": the record is sent as {"data": [record]}
    xml: Mapping[str, Any] | None = None  # how an object is written, if it is sent as XML
    # Arguments with a place of their own: all others go into the body as they are. None: no others.
    all_but: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class HttpOperation:
    """One HTTP request to be made."""

    method: str
    base_url: str  # scheme://host[:port][/prefix], no slash at the end
    path: str  # the template as the definition spells it
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    accept: str = "application/json"
    idempotency_header: str | None = None
    headers_out: tuple[str, ...] = ()  # of the answer, shown beside those that are always shown


@dataclass(frozen=True, slots=True)
class UpstreamOperation:
    """One tools/call to an upstream MCP server."""

    tool: str
    inject: tuple[str, ...] = ()
    idempotency_field: str | None = None
    record: tuple[str, ...] = ()
    target: Literal["mcp"] = "mcp"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """TLS files for one server: authorities to trust besides, our certificate, its own name."""

    __pydantic_config__ = {"extra": "forbid"}  # it is a table of config.toml, too
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None


NO_TLS_FILES = TlsFiles()


# --- what connectors produce ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool as clients see it and as the gateway calls it."""

    name: str  # with the connection's prefix
    local_name: str  # without the prefix
    connection: str
    operation: str | None  # operation id or upstream name, spelled as in the definition
    method: str  # "" for upstream MCP tools
    path: str  # as in the definition; "" for upstream MCP tools
    access: Access
    risk: Risk
    trust: Trust
    title: str
    description: str
    input_schema: bytes = b""  # JSON
    entry: bytes = b""  # the whole tools/list entry, JSON: serialised once, at build
    tokens: int = 0
    fingerprint: str = ""  # over method, host, path, auth, schema, description
    http: HttpOperation | None = None
    upstream: UpstreamOperation | None = None
    output_schema: bytes | None = None
    capability: str | None = None
    keywords: str = ""  # parameter names and tags, for search
    security: str = ""  # the credentials the definition asks for, in a canonical spelling
    lookups: bytes = b""  # JSON: rules by argument for what can be looked up ("": the body's)
    whole_schema: bytes = b""  # packed JSON, where `input_schema` leaves something out
    forms: Mapping[str, bytes] = field(default_factory=dict)  # the entry in forms where it differs


# In a tool's whole schema: by name, the constants of an object, which callers don't give.
CONSTANTS = "x-gateway-constants"


def whole_schema(tool: Tool) -> bytes:
    """All of a tool's input schema, also where its entry has less of it."""
    return unpack(tool.whole_schema) if tool.whole_schema else tool.input_schema


def without_constants(schema: bytes) -> bytes:
    """The schema as people see it."""
    return json_text(_strip(orjson.loads(schema))) if CONSTANTS.encode() in schema else schema


def _strip(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _strip(part) for key, part in value.items() if key != CONSTANTS}
    return [_strip(part) for part in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True)
class Skipped:
    """An operation of the API that is not a tool, and the reason."""

    operation: str | None
    method: str
    path: str
    reason: str
    access: Access | None = None  # what it does, as configured or by its method
    tool: str = ""  # the name it would have
    base_url: str = ""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person should know of a connection, whose tools may still work."""

    severity: Severity
    where: str
    message: str
    configured: bool = False  # it is in the operator's configuration, not in the definition

    def as_dict(self) -> dict[str, str]:
        """The shape that every edge shows."""
        return {"severity": self.severity, "where": self.where, "message": self.message}


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The number of requests that are allowed in a window of time."""

    requests: int
    window_seconds: float
    per: Literal["connection", "user"] | None = None  # None: a principal's requests, one circuit


@dataclass(frozen=True, slots=True)
class Build:
    """The result of a connector for one definition."""

    format: str  # swagger-2.0 | openapi-3.0 | openapi-3.1 | manifest | mcp
    title: str
    base_url: str
    tools: tuple[Tool, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    problems: tuple[Problem, ...] = ()
    hidden: tuple[Tool, ...] = ()  # that only look-ups call
    blocklist: tuple[str, ...] = ()  # the definition's own, beside the connection's
    rate_limit: RateLimit | None = None  # what the provider allows, unless configured
    auth_scheme: str | None = None  # the word before a token in Authorization; None: Bearer
    auth_name: str | None = None  # what carries an API key, as the definition says
    auth_in: str | None = None
    sign_in_urls: tuple[str, ...] = ()  # where people sign in, and where tokens are given
    status: BuiltStatus = "connected"  # as the API or server itself reports it
    envelope: str | None = None  # ARM: the resource id that calls are posted to, by dynamicInvoke
    purpose: str = ""  # what the API is for, by its definition
    instructions: str = ""  # how to use a server, by its own words; words that operations share
    names: Names = "full"  # the form of its tools' names
    links_base: str = ""  # where next links in answers lead, if not under `base_url`
    refused: tuple[str, ...] = ()  # servers of skipped operations, which the network's rules refuse


@dataclass(frozen=True, slots=True)
class RawDefinition:
    """A definition, packed, and the validators that tell whether it is still current."""

    location: str = ""
    packed: bytes = b""  # empty where the definition is only in the store
    sha256: str = ""
    etag: str | None = None
    last_modified: str | None = None
    asked_with: object = field(default=None, repr=False)  # the asker's proof; never stored

    @property
    def raw(self) -> bytes:
        """The definition's bytes, unpacked."""
        return unpack(self.packed)

    @classmethod
    def of(cls, location: str, raw: bytes) -> RawDefinition:
        """The definition that these bytes are; large ones take a while."""
        return cls(location, pack(raw), digest(raw))

    def is_same(self, other: RawDefinition) -> bool:
        """Whether both are the same text from the same place; compares no bytes."""
        return self.sha256 == other.sha256 and self.location == other.location


@dataclass(frozen=True, slots=True)
class BuiltDefinition:
    """The tools that were made of a definition; equal to another with the same tools."""

    build: Build
    definition: RawDefinition = field(default=RawDefinition(), compare=False)
    build_key: str = field(default="", compare=False)
    at: float = field(default=0.0, compare=False)  # when stored: tells which of two is newer
    # Of an MCP server that was asked just now.
    session: Literal["principal", "shared"] | None = field(default=None, compare=False)

    def without_bytes(self) -> BuiltDefinition:
        """The same without the definition's bytes: they are in the store."""
        return replace(self, definition=replace(self.definition, packed=b""))


@dataclass(frozen=True, slots=True)
class Override:
    """The settings for one operation; they replace what the definition says."""

    access: Access | None = None
    risk: Risk | None = None
    description: str | None = None
    headers_out: tuple[str, ...] | None = None  # in lower case


@dataclass(frozen=True, slots=True)
class Wrap:
    """One upstream tool under a local name, with arguments that the gateway fills in."""

    tool: str
    as_: str | None = None  # None: the upstream's name with the prefix
    idempotency_field: str | None = None
    inject: tuple[str, ...] = ()  # names only; values are put in at call
    record: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """A connection as connectors know it. No secrets: this is hashed, stored and logged."""

    connection: str
    kind: Kind
    display_name: str
    prefix: str
    location: str = ""  # where the definition came from: relative servers count from there
    base_url: str | None = None
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    blocklist: tuple[str, ...] = ()
    inject: tuple[str, ...] = ()  # names only; values are put in at call
    operations: Mapping[str, Override] = field(default_factory=dict)
    trust: Trust = "trusted"
    auth_type: str = "none"
    auth_name: str | None = None  # api-key: parameter name and place
    auth_in: str | None = None
    headers: tuple[str, ...] = ()  # names of headers that are sent with every call
    idempotency_header: str | None = None
    authenticated: bool = True
    max_description_chars: int = 1024
    region: str | None = None  # manifest: a region of it; None: its default region
    on_behalf_of: str | None = None  # manifest: the provider's user that writes are made for
    tools: tuple[str, ...] = ("*",)  # mcp: patterns of tools shown, of tools not shown, wraps
    exclude_tools: tuple[str, ...] = ()
    wraps: tuple[Wrap, ...] = ()
    names: Names = "short"
    given: Mapping[str, str] = field(default_factory=dict)  # names so far, by method and path
    carries_secrets: bool = False  # calls hold credentials or values that are for one host only


@dataclass(frozen=True, slots=True)
class Nameable:
    """An operation that needs a name."""

    id: str | None
    method: str
    path: str


# --- callers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller, as the identity edge found out."""

    name: str
    admin: bool = False
    organization: str | None = None
    role: str | None = None
    access: Level = "read-write"
    connections: Mapping[str, Level] = field(default_factory=dict)
    withheld: frozenset[str] = frozenset()  # scopes the person has, and their client's token lacks
    grant: str = field(default="", compare=False)  # the grant their client comes by, if it has one
    presented: str = field(default="", repr=False, compare=False)  # their token, if it is exchanged


@dataclass(frozen=True, slots=True)
class ViewAddress:
    """The address of a view: which of the principal's views it asks for."""

    kind: Literal["own", "bundles", "step"] = "own"
    names: tuple[str, ...] = ()  # bundle ids, or (workflow, step)

    @property
    def path(self) -> str:
        """Where this view is served: what a token of the front door is for."""
        if self.kind == "bundles":
            return f"/mcp/bundles/{'+'.join(self.names)}"
        return "/mcp" if self.kind == "own" else f"/mcp/steps/{'/'.join(self.names)}"


def elicitation_modes(capabilities: Mapping[str, Any]) -> tuple[str, ...]:
    """How a client's user can be asked: by a form, by a page; `elicitation: {}` means form."""
    elicitation = capabilities.get("elicitation")
    if not isinstance(elicitation, Mapping):
        return ()
    return tuple(mode for mode in ("form", "url") if mode in elicitation) or ("form",)


# --- as bytes -------------------------------------------------------------------------------------

BUILD_CODEC_VERSION = "6"  # builds stored with another version are built anew

encode_tool = msgspec.msgpack.Encoder(order="deterministic").encode  # their bytes are compared
decode_tool = msgspec.msgpack.Decoder(Tool).decode
encode_build = msgspec.msgpack.Encoder().encode  # between processes and for the store
decode_build = msgspec.msgpack.Decoder(Build).decode


def json_text(value: object) -> bytes:
    """The JSON text of a value, to be kept: what orjson returns takes at least four kilobytes."""
    return b"%b" % orjson.dumps(value)


def json_bytes(value: object) -> bytes:
    """A value as JSON, also where orjson can't write it."""
    try:
        return json_text(value)
    except TypeError:  # huge integers, lone surrogates; the blank tells `json_value`
        return b" " + json.dumps(value, separators=(",", ":")).encode("ascii")


def json_value(data: bytes) -> Any:
    """The value `json_bytes` wrote."""
    return json.loads(data) if data.startswith(b" ") else orjson.loads(data)


def read_json(body: bytes) -> Any:
    """The value of a JSON text, stricter than any one parser. Raises Fixable.

    A key given twice is refused, because the next reader may take the other value; an integer
    beyond 64 bits stays exact. Both show when the value that the fast parser read is written again.
    """
    try:
        value = orjson.loads(body)
        written = orjson.dumps(value)
        if written == body or _is_lossless(body, written):
            return value
        return json.loads(body, object_pairs_hook=_read_object)
    except (ValueError, RecursionError, TypeError):
        raise Fixable("invalid_arguments", "the body is not JSON") from None


_LONG_NUMBER = re.compile(rb"[0-9]{19}")


def _is_lossless(body: bytes, written: bytes) -> bool:
    # Written out again, only the colons of dropped keys are missing; escaped ones upset the count.
    has_all = body.count(b":") == written.count(b":") and body.find(b"\\u003") < 0
    return has_all and _LONG_NUMBER.search(body) is None


def _read_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for key, part in pairs:
        if key in value:
            raise Fixable("invalid_arguments", f"the key {key[:64]!r} is given twice")
        value[key] = part
    return value


def pack(raw: bytes) -> bytes:
    """A document as it is held in memory and stored: about a tenth of its size."""
    return zlib.compress(raw, 1)


unpack = zlib.decompress  # what was packed
_UNGUESSABLE: list[str] = []  # random ends for the next ids


def digest(data: bytes) -> str:
    """The SHA-256 of some bytes, as hex."""
    return hashlib.sha256(data).hexdigest()


def new_id(now: float) -> str:
    """An id that sorts by age: 12 hex digits of time in milliseconds, 20 that nobody can guess."""
    if len(_UNGUESSABLE) < 64:  # more than there are threads; urandom lets them run: ask rarely
        _UNGUESSABLE.extend(re.findall(".{20}", os.urandom(10 * 256).hex()))
    return f"{int(now * 1000):012x}{_UNGUESSABLE.pop()}"
