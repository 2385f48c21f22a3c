"""Every table, in the order a reader meets them. `migrations/` makes them; a test compares the two.

Times are seconds since 1970. Ids are time-prefixed hex (`ids.new_id`), so that they sort by age.
Columns are named as the fields of the frozen row in the module that owns the table.
"""

from __future__ import annotations

from sqlalchemy import Column, Index, LargeBinary, MetaData, Table, Text, text

from gateway.store.statements import Counter, Json, Names, Plain, Time

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
    Column("problems", Json, nullable=False),
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

events = Table(
    "events",
    metadata,
    Column("id", Counter, primary_key=True, autoincrement=True),
    Column("kind", Text, nullable=False),
    Column("data", Json, nullable=False),
    Column("at", Time, nullable=False, index=True),
    sqlite_autoincrement=True,
)

buckets = Table(
    "buckets",
    metadata,
    Column("key", Plain, primary_key=True),
    Column("tokens", Time, nullable=False),
    Column("at", Time, nullable=False, index=True),
    Column("allowed", Counter, nullable=False),
)

# What LISTEN/NOTIFY carries on PostgreSQL, unless it is too large for that.
signals = Table(
    "signals",
    metadata,
    Column("id", Counter, primary_key=True, autoincrement=True),
    Column("kind", Text, nullable=False),
    Column("payload", Plain, nullable=False),
    Column("at", Time, nullable=False, index=True),
    sqlite_autoincrement=True,
)
