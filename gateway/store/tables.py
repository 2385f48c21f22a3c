"""Every row that is kept, the table it is kept in, and the version of all of them together.

A frozen row says what its table's columns are called and what they hold; tables whose rows are
nowhere passed on as a whole name their columns themselves. Times are seconds since 1970, UTC. Ids
are time-prefixed hex (`model.new_id`), so that they sort by age. JSON is kept as the bytes that
`model.json_bytes` writes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeDecorator

from gateway.model import Tool, decode_tool, encode_tool, json_bytes, json_value

metadata = MetaData()


# --- what columns hold ----------------------------------------------------------------------------


def storable(value: Any) -> Any:
    """A value as the store holds it: objects and lists as JSON, which may come as bytes already.

    In text, U+FFFD stands for what PostgreSQL and UTF-8 can't hold: NUL and lone surrogates. They
    are replaced, not removed, so that no such name turns into one we trust.
    """
    if isinstance(value, str):
        if value.isascii() and "\0" not in value:
            return value
        readable = value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        return readable.replace("\0", "\ufffd")
    return value if value is None or isinstance(value, (bytes, int, float)) else json_bytes(value)


class Plain(TypeDecorator[Any]):
    """Text from outside."""

    impl: Any = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return storable(value)


class JsonColumn(Plain):
    """A JSON object, or a list, which comes back as a tuple; None as NULL."""

    impl = LargeBinary
    cache_ok = True

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        content = None if value is None else json_value(value)
        return tuple(content) if isinstance(content, list) else content


class EncodedTool(TypeDecorator[Tool]):
    """A tool; None where another version of the gateway wrote it in a way that can't be read."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else encode_tool(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        try:
            return None if value is None else decode_tool(value)
        except msgspec.MsgspecError:
            return None


Time: Double[float] = Double()

# SQLite counts up by itself only in a column that is spelled INTEGER.
Counter = BigInteger().with_variant(Integer, "sqlite")

_COLUMN_TYPES: Mapping[Any, Any] = {
    str: Plain,
    Literal: Plain,
    int: Counter,
    float: Time,
    bytes: LargeBinary,
    Mapping: JsonColumn,
    tuple: JsonColumn,
    Tool: EncodedTool,
}


def _table(
    name: str, row: type | Mapping[str, Any], *indexes: Index, keys: Iterable[str] = ("id",)
) -> Table:
    """The table of rows with these fields: a column for each, that holds what the field holds."""
    columns = []
    for field, kind in (row if isinstance(row, Mapping) else get_type_hints(row)).items():
        kinds = get_args(kind) if NoneType in get_args(kind) else (kind,)
        column_type = _COLUMN_TYPES[get_origin(kinds[0]) or kinds[0]]
        is_key, nullable = field in keys, NoneType in kinds
        columns.append(
            Column(field, column_type, primary_key=is_key, nullable=nullable, autoincrement=False)
        )
    return Table(name, metadata, *columns, *indexes)


# One row: raised in the same transaction as every change that other processes must see.
revision = _table("revision", {"id": int, "value": int})

facts = _table("facts", {"name": str, "value": bytes}, keys=("name",))

# Put connections, their settings sealed; `revision` is that of the last put.
_PUT = {"revision": int, "first_revision": int | None, "updated_at": float, "updated_by": str}
connections = _table("connections", {"name": str, "settings": bytes, **_PUT}, keys=("name",))

definitions = _table(  # `raw` packed with zlib
    "definitions",
    {"connection": str, "location": str, "etag": str | None, "last_modified": str | None}
    | {"sha256": str, "raw": bytes, "build_key": str, "build": bytes, "fetched_at": float},
    keys=("connection", "location"),
)

validations = _table(
    "validations", {"sha256": str, "problems": Mapping, "at": float}, keys=("sha256",)
)

ChangeDecision = Literal["accepted", "rejected"]
ChangeStatus = Literal["applied", "held", ChangeDecision]


@dataclass(frozen=True, slots=True)
class Change:
    """One operation that was added, removed or changed."""

    operation: str
    tool: str
    kind: Literal["added", "removed", "changed"]
    change_class: Literal["safe", "breaking", "risky"]
    reason: str
    before: Tool | None = None
    after: Tool | None = None
    id: str = ""
    connection: str = ""
    status: ChangeStatus = "applied"
    at: float = 0.0
    by: str | None = None
    decided_at: float | None = None
    organization: str | None = None

    @property
    def content(self) -> tuple[str | None, str, bytes, bytes]:
        """What is changed for whom: two changes of the same content are the same change."""
        before, after = encode_tool(self.before), encode_tool(self.after)
        return self.organization, self.operation, before, after


changes = _table(
    "changes",
    Change,
    Index("changes_by_connection", "connection", "id"),
    Index("changes_by_status", "status", "id"),
)


