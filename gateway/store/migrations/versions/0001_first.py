"""The first tables.

Plain types only: what a past migration made must not change when our column types do.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TEXT = sa.Text()
BLOB = sa.LargeBinary()
TIME: sa.Double[float] = sa.Double()
COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _configuration()
    _definitions()
    _executions()
    _approvals()
    _passing_things()
    op.execute(sa.text("INSERT INTO revision (id, value) VALUES (1, 0)"))


def _key(name: str, kind: Any = TEXT, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, **options)


def _given(name: str, kind: Any = TEXT, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **options)


def _optional(name: str, kind: Any = TEXT) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=True)


def _configuration() -> None:
    op.create_table("revision", _key("id", COUNT, autoincrement=False), _given("value", COUNT))
    op.create_table("facts", _key("name"), _given("value", BLOB))
    op.create_table(
        "connections",
        _key("name"),
        _given("settings", BLOB),
        _given("revision", COUNT),
        _given("updated_at", TIME),
        _given("updated_by"),
    )
    op.create_table("choices", _key("principal"), _key("connection"), _given("access"))
    op.create_table(
        "permissions",
        _key("id", COUNT, autoincrement=False),
        _given("settings", BLOB),
        _given("revision", COUNT),
        _given("updated_at", TIME),
        _given("updated_by"),
    )


def _definitions() -> None:
    op.create_table(
        "definitions",
        _key("connection"),
        _key("location"),
        _optional("etag"),
        _optional("last_modified"),
        _given("sha256"),
        _given("raw", BLOB),
        _given("build_key"),
        _given("build", BLOB),
        _given("fetched_at", TIME),
        _given("problems", BLOB),
    )
    op.create_table("validations", _key("sha256"), _given("problems", BLOB), _given("at", TIME))
    op.create_table(
        "changes",
        _key("id"),
        _given("connection"),
        _optional("operation"),
        _given("tool"),
        _given("kind"),
        _given("change_class"),
        _given("reason"),
        _given("status"),
        _given("at", TIME),
        _optional("by"),
        _optional("decided_at", TIME),
        _optional("before", BLOB),
        _optional("after", BLOB),
        sa.Index("changes_by_connection", "connection", "id"),
        sa.Index("changes_by_status", "status", "id"),
    )


def _executions() -> None:
    op.create_table(
        "executions",
        _key("id"),
        _given("tool"),
        _given("connection"),
        _given("principal"),
        _given("status"),
        _given("access"),
        _given("risk"),
        _given("arguments", BLOB),
        _given("args_digest"),
        _optional("result", BLOB),
        _optional("error_code"),
        _optional("upstream_status", COUNT),
        _optional("idempotency_token"),
        _optional("recorded", BLOB),
        _given("bundle_ids", BLOB),
        _given("created_at", TIME),
        _optional("finished_at", TIME),
        _given("revision", COUNT),
        _given("reason"),
        _optional("session"),
        _given("client"),
        _given("era"),
        _given("replica"),
        sa.Index("executions_by_age", "created_at", "id"),
        sa.Index("executions_by_status", "status", "created_at", "id"),
        sa.Index("executions_by_tool", "tool", "created_at", "id"),
        sa.Index("executions_by_connection", "connection", "created_at", "id"),
        sa.Index("executions_by_principal", "principal", "created_at", "id"),
        sa.Index(
            "executions_by_token",
            "idempotency_token",
            "created_at",
            "id",
            sqlite_where=sa.text("idempotency_token IS NOT NULL"),
            postgresql_where=sa.text("idempotency_token IS NOT NULL"),
        ),
    )
    op.create_table(
        "claims",
        _key("principal"),
        _key("token"),
        _given("tool"),
        _given("args_digest"),
        _given("execution_id"),
        sa.Index("claims_by_execution", "execution_id"),
    )
    op.create_table(
        "replicas",
        _key("id"),
        _given("host"),
        _given("pid", COUNT),
        _given("started_at", TIME),
        _given("heartbeat_at", TIME),
    )


def _approvals() -> None:
    op.create_table(
        "approvals",
        _key("id"),
        _given("execution_id"),
        _given("principal"),
        _given("tool"),
        _given("connection"),
        _given("fingerprint"),
        _given("args_digest"),
        _given("arguments", BLOB),
        _given("sealed_arguments", BLOB),
        _optional("session"),
        _given("client"),
        _given("risk"),
        _given("method"),
        _given("url"),
        _given("warnings", BLOB),
        _given("status"),
        _optional("decided_by"),
        _optional("decided_at", TIME),
        _given("created_at", TIME),
        _given("expires_at", TIME),
        sa.Index("approvals_by_status", "status", "expires_at"),
        sa.Index("approvals_by_call", "principal", "tool", "args_digest"),
        sa.Index("approvals_by_execution", "execution_id"),
    )
    op.create_table(
        "grants",
        _key("principal"),
        _key("tool"),
        _key("fingerprint"),
        _key("session"),
        _given("until", TIME, index=True),
        _given("granted_by"),
    )


def _passing_things() -> None:
    op.create_table(
        "results",
        _key("id"),
        _given("principal"),
        _given("media_type"),
        _given("body", BLOB),
        _given("expires_at", TIME, index=True),
    )
    op.create_table("ended_sessions", _key("id"), _given("expires_at", TIME, index=True))
    op.create_table(
        "buckets",
        _key("key"),
        _given("tokens", TIME),
        _given("at", TIME, index=True),
        _given("allowed", COUNT),
    )
    for name, content, kind in (("events", "data", BLOB), ("signals", "payload", TEXT)):
        op.create_table(
            name,
            _key("id", COUNT, autoincrement=True),
            _given("kind"),
            _given(content, kind),
            _given("at", TIME, index=True),
            sqlite_autoincrement=True,
        )
