"""Every table, the types of its columns, and the version of all of them together.

Times are seconds since 1970, UTC. Ids are time-prefixed hex (`model.new_id`), so that they sort
by age. Columns are named as the fields of the frozen row in the module that owns the table. JSON
is kept as the bytes that `model.json_bytes` writes.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.types import TypeDecorator

from gateway.errors import ConfigInvalid
from gateway.model import json_bytes, json_value


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
    return value if value is None or isinstance(value, bytes | int | float) else json_bytes(value)


class Plain(TypeDecorator[str]):
    """Text from outside."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return storable(value)


class Json(TypeDecorator[Any]):
    """A JSON object or list, None as NULL."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return storable(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        return None if value is None else json_value(value)


class Names(Json):
    """A few names, as a tuple."""

    cache_ok = True

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Any:
        return None if value is None else tuple(json_value(value))


Time: Double[float] = Double()

# SQLite counts up by itself only in a column that is spelled INTEGER.
Counter = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData()

# One row: raised in the same transaction as every change that other processes must see.
revision = Table(
    "revision",
    metadata,
    Column("id", Counter, primary_key=True, autoincrement=False),
    Column("value", Counter, nullable=False),
)

facts = Table(
    "facts",
    metadata,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

connections = Table(
    "connections",
    metadata,
    Column("name", Plain, primary_key=True),
    Column("settings", LargeBinary, nullable=False),  # sealed
    Column("revision", Counter, nullable=False),
    Column("updated_at", Time, nullable=False),
    Column("updated_by", Plain, nullable=False),
)

definitions = Table(
    "definitions",
    metadata,
    Column("connection", Plain, primary_key=True),
    Column("location", Plain, primary_key=True),
    Column("etag", Plain),
    Column("last_modified", Plain),
    Column("sha256", Text, nullable=False),
    Column("raw", LargeBinary, nullable=False),  # zlib
    Column("build_key", Text, nullable=False),
    Column("build", LargeBinary, nullable=False),
    Column("fetched_at", Time, nullable=False),
)

validations = Table(
    "validations",
    metadata,
    Column("sha256", Text, primary_key=True),
    Column("problems", Json, nullable=False),
    Column("at", Time, nullable=False),
)

changes = Table(
    "changes",
    metadata,
    Column("id", Text, primary_key=True),
    Column("connection", Plain, nullable=False),
    Column("operation", Plain),
    Column("tool", Plain, nullable=False),
    Column("kind", Text, nullable=False),
    Column("change_class", Text, nullable=False),
    Column("reason", Plain, nullable=False),
    Column("status", Text, nullable=False),
    Column("at", Time, nullable=False),
    Column("by", Plain),
    Column("decided_at", Time),
    Column("before", LargeBinary),
    Column("after", LargeBinary),
    Index("changes_by_connection", "connection", "id"),
    Index("changes_by_status", "status", "id"),
)

choices = Table(
    "choices",
    metadata,
    Column("principal", Plain, primary_key=True),
    Column("connection", Plain, primary_key=True),
    Column("access", Text, nullable=False),
)

permissions = Table(
    "permissions",
    metadata,
    Column("id", Counter, primary_key=True, autoincrement=False),
    Column("settings", Json, nullable=False),
    Column("revision", Counter, nullable=False),
    Column("updated_at", Time, nullable=False),
    Column("updated_by", Plain, nullable=False),
)

executions = Table(
    "executions",
    metadata,
    Column("id", Text, primary_key=True),
    Column("tool", Plain, nullable=False),
    Column("connection", Plain, nullable=False),
    Column("principal", Plain, nullable=False),
    Column("status", Text, nullable=False),
    Column("access", Text, nullable=False),
    Column("risk", Text, nullable=False),
    Column("arguments", Json, nullable=False),
    Column("args_digest", Text, nullable=False),
    Column("result", Json),
    Column("error_code", Text),
    Column("upstream_status", Counter),
    Column("idempotency_token", Plain),
    Column("recorded", Json),
    Column("bundle_ids", Names, nullable=False),
    Column("created_at", Time, nullable=False),
    Column("finished_at", Time),
    Column("revision", Counter, nullable=False),
    Column("reason", Plain, nullable=False),
    Column("session", Plain),
    Column("client", Plain, nullable=False),
    Column("era", Text, nullable=False),
    Column("replica", Text, nullable=False),
    Index("executions_by_age", "created_at", "id"),
    Index("executions_by_status", "status", "created_at", "id"),
    Index("executions_by_tool", "tool", "created_at", "id"),
    Index("executions_by_connection", "connection", "created_at", "id"),
    Index("executions_by_principal", "principal", "created_at", "id"),
    Index(
        "executions_by_token",
        "idempotency_token",
        "created_at",
        "id",
        sqlite_where=text("idempotency_token IS NOT NULL"),
        postgresql_where=text("idempotency_token IS NOT NULL"),
    ),
)

# Who was first with a token. Swept with its execution.
claims = Table(
    "claims",
    metadata,
    Column("principal", Plain, primary_key=True),
    Column("token", Plain, primary_key=True),
    Column("tool", Plain, nullable=False),
    Column("args_digest", Text, nullable=False),
    Column("execution_id", Text, nullable=False),
    Index("claims_by_execution", "execution_id"),
)

replicas = Table(
    "replicas",
    metadata,
    Column("id", Text, primary_key=True),
    Column("host", Plain, nullable=False),
    Column("pid", Counter, nullable=False),
    Column("started_at", Time, nullable=False),
    Column("heartbeat_at", Time, nullable=False),
)

results = Table(
    "results",
    metadata,
    Column("id", Text, primary_key=True),
    Column("principal", Plain, nullable=False, index=True),
    Column("bytes", Counter, nullable=False),
    Column("media_type", Plain, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("expires_at", Time, nullable=False, index=True),
)

approvals = Table(
    "approvals",
    metadata,
    Column("id", Text, primary_key=True),
    Column("execution_id", Text, nullable=False),
    Column("principal", Plain, nullable=False),
    Column("tool", Plain, nullable=False),
    Column("connection", Plain, nullable=False),
    Column("fingerprint", Text, nullable=False),
    Column("args_digest", Text, nullable=False),
    Column("arguments", Json, nullable=False),
    Column("sealed_arguments", LargeBinary, nullable=False),
    Column("session", Plain),
    Column("client", Plain, nullable=False),
    Column("risk", Text, nullable=False),
    Column("method", Plain, nullable=False),
    Column("url", Plain, nullable=False),
    Column("warnings", Names, nullable=False),
    Column("status", Text, nullable=False),
    Column("decided_by", Plain),
    Column("decided_at", Time),
    Column("created_at", Time, nullable=False),
    Column("expires_at", Time, nullable=False),
    Index("approvals_by_status", "status", "expires_at"),
    Index("approvals_by_call", "principal", "tool", "args_digest"),
    Index("approvals_by_execution", "execution_id"),
)

# "Always allow": in one session; where there are none (""), for the client of this name.
standing_grants = Table(
    "standing_grants",
    metadata,
    Column("principal", Plain, primary_key=True),
    Column("tool", Plain, primary_key=True),
    Column("fingerprint", Text, primary_key=True),
    Column("session", Plain, primary_key=True),
    Column("client", Plain, primary_key=True),
    Column("id", Text, nullable=False, index=True, unique=True),
    Column("connection", Plain, nullable=False),
    Column("request", Plain, nullable=False),
    Column("granted_by", Plain, nullable=False),
    Column("created_at", Time, nullable=False),
    Column("expires_at", Time, nullable=False, index=True),
)

# Clients that registered themselves at the front door (RFC 7591).
oauth_clients = Table(
    "oauth_clients",
    metadata,
    Column("id", Text, primary_key=True),
    Column("metadata", Json, nullable=False),
    Column("created_at", Time, nullable=False, index=True),
    Column("used_at", Time),
)

# Which clients a person has allowed, as they described themselves then.
oauth_consents = Table(
    "oauth_consents",
    metadata,
    Column("principal", Plain, primary_key=True),
    Column("client_id", Plain, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("at", Time, nullable=False),
)

oauth_grants = Table(
    "oauth_grants",
    metadata,
    Column("id", Text, primary_key=True),
    Column("code_id", Text, nullable=False, unique=True),
    Column("client_id", Plain, nullable=False),
    Column("client_name", Plain, nullable=False),
    Column("principal", Plain, nullable=False, index=True),
    Column("claimed", Json, nullable=False),
    Column("resource", Plain, nullable=False),
    Column("scope", Text, nullable=False),
    Column("refresh_sha256", Text, nullable=False),
    Column("previous_sha256", Text),
    Column("rotated_at", Time),
    Column("rotated_answer", LargeBinary),  # sealed
    Column("created_at", Time, nullable=False),
    Column("last_used_at", Time, nullable=False),
    Column("expires_at", Time, nullable=False, index=True),
    Column("revoked_at", Time),
)

ended_sessions = Table(
    "ended_sessions",
    metadata,
    Column("id", Plain, primary_key=True),
    Column("expires_at", Time, nullable=False, index=True),
)

# What sessions want to hear of: a resource of a server, or logs from some level on.
wishes = Table(
    "wishes",
    metadata,
    Column("session", Plain, primary_key=True),
    Column("key", Plain, primary_key=True),
    Column("wish", Json, nullable=False),
    Column("expires_at", Time, nullable=False, index=True),
)

windows = Table(
    "windows",
    metadata,
    Column("key", Plain, primary_key=True),
    Column("start", Time, nullable=False, index=True),
    Column("earlier", Counter, nullable=False),
    Column("current", Counter, nullable=False),
)

# What processes tell one another, in the order of commits: see `cluster`. The feed shows two kinds:
# an approval was asked for or decided, a call ended; each with the id.
CONFIRMATION, RESULT = EVENTS = ("confirmation", "result")
signals = Table(
    "signals",
    metadata,
    Column("id", Counter, primary_key=True, autoincrement=True),
    Column("kind", Text, nullable=False),
    Column("payload", Plain, nullable=False),
    Column("at", Time, nullable=False, index=True),
    sqlite_autoincrement=True,
)


VERSION = "release_1"
versions = Table(
    "alembic_version", metadata, Column("version_num", String(32), primary_key=True, nullable=False)
)


def make_tables(connection: Connection) -> None:
    """Makes all tables, unless they are there."""
    if not is_current(connection):
        metadata.create_all(connection)
        connection.execute(insert(revision), {"id": 1, "value": 0})
        connection.execute(insert(versions), {"version_num": VERSION})


def is_current(connection: Connection) -> bool:
    """Whether the tables are there; refuses those of another version than this gateway's.

    There is one version so far. A later one is told apart here from those that came before, and
    says how their tables become its own: the version's table is the one that Alembic reads.
    """
    if not inspect(connection).has_table(versions.name):
        return False
    found = connection.execute(select(versions)).scalar()
    if found != VERSION:
        raise ConfigInvalid(
            [
                f"store.url: the store has the version {found}, and this gateway knows {VERSION}"
                " only. Run the gateway that made it, or begin a new store: move the SQLite file"
                " (and its -wal and -shm) away, or name another PostgreSQL database. Connections"
                " that were put must be put again there"
            ]
        )
    return True