@dataclass(frozen=True, slots=True)
class FormerName:
    """A name that a tool had, and the operation that it was the name of."""

    connection: str
    name: str
    local_name: str
    operation: str  # the key of the operation: see `catalog.snapshot`
    at: float  # when it got another name


former_names = _table("former_names", FormerName, keys=("connection", "name"))

choices = _table(
    "choices",
    {"principal": str, "connection": str, "access": str},
    keys=("principal", "connection"),
)

permissions = _table(
    "permissions",
    {"id": int, "settings": Mapping, "revision": int, "updated_at": float, "updated_by": str},
)

RightKind = Literal["principal", "role", "bundle", "route"]


@dataclass(frozen=True, slots=True)
class PutRight:
    """A principal, role, bundle or route that was put at run time."""

    kind: RightKind
    name: str  # of a route: WORKFLOW/ROLE
    settings: Mapping[str, Any]  # as in config.toml; of a token its hash alone
    revision: int
    updated_at: float
    updated_by: str


rights = _table("rights", PutRight, keys=("kind", "name"))

ExecutionStatus = Literal[
    "pending_confirmation", "executing", "completed", "failed", "denied", "expired", "unknown"
]


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """One call, as it is now."""

    id: str  # sorts by age
    tool: str  # the tool's name, or that of a raw request
    connection: str  # whose tool it is
    principal: str  # who called
    status: ExecutionStatus  # what became of it, or how far it is
    access: str = ""  # what kind of call it was: read, write or delete
    risk: str = "none"  # none, low, medium or high
    arguments: Mapping[str, Any]  # as they were given, with secrets redacted
    args_digest: str = ""  # of the arguments as they were sent
    created_at: float  # when the call came
    revision: int  # of the catalogue that it was judged by
    result: Mapping[str, Any] | None = None  # {success, output, error, duration_ms}, or null
    error_code: str | None = None  # why it failed
    upstream_status: int | None = None  # the HTTP status that the API answered with
    idempotency_token: str | None = None  # the call's token, where it has one
    recorded: Mapping[str, Any] | None = None  # values of the answer that are kept beside the token
    bundle_ids: tuple[str, ...] = ()  # the bundles that the caller came through
    finished_at: float | None = None  # when it ended; null while it goes on
    reason: str = ""  # of the decision
    session: str | None = None
    client: str = ""
    era: str = ""
    replica: str = ""
    granted: Mapping[str, Any] | None = None  # the standing grant that allowed it: {id, by}
    organization: str | None = None  # the connection's at that time, else the caller's; "": none


executions = _table(
    "executions",
    Execution,
    Index("executions_by_age", "created_at", "id"),
    Index("executions_by_status", "status", "created_at", "id"),
    Index("executions_by_tool", "tool", "created_at", "id"),
    Index("executions_by_connection", "connection", "created_at", "id"),
    Index("executions_by_principal", "principal", "created_at", "id"),
    Index(
        *("executions_by_token", "idempotency_token", "created_at", "id"),
        sqlite_where=text("idempotency_token IS NOT NULL"),
        postgresql_where=text("idempotency_token IS NOT NULL"),
    ),
)

# Which call was first with a token. Swept with its execution.
claims = _table(
    "claims",
    {"principal": str, "token": str, "tool": str, "args_digest": str, "execution_id": str},
    Index("claims_by_execution", "execution_id"),
    keys=("principal", "token"),
)


@dataclass(frozen=True, slots=True)
class Replica:
    """One process of the gateway."""

    id: str
    host: str
    pid: int
    started_at: float
    heartbeat_at: float = 0.0


replicas = _table("replicas", Replica)

AnswerBody = bytes  # `bytes` is a column as well


@dataclass(frozen=True, slots=True)
class LargeResult:
    """One answer, whole."""

    id: str
    principal: str
    bytes: int
    media_type: str
    body: AnswerBody
    expires_at: float


results = _table(
    "results",
    LargeResult,
    Index("ix_results_principal", "principal"),
    Index("ix_results_expires_at", "expires_at"),
)

ApprovalStatus = Literal["pending", "approved", "denied", "expired", "used", "void"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """One call that waits for a decision, or has one."""

    id: str  # sorts by age
    execution_id: str  # the call's own record
    principal: str  # who called
    tool: str  # the tool's name
    connection: str  # whose tool it is
    fingerprint: str
    args_digest: str
    arguments: Mapping[str, Any]  # redacted, for people
    sealed_arguments: bytes  # exact, for the call
    risk: str  # none, low, medium or high
    created_at: float  # when it was asked
    expires_at: float  # when nobody can answer any more
    session: str | None = None  # the client's session, where it has one
    client: str = ""  # the client's own name for itself
    method: str = ""  # the request that would be sent
    url: str = ""  # where it would be sent
    warnings: tuple[str, ...] = ()  # what the person who decides should know
    status: ApprovalStatus = "pending"  # pending, approved, denied, expired, used or void
    decided_by: str | None = None  # who decided
    decided_at: float | None = None  # when they did
    decided_from: str | None = None  # the edge that the decision came in by
    grant_id: str | None = None  # of the standing grant that was given with it
    waits_at: str | None = None  # the process where its caller waits; "": it left; None: no wait
    organization: str | None = None  # the execution's


approvals = _table(
    "approvals",
    Approval,
    Index("approvals_by_status", "status", "expires_at"),
    Index("approvals_by_call", "principal", "tool", "args_digest"),
    Index("approvals_by_execution", "execution_id"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingGrant:
    """ "Always allow": this tool, as it is, for one session or one client, until a time."""

    id: str
    principal: str
    tool: str
    connection: str
    fingerprint: str
    session: str  # "" where the client has none: then it is for the client of that name
    client: str
    request: str  # what was asked about, for people: method and address
    granted_by: str
    created_at: float
    expires_at: float
    organization: str | None = None  # the approval's


standing_grants = _table(
    "standing_grants",
    StandingGrant,
    Index("ix_standing_grants_id", "id", unique=True),
    Index("ix_standing_grants_expires_at", "expires_at"),
    keys=("principal", "tool", "fingerprint", "session", "client"),
)

# Clients that registered themselves at the front door (RFC 7591).
oauth_clients = _table(
    "oauth_clients",
    {"id": str, "metadata": Mapping, "created_at": float, "used_at": float | None},
    Index("ix_oauth_clients_created_at", "created_at"),
)

# Which clients a person has allowed, as they described themselves then.
oauth_consents = _table(
    "oauth_consents",
    {"principal": str, "client_id": str, "digest": str, "scope": str, "at": float},
    keys=("principal", "client_id"),
)


@dataclass(frozen=True, slots=True)
class ClientGrant:
    """Access that a person gave to a client: in their name, to one address, with one scope."""

    id: str
    code_id: str
    client_id: str
    client_name: str
    principal: str
    claimed: Mapping[str, Any]
    resource: str
    scope: str
    refresh_sha256: str
    created_at: float
    last_used_at: float
    expires_at: float
    previous_sha256: str | None = None
    rotated_at: float | None = None
    rotated_answer: bytes | None = None
    revoked_at: float | None = None


oauth_grants = _table(
    "oauth_grants",
    ClientGrant,
    Index("ix_oauth_grants_code_id", "code_id", unique=True),
    Index("ix_oauth_grants_principal", "principal"),
    Index("ix_oauth_grants_expires_at", "expires_at"),
)


@dataclass(frozen=True, slots=True)
class Credential:
    """One person's proof for one connection, or everybody's."""

    owner: str
    connection: str
    binding: str  # the settings that it was given under: it is not used under others
    sealed: bytes
    version: int
    signed_in_at: float
    expires_at: float | None = None
    refused: int = 0  # 1: the other side does not take it any more
    renewer: str | None = None  # the process that asks for new tokens now
    organization: str | None = None  # of the person who signed in, at that time


credentials = _table("credentials", Credential, keys=("owner", "connection"))

# The gateway's client ids at authorization servers where it registered itself.
registrations = _table(
    "registrations",
    {"connection": str, "issuer": str, "sealed": bytes},
    keys=("connection", "issuer"),
)

ended_sessions = _table(
    "ended_sessions",
    {"id": str, "expires_at": float},
    Index("ix_ended_sessions_expires_at", "expires_at"),
)

# What sessions want to hear of: a resource of a server, or logs from some level on.
wishes = _table(
    "wishes",
    {"session": str, "key": str, "wish": Mapping, "expires_at": float},
    Index("ix_wishes_expires_at", "expires_at"),
    keys=("session", "key"),
)

# Which list of tools a client was last given, which one it was told of since, and what lists held.
listed = _table(
    "listed",
    {"principal": str, "session": str, "client": str, "address": str}
    | {"list": str, "told": str | None, "expires_at": float},
    Index("ix_listed_expires_at", "expires_at"),
    Index("ix_listed_list", "list"),
    keys=("principal", "session", "client", "address"),
)
lists = _table("lists", {"id": str, "contents": bytes, "at": float})

windows = _table(
    "windows",
    {"key": str, "start": float, "earlier": int, "current": int},
    Index("ix_windows_start", "start"),
    keys=("key",),
)

# The signals of processes to one another, as committed: see `cluster`. The feed shows two kinds:
# an approval was asked for or decided, a call ended; each with the id.
CONFIRMATION, RESULT = EVENTS = ("confirmation", "result")
signals = Table(
    *("signals", metadata),
    Column("id", Counter, primary_key=True, autoincrement=True),
    Column("kind", Text, nullable=False),
    Column("payload", Plain, nullable=False),
    Column("at", Time, nullable=False, index=True),
    sqlite_autoincrement=True,
)

versions = _table("alembic_version", {"version_num": str}, keys=("version_num",))
